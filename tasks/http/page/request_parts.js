// Parts of a request's form: what can be filled in or is only shown, equal requests, and refusals.
import { linkTo } from "./address.js";
import { callText, count, inert, plural } from "./format.js";
import { html } from "./html.js";
import { Json, Problem } from "./parts.js";
import { QuestionForm } from "./question_form.js";
import { keyOf } from "./request_words.js";
import { Radios } from "./schema_choices.js";
import { SchemaForm } from "./schema_form.js";

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
    return html`<p class="wrong-text" role="alert">
      The server refused the fields that are marked above. Nothing was written.</p>`;
  }
  if (isAlone) return html`<${Problem} of=${refusal} />`;
  return html`<div class="ask-refused"><${SessionLink} id=${target.session_id} /><${Problem} of=${refusal} /></div>`;
}

/** What was typed for a request that has another answer now. */
export function Unsent({ draft }) {
  const texts = [["Your note", draft.note], ["Your reason", draft.reason]].filter(([, text]) => text);
  return html`<div><p class="small">What you have typed was not sent. It is still here.</p>
    ${texts.map(([name, text]) => html`<p>
      <span class="dim">${name}:</span> <span dir="auto">${inert(text)}</span></p>`)}</div>`;
}
