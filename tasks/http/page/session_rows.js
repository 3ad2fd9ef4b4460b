// Sessions of the list: how they are read, one row, the keys that go through them, and actions on those selected.
import { get, post, Refusal, request, sessionPath } from "./api.js";
import { ask, useKeys } from "./dialog.js";
import { count, firstLine, inert, money, plural, shortId } from "./format.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./html.js";
import { usePolled } from "./live.js";
import { Ago, Status } from "./parts.js";
import { Labels, SUSPENDED, WHY } from "./session_head.js";
import { actor, linkTo } from "./state.js";

const PAGE = 50;
const OLDER = 200;
const ENDED = ["completed", "stopped", "failed", "idle"];
const AT_ONCE = 4;
let left = {}; // the list as it was shown last, which Back shows again

/**
 * The listing: its newest page is read again and again, older ones when they are asked for. Rows change where they are;
 * new ones wait until they are asked for, so that nothing moves under the pointer.
 */
export function useSessions({ agent, status, label }) {
  const wanted = `${agent} ${status} ${label}`;
  const [kept, setKept] = useState(() =>
    history.state !== null && left.wanted === wanted ? left : { order: [], byId: new Map(), cursor: null });
  const [olderProblem, setOlderProblem] = useState(null);
  const asked = useRef(null); // of which list an older page is on its way
  const query = { agent, status, label, limit: PAGE };
  const polled = usePolled((signal) => get("v1/sessions", query, signal), [wanted], 3);
  useLayoutEffect(() => kept === left && scrollTo(0, history.state), []);
  useEffect(() => { left = kept; }, [kept]);
  useEffect(() => {
    if (!polled.value) return;
    setKept((before) => {
      const { sessions, cursor } = polled.value;
      const isFirst = before.wanted !== wanted || !before.order.length;
      const byId = new Map(isFirst ? [] : before.byId);
      for (const each of sessions) byId.set(each.session_id, each);
      return isFirst ? { wanted, order: sessions.map((each) => each.session_id), byId, cursor } : { ...before, byId };
    });
  }, [polled.value]);
  const fresh = (polled.value?.sessions ?? []).map((each) => each.session_id);
  const isRead = kept.wanted === wanted;
  const rows = useMemo(() => (isRead ? kept.order.map((id) => kept.byId.get(id)) : []), [kept, isRead]);
  const showNewer = () => setKept((before) => ({ ...before, order: [...new Set([...fresh, ...before.order])] }));
  const readOlder = async () => {
    if (asked.current === wanted) return; // pressed again, or the key is held down
    asked.current = wanted;
    try {
      const page = await get("v1/sessions", { ...query, limit: OLDER, cursor: kept.cursor });
      setOlderProblem(null);
      setKept((before) => {
        if (before.wanted !== wanted || before.cursor !== kept.cursor) return before; // another list is shown
        const byId = new Map([...before.byId, ...page.sessions.map((each) => [each.session_id, each])]);
        const order = [...new Set([...before.order, ...page.sessions.map((each) => each.session_id)])];
        return { wanted, order, byId, cursor: page.cursor };
      });
    } catch (problem) {
      setOlderProblem(problem);
    } finally { asked.current = null; }
  };
  // What should be on the newest page and is not: it has another status by now, or was deleted.
  const end = polled.value?.cursor ? polled.value.sessions.at(-1)?.updated_at : "";
  const isGone = (row) => polled.value && row.updated_at > end && !fresh.includes(row.session_id);
  return {
    isGone, rows, isRead, showNewer, readOlder, refresh: polled.refresh,
    newer: isRead ? fresh.filter((id) => !kept.order.includes(id)).length : 0,
    hasOlder: isRead && kept.cursor !== null,
    problem: polled.problem ?? olderProblem,
    retry: polled.problem ? polled.refresh : readOlder,
  };
}

export function SessionRow({ row, now, isSelected, isAt, isGone, onToggle }) {
  const id = row.session_id;
  const isHeld = row.session_status === "suspended";
  const why = row.problem ?? row.reason;
  const root = id.includes(".") && !row.forked_from && id.split(".")[0];
  const classes = [isSelected && "on", isAt && "at", isGone && "gone"].filter(Boolean).join(" ");
  return html`<tr role="row" id=${`row-${id}`} class=${classes}>
    <td role="cell"><input type="checkbox" aria-label=${`Select ${id}`} checked=${isSelected}
      onChange=${() => onToggle(id)} /></td>
    <th role="rowheader" scope="row" class="full"><a class="first" dir="auto" href=${linkTo("sessions", id)}>
      ${firstLine(row.first_message, 120) || id}</a>
      <span class="dim small">${inert(row.agent)} · <span class="mono" title=${id}>${shortId(id)}</span>
        ${root && html`, below <a class="mono" href=${linkTo("sessions", root)} title=${root}>
          ${firstLine(root, 10)}</a>`}<${Labels} of=${row} /></span></th>
    <td role="cell" class="full"><${Status} status=${row.status} held=${isHeld} archived=${row.is_archived} />
      ${isGone && html` <span class="small">It has changed since, or was deleted.</span>`}
      ${why && html`<div class=${`why ${ENDED.includes(row.status) ? "ended" : ""}`} dir="auto">
        ${firstLine(why, 240)}</div>`}</td>
    <td role="cell" class="number" data-label="steps">${count(row.steps)}</td>
    <td role="cell" class="number" data-label="tokens">${count(row.tokens)}</td>
    <td role="cell" class="number" data-label="cost">${money(row.cost)}</td>
    <td role="cell" class="number" data-label="age"><${Ago} at=${row.created_at} now=${now} /></td></tr>`;
}

/** j, k: the row; x: select it; o: open it. What is scrolled away is not gone back to. */
export function useRowKeys(at, setAt, toggle) {
  const move = (by) => {
    const drawn = [...document.querySelectorAll(".list tbody tr[id]")];
    const current = drawn.findIndex((each) => each.classList.contains("at"));
    const seen = drawn.findIndex((each) => each.getBoundingClientRect().bottom > 0);
    const next = drawn[Math.max(0, Math.min(drawn.length - 1, current < 0 ? seen : current + by))];
    if (!next) return;
    setAt(next.id.slice("row-".length));
    next.querySelector(".first").focus();
  };
  useKeys([
    ["j", "The next session", () => move(1)],
    ["k", "The session before", () => move(-1)],
    ["x", "Select it", () => at && toggle(at)],
    ["/", "Look for words", () => document.querySelector("input[type=search]")?.focus()],
  ]);
}

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
  suspend: {
    word: "Suspend", field: WHY,
    send: (id, given) => post(sessionPath(id, "/suspend"), { reason: given.trim() || SUSPENDED, ...actor() }),
    question: () => "Running steps end. Nothing begins after them, there and below, until they are resumed.",
  },
  resume: { word: "Resume", send: (id) => post(sessionPath(id, "/resume"), actor()) },
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
  const isBusy = report && !report.isOver;
  const run = async (name) => {
    const action = ACTIONS[name];
    const { word, field, question } = action;
    const number = chosen.length;
    const title = `${word} ${plural(number, "session")}?`;
    const given = question && await ask({ title, text: question(number), field, action: `${word} ${number}` });
    if (given === null || isBusy) return;
    isStopped.current = false;
    const told = { action, number, done: 0, refused: [], isOver: false };
    setReport({ ...told });
    const rest = [...chosen];
    const work = async () => {
      while (rest.length && !isStopped.current) {
        const id = rest.shift();
        try {
          await action.send(id, given);
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
    ["r", "Retry what is selected", () => run("retry")],
    ["Escape", "Select none", onClear],
  ] : []);
  if (!chosen.length && !report) return null;
  return html`<div class="bulk" role="region" aria-label="Selected sessions">
    <b>${count(chosen.length)} selected</b>
    <div class="actions">
      ${Object.entries(ACTIONS).map(([name, { word, question }]) =>
        html`<button class="button" type="button" disabled=${!chosen.length || isBusy}
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
