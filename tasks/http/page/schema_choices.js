// Controls that choose among given values: radio buttons, checkboxes and selects.
import { brief, inert } from "./format.js";
import { html } from "./html.js";

/** What is said of a value that is left out. */
export function leftOut({ preset }) {
  return [undefined, null, ""].includes(preset) ? "left out" : `default: ${brief(preset, 40)}`;
}

/** One of several, as radio buttons: options are [value, label]. */
export function Radios({ name, options, chosen, onChange }) {
  return html`<div class="radios">${options.map(([value, label]) => html`<label>
    <input type="radio" name=${name} checked=${chosen === value} onChange=${() => onChange(value)} />
    <span dir="auto">${inert(label)}</span></label>`)}</div>`;
}

/** The options that leave a value out. */
function without(plan, empty) {
  return plan.isOptional || plan.isNullable ? [[empty, empty === null ? "nothing" : leftOut(plan)]] : [];
}

export function Choice({ plan, id, draft, empty, onChange }) {
  const options = [...plan.options.map((each, place) => [place, each.label]), ...without(plan, empty)];
  return html`<${Radios} name=${id} options=${options} chosen=${draft} onChange=${onChange} />`;
}

export function YesOrNo({ plan, id, draft, empty, onChange }) {
  const options = [[true, "yes"], [false, "no"], ...without(plan, empty)];
  return html`<${Radios} name=${id} options=${options} chosen=${draft} onChange=${onChange} />`;
}

export function Select({ plan, id, draft, empty, notes, error, onChange }) {
  const change = ({ target }) => onChange(target.value === "" ? empty : Number(target.value));
  const first = without(plan, empty)[0]?.[1] ?? "Choose one";
  return html`<select id=${id} onChange=${change} aria-invalid=${error ? "true" : undefined} aria-describedby=${notes}>
    <option value="" selected=${typeof draft !== "number"}>${first}</option>
    ${plan.options.map(({ label }, place) => html`<option value=${`${place}`} selected=${draft === place}>
      ${inert(label)}</option>`)}</select>`;
}

export function Many({ plan, draft, onChange }) {
  const chosen = draft ?? [];
  const change = (place, isOn) => {
    const others = chosen.filter((each) => each !== place);
    onChange(isOn ? [...others, place].sort((one, other) => one - other) : others);
  };
  return html`<div class="radios">${plan.options.map((each, place) => html`<label>
    <input type="checkbox" checked=${chosen.includes(place)}
      onChange=${({ target }) => change(place, target.checked)} />
    <span dir="auto">${inert(each.label)}</span></label>`)}</div>`;
}
