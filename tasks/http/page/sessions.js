// The place Sessions: what runs, waits and has ended, newest first, with filters and actions on many.
import { get } from "./api.js";
import { ask } from "./dialog.js";
import { count, plural } from "./format.js";
import { Chunks, Head, html, useEffect, useMemo, useRef, useState } from "./html.js";
import { usePolled } from "./live.js";
import { Empty, Filled, Key, Problem, useNow, useTitle } from "./parts.js";
import { labelsOf } from "./session_head.js";
import { Bulk, SessionRow, useRowKeys, useSessions } from "./session_rows.js";
import { linkTo, parseKept, setQuery, useKept } from "./state.js";

const STATUSES = "idle pending in_progress waiting completed stopped failed parked unreadable".split(" ");
const NUMBERS = ["Steps", "Tokens", "Cost", "Age"].map((each) => [each, "number"]);
const FILTERS = ["agent", "status", "label", "text"];
const GAP = 0.3; // percent between shares
const FULL = 40; // sessions fill the band
const STATUS_OF = {
  running: "in_progress", queue: "pending", person: "waiting", child: "waiting", service: "waiting", parked: "parked",
};

export function Sessions({ query }) {
  const agent = query.get("agent") ?? "";
  const status = query.get("status") ?? "";
  const label = query.get("label") ?? "";
  const text = query.get("text") ?? "";
  const list = useSessions({ agent, status, label });
  const hasRows = useRef(false); // they are wanted first
  hasRows.current ||= list.isRead;
  const waiting = usePolled((signal) => get("v1/waiting", { agent }, signal), [agent], 5, hasRows.current);
  const agents = usePolled((signal) => get("v1/agents", {}, signal), [], 30, hasRows.current);
  const [selected, setSelected] = useState(new Set());
  const [at, setAt] = useState("");
  const now = useNow();
  useEffect(() => setSelected(new Set()), [agent, status, label]);
  useTitle("Sessions");
  const rows = useMemo(() => filterRows(list.rows, text), [list.rows, text]);
  const names = [...new Set([...Object.keys(agents.value ?? {}), ...(agent ? [agent] : [])])].sort();
  const toggle = (id) => {
    const next = new Set(selected);
    if (!next.delete(id)) next.add(id);
    setSelected(next);
  };
  useRowKeys(rows.some((each) => each.session_id === at) ? at : "", setAt, toggle);
  const isAll = rows.length > 0 && rows.every((each) => selected.has(each.session_id));
  const all = html`<input type="checkbox" aria-label="Select all that are shown" checked=${isAll}
    onChange=${() => setSelected(isAll ? new Set() : new Set(rows.map((each) => each.session_id)))} />`;
  const drawRow = (row) => {
    const id = row.session_id;
    return html`<${SessionRow} key=${id} row=${row} now=${now} isSelected=${selected.has(id)} isAt=${at === id}
      isGone=${list.isGone(row)} onToggle=${toggle} />`;
  };
  return html`
    <div class="heading"><div><h1 dir="auto">Sessions${label && ` with ${label}`}</h1><p class="dim">
      ${headline(waiting.value, rows, list, agent || status || label || text)}</p></div>
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
    <${Problem} of=${list.problem} onRetry=${list.retry}>${(agent || status || label)
      && html`<a href=${linkTo("sessions")}>Show all sessions</a>`}</${Problem}>
    <${Bulk} selected=${selected} rows=${rows} onClear=${() => setSelected(new Set())} onChanged=${list.refresh} />
    ${list.isRead && !rows.length && !list.problem
      ? html`<${NoSessions} isFiltered=${agent || status || label || text} />`
      : html`<table class="list cards" role="table" aria-label="Sessions, newest first">
        <${Head} columns=${[[all], ["Session"], ["Status, and why"], ...NUMBERS]} />
        <${Chunks} as="tbody" role="rowgroup" columns="7" guess=${56} items=${rows} draw=${drawRow} />
      </table>`}
    ${list.hasOlder && html`<div class="part actions"><button class="button" type="button" onClick=${list.readOlder}>
      Older sessions</button></div>`}`;
}

function headline(waiting, rows, list, isFiltered) {
  const number = waiting?.total ?? 0;
  const open = number ? `${count(number)} ${number === 1 ? "has" : "have"} not ended. ` : "";
  if (!rows.length) return open;
  const fit = isFiltered ? " that fit" : "";
  return `${open}${list.hasOlder ? "The last changed" : "All"} ${count(rows.length)}${fit} are below.`;
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
    const all = `${row.first_message} ${row.session_id} ${row.agent} ${row.reason} ${labelsOf(row)}`.toLowerCase();
    return words.every((word) => all.includes(word));
  });
}

/** Filters that one comes back to: named, and kept in this browser. */
function SavedFilters({ query }) {
  const [text, keep] = useKept("filters");
  const saved = parseKept(text, [], Array.isArray).filter((each) => Array.isArray(each) && typeof each[0] === "string");
  const current = Object.fromEntries([...query].filter(([name]) => FILTERS.includes(name)));
  const keepAll = (next) => keep(JSON.stringify(next));
  const save = async () => {
    const given = await ask({ title: "Save this filter", text: "It is kept in this browser.", field: "Name",
      action: "Save" });
    const name = given?.trim();
    if (name) keepAll([...saved.filter((each) => each[0] !== name), [name, current]]);
  };
  return html`<button class="button" type="button" disabled=${!Object.keys(current).length}
    onClick=${save}>Save this filter</button>
    <div class="saved"><a href=${linkTo("sessions")}>All</a>
      ${["Failed", "Waiting", "Parked"].map((each) => html`
        <a href=${linkTo("sessions", "", { status: each.toLowerCase() })}>${each}</a>`)}
      ${saved.map(([name, values]) => html`<span><a href=${linkTo("sessions", "", values)} dir="auto">${name}</a>
        <button class="button bare" type="button" aria-label=${`Forget the filter ${name}`}
          onClick=${() => keepAll(saved.filter((each) => each[0] !== name))}>×</button></span>`)}</div>`;
}

/** Why sessions have not ended, counted: a band of shares. `waiting` is the reply of GET /v1/waiting, null at first. */
function Reasons({ waiting }) {
  if (!waiting) return null;
  const present = waiting.reasons.filter((each) => each.count);
  if (!present.length) return null;
  const all = present.reduce((sum, each) => sum + each.count, 0);
  const room = Math.min(1, all / FULL) * 100 - GAP * (present.length - 1);
  let left = 0;
  const shares = present.map((each) => {
    const width = Math.max(0.4, (each.count / all) * room);
    const share = html`<${Filled} kind=${each.reason} x=${`${left}%`} y="1" width=${`${width}%`} height="14" />`;
    left += width + GAP;
    return share;
  });
  return html`<section class="reasons" aria-labelledby="reasons-title">
    <h2 id="reasons-title" class="unseen">Why sessions have not ended</h2>
    <svg class="band" aria-hidden="true">${shares}</svg>
    <ul>${present.map((each) => html`<li class=${each.reason === "person" ? "person" : ""}>
      <${Key} kind=${each.reason} />${sentenceOf(each)}</li>`)}</ul>
    ${!waiting.is_complete
      && html`<p class="small dim">Counted among ${count(waiting.counted)} of ${count(waiting.total)} sessions.</p>`}
  </section>`;
}

/** "93 run on a worker", as a link where a list or the inbox shows them. */
function sentenceOf({ reason, count: number, sentence }) {
  const words = sentence.replace(/^\d+\s*/, "");
  const text = html`<b>${count(number)}</b> ${words}`;
  if (reason === "person") return html`<a href=${linkTo("requests")}>${text}</a>`;
  return STATUS_OF[reason]
    ? html`<a href=${linkTo("sessions", "", { status: STATUS_OF[reason] })}>${text}</a>`
    : html`<span>${text}</span>`;
}
