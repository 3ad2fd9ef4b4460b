// A form made from a JSON Schema: a control for each value, its constraints in words, what was changed, what is wrong.
import { brief, inert, plural } from "./format.js";
import { html } from "./html.js";
import { Glyph } from "./parts.js";
import { entryKey, isSame, startOf, valueOf } from "./schema_values.js";

const MOST_RADIOS = 6;
const WIDE = ["list", "object", "json", "many"];
const LEFT_OUT = ["text", "json", "list", "object"]; // by a button; the others have an option for it

/**
 * The controls of a plan, see planOf.
 *
 * @param draft what was typed; see schema_values.js
 * @param before the draft that the agent asked for; with isEdit what differs from it is marked, and can be put back
 * @param {Map} errors by path
 * @param onChange gets the new draft
 */
export function SchemaForm({ id, plan, draft, before, errors, isEdit, onChange }) {
  const form = { id, errors, isEdit };
  if (plan.kind !== "object") {
    return html`<div class="fields"><${Field} ...${{ form, plan, draft, before, onChange }} name="" path="" /></div>`;
  }
  return html`<${Fields} ...${{ form, plan, draft, before, onChange }} path="" />`;
}

function Fields({ form, plan, draft, before, path, onChange }) {
  return html`<div class="fields">${plan.fields.map((field) => {
    const { name } = field;
    return html`<${Field} key=${name} form=${form} plan=${field} name=${name} path=${path ? `${path}.${name}` : name}
      draft=${draft?.[name]} before=${before?.[name]}
      onChange=${(changed) => onChange({ ...draft, [name]: changed })} />`;
  })}</div>`;
}

function Field({ form, plan, name, path, draft, before, onChange }) {
  const id = `${form.id}-${path}`;
  const error = form.errors.get(path);
  const isEdited = form.isEdit && differs(plan, draft, before);
  const empty = before === undefined || before === null ? before : plan.isNullable ? null : undefined;
  const parts = [[plan.about, "about"], [isEdited, "was"], [error, "error"]];
  const notes = parts.filter(([isShown]) => isShown).map(([, name]) => `${id}-${name}`).join(" ");
  const all = { form, plan, name, path, id, draft, before, empty, notes: notes || undefined, error, onChange };
  const [Control, isGroup] = controlOf(plan);
  const words = inert([plan.words, plan.isOptional && "optional"].filter(Boolean).join(", "));
  const head = html`${name && html`<span class="mono" dir="auto">${inert(name)}</span> `}${words}
    ${isEdited && html` <b class="mine">changed by you</b>`}`;
  const about = plan.about && html`<p class="small dim" id=${`${id}-about`} dir="auto">${inert(plan.about)}</p>`;
  const content = html`${isGroup && about}<${Control} ...${all} />
    ${!isGroup && about}<${Foot} ...${all} isEdited=${isEdited} />`;
  const isWhole = WIDE.includes(plan.kind) || plan.isLong || plan.options?.length > 3;
  const classes = ["field", isEdited && "edited", error && "wrong", isWhole && "whole"].filter(Boolean).join(" ");
  if (!isGroup) return html`<div class=${classes}><label class="label" for=${id}>${head}</label>${content}</div>`;
  return html`<fieldset class=${classes} aria-describedby=${all.notes}>
    <legend class="label">${head}</legend>${content}</fieldset>`;
}

/** Whether a value itself differs from what was asked: what differs within a list or an object is said there. */
function differs(plan, draft, before) {
  const isInner = (plan.kind === "object" || plan.kind === "list") && draft && before;
  if (!isInner) return !isSame(draft, before);
  if (plan.kind !== "list") return false;
  return draft.length !== before.length || draft.some((each, place) => each.key !== before[place].key);
}

/** The component of a plan's control, and whether it is a group of several. */
function controlOf({ kind, options }) {
  if (options?.length > MOST_RADIOS && kind === "choice") return [Select, false];
  const group = { choice: Choice, boolean: Choice, many: Many, list: List, object: Nested }[kind];
  return group ? [group, true] : [Text, false];
}

function Foot({ id, plan, draft, before, empty, isEdited, error, onChange }) {
  const isGiven = draft !== undefined && draft !== null && draft !== "";
  const mayLeaveOut = isGiven && (plan.isOptional || plan.isNullable) && LEFT_OUT.includes(plan.kind);
  return html`${isEdited && html`<p class="small" id=${`${id}-was`}>
      The agent asked for <${Before} plan=${plan} draft=${before} />.${" "}
      <button class="link" type="button" onClick=${() => onChange(before)}>Put it back</button></p>`}
    ${mayLeaveOut && html`<p class="small"><button class="link" type="button" onClick=${() => onChange(empty)}>
      ${empty === null ? "Set it to nothing" : "Leave it out"}</button></p>`}
    ${error && html`<p class="wrong-text" id=${`${id}-error`}><${Glyph} of="failed" />
      <span dir="auto">${inert(error)}</span></p>`}`;
}

function Before({ plan, draft }) {
  if (draft === undefined) return html`nothing here`;
  if (plan.kind === "list" && draft) return plural(draft.length, "entry", "entries");
  const value = valueOf(plan, draft, new Map());
  return html`<s class="mono" dir="auto">${value === "" ? "an empty text" : brief(value, 80)}</s>`;
}

function Text({ plan, id, draft, before, empty, notes, error, onChange }) {
  const wasGiven = before !== undefined && before !== null;
  const mayBeEmpty = plan.kind === "text" ? wasGiven : !plan.isOptional && !plan.isNullable;
  const change = ({ target }) => onChange(target.value === "" && !mayBeEmpty ? empty : target.value);
  const placeholder = draft === null ? "nothing" : draft === undefined && plan.isOptional ? leftOut(plan) : undefined;
  const common = {
    id, placeholder, value: draft ?? "", onInput: change, dir: "auto", autocomplete: "off",
    class: plan.kind === "text" ? "" : "mono",
    "aria-invalid": error ? "true" : undefined, "aria-describedby": notes,
  };
  const mode = plan.kind === "number" ? (plan.isInteger ? "numeric" : "decimal") : undefined;
  const shown = inert(draft);
  const isLong = plan.isLong || plan.kind === "json";
  const input = html`<input ...${common} inputmode=${mode} />`;
  return html`${isLong ? html`<textarea ...${common} rows=${rowsOf(draft)} />` : input}
    ${shown !== (draft ?? "") && html`<p class="small">
      It has characters that are not seen: <span class="mono">${shown}</span></p>`}`;
}

function rowsOf(text) {
  const all = String(text ?? "");
  return Math.min(16, Math.max(2, all.split("\n").length + Math.floor(all.length / 90)));
}

function List({ form, plan, name, path, draft, before: asked, onChange }) {
  const entries = draft ?? [];
  const replace = (key, changed) => {
    onChange(entries.map((each) => (each.key === key ? { key, draft: changed } : each)));
  };
  const remove = (key) => onChange(entries.filter((each) => each.key !== key));
  const add = () => onChange([...entries, { key: entryKey(), draft: startOf(plan.item) }]);
  return html`<div class="entries">
    ${draft !== undefined && draft !== null && !entries.length && html`<p class="small dim">No entry.</p>`}
    ${draft === undefined && html`<p class="small dim">${leftOut(plan)}.</p>`}
    ${draft === null && html`<p class="small dim">Nothing.</p>`}
    ${entries.map(({ key, draft: each }, place) => {
      const was = (asked ?? []).find((other) => other.key === key);
      const inner = was ? form : { ...form, isEdit: false };
      return html`<div class="ask-item" key=${key}>
        <${Field} form=${inner} plan=${plan.item} name=${`${place + 1}`} path=${path ? `${path}.${place}` : `${place}`}
          draft=${each} before=${was?.draft} onChange=${(changed) => replace(key, changed)} />
        <button class="link small" type="button" onClick=${() => remove(key)}>
          Remove<span class="unseen"> ${name} ${place + 1}</span></button></div>`;
    })}
    <button class="button" type="button" onClick=${add}>Add one<span class="unseen"> to ${name}</span></button></div>`;
}

function Nested({ form, plan, name, path, draft, before: asked, onChange }) {
  if (draft === undefined || draft === null) {
    const give = () => onChange(startOf({ ...plan, preset: undefined }));
    return html`<p class="small dim">${draft === null ? "Nothing." : `${leftOut(plan)}.`}${" "}
      <button class="link" type="button" onClick=${give}>Give it<span class="unseen"> ${name}</span></button></p>`;
  }
  return html`<${Fields} ...${{ form, plan, draft, before: asked, path, onChange }} />`;
}

/** What is said of a value that is left out. */
function leftOut({ preset }) {
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

function Choice({ plan, id, draft, empty, onChange }) {
  const given = plan.options?.map((each, place) => [place, each.label]) ?? [[true, "yes"], [false, "no"]];
  const options = [...given, ...without(plan, empty)];
  return html`<${Radios} name=${id} options=${options} chosen=${draft} onChange=${onChange} />`;
}

function Select({ plan, id, draft, empty, notes, error, onChange }) {
  const change = ({ target }) => onChange(target.value === "" ? empty : Number(target.value));
  const first = without(plan, empty)[0]?.[1] ?? "Choose one";
  return html`<select id=${id} onChange=${change} aria-invalid=${error ? "true" : undefined} aria-describedby=${notes}>
    <option value="" selected=${typeof draft !== "number"}>${first}</option>
    ${plan.options.map(({ label }, place) => html`<option value=${`${place}`} selected=${draft === place}>
      ${inert(label)}</option>`)}</select>`;
}

/** Places that are chosen, with or without one, in their order. */
export function choose(chosen, place, isOn) {
  const others = chosen.filter((each) => each !== place);
  return isOn ? [...others, place].sort((one, other) => one - other) : others;
}

function Many({ plan, draft, onChange }) {
  const chosen = draft ?? [];
  return html`<div class="radios">${plan.options.map((each, place) => html`<label>
    <input type="checkbox" checked=${chosen.includes(place)}
      onChange=${({ target }) => onChange(choose(chosen, place, target.checked))} />
    <span dir="auto">${inert(each.label)}</span></label>`)}</div>`;
}
