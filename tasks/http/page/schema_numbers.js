// Numbers of forms: exact ones, their limits in words, and what was typed as a number.
import { count } from "./format.js";

const INTEGER = /^[+-]?\d+$/;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/;
const EXACT_LETTERS = 17; // a decimal number that is shorter is kept by a double

/** The digits of a number of a schema or of a value, exact ones as well. */
export const digits = (number) => JSON.stringify(number);

/** Whether a value is a number; one beyond 2^53 is an object that JSON.stringify writes as it came. */
export const isNumber = (value) => typeof value === "number" || Boolean(JSON.isRawJSON?.(value));

/** What a schema says of a number. */
export function numberWords(schema) {
  const whole = schema.type === "integer";
  const { minimum, maximum, exclusiveMinimum: above, exclusiveMaximum: below, multipleOf } = schema;
  const parts = [whole ? "whole number" : "number"];
  if (minimum !== undefined && maximum !== undefined) parts.push(`${count(minimum)} to ${count(maximum)}`);
  else if (minimum !== undefined) parts.push(`at least ${count(minimum)}`);
  else if (maximum !== undefined) parts.push(`at most ${count(maximum)}`);
  if (above !== undefined) parts.push(`above ${count(above)}`);
  if (below !== undefined) parts.push(`below ${count(below)}`);
  if (multipleOf !== undefined) parts.push(`a multiple of ${count(multipleOf)}`);
  return parts.join(", ");
}

/** The number that was typed, where it fits its schema; else `fail` gets a sentence. */
export function numberValue({ isInteger, schema }, text, fail) {
  if (isInteger && !INTEGER.test(text)) return fail("Write a whole number, in digits.");
  if (!NUMBER.test(text)) return fail("Write a number, such as 12.5.");
  const { minimum, maximum, exclusiveMinimum: above, exclusiveMaximum: below } = schema;
  if (minimum !== undefined && compare(text, minimum) < 0) return fail(`At least ${count(minimum)}.`);
  if (maximum !== undefined && compare(text, maximum) > 0) return fail(`At most ${count(maximum)}.`);
  if (above !== undefined && compare(text, above) <= 0) return fail(`It must be above ${count(above)}.`);
  if (below !== undefined && compare(text, below) >= 0) return fail(`It must be below ${count(below)}.`);
  return exactNumber(text, fail);
}

/** Compare the digits of a number with a limit: exactly where both are whole. */
function compare(text, limit) {
  const other = digits(limit);
  if (INTEGER.test(text) && INTEGER.test(other)) {
    const difference = BigInt(text.replace("+", "")) - BigInt(other);
    return difference > 0n ? 1 : difference < 0n ? -1 : 0;
  }
  return Number(text) - Number(other);
}

/** A number as JSON.stringify will write it: with the digits that were typed where a double has not all of them. */
function exactNumber(text, fail) {
  const number = Number(text);
  const begun = text.replace("+", "").replace(/^(-?)0+(?=\d)/, "$1").replace(/^(-?)\./, "$10.");
  const written = begun.replace(/\.(?=$|[eE])/, ""); // as JSON writes numbers
  if (!Number.isFinite(number)) return fail("This number is too large.");
  if (String(number) === written) return number;
  if (!INTEGER.test(written) && Math.abs(number) < 2 ** 53 && written.length < EXACT_LETTERS) return number;
  if (JSON.rawJSON) return JSON.rawJSON(written);
  const isLost = Number.isInteger(number) && !Number.isSafeInteger(number);
  return isLost ? fail("This browser cannot send so large a number exactly. Use a newer one.") : number;
}
