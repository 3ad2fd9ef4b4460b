// Questions with options, as the tool ask_user_question asks them: drafts of their answers, and the answers themselves.

/** The questions of a request; null when it asks by a schema. */
export function questionsOf(request) {
  const questions = request.options?.questions;
  return request.kind === "question" && Array.isArray(questions) ? questions : null;
}

/** The draft of a form in which nothing was answered: of each question the places of the chosen options, and a text. */
export const blankAnswers = (questions) => questions.map(() => ({ chosen: [], text: "" }));

/**
 * Make the answers of a draft, by the texts of their questions.
 *
 * @param form {questions, mayWrite}: mayWrite when a free text may answer each of them
 * @param {Map} errors gets what is missing, by the place of its question
 */
export function answersOf({ questions, mayWrite }, draft, errors) {
  const answers = [];
  const choose = mayWrite ? "Choose one, or write an answer." : "Choose one.";
  questions.forEach((each, place) => {
    const { chosen, text } = draft[place];
    const values = chosen.map((option) => each.options[option].value ?? each.options[option].label);
    const free = text.trim();
    if (values.length || free) answers.push([each.question, { values, ...(free ? { free_text: free } : {}) }]);
    else if (each.required !== false) errors.set(String(place), each.options ? choose : "Write an answer.");
  });
  return Object.fromEntries(answers);
}
