// The place Sessions: what runs, waits and has ended, newest first, with filters and actions on many.
import { linkTo, setQuery, go } from "./address.js";
import { get } from "./api.js";
import { Bulk } from "./bulk.js";
import { count, firstLine, plural } from "./format.js";
import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import { useKeys } from "./keys.js";
import { usePolled } from "./live.js";
import { Chunk, Empty, Problem, useNow } from "./parts.js";
import { Reasons } from "./reasons.js";
import { SavedFilters } from "./saved_filters.js";
import { SessionRow } from "./session_row.js";

const PAGE = 50;
const STATUSES = ["pending", "in_progress", "waiting", "completed", "stopped", "failed", "parked", "unreadable"];

export function Sessions({ query, onUnauthorized }) {
  const agent = query.get("agent") ?? "";
  const status = query.get("status") ?? "";
  const text = query.get("text") ?? "";
  const list = useSessions(agent, status);
  const waiting = usePolled((signal) => get("v1/waiting", { agent }, signal), [agent], 5);
  const agents = usePolled((signal) => get("v1/agents", {}, signal), [], 30);
  const [selected, setSelected] = useState(new Set());
  const [at, setAt] = useState("");
  const now = useNow();
  useEffect(() => setSelected(new Set()), [agent, status]);
  useEffect(() => {
    document.title = "Sessions – celery-agents";
  }, []);
  useEffect(() => {
    if (list.problem?.status === 401) onUnauthorized(list.problem);
  }, [list.problem]);
  const rows = useMemo(() => filterRows(list.rows, text), [list.rows, text]);
  const names = [...new Set([...Object.keys(agents.value ?? {}), ...(agent ? [agent] : [])])].sort();
  const toggle = (id) => {
    const next = new Set(selected);
    if (!next.delete(id)) next.add(id);
    setSelected(next);
  };
  useRowKeys(at, setAt, toggle);
  const chunks = [];
  for (let first = 0; first < rows.length; first += PAGE) chunks.push(rows.slice(first, first + PAGE));
  const isAll = rows.length > 0 && rows.every((each) => selected.has(each.session_id));
  return html`
    <div class="heading"><div><h1>Sessions</h1><p class="dim">${headline(waiting.value, rows, list)}</p></div>
      ${list.newer > 0 && html`<button class="button" type="button" onClick=${list.showNewer}>
        Show ${plural(list.newer, "newer session")}</button>`}</div>
    <${Reasons} waiting=${waiting.value} />
    <div class="filters" role="search">
      <label class="field"><span class="label">Words, among the rows below</span>
        <input type="search" value=${text} onInput=${(event) => setQuery({ text: event.target.value })} /></label>
      <label class="field"><span class="label">Agent</span>
        <select value=${agent} onChange=${(event) => setQuery({ agent: event.target.value })}>
          <option value="">any</option>
          ${names.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>
      <label class="field"><span class="label">Status</span>
        <select value=${status} onChange=${(event) => setQuery({ status: event.target.value })}>
          <option value="">any</option>
          ${STATUSES.map((name) => html`<option value=${name}>${name.replace("_", " ")}</option>`)}</select></label>
      <${SavedFilters} query=${query} />
    </div>
    <${Problem} of=${list.problem} onRetry=${list.refresh} />
    <${Bulk} selected=${selected} rows=${rows} onClear=${() => setSelected(new Set())} onChanged=${list.refresh} />
    ${list.isRead && !rows.length && !list.problem
      ? html`<${NoSessions} isFiltered=${agent || status || text} />`
      : html`<table class="list cards" role="table" aria-label="Sessions, newest first">
        <thead role="rowgroup"><tr role="row">
          <th role="columnheader"><input type="checkbox" aria-label="Select all that are shown" checked=${isAll}
            onChange=${() => setSelected(isAll ? new Set() : new Set(rows.map((each) => each.session_id)))} /></th>
          <th role="columnheader">Session</th><th role="columnheader">Status, and why</th>
          <th role="columnheader" class="number">Steps</th><th role="columnheader" class="number">Tokens</th>
          <th role="columnheader" class="number">Cost</th><th role="columnheader" class="number">Age</th></tr></thead>
        ${chunks.map((chunk, number) => html`<${Chunk} as="tbody" role="rowgroup" key=${number}
          guess=${56 * chunk.length}
            draw=${() => chunk.map((row) => html`<${SessionRow} key=${row.session_id} row=${row} now=${now}
            isSelected=${selected.has(row.session_id)}
            isAt=${at === row.session_id} onToggle=${toggle} />`)} />`)}
      </table>`}
    ${list.hasOlder && html`<div class="part actions"><button class="button" type="button" onClick=${list.readOlder}
      disabled=${list.isReadingOlder}>Older sessions</button></div>`}`;
}

function headline(waiting, rows, list) {
  const open = waiting ? `${count(waiting.total)} ${waiting.total === 1 ? "has" : "have"} not ended. ` : "";
  return rows.length ? `${open}${list.hasOlder ? "The last changed" : "All"} ${count(rows.length)} are below.` : open;
}

function NoSessions({ isFiltered }) {
  if (isFiltered) return html`<${Empty}>No session fits. <a href=${linkTo("sessions")}>Show all</a></${Empty}>`;
  return html`<${Empty} command='celery-agents submit AGENT "Hello"'>
    No session yet. Hand over the first job:</${Empty}>`;
}

function filterRows(rows, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return rows;
  return rows.filter((row) => {
    const all = `${row.first_message} ${row.session_id} ${row.agent} ${row.reason}`.toLowerCase();
    return words.every((word) => all.includes(word));
  });
}

/** j, k: the row; x: select it; o: open it. What is scrolled away is not gone back to. */
function useRowKeys(at, setAt, toggle) {
  const move = (by) => {
    const drawn = [...document.querySelectorAll(".list tbody tr[id]")];
    const current = drawn.findIndex((each) => each.classList.contains("at"));
    const seen = drawn.findIndex((each) => each.getBoundingClientRect().bottom > 0);
    const next = drawn[Math.max(0, Math.min(drawn.length - 1, current < 0 ? seen : current + by))];
    if (!next) return;
    setAt(next.id.slice("row-".length));
    next.scrollIntoView({ block: "nearest" });
  };
  useKeys([
    ["j", "The next session", () => move(1)],
    ["k", "The session before", () => move(-1)],
    ["x", "Select it", () => at && toggle(at)],
    ["o", "Open it", () => at && go(linkTo("sessions", at))],
    ["/", "Look for words", () => document.querySelector("input[type=search]")?.focus()],
  ]);
}

/**
 * The listing: its newest page is read again and again, older ones when they are asked for. Rows change where they are;
 * new ones wait until they are asked for, so that nothing moves under the pointer.
 */
function useSessions(agent, status) {
  const [kept, setKept] = useState({ order: [], byId: new Map(), cursor: null });
  const [isReadingOlder, setReadingOlder] = useState(false);
  const [olderProblem, setOlderProblem] = useState(null);
  const query = { agent, status, limit: PAGE };
  const polled = usePolled((signal) => get("v1/sessions", query, signal), [agent, status], 3);
  const filter = useRef("");
  useEffect(() => {
    if (!polled.value) return;
    const isOther = filter.current !== `${agent} ${status}`;
    filter.current = `${agent} ${status}`;
    setKept((before) => {
      const { sessions, cursor } = polled.value;
      const isFirst = isOther || !before.order.length;
      const byId = new Map(isFirst ? [] : before.byId);
      for (const each of sessions) byId.set(each.session_id, each);
      return isFirst ? { order: sessions.map((each) => each.session_id), byId, cursor } : { ...before, byId };
    });
  }, [polled.value]);
  const fresh = (polled.value?.sessions ?? []).map((each) => each.session_id);
  const known = new Set(kept.order);
  const isRead = polled.value !== null && filter.current === `${agent} ${status}`;
  const rows = useMemo(() => (isRead ? kept.order.map((id) => kept.byId.get(id)) : []), [kept, isRead]);
  const showNewer = () => setKept((before) => ({ ...before, order: [...new Set([...fresh, ...before.order])] }));
  const readOlder = async () => {
    setReadingOlder(true);
    try {
      const page = await get("v1/sessions", { ...query, cursor: kept.cursor });
      setOlderProblem(null);
      setKept((before) => {
        const byId = new Map(before.byId);
        for (const each of page.sessions) byId.set(each.session_id, each);
        const order = [...new Set([...before.order, ...page.sessions.map((each) => each.session_id)])];
        return { order, byId, cursor: page.cursor };
      });
    } catch (problem) {
      setOlderProblem(problem);
    } finally {
      setReadingOlder(false);
    }
  };
  return {
    rows, isRead, isReadingOlder, showNewer, readOlder,
    newer: isRead ? fresh.filter((id) => !known.has(id)).length : 0,
    hasOlder: isRead && kept.cursor !== null,
    problem: polled.problem ?? olderProblem,
    refresh: polled.refresh,
  };
}
