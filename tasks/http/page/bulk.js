// Actions on the sessions that are selected: carried out one by one, a few at a time, with each refusal.
import { linkTo } from "./address.js";
import { post, Refusal, request, sessionPath } from "./api.js";
import { ask } from "./dialog.js";
import { count, inert, plural } from "./format.js";
import { html, useRef, useState } from "./html.js";
import { useKeys } from "./keys.js";
import { actor } from "./person.js";

const AT_ONCE = 4;

/** What can be done with many: its word, the request, and what is asked before. */
const ACTIONS = {
  retry: { word: "Retry", send: (id) => post(sessionPath(id, "/retry"), actor()) },
  stop: {
    word: "Stop",
    send: (id) => post(sessionPath(id, "/stop"), { timeout_seconds: 0, ...actor() }),
    question: (number) =>
      `What runs in ${plural(number, "session")} is ended, with the sessions below. What they have done is kept, `
      + "and retry goes on from there.",
  },
  suspend: { word: "Suspend", send: (id) => post(sessionPath(id, "/suspend"), { ...actor() }) },
  resume: { word: "Resume", send: (id) => post(sessionPath(id, "/resume"), { ...actor() }) },
  delete: {
    word: "Delete",
    send: (id) => request("DELETE", sessionPath(id)),
    question: (number) =>
      `${plural(number, "session")} with all they have said and done, and the sessions below, are removed for good. `
      + "What runs is stopped first.",
  },
};

export function Bulk({ selected, rows, onClear, onChanged }) {
  const [report, setReport] = useState(null);
  const isStopped = useRef(false);
  const chosen = rows.filter((each) => selected.has(each.session_id)).map((each) => each.session_id);
  const run = async (name) => {
    const action = ACTIONS[name];
    const number = chosen.length;
    const title = `${action.word} ${plural(number, "session")}?`;
    const text = action.question?.(number);
    if (text && (await ask({ title, text, action: `${action.word} ${number}` })) === null) return;
    isStopped.current = false;
    const told = { action, number, done: 0, refused: [], isOver: false };
    setReport({ ...told });
    const rest = [...chosen];
    const work = async () => {
      while (rest.length && !isStopped.current) {
        const id = rest.shift();
        try {
          await action.send(id);
          told.done += 1;
        } catch (problem) {
          if (!(problem instanceof Refusal)) throw problem;
          told.refused.push([id, problem.message]);
        }
        setReport({ ...told });
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    setReport({ ...told, isOver: true });
    onChanged();
  };
  useKeys(chosen.length ? [
    ["r", `Retry what is selected`, () => run("retry")],
    ["Escape", "Select none", onClear],
  ] : []);
  if (!chosen.length && !report) return null;
  return html`<div class="bulk" role="region" aria-label="Selected sessions">
    <b>${count(chosen.length)} selected</b>
    <div class="actions">
      ${Object.entries(ACTIONS).map(([name, { word, question }]) =>
        html`<button class="button" type="button" disabled=${!chosen.length || (report && !report.isOver)}
      onClick=${() => run(name)}>${word} ${count(chosen.length)}${question ? "…" : ""}</button>`)}</div>
    ${chosen.length > 0 && html`<button class="button bare" type="button" onClick=${onClear}>Select none</button>`}
    ${report && html`<${Report} report=${report} onStop=${() => (isStopped.current = true)}
      onClose=${() => setReport(null)} />`}</div>`;
}

function Report({ report: { action, number, done, refused, isOver }, onStop, onClose }) {
  return html`<div class="told small" role="status">
    <p>${action.word}: ${count(done)} of ${count(number)} done${
      refused.length ? `, ${count(refused.length)} refused` : ""}${isOver ? "." : " …"}
      ${isOver ? html`<button class="button bare" type="button" onClick=${onClose}>Close</button>`
        : html`<button class="button bare" type="button" onClick=${onStop}>End it here</button>`}</p>
    ${refused.length > 0 && html`<ul>${refused.slice(0, 20).map(([id, text]) => html`<li>
      <a class="mono" href=${linkTo("sessions", id)}>${id}</a>: <span dir="auto">${inert(text)}</span></li>`)}
      ${refused.length > 20 && html`<li>and ${refused.length - 20} more</li>`}</ul>`}</div>`;
}
