// Who acts on this page: a name that is kept with answers and actions (`by`), asked for once and kept in this browser.
import { tokenClaims } from "./api.js";
import { html, useEffect, useState } from "./html.js";

const NAME = "celery-agents.name";
const listeners = new Set();
let name = readName();

function readName() {
  try {
    return localStorage.getItem(NAME) ?? "";
  } catch {
    return ""; // storage is forbidden: the name lives as long as the page
  }
}

/** The field `by` of a request: {} without a name, and with the token of a session, which says itself who bears it. */
export const actor = () => (name.trim() && !tokenClaims() ? { by: name.trim() } : {});

/** The name, and again when it changes. */
export function useName() {
  const [value, setValue] = useState(name);
  useEffect(() => {
    listeners.add(setValue);
    return () => listeners.delete(setValue);
  }, []);
  return value;
}

function setName(given) {
  name = given; // as it is typed: a space at its end may be followed by another word
  try {
    localStorage.setItem(NAME, name);
  } catch {
    // storage is forbidden: the name lives as long as the page
  }
  for (const each of listeners) each(name);
}

/** Says as whom one acts, with a field to change it; with the token of a session its subject. */
export function ActingAs() {
  const given = useName();
  const claims = tokenClaims();
  if (claims) return html`<span class="small dim">You act as ${claims.subject || `session ${claims.session}`}.</span>`;
  return html`<label class="acting small dim">You act as <input value=${given} placeholder="your name" maxlength="200"
    onInput=${(event) => setName(event.target.value)} /></label>`;
}
