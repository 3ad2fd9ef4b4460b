// Values as people read and write them: durations, numbers, money, times, and texts of others made inert.

const THIN = "\u202f";
// What acts instead of being read, or is not seen: controls, marks of direction, separators of lines, blanks without a
// width, halves of surrogate pairs. Joiners and variants of letters stay: emoji and some scripts need them.
const UNSEEN = /(?![\t\n\u180b-\u180d\u200c\u200d\ufe0e\ufe0f]|\r\n)[\p{Cc}\p{DI}\p{Zl}\p{Zp}\p{Cs}\ufff9-\ufffb]/gu;

const INTEGER = /^[+-]?\d+$/;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/;
const EXACT_LETTERS = 17; // a decimal number that is shorter is kept by a double

/** A duration in seconds: 12 ms, 0.4 s, 42 s, 5 min, 3 h 06 min, 2 d. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  const all = Math.max(0, seconds);
  if (all < 0.0995) return `${Math.ceil(all * 1000)} ms`;
  if (all < 9.95) return `${all.toFixed(1)} s`;
  if (all < 59.5) return `${Math.round(all)} s`;
  const minutes = Math.round(all / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 ? `${hours} h ${String(minutes % 60).padStart(2, "0")} min` : `${hours} h`;
  const days = Math.floor(hours / 24);
  return hours % 24 && days < 10 ? `${days} d ${hours % 24} h` : `${days} d`;
}

/** A count with its thousands apart; "–" for what is not known. Exact numbers keep every digit. */
export function count(value) {
  if (value === null || value === undefined) return "–";
  const text = typeof value === "object" ? digits(value) : String(value);
  return /^-?\d+$/.test(text) ? text.replace(/\B(?=(\d{3})+$)/g, THIN) : text;
}

/** The sum of numbers, null where none is known; as text where a double cannot hold it (see parseExact). */
export function sumOf(values) {
  const known = values.filter((each) => each !== null && each !== undefined);
  if (!known.length) return null;
  const sum = known.reduce((all, each) => all + asNumber(each), 0);
  if (!Number.isInteger(sum) || Number.isSafeInteger(sum)
    || known.some((each) => !Number.isInteger(asNumber(each)))) return sum;
  return String(known.reduce((all, each) => all + BigInt(digits(each)), 0n));
}

/** A number as a double, for shares and comparisons: one that came exact loses digits here. */
export const asNumber = (value) => Number(typeof value === "object" ? digits(value) : value);

/** The tokens of a usage: of all kinds, without the number of requests. */
export const tokensOf = (usage) =>
  sumOf(Object.entries(usage ?? {}).filter(([name]) => name !== "requests").map(([, number]) => number));

/** US dollars: $0.0141 below ten cents, $1.31 above; "–" when the price is not known. */
export function money(cost) {
  if (cost === null || cost === undefined) return "–";
  const value = asNumber(cost);
  if (value >= 0.1 || value === 0) return `$${value.toFixed(2)}`;
  return value < 0.000001 ? "<$0.000001" : `$${value.toFixed(value < 0.001 ? 6 : 4).replace(/0+$/, "")}`;
}

/** One of something, or several: plural(2, "step") is "2 steps". */
export const plural = (number, one, several = `${one}s`) => `${count(number)} ${number === 1 ? one : several}`;

/** A moment with its zone, for hovering: 2026-11-25 12:18:46 UTC. */
export function exactTime(iso) {
  const at = new Date(iso);
  return Number.isNaN(at.getTime()) ? String(iso) : `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

/** The time of a day in this browser's zone, which it names: 12:18 CET, or 24 Nov, 12:18 CET on another day. */
export function clockTime(iso, nowMs) {
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return String(iso);
  const time = at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", timeZoneName: "short" });
  if (new Date(nowMs).toDateString() === at.toDateString()) return time;
  return `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}, ${time}`;
}

/** Text of somebody else: what acts or is not seen is written as \u202e, so that it does nothing. */
export function inert(text) {
  const write = (code) => (code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`);
  return String(text ?? "").replace(UNSEEN, (each) => write(each.codePointAt(0).toString(16)));
}

/** The first line of a text, inert, cut after so many characters. */
export function firstLine(text, most = 160) {
  const line = inert(String(text ?? "").slice(0, 4 * most).trim().split(/\r?\n/, 1)[0]);
  const letters = [...line];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : line;
}

/** A JSON value on one line, cut after so many characters. */
export function brief(value, most = 120) {
  return firstLine(typeof value === "string" ? value : JSON.stringify(value) ?? "", most);
}

/** A call as code: refund(order="4812", cents=3900). */
export function callText(tool, args, most = 140) {
  const given = args && typeof args === "object"
    ? Object.entries(args).map(([name, value]) => `${name}=${JSON.stringify(value)}`) : [];
  return firstLine(`${tool}(${typeof args === "string" ? args : given.join(", ")})`, most);
}

/** An id that is too long for a row: its beginning and its end. The whole one belongs into a title. */
export const shortId = (id) => (id.length > 36 ? `${id.slice(0, 10)}…${id.slice(-6)}` : id);

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
