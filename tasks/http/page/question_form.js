// The form of questions with options, as the tool ask_user_question asks them: up to four, each with options or a free text.
import { firstLine, inert } from "./format.js";
import { html } from "./html.js";
import { Glyph } from "./sprite.js";

/** The controls of the questions. */
export function QuestionForm({ id, questions, mayWrite, draft, errors, onChange }) {
  return questions.map((each, place) => html`<${Question} id=${`${id}-${place}`} question=${each} mayWrite=${mayWrite} draft=${draft[place]}
    error=${errors.get(String(place))} onChange=${(changed) => onChange(draft.map((other, at) => (at === place ? changed : other)))} />`);
}

function Question({ id, question, mayWrite, draft, error, onChange }) {
  const { options, header, multi_select: isMany, required } = question;
  const words = [options ? (isMany ? "any of these" : "one of these") : "text", required === false && "optional"].filter(Boolean).join(", ");
  const describedBy = error ? `${id}-error` : undefined;
  const choose = (place, isOn) => {
    const others = isMany ? draft.chosen.filter((each) => each !== place) : [];
    onChange({ ...draft, chosen: isOn ? [...others, place].sort((one, other) => one - other) : others });
  };
  const text = html`<input id=${`${id}-text`} value=${draft.text} dir="auto" autocomplete="off" placeholder=${question.placeholder}
    aria-label=${options ? `Your own words: ${firstLine(question.question)}` : firstLine(question.question)}
    aria-invalid=${error ? "true" : undefined} onInput=${(event) => onChange({ ...draft, text: event.target.value })} />`;
  return html`<fieldset class=${`field whole ${error ? "wrong" : ""}`} aria-describedby=${describedBy}>
    <legend class="question"><b dir="auto">${inert(question.question)}</b> <span class="small dim">${header && html`<span dir="auto">${inert(header)}</span>, `}${words}</span></legend>
    ${options && html`<div class="radios tall">${options.map((each, place) => html`<label>
      <input type=${isMany ? "checkbox" : "radio"} name=${id} checked=${draft.chosen.includes(place)} onChange=${(event) => choose(place, event.target.checked)} />
      <${Option} option=${each} /></label>`)}</div>`}
    ${options && !isMany && draft.chosen.length > 0 && (required === false || mayWrite) && html`<button class="link small" type="button"
      onClick=${() => onChange({ ...draft, chosen: [] })}>Choose none<span class="unseen"> of these: ${firstLine(question.question)}</span></button>`}
    ${(!options || mayWrite) && html`<div class="own">${options && html`<span class="label">${isMany ? "And" : "Or"} in your own words</span>`}${text}</div>`}
    ${error && html`<p class="wrong-text" id=${`${id}-error`}><${Glyph} of="failed" /><span dir="auto">${inert(error)}</span></p>`}</fieldset>`;
}

const Option = ({ option }) => html`<span><span dir="auto">${inert(option.label)}</span>
  ${option.description && html`<small class="dim" dir="auto">${inert(option.description)}</small>`}
  ${option.preview && html`<pre class="preview" dir="auto">${inert(option.preview)}</pre>`}</span>`;
