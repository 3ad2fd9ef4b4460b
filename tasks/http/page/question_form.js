// The form of questions with options, as the tool ask_user_question asks them: each has options, or a free text.
import { firstLine, inert } from "./format.js";
import { html } from "./html.js";
import { Glyph } from "./sprite.js";

/** The controls of the questions. */
export function QuestionForm({ id, questions, mayWrite, draft, errors, onChange }) {
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
  const choose = (place, isOn) => {
    const others = isMany ? draft.chosen.filter((each) => each !== place) : [];
    onChange({ ...draft, chosen: isOn ? [...others, place].sort((one, other) => one - other) : others });
  };
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
        onChange=${({ target }) => choose(place, target.checked)} />
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
