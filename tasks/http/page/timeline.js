// The timeline of a session: one table on one axis, a body of rows for each step, drawn where it is seen.
import { get, sessionPath } from "./api.js";
import { makeAxis } from "./axis.js";
import { useKeys } from "./dialog.js";
import { count, duration } from "./format.js";
import { Chunk, html, useEffect, useMemo, useRef, useState } from "./html.js";
import { Empty, Key, Problem, useNow } from "./parts.js";
import { failedBelow, rowsOf, timesOf } from "./spans.js";
import { StepRows } from "./timeline_rows.js";

const LEGEND = [["queue", "no worker has it"], ["model", "model"], ["tool", "tool"], ["child", "child"],
  ["request", "waits for a person"], ["provider", "waits for the provider"], ["delay", "was put off"],
  ["hold", "suspended"], ["lost", "lost or void"]];
const DRAWN = 8; // steps that are drawn at once
const ROW = 28; // pixels
const CHILD_STEPS = 1000;
const CHILD_MS = 2000; // between two reads of the timeline of a child that goes on

export function Timeline({ view }) {
  const { steps, timeline, isPartial, problems, header } = view;
  const [isUnfolded, setUnfolded] = useState(false);
  const [open, setOpen] = useState(new Map()); // number of a step to the keys of what is open in it
  const children = useChildren(steps, open);
  const second = useNow();
  const isOpen = timeline?.ended_at === null && steps.some((each) => each.status !== "committed");
  const now = isOpen ? second + timeline.skew : Date.parse(timeline?.ended_at ?? steps.at(-1)?.ended_at ?? 0);
  const chunks = useMemo(() => cut(steps), [steps]);
  const axis = useAxis({ steps, children, timeline, now, isOpen, isUnfolded });
  const toggle = (step, key) => setOpen((before) => {
    const keys = new Set(before.get(step));
    if (!keys.delete(key)) keys.add(key);
    return new Map(before).set(step, keys);
  });
  useFragment(steps, (step, key) =>
    setOpen((before) => new Map(before).set(step, new Set([...(before.get(step) ?? []), key]))));
  useKeys([
    ["j", "To the next span", () => move(1)],
    ["k", "To the span before", () => move(-1)],
    ["u", "Fold and unfold long waits", () => setUnfolded((before) => !before)],
  ]);
  const below = useMemo(() => failedBelow(view.tree), [view.tree]);
  const kinds = useMemo(() => new Set(steps.flatMap((step) => step.spans.map((each) => each.kind))), [steps]);
  const problem = html`<${Problem} of=${problems.timeline} />`;
  if (!timeline) return problems.timeline ? problem : html`<p class="dim" role="status">Reading the timeline …</p>`;
  if (!steps.length) {
    return html`${problem}<${Empty}>${header.status === "idle"
      ? "There is no execution yet. A message starts the first one." : "No step has begun yet."}</${Empty}>`;
  }
  const row = { axis, children, below, toggle, session: header.session_id, skew: isOpen ? timeline.skew : 0 };
  const drawStep = (step) =>
    html`<${StepRows} key=${step.number} step=${step} open=${open.get(step.number)} ...${row} />`;
  return html`${problem}
    <div class="bar-of-tools"><ul class="legend" aria-label="Meaning of the bars">
        ${LEGEND.filter(([kind]) => kinds.has(kind)).map(([kind, text]) =>
          html`<li key=${kind}><${Key} kind=${kind} />${text}</li>`)}</ul>
      ${axis.foldedMs > 0 && html`<button class="button" type="button" aria-pressed=${String(isUnfolded)}
        onClick=${() => setUnfolded(!isUnfolded)}>
        ${isUnfolded ? "Fold" : "Unfold"} ${duration(axis.foldedMs / 1000)}</button>`}</div>
    <div class="timeline" style=${{ "--columns": columnsOf(axis.folds) }}>
      <table role="table" aria-label="Timeline of the latest execution, by step"><thead role="rowgroup"><tr role="row">
        <th role="columnheader" scope="col">Span</th>
        <th role="columnheader" scope="col" class="track"><span class="unseen">From and to</span>
          <${Ticks} axis=${axis} /></th>
        <th role="columnheader" scope="col" class="number">Took</th>
        <th role="columnheader" scope="col" class="number">Cost</th></tr></thead>
      ${chunks.map(({ place, steps: some, height }) => html`<${Chunk} as="tbody" role="rowgroup" key=${place}
        columns="4" id=${`steps-${place}`} guess=${height} draw=${() => some.map(drawStep)} />`)}</table>
      ${isOpen && html`<svg class="now-line" aria-hidden="true"><line x1=${`${axis.place(now)}%`}
        x2=${`${axis.place(now)}%`} y1="0" y2="100%" /></svg>`}</div>
    <p class="small dim after" role="status">${isPartial ? `Reading further steps: ${count(steps.length)} so far …`
      : "Select a span to see its arguments, its result and who approved it."}</p>`;
}

const placeOf = (number) => Math.floor((number - 1) / DRAWN);

/** Steps in pieces that are drawn where they are seen, by their numbers: [{place, steps, height}]. */
function cut(steps) {
  const pieces = new Map();
  for (const each of steps) {
    const place = placeOf(each.number);
    const piece = pieces.get(place) ?? { place, steps: [], height: 0 };
    pieces.set(place, piece);
    piece.steps.push(each);
    piece.height += ROW * (rowsOf(each).length + 1);
  }
  return [...pieces.values()];
}

/** The axis; the same one as before as long as it shows the same, so that rows need not be drawn again. */
function useAxis({ steps, children, timeline, now, isOpen, isUnfolded }) {
  const last = useRef(null);
  const spans = useMemo(() => [steps, ...[...children.values()].map((each) => each.steps)].flatMap((each) =>
    each.flatMap((step) => step.spans.map(timesOf))), [steps, children]);
  return useMemo(() => {
    const start = Math.min(Date.parse(timeline?.submitted_at ?? 0), spans[0]?.start ?? Infinity);
    const axis = makeAxis(spans, { start, now, isOpen, isUnfolded });
    if (last.current?.key !== axis.key) last.current = axis;
    return last.current;
  }, [spans, timeline?.submitted_at, now, isOpen, isUnfolded]);
}

/** Timelines of the child sessions that are unfolded, by session id: {steps, problem}; read again while they go on. */
function useChildren(steps, open) {
  const [children, setChildren] = useState(new Map());
  const wanted = useMemo(() => [...open.values()].flatMap((keys) => [...keys]).filter((each) =>
    each.startsWith("child ")).map((each) => each.slice(6)), [open]);
  useEffect(() => {
    const mine = new AbortController();
    const over = new Set([...children].filter(([, each]) => each.ended_at).map(([id]) => id));
    const keep = (id, read) => setChildren((before) => new Map(before).set(id, read(before.get(id))));
    const readOne = (id) => get(sessionPath(id, "/timeline"), { limit: CHILD_STEPS }, mine.signal).then(
      (reply) => {
        if (reply.ended_at) over.add(id);
        keep(id, () => ({ ...reply, problem: null }));
      },
      (problem) => problem.name !== "AbortError" && keep(id, (before) => ({ steps: before?.steps ?? [], problem })),
    );
    const readAll = () => !document.hidden && wanted.filter((each) => !over.has(each)).forEach(readOne);
    readAll();
    const timer = setInterval(readAll, CHILD_MS);
    return () => {
      mine.abort();
      clearInterval(timer);
    };
  }, [wanted, steps]);
  return children;
}

/** Open the span that the address names, and go there, as soon as its step is known. */
function useFragment(steps, onOpen) {
  const done = useRef("");
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const onChange = () => {
      done.current = "";
      setHash(location.hash);
    };
    addEventListener("hashchange", onChange);
    return () => removeEventListener("hashchange", onChange);
  }, []);
  useEffect(() => {
    const id = hash.slice(1).replaceAll("%2E", ".");
    const step = steps.find((each) => each.number === parseInt(id, 10));
    if (!step || done.current === id) return;
    done.current = id;
    if (step.spans.some((each) => each.id === id)) onOpen(step.number, id);
    const look = (rest) => {
      const drawn = document.getElementById(`step-${step.number}`);
      const place = drawn ?? document.getElementById(`steps-${placeOf(step.number)}`); // drawn when it comes near
      place?.scrollIntoView({ block: "center" });
      const name = document.getElementById(id)?.querySelector(".name");
      if (name) name.focus();
      if (name || !rest) name?.scrollIntoView({ block: "center" });
      else setTimeout(() => look(rest - 1), 100);
    };
    look(10);
  }, [hash, steps]);
}

function move(by) {
  const all = [...document.querySelectorAll(".timeline .name")];
  const at = all.indexOf(document.activeElement);
  const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

function Ticks({ axis }) {
  return html`<svg class="ticks" aria-hidden="true">${axis.ticks.map(({ at, text, kind }) => html`<text class=${kind}
    x=${`${at}%`} y="14" text-anchor=${at < 3 ? "start" : at > 97 ? "end" : "middle"}>${text}</text>`)}</svg>`;
}

/** The folded waits as a background of all rows: one picture for thousands of them. */
function columnsOf(folds) {
  if (!folds.length) return "none";
  const stops = folds.map(({ left, width, kind }) => {
    const colour = kind === "request" ? "var(--wash)" : "var(--panel)";
    return `transparent ${left}%, ${colour} ${left}% ${left + width}%, transparent ${left + width}%`;
  });
  return `linear-gradient(to right, ${stops.join(", ")})`;
}
