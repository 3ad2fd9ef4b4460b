// What a refused answer says of the fields of its form.

/** What a refusal says of the fields of a form, by their path, such as "items.0.pieces". */
export function fieldErrors(problem, id) {
  const found = new Map();
  for (const [field, message] of problem.fields) {
    const [first, ...others] = message.replace(/\.$/, "").split(/\. (?=(?:args|values)(?:\.[^\s:]+)*: )/);
    const parts = [[field.replace(`answers.${id}.`, ""), first], ...others.map((each) => each.split(/: (.*)/s))];
    for (const [place, text] of parts) {
      const path = /^(?:args|values)(?:\.(.*))?$/s.exec(place);
      if (path) found.set(path[1] ?? "", `${text.charAt(0).toUpperCase()}${text.slice(1)}.`);
    }
  }
  return found;
}

/** What a refusal says of questions with options, by the place of the question that it names. */
export function questionErrors(problem, questions) {
  const found = new Map();
  for (const [field, message] of problem.fields) {
    const place = questions.findIndex(({ question }) => field.includes(question.slice(0, 60)));
    if (place >= 0) found.set(String(place), message);
  }
  return found;
}
