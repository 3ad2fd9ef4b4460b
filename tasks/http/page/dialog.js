// Dialogs: questions that an action asks once before it happens. The keys of what is shown: one dialog lists them. And
// the place of somebody who uses the keyboard or a screen reader.
import { html, render, useLayoutEffect, useRef, useState } from "./html.js";

/** Show a dialog until it is closed; resolves to what it was closed with, null where it was refused. */
function show(Content, props) {
  const place = document.body.appendChild(document.createElement("div"));
  return new Promise((resolve) => {
    const refuse = () => close(null);
    const close = (answer) => {
      removeEventListener("popstate", refuse);
      render(null, place);
      place.remove();
      resolve(answer);
    };
    addEventListener("popstate", refuse); // it asks about the place that is left
    render(html`<${Frame} title=${props.title} close=${close}><${Content} ...${props} close=${close} /></${Frame}>`,
      place);
  });
}

function Frame({ title, close, children }) {
  const dialog = useRef(null);
  useLayoutEffect(() => dialog.current.showModal(), []); // before the next key is pressed
  const cancel = (event) => {
    event.preventDefault();
    close(null);
  };
  return html`<dialog ref=${dialog} aria-labelledby="dialog-title" onCancel=${cancel}>
    <h2 id="dialog-title">${title}</h2>${children}</dialog>`;
}

/**
 * Ask before something happens that cannot be taken back.
 *
 * @param {object} question title, text (what will happen), action (the word on the button), field (label of a text
 *   that is asked for too; optional), initial (what of lines of text is there already; optional)
 * @returns the text of the field ("" without one), or null when it was refused
 */
export const ask = (question) => show(Question, question);

function Question({ text, action, field, initial, close }) {
  const [given, setGiven] = useState(initial ?? "");
  const onInput = (event) => setGiven(event.target.value);
  const submit = (event) => {
    event.preventDefault();
    close(given);
  };
  return html`<form onSubmit=${submit}><p>${text}</p>
    ${field && html`<label class="field"><span class="label">${field}</span>
      ${initial === undefined ? html`<input value=${given} onInput=${onInput} />`
        : html`<textarea rows="8" value=${given} onInput=${onInput}></textarea>`}</label>`}
    <div class="actions"><button class="button go" type="submit">${action}</button>
      <button class="button" type="button" onClick=${() => close(null)}>Cancel</button></div></form>`;
}

/** Ask which of several to take: title, text, choices as [value, label]. Resolves to the value, or null for none. */
export const choose = (question) => show(Choices, question);

const Choices = ({ text, choices, close }) => html`<p>${text}</p>
  <div class="choices">${choices.map(([value, label]) => html`<button class="button" type="button"
    onClick=${() => close(value)}>${label}</button>`)}</div>
  <div class="actions"><button class="button bare" type="button" onClick=${() => close(null)}>Cancel</button></div>`;

const TYPED = "input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]"; // its keys are text
const groups = new Set();
let first = "";

/** Take keys while this component is shown, single ones or two in a row such as "g i": [keys, what they do, action]. */
export function useKeys(rows) {
  const group = useRef(rows);
  group.current = rows;
  useLayoutEffect(() => { // before the next key is pressed
    groups.add(group);
    return () => groups.delete(group);
  }, []);
}

const Keys = ({ rows, close }) => html`<table class="keys">
    <thead class="unseen"><tr><th>Key</th><th>What it does</th></tr></thead>
    <tbody>${rows.map(([keys, text]) => html`<tr><th scope="row"><kbd>${keys}</kbd></th><td>${text}</td></tr>`)}</tbody>
  </table><div class="actions"><button class="button" type="button" onClick=${() => close(null)}>Close</button></div>`;

/** List the keys that are taken now. */
export const showKeys = () => show(Keys, { title: "Keys", rows: [...groups].flatMap((each) => each.current) });

/** Listen to the keys of the page. */
export function followKeys() {
  addEventListener("keydown", (event) => {
    // Held, it would press the button of the dialog that it has opened.
    if (event.repeat && event.key === "Enter" && event.target.tagName !== "TEXTAREA") event.preventDefault();
    if (event.metaKey || event.ctrlKey || event.altKey || event.defaultPrevented
      || document.querySelector("dialog[open]")) return;
    if (event.target.closest?.(TYPED)) {
      if (event.key === "Escape") {
        path = []; // it was given up: nothing around it takes the focus
        event.target.blur();
      }
      return;
    }
    const all = [["?", "", showKeys], ...[...groups].reverse().flatMap((group) => group.current)];
    const pressed = first ? `${first} ${event.key}` : event.key;
    const found = all.find(([keys]) => keys === pressed) ?? all.find(([keys]) => keys === event.key);
    first = !found && all.some(([keys]) => keys.startsWith(`${event.key} `)) ? event.key : "";
    if (!found) return;
    event.preventDefault();
    found[2]();
  });
}

let path = []; // what had the focus last, in no dialog, and what is around it

/** Where what has the focus goes away or is disabled, the nearest thing around it that is left takes the focus. */
export function keepFocus() {
  const note = ({ type, target }) => {
    if (target.closest("dialog")) return;
    path = []; // what is pointed at takes the focus, or nothing does
    for (let each = type === "focusin" && target; each; each = each.parentElement) path.push(each);
  };
  addEventListener("focusin", note);
  addEventListener("pointerdown", note);
  new MutationObserver(() => {
    const left = path.find((each) => each.isConnected && !each.disabled);
    if (!left || document.activeElement !== document.body) return;
    if (left.tabIndex < 0) left.tabIndex = -1;
    left.focus({ preventScroll: true });
  }).observe(document.body, { subtree: true, childList: true, attributeFilter: ["disabled"] });
}
