// Requests to /v1 of the server that this page came from: its token, exact numbers, refusals as sentences.

/** The address of the mount: every other one is relative to it. This file is at page/<tag>/api.js below it. */
export const root = new URL(import.meta.url.slice(0, import.meta.url.lastIndexOf("/page/") + 1));

const TOKEN = "celery-agents.token";
const AWAY = "The API does not answer. Check that celery-agents serve runs; this page tries again by itself.";

/** Told with the refusal when the server asks for a token, or for another one. */
export const UNAUTHORIZED = "celery-agents:unauthorized";

/** A request that was refused, or that reached nothing (status 0). `fields` maps names of fields to what is wrong. */
export class Refusal extends Error {
  constructor(status, detail, errors = null) {
    super(detail || AWAY);
    this.status = status;
    this.fields = new Map((errors ?? []).map((each) => [String(each.field ?? ""), String(each.message ?? "")]));
  }

  /** Whether the same request may succeed later without a change of it. */
  get isTemporary() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

let token = readToken();
let offsetMs = 0; // of the server's clock to this one, by the header Date

function readToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    history.replaceState(null, "", location.pathname + location.search);
    keepToken(given);
    return given;
  }
  try {
    return sessionStorage.getItem(TOKEN) ?? "";
  } catch {
    return ""; // storage is forbidden: the token lives as long as the page
  }
}

function keepToken(value) {
  try {
    if (value) sessionStorage.setItem(TOKEN, value);
    else sessionStorage.removeItem(TOKEN);
  } catch {
    // storage is forbidden: the token lives as long as the page
  }
}

// A link with a token that is opened where the page is shown already changes the address alone.
addEventListener("hashchange", () => {
  const before = token;
  token = readToken();
  if (token !== before) location.reload();
});

/** Use a token for all further requests; "" forgets it. */
export function setToken(value) {
  token = value;
  keepToken(value);
}

export const hasToken = () => token !== "";

/** What a session's token says, {session, scopes, answerTo, subject}; null for a service's token, and without one. */
export function tokenClaims() {
  const [version, claims] = token.split(".");
  if (version !== "ca1" || !claims) return null;
  try {
    const bytes = Uint8Array.from(atob(claims.replaceAll("-", "+").replaceAll("_", "/")), (each) => each.charCodeAt(0));
    const { s, p, c, a, u } = JSON.parse(new TextDecoder().decode(bytes));
    return p === "session" ? { session: s, scopes: c ?? [], answerTo: a ?? null, subject: u ?? "" } : null;
  } catch {
    return null; // no token of ours: the API says what is wrong with it
  }
}

/** The server's time in milliseconds. */
export const serverNow = () => Date.now() + offsetMs;

/** Parse JSON; a number that a double cannot hold stays exact: JSON.stringify writes it as it came. */
export function parseExact(text) {
  if (!/[:,[]\s*-?\d{16}/.test(text)) return JSON.parse(text); // ids in texts may have as many digits
  return JSON.parse(text, (key, value, context) => {
    if (typeof value !== "number" || !context || Number.isSafeInteger(value)
      || !/^-?\d+$/.test(context.source)) return value;
    return JSON.rawJSON ? JSON.rawJSON(context.source) : context.source;
  });
}

export function headers(more = {}) {
  return { ...(token ? { Authorization: `Bearer ${token}` } : {}), ...more };
}

export function addressOf(path, query = {}) {
  const url = new URL(path.replace(/^\//, ""), root);
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

const keys = new Map(); // by path and body: of what is to be done once, and may have been done without a reply

/**
 * Send a request and read its JSON; null for an empty reply.
 *
 * @param {object} more query, body, key (Idempotency-Key), version (If-Match), signal;
 *   isOnce: the same request after a failure that may pass has the same key, and is carried out once
 * @throws {Refusal}
 */
export async function request(method, path, { isOnce, ...more } = {}) {
  if (!isOnce) return send(method, path, more);
  const what = JSON.stringify([path, more.body]);
  if (!keys.has(what)) keys.set(what, newKey());
  let isOpen = false;
  try {
    return await send(method, path, { ...more, key: keys.get(what) });
  } catch (refusal) {
    isOpen = refusal.isTemporary;
    throw refusal;
  } finally {
    if (!isOpen) keys.delete(what);
  }
}

async function send(method, path, { query, body, key, version, signal }) {
  const sent = headers({
    ...(body === undefined ? {} : { "Content-Type": "application/json" }),
    ...(key ? { "Idempotency-Key": key } : {}),
    ...(version === undefined ? {} : { "If-Match": `"${version}"` }),
  });
  let [response, text, value] = [null, "", null];
  try {
    response = await fetch(addressOf(path, query), { method, headers: sent, signal, body: JSON.stringify(body) });
    const date = Date.parse(response.headers.get("Date") ?? "");
    if (date) offsetMs = date + 500 - Date.now(); // the header has whole seconds
    text = await response.text();
    if (response.ok && response.status !== 204) value = parseExact(text);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0); // nothing came, half of it, or the page of another server
  }
  if (!response.ok) throw refusalOf(response.status, text);
  return value;
}

/** A refusal from the text of a problem document (RFC 9457), or of anything else that a proxy may have sent. */
export function refusalOf(status, text) {
  const refusal = parseRefusal(status, text);
  if (status === 401) dispatchEvent(new CustomEvent(UNAUTHORIZED, { detail: refusal }));
  return refusal;
}

function parseRefusal(status, text) {
  try {
    const problem = JSON.parse(text);
    return new Refusal(status, String(problem.detail ?? problem.title ?? ""), problem.errors);
  } catch {
    return new Refusal(status, `The server answered ${status} without a reason. Look into its log.`);
  }
}

/** A key for Idempotency-Key. */
export function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (each) => each.toString(16).padStart(2, "0")).join("");
}

export const get = (path, query, signal) => request("GET", path, { query, signal });
export const post = (path, body = {}, more = {}) => request("POST", path, { ...more, body });

/** The path of a session's resource below /v1. */
export const sessionPath = (id, rest = "") => `v1/sessions/${encodeURIComponent(id)}${rest}`;
