// Parts of a request's form: what can be filled in or is only shown, questions with options as ask_user_question asks
// them, equal requests, and refusals.
import { callText, count, firstLine, inert, plural } from "./format.js";
import { html } from "./html.js";
import { Glyph, Json, Problem, Wrong } from "./parts.js";
import { keyOf } from "./request_words.js";
import { choose, Radios, SchemaForm } from "./schema_form.js";
import { linkTo } from "./state.js";

const MOST_LINKS = 12;

/**
 * What a request asks to be filled in, or what it is about where there is nothing to fill in.
 *
 * @param form {questions}, {plan, before, isEdit} or {isRounded}
 * @param values the draft
 */
export function Content({ found, form, values, errors, isOpen, onChange }) {
  const id = `ask-${found.id}`;
  const args = found.args ?? {};
  const call = html`<p class="small dim">Asked by the call <code dir="auto">${callText(found.tool, args)}</code></p>`;
  if (form.questions) {
    return html`<section class="ask-fields"><h3>Your answer</h3>
      <div class="fields"><${QuestionForm} ...${{ id, errors, onChange }} questions=${form.questions}
        mayWrite=${form.mayWrite} draft=${values} /></div></section>`;
  }
  if (form.plan) {
    const title = !form.isEdit ? "Your answer" : isOpen ? "The arguments, yours to change" : "The arguments";
    return html`<section class="ask-fields"><h3>${title}</h3>${!form.isEdit && call}
      <${SchemaForm} ...${{ id, errors, onChange }} plan=${form.plan} draft=${values} before=${form.before}
        isEdit=${form.isEdit} /></section>
      <${Memo} of=${found} />`;
  }
  return html`<section class="ask-fields"><h3>The arguments</h3>
    ${form.isRounded && html`<p>This browser cannot hold one of these numbers exactly, so they cannot be changed here.
      Approved, they are used as they were asked.</p>`}
    ${found.args ? html`<${Arguments} of=${args} />` : html`<p><code dir="auto">${inert(found.call)}</code></p>`}
    </section>
    <${Memo} of=${found} />`;
}

function Arguments({ of }) {
  const entries = Object.entries(of);
  if (!entries.length) return html`<p class="dim">It has none.</p>`;
  return html`<dl class="facts">${entries.map(([name, value]) => html`<dt class="mono" dir="auto">${inert(name)}</dt>
    <dd>${value && typeof value === "object" && !JSON.isRawJSON?.(value)
      ? html`<${Json} value=${value} />`
      : html`<span class="prose" dir="auto">${inert(typeof value === "string" ? value : JSON.stringify(value))}</span>`}
    </dd>`)}</dl>`;
}

/** What the tool has found out before it asked. */
function Memo({ of }) {
  const memo = of.options?.memo;
  if (memo === undefined || memo === null) return null;
  return html`<section class="ask-memo">
    <h3>What the tool noted before it asked</h3><${Json} value=${memo} /></section>`;
}

/** Several equal requests: whether the answer is for all of them. */
export function Equal({ found, equal, isOnlyThis, onChange }) {
  const others = equal.filter((each) => keyOf(each) !== keyOf(found));
  const options = [[false, `all ${count(equal.length)}`], [true, "this one alone"]];
  const isCut = String(found.call ?? "").endsWith("…)");
  const links = others.slice(0, MOST_LINKS).map((each) => html`<${SessionLink} id=${each.session_id} /> `);
  return html`<fieldset class="field ask-equal">
    <legend class="label">${plural(others.length, "other request")} of the same call. Your answer is for</legend>
    <${Radios} name=${`equal-${found.id}`} options=${options} chosen=${isOnlyThis} onChange=${onChange} />
    <p class="small dim">${links}${others.length > MOST_LINKS && `and ${count(others.length - MOST_LINKS)} more. `}
      ${isCut ? "They begin alike. " : ""}One with other arguments is refused, and stays open.</p></fieldset>`;
}

const SessionLink = ({ id }) => html`<a class="mono" dir="auto" href=${linkTo("sessions", id)}>${inert(id)}</a>`;

/** A refused answer as a sentence. */
export function Refused({ target, refusal, isAlone, hasFields }) {
  if (isAlone && hasFields) {
    return html`<div role="alert"><p class="wrong-text">
      The server refused the fields that are marked above. Nothing was written.</p>
      <${Wrong} of=${{ message: "", fields: refusal.fields }} /></div>`;
  }
  if (isAlone) return html`<${Problem} of=${refusal} />`;
  return html`<div class="ask-refused"><${SessionLink} id=${target.session_id} /><${Problem} of=${refusal} /></div>`;
}

/** What was typed for a request that has another answer now, until it is left. */
export function Unsent({ found, draft, isTyped, onLeave }) {
  const texts = [["Your note", draft.note], ["Your reason", draft.reason]].filter(([, text]) => text);
  return html`<div>${isTyped && html`<p class="small">What you have typed was not sent. It is still here. Where it
      matters now, write it to <${SessionLink} id=${found.session_id} /> as a message.</p>`}
    ${texts.map(([name, text]) => html`<p>
      <span class="dim">${name}:</span> <span dir="auto">${inert(text)}</span></p>`)}
    <button class="button" type="button" onClick=${onLeave}>Close</button></div>`;
}

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

/** The controls of the questions. */
function QuestionForm({ id, questions, mayWrite, draft, errors, onChange }) {
  const replace = (place, changed) => onChange(draft.map((each, at) => (at === place ? changed : each)));
  return questions.map((each, place) => html`<${Question} id=${`${id}-${place}`} question=${each} mayWrite=${mayWrite}
    draft=${draft[place]} error=${errors.get(String(place))} onChange=${(changed) => replace(place, changed)} />`);
}

function Question({ id, question, mayWrite, draft, error, onChange }) {
  const { options, header, multi_select: isMany, required } = question;
  const kind = !options ? "text" : isMany ? "any of these" : "one of these";
  const words = [header && inert(header), kind, required === false && "optional"].filter(Boolean).join(", ");
  const name = firstLine(question.question);
  const describedBy = error ? `${id}-error` : undefined;
  const change = (place, isOn) =>
    onChange({ ...draft, chosen: choose(isMany ? draft.chosen : [], place, isOn) });
  const mayUnchoose = options && !isMany && draft.chosen.length > 0 && (required === false || mayWrite);
  const text = html`<input id=${`${id}-text`} value=${draft.text} dir="auto" autocomplete="off"
    placeholder=${question.placeholder} aria-label=${options ? `Your own words: ${name}` : name}
    aria-invalid=${error ? "true" : undefined}
    onInput=${({ target }) => onChange({ ...draft, text: target.value })} />`;
  return html`<fieldset class=${`field whole ${error ? "wrong" : ""}`} aria-describedby=${describedBy}>
    <legend class="question"><b dir="auto">${inert(question.question)}</b>${" "}
      <span class="small dim" dir="auto">${words}</span></legend>
    ${options && html`<div class="radios tall">${options.map((each, place) => html`<label>
      <input type=${isMany ? "checkbox" : "radio"} name=${id} checked=${draft.chosen.includes(place)}
        onChange=${({ target }) => change(place, target.checked)} />
      <${Option} option=${each} /></label>`)}</div>`}
    ${mayUnchoose && html`<button class="link small" type="button" onClick=${() => onChange({ ...draft, chosen: [] })}>
      Choose none<span class="unseen"> of these: ${name}</span></button>`}
    ${(!options || mayWrite) && html`<div class="own">
      ${options && html`<span class="label">${isMany ? "And" : "Or"} in your own words</span>`}${text}</div>`}
    ${error && html`<p class="wrong-text" id=${`${id}-error`}><${Glyph} of="failed" />
      <span dir="auto">${inert(error)}</span></p>`}</fieldset>`;
}

const Option = ({ option }) => html`<span><span dir="auto">${inert(option.label)}</span>
  ${option.description && html`<small class="dim" dir="auto">${inert(option.description)}</small>`}
  ${option.preview && html`<pre class="preview" dir="auto">${inert(option.preview)}</pre>`}</span>`;
