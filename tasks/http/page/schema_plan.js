// Plans a form from a JSON Schema: which control a value has, and what its schema says in words.
import { count, isNumber, numberWords } from "./format.js";

const DEEPEST = 13; // a form of as many fields as 2 to this at most, however often a type holds itself
const MOST_ENTRIES = 50; // of a list that has a control for each; a longer one is JSON
const SHORT = 60; // characters of a text that fits into one line
const FORMATS = {
  date: "a date such as 2026-11-25",
  "date-time": "a time with its zone, such as 2026-11-25T12:00:00Z",
  time: "a time such as 12:00",
  email: "an e-mail address",
  uri: "an address such as https://example.com",
  uuid: "a UUID",
  duration: "a duration such as PT90M",
};

/** A property of a value's own: names such as "constructor" are others' to choose. */
export const own = (value, name) => (value && Object.hasOwn(value, name) ? value[name] : undefined);

const listOf = (value) => (Array.isArray(value) ? value : undefined);
const namesOf = (value) => (isObject(value) ? Object.keys(value) : []);
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value) && !isNumber(value);

/**
 * Plan the control of a value.
 *
 * @param schema JSON Schema; true or {} for any value
 * @param value what is there now; undefined for nothing
 * @returns {kind, name, about, words, isOptional, isNullable, preset, …}: kind is text, number, boolean, choice,
 *   many, list, object, or json for whatever has no form of its own
 */
export function planOf(schema, value, root = schema, depth = 0) {
  const { found, isNullable } = unwrap(schema, root);
  const about = typeof found.description === "string" ? found.description : "";
  const common = { about, isNullable, isOptional: false };
  const plan = { ...common, ...(depth > DEEPEST ? json() : formOf(found, value, root, depth)) };
  if (value !== undefined && !fitsField(plan, value)) return { ...common, ...json() };
  return found.default !== undefined && fitsField(plan, found.default) ? { ...plan, preset: found.default } : plan;
}

const json = () => ({ kind: "json", words: "as JSON" });

/** The schema behind references, and without the null that it allows. */
function unwrap(schema, root) {
  let found = isObject(schema) ? schema : {};
  let isNullable = false;
  for (let hops = 0; hops < DEEPEST; hops += 1) {
    const { $ref, allOf, anyOf, oneOf, ...rest } = found;
    const several = listOf(anyOf ?? oneOf);
    const others = several?.filter((each) => each?.type !== "null");
    const base = $ref !== undefined ? lookUp($ref, root) : listOf(allOf)?.length === 1 && allOf[0];
    // Properties of both have no form together: a schema of which nothing is known is written as JSON.
    if (base) found = base.properties && rest.properties ? { allOf: [] } : { ...base, ...rest };
    else if (several && others.length < several.length && others.length) {
      isNullable = true;
      found = others.length === 1 ? { ...others[0], ...rest } : { anyOf: others, ...rest };
    } else if (Array.isArray(found.type) && found.type.includes("null")) {
      isNullable = true;
      const types = found.type.filter((each) => each !== "null");
      found = { ...found, type: types.length === 1 ? types[0] : types };
    } else return { found, isNullable };
  }
  return { found: {}, isNullable };
}

function lookUp($ref, root) {
  if (typeof $ref !== "string" || !$ref.startsWith("#")) return {};
  const names = $ref.slice(1).split("/").filter(Boolean);
  return names.reduce((at, name) => own(at, name.replaceAll("~1", "/").replaceAll("~0", "~")), root) ?? {};
}

function formOf(schema, value, root, depth) {
  const options = optionsOf(schema);
  if (options) return { kind: "choice", options, words: options.length === 1 ? "always this" : "one of these" };
  switch (schema.type) {
    case "string":
      return textPlan(schema, value);
    case "integer":
    case "number":
      return { kind: "number", isInteger: schema.type === "integer", schema, words: numberWords(schema) };
    case "boolean":
      return { kind: "boolean", words: "yes or no" };
    case "array":
      return listPlan(schema, value, root, depth);
    case "object":
      return schema.patternProperties ? json() : objectPlan(schema, value, root, depth);
    default:
      if (schema.type !== undefined || schema.anyOf || schema.oneOf || schema.allOf) return json();
      // Any value fits: it has the control of the one that is there.
      return formOf({ type: isNumber(value) ? "number" : isObject(value) ? "" : typeof value }, value);
  }
}

/** The options of an enumeration, [{value, label}]; null when the schema is none. */
function optionsOf(schema) {
  const several = listOf(schema.anyOf ?? schema.oneOf);
  const parts = several ?? [schema];
  const found = [];
  for (const part of parts) {
    if (!isObject(part)) return null;
    const values = Object.hasOwn(part, "const") ? [part.const] : Array.isArray(part.enum) ? part.enum : null;
    if (!values) return null;
    const title = several && values.length === 1 ? part.title : null;
    const labelOf = (value) => String(title ?? (typeof value === "string" ? value : JSON.stringify(value)));
    found.push(...values.map((value) => ({ value, label: labelOf(value) })));
  }
  return found.length ? found : null;
}

function textPlan(schema, value) {
  const text = typeof value === "string" ? value : String(schema.default ?? "");
  const isLong = text.length > SHORT || text.includes("\n") || schema.maxLength > SHORT;
  const parts = [FORMATS[schema.format] ?? "text"];
  const { minLength: least, maxLength: most } = schema;
  if (least && least === most) parts.push(`of ${count(most)} characters`);
  else if (least && most) parts.push(`of ${count(least)} to ${count(most)} characters`);
  else if (most) parts.push(`at most ${count(most)} characters`);
  else if (least > 1) parts.push(`at least ${count(least)} characters`);
  if (schema.pattern) parts.push(`of the form ${schema.pattern}`);
  return { kind: "text", isLong, schema, words: parts.join(", ").replace(", of", " of") };
}

function listPlan(schema, value, root, depth) {
  if (schema.prefixItems || !isObject(schema.items)) return json();
  const item = planOf(schema.items, undefined, root, depth + 1);
  const { minItems: least = 0, maxItems: most } = schema;
  const open = least ? `at least ${least}` : "";
  const size = most === undefined ? open : least ? `${least} to ${most}` : `at most ${most}`;
  if (item.kind === "choice" && schema.uniqueItems && !item.isNullable) {
    return { kind: "many", options: item.options, schema, words: size ? `${size} of these` : "any of these" };
  }
  return { kind: "list", item, schema, words: size ? `a list of ${size}` : "a list" };
}

function objectPlan(schema, value, root, depth) {
  const required = listOf(schema.required) ?? [];
  const names = [...new Set([...namesOf(schema.properties), ...namesOf(value), ...required])];
  if (!names.length && schema.additionalProperties !== false) return json();
  const rest = isObject(schema.additionalProperties) ? schema.additionalProperties : {};
  const fields = names.map((name) => ({
    ...planOf(own(schema.properties, name) ?? rest, own(value, name), root, depth + Math.log2(names.length + 1)),
    name,
    isOptional: !required.includes(name),
  }));
  return { kind: "object", fields, words: "" };
}

/** Whether a value can be shown by a plan: arguments of a call need not have the types that its schema names. */
function fits(plan, value) {
  switch (plan.kind) {
    case "text":
      return typeof value === "string";
    case "number":
      return isNumber(value);
    case "boolean":
      return typeof value === "boolean";
    case "choice":
      return indexOf(plan, value) >= 0;
    case "many":
      return Array.isArray(value) && value.every((each) => indexOf(plan, each) >= 0);
    case "list":
      return Array.isArray(value) && value.length <= MOST_ENTRIES && value.every((each) => fitsField(plan.item, each));
    case "object":
      return isObject(value) && Object.keys(value).every((name) => fitsField(fieldOf(plan, name), value[name]));
    default:
      return true;
  }
}

const fieldOf = (plan, name) => plan.fields.find((each) => each.name === name);

function fitsField(field, value) {
  return Boolean(field) && (value === null ? field.isNullable || field.kind === "json" : fits(field, value));
}

/** The place of a value among the options of a choice; -1 when it is none of them. */
export function indexOf(plan, value) {
  const text = JSON.stringify(value);
  return plan.options.findIndex((each) => JSON.stringify(each.value) === text);
}
