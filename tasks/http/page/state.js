// What outlives a place: the address of the page, which can be sent to a colleague; and what this browser keeps between
// visits: theme, saved filters, requests put away, and the name that one acts under, which goes with actions (`by`).
// Where storage is forbidden, it lives as long as the page.
import { post, root, sessionPath, tokenClaims } from "./api.js";
import { html, useEffect, useState } from "./html.js";

const PLACES = ["sessions", "requests", "tree", "fleet"];
const CHANGED = "celery-agents:address";

/** Read the current address: {place, id, query}; the place of an unknown address is "unknown". */
function readAddress() {
  const [place = "", id = "", ...rest] = location.pathname.slice(root.pathname.length).split("/");
  const query = new URLSearchParams(location.search);
  try {
    const name = place || "sessions";
    if (!PLACES.includes(name) || rest.some(Boolean)) return { place: "unknown", id: "", query };
    return { place: name === "sessions" && id ? "session" : name, id: decodeURIComponent(id), query };
  } catch {
    return { place: "unknown", id: "", query }; // malformed %-escapes
  }
}

/** The address of a place: linkTo("sessions", "order-7") or linkTo("sessions", "", {status: "failed"}). */
export function linkTo(place, id = "", query = {}) {
  const url = new URL(id ? `${place}/${encodeURIComponent(id)}` : place, root);
  for (const [name, value] of Object.entries(query)) if (value) url.searchParams.set(name, value);
  return url.pathname + url.search;
}

/** Go to an address of this page without loading it anew. What is left keeps how far it was scrolled, for Back. */
export function go(href, { replace = false } = {}) {
  if (!replace) history.replaceState(scrollY, "");
  history[replace ? "replaceState" : "pushState"](null, "", href);
  dispatchEvent(new Event(CHANGED));
}

/** Fork a session, and go to the copy unless one has gone elsewhere meanwhile. */
export async function forkSession(id, body) {
  const place = location.pathname;
  const { session_id: made } = await post(sessionPath(id, "/fork"), body, { isOnce: true });
  if (place === location.pathname) go(linkTo("sessions", made));
}

/** Change parts of the query of the current place; an empty value removes one. */
export function setQuery(changes) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(changes)) {
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }
  go(url.pathname + url.search + url.hash, { replace: true });
}

/** The address, and again whenever it changes. */
export function useAddress() {
  const [address, setAddress] = useState(readAddress);
  useEffect(() => {
    const read = () => setAddress(readAddress());
    addEventListener("popstate", read);
    addEventListener(CHANGED, read);
    return () => {
      removeEventListener("popstate", read);
      removeEventListener(CHANGED, read);
    };
  }, []);
  return address;
}

/** Follow links to places of this page by `go`; others, and clicks with a key held, are the browser's. */
export function followLinks() {
  addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey
      || event.altKey) return;
    const url = new URL(link.href);
    const isPlace = PLACES.includes(url.pathname.slice(root.pathname.length).split("/")[0]);
    if (url.origin !== location.origin || !url.pathname.startsWith(root.pathname) || !isPlace || link.target
      || link.download) return;
    if (url.pathname === location.pathname && url.search === location.search && url.hash) return;
    event.preventDefault();
    go(url.pathname + url.search + url.hash);
    if (url.pathname !== location.pathname || !url.hash) scrollTo(0, 0);
  });
}

const values = new Map();
const listeners = new Map(); // names to sets of functions

const keyOf = (name) => `celery-agents.${name}`;

/** A text that is kept under a name; "" for none. */
function readKept(name) {
  try {
    return localStorage.getItem(keyOf(name)) ?? "";
  } catch {
    return values.get(name) ?? "";
  }
}

/** The JSON that is kept under a name; `otherwise` where it is none, or not what `isSound` accepts. */
export function parseKept(text, otherwise, isSound) {
  try {
    const found = JSON.parse(text);
    return isSound(found) ? found : otherwise;
  } catch {
    return otherwise;
  }
}

function keep(name, text) {
  values.set(name, text);
  try {
    localStorage.setItem(keyOf(name), text);
  } catch {
    // storage is forbidden
  }
  for (const each of listeners.get(name) ?? []) each(text);
}

/** A text that is kept under a name, and a function that keeps another one; again when it changes, in any tab. */
export function useKept(name) {
  const [text, setText] = useState(() => readKept(name));
  useEffect(() => {
    const all = listeners.get(name) ?? new Set();
    listeners.set(name, all.add(setText));
    const onStorage = (event) => event.key === keyOf(name) && setText(readKept(name));
    addEventListener("storage", onStorage);
    return () => {
      all.delete(setText);
      removeEventListener("storage", onStorage);
    };
  }, []);
  return [text, (given) => keep(name, given)];
}

/** The field `by` of a request: {} without a name, and with the token of a session, which says itself who bears it. */
export function actor() {
  const name = readKept("name").trim();
  return name && !tokenClaims() ? { by: name } : {};
}

/** Says as whom one acts, with a field to change it; with the token of a session its subject. */
export function ActingAs() {
  const [name, setName] = useKept("name");
  const claims = tokenClaims();
  if (claims) return html`<span class="small dim">You act as ${claims.subject || `session ${claims.session}`}.</span>`;
  return html`<label class="acting small dim">You act as <input value=${name} placeholder="your name" maxlength="200"
    onInput=${(event) => setName(event.target.value)} /></label>`;
}
