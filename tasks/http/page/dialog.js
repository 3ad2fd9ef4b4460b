// Questions that an action asks once before it happens, and the list of keys.
import { html, render, useEffect, useRef, useState } from "./html.js";

/**
 * Ask before something happens that cannot be taken back.
 *
 * @param {object} question title, text (what will happen), action (the word on the button), field (label of a text
 *   that is asked for too; optional)
 * @returns the text of the field ("" without one), or null when it was refused
 */
export function ask(question) {
  const place = document.body.appendChild(document.createElement("div"));
  const before = document.activeElement;
  return new Promise((resolve) => {
    const close = (answer) => {
      render(null, place);
      place.remove();
      before?.focus?.();
      resolve(answer);
    };
    render(html`<${Question} ...${question} onClose=${close} />`, place);
  });
}

function Question({ title, text, action, field, onClose }) {
  const dialog = useRef(null);
  const [given, setGiven] = useState("");
  useEffect(() => dialog.current.showModal(), []);
  const submit = (event) => {
    event.preventDefault();
    onClose(given);
  };
  return html`<dialog ref=${dialog} aria-labelledby="ask-title"
    onCancel=${(event) => (event.preventDefault(), onClose(null))}>
    <form onSubmit=${submit}>
      <h2 id="ask-title">${title}</h2>
      <p>${text}</p>
      ${field && html`<label class="field"><span class="label">${field}</span>
        <input value=${given} onInput=${(event) => setGiven(event.target.value)} /></label>`}
      <div class="actions"><button class="button go" type="submit">${action}</button>
        <button class="button" type="button" onClick=${() => onClose(null)}>Cancel</button></div>
    </form></dialog>`;
}

/** Ask which of several to take: choices are [value, label]. Resolves to the value, or null for none. */
export function choose(question) {
  const place = document.body.appendChild(document.createElement("div"));
  const before = document.activeElement;
  return new Promise((resolve) => {
    const close = (value) => {
      render(null, place);
      place.remove();
      before?.focus?.();
      resolve(value);
    };
    render(html`<${Choices} ...${question} onClose=${close} />`, place);
  });
}

function Choices({ title, text, choices, onClose }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} aria-labelledby="choose-title"
    onCancel=${(event) => (event.preventDefault(), onClose(null))}>
    <h2 id="choose-title">${title}</h2><p>${text}</p>
    <div class="choices">
      ${choices.map(([value, label]) => html`<button class="button" type="button"
        onClick=${() => onClose(value)}>${label}</button>`)}</div>
    <div class="actions"><button class="button bare" type="button" onClick=${() => onClose(null)}>Cancel</button></div>
    </dialog>`;
}

/** Show the keyboard shortcuts: rows of [keys, what they do]. */
export function showKeys(rows) {
  const place = document.body.appendChild(document.createElement("div"));
  const before = document.activeElement;
  const close = () => {
    render(null, place);
    place.remove();
    before?.focus?.();
  };
  render(html`<${Keys} rows=${rows} onClose=${close} />`, place);
}

function Keys({ rows, onClose }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} aria-labelledby="keys-title"
    onCancel=${(event) => (event.preventDefault(), onClose())}>
    <h2 id="keys-title">Keys</h2>
    <table class="keys"><thead class="unseen"><tr><th>Key</th><th>What it does</th></tr></thead>
      <tbody>${rows.map(([keys, text]) => html`<tr><th scope="row"><kbd>${keys}</kbd></th><td>${text}</td></tr>`)}
        </tbody></table>
    <div class="actions"><button class="button" type="button" onClick=${onClose}>Close</button></div></dialog>`;
}
