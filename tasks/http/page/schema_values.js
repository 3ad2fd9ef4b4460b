// The drafts of a form: what a person has typed, by the plan of its schema, and the value that is made of it.
//
// A draft is a text for texts, numbers and JSON; true or false; the place of an option, or places; a list of
// {key, draft}; an object of drafts. undefined is left out, null is null.
import { count, digits, isNumber, numberValue } from "./format.js";
import { indexOf, own } from "./schema_plan.js";

let lastKey = 0;

/** A key that names a new entry of a list as long as it is edited. */
export const entryKey = () => (lastKey += 1);

/** The draft of a value that is there already; `undefined` where it is left out. */
export function draftOf(plan, value) {
  if (value === undefined || value === null) return plan.kind === "json" && value === null ? "null" : value;
  switch (plan.kind) {
    case "number":
      return digits(value);
    case "choice":
      return indexOf(plan, value);
    case "many":
      return value.map((each) => indexOf(plan, each));
    case "list":
      return value.map((each) => ({ key: entryKey(), draft: draftOf(plan.item, each) }));
    case "object":
      return Object.fromEntries(plan.fields.map((field) => [field.name, draftOf(field, own(value, field.name))]));
    case "json":
      return JSON.stringify(value, null, 2);
    default:
      return value;
  }
}

/** The draft that a new value begins with. */
export function startOf(plan) {
  if (plan.preset !== undefined) return draftOf(plan, plan.preset);
  switch (plan.kind) {
    case "choice":
      return plan.options.length === 1 && !plan.isOptional ? 0 : undefined;
    case "many":
    case "list":
      return plan.isOptional ? undefined : [];
    case "object":
      return Object.fromEntries(plan.fields.map((field) => [field.name, startOfField(field)]));
    default:
      return undefined;
  }
}

const startOfField = (field) =>
  (field.isOptional || field.isNullable) && field.kind === "object" ? undefined : startOf(field);

/** A draft without the keys of its lists, to be compared. */
function plain(draft) {
  const inner = (each) => (typeof each === "object" ? { draft: plain(each.draft) } : each);
  if (Array.isArray(draft)) return draft.map(inner);
  if (draft === null || typeof draft !== "object") return draft;
  return Object.fromEntries(Object.entries(draft).map(([name, each]) => [name, plain(each)]));
}

/** Whether two drafts are of the same value. */
export const isSame = (one, other) => JSON.stringify(plain(one)) === JSON.stringify(plain(other));

/** The number of fields that differ; a list counts as one. */
export function countChanges(plan, draft, before) {
  if (isSame(draft, before)) return 0;
  if (plan.kind !== "object" || !draft || !before) return 1;
  const changes = plan.fields.map((field) => countChanges(field, own(draft, field.name), own(before, field.name)));
  return changes.reduce((sum, each) => sum + each, 0);
}

/**
 * Make the value of a draft.
 *
 * @param {Map} errors gets what is wrong, by the path of its field, such as "items.0.pieces"
 * @returns the value; undefined where it is left out or wrong
 */
export function valueOf(plan, draft, errors, path = "") {
  const fail = (text) => void errors.set(path, text);
  if (draft === undefined && plan.isOptional) return undefined;
  if (draft === undefined) return fail(["choice", "boolean"].includes(plan.kind) ? "Choose one." : "This is needed.");
  if (draft === null) return null;
  const below = (name) => (path ? `${path}.${name}` : String(name));
  switch (plan.kind) {
    case "text":
      return textValue(plan.schema, draft, fail);
    case "number":
      return numberValue(plan, draft.trim(), fail);
    case "choice":
      return plan.options[draft].value;
    case "many":
      checkSize(plan.schema, draft.length, fail);
      return draft.map((each) => plan.options[each].value);
    case "list":
      checkSize(plan.schema, draft.length, fail);
      return draft.map((each, place) => valueOf(plan.item, each.draft, errors, below(place)));
    case "object":
      return objectValue(plan, draft, (field) => valueOf(field, own(draft, field.name), errors, below(field.name)));
    case "json":
      return jsonValue(draft, fail);
    default:
      return draft;
  }
}

function objectValue(plan, draft, read) {
  const values = plan.fields.map((field) => [field.name, read(field)]);
  return Object.fromEntries(values.filter(([, value]) => value !== undefined));
}

/** A text that fits its schema. Its pattern is left to the server: this browser reads others, and may not end. */
function textValue({ minLength = 0, maxLength = Infinity }, text, fail) {
  const length = [...text].length;
  const excess = length - maxLength;
  const most = `at most ${count(maxLength)} fit`;
  if (excess > 0) return fail(`${count(length)} characters, ${most}. Shorten it by ${count(excess)}.`);
  if (length < minLength) return fail(`${count(length)} characters, at least ${count(minLength)} are needed.`);
  return text;
}

function checkSize({ minItems: least = 0, maxItems: most = Infinity }, size, fail) {
  if (size < least) fail(`${size} given, at least ${least} are needed.`);
  if (size > most) fail(`${size} given, at most ${most} fit.`);
}

function jsonValue(text, fail) {
  try {
    return parseAll(text);
  } catch (error) {
    return fail(`This is no JSON: ${error.message}.`);
  }
}

/** Parse JSON with every number as it was typed. */
function parseAll(text) {
  return JSON.parse(text, (key, value, context) => {
    if (typeof value !== "number" || !context || !JSON.rawJSON || digits(value) === context.source) return value;
    return JSON.rawJSON(context.source);
  });
}

/** The draft at a path such as "items.0.pieces"; "" is the whole. */
export function at(draft, path) {
  if (!path) return draft;
  return path.split(".").reduce((found, name) => {
    const next = Array.isArray(found) ? found[Number(name)] : own(found, name);
    return Array.isArray(found) && next && Object.hasOwn(next, "draft") ? next.draft : next;
  }, draft);
}

/** Whether a browser without exact numbers has rounded one of a value: then it must not be sent back. */
export function isRounded(value) {
  if (isNumber(value)) return typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value);
  return Boolean(value) && typeof value === "object" && Object.values(value).some(isRounded);
}
