// Rows of a timeline: the head of a step, its spans as bars, the rows of children, and the details of what is open.
import { count, duration, firstLine, inert, money, plural, sumOf } from "./format.js";
import { drawnWhen, html } from "./html.js";
import { Filled, Glyph, Problem, useNow } from "./parts.js";
import { SpanDetails } from "./span_details.js";
import { groupsOf, rowsOf, timesOf } from "./spans.js";
import { linkTo } from "./state.js";

const THINNEST = 0.5; // percent: thinner bars get three pixels
const MOST_LABEL = 60; // letters
const LEAST_LABEL = 12;
const LETTER = 1.5; // percent that one takes, about
const TROUBLE = {
  error: "failed", unknown: "lost", lost: "lost", void: "lost", blocked: "stopped", expired: "stopped",
  cancelled: "stopped", not_run: "stopped",
};
const NAMES = { queue: "queue", provider: "provider", delay: "put off", hold: "suspended", message: "message" };
const NOTES = {
  queue: "waits for a worker", child: "child session", hold: "nothing begins", provider: "told when to come back",
  lease: "its lease runs on",
};

/** The rows of one step. `below`: how many sessions below a child have failed, by its id. */
export const StepRows = drawnWhen(["step", "axis", "open", "children", "below", "skew"], (props) => {
  const { step, axis, open, children, below, toggle, session, skew } = props;
  const row = { axis, open: open ?? new Set(), children, below, skew, toggle: (key) => toggle(step.number, key) };
  return html`<tr role="row" class="step-head" id=${`step-${step.number}`}><th role="rowheader" colspan="4">
      <b>Step ${step.number}</b> <span dir="auto">· ${describe(step)}</span></th></tr>
    ${rowsOf(step).map(({ span, depth }) => html`<${Row} key=${span.id} ...${row} span=${span} depth=${depth}
      tool=${toolOf(step, span)} session=${session} step=${step} />`)}`;
});

const toolOf = (step, span) => step.spans.find((each) => each.id === span.parent)?.name ?? "";

function describe(step) {
  const lost = step.spans.filter((each) => each.kind === "lost" && each.outcome === "lost").length;
  const where = step.worker ? ` on worker ${step.worker}` : "";
  const running = `runs${where}, provisional until it is committed`;
  const words = { waiting: "waits", ended: "ended before its commit", running };
  const status = words[step.status] ?? step.status;
  const facts = [lost ? `${status}, recovered ${lost === 1 ? "once" : `${lost} times`}` : status];
  if (step.tokens !== null) facts.push(`${count(step.tokens)} tokens`);
  if (step.cost !== null) facts.push(money(step.cost));
  const { finish_reason: finish } = step;
  if (["length", "content_filter"].includes(finish)) facts.push(`its answer is cut short: ${finish.replace("_", " ")}`);
  if (finish === "interrupted") facts.push("interrupted by a message");
  if (step.error) facts.push(firstLine(step.error.message ?? step.error, 160));
  return facts.map((each) => inert(each)).join(" · ");
}

/** One span: its name opens its details, the arrow of a child its rows. */
function Row({ span, depth, tool, session, step, axis, open, children, below, skew, toggle }) {
  const child = span.session;
  const isOpen = open.has(span.id);
  const isUnfolded = child && open.has(`child ${child}`);
  const { name, note, isTrouble, why } = wordsOf(span, tool, step);
  const label = isTrouble || (span.kind === "request" && span.ended_at) ? why || note : "";
  const failed = below.get(child) ?? 0;
  const classes = ["span", isOpen && "on", (isTrouble || failed > 0) && "trouble"].filter(Boolean).join(" ");
  return html`<tr role="row" id=${span.id} class=${classes}>
      <th role="rowheader" scope="row"><span class="branch" style=${{ "--depth": Math.min(depth, 6) }}>
        ${child && html`<button class="fold" type="button" aria-expanded=${String(Boolean(isUnfolded))}
          aria-label=${`Spans of ${span.name}`} onClick=${() => toggle(`child ${child}`)}></button>`}
        ${(isTrouble || failed > 0) && html`<${Glyph} of=${TROUBLE[span.outcome] ?? "failed"} />`}
        <button class="name" type="button" aria-expanded=${String(isOpen)} onClick=${() => toggle(span.id)}>
          <span dir="auto">${name}</span>
          ${failed > 0 && html`<span class="small"> ${count(failed)} below failed</span>`}
          ${note !== label && !failed && html`<span class="dim small" dir="auto"> ${note}</span>`}
          ${label && html`<span class="dim small only-narrow" dir="auto"> ${label}</span>`}</button></span></th>
      <td role="cell" class="track"><${Bars} spans=${[span]} axis=${axis} label=${label} skew=${skew} /></td>
      <td role="cell" class="number"><${Took} span=${span} skew=${skew} /></td>
      <td role="cell" class="number">${span.cost === null ? "" : money(span.cost)}</td></tr>
    ${isOpen && html`<tr role="row" class="opened"><td role="cell" colspan="4"><${SpanDetails} key=${span.id}
      span=${span} session=${session} step=${step} tool=${tool} /></td></tr>`}
    ${isUnfolded && html`<${ChildRows} id=${child} depth=${depth + 1}
      ...${{ axis, open, children, below, skew, toggle }} />`}`;
}

/** The spans of a child session: model calls and calls of a tool in one row each. */
function ChildRows({ id, depth, axis, open, children, below, skew, toggle }) {
  const found = children.get(id);
  const line = (text) => html`<tr role="row" class="span"><th role="rowheader" scope="row" colspan="4">
    <span class="branch small dim" style=${{ "--depth": Math.min(depth, 6) }}>${text}</span></th></tr>`;
  if (!found) return line("Reading the child …");
  if (found.problem) {
    return html`<tr role="row"><td role="cell" colspan="4"><${Problem} of=${found.problem} /></td></tr>`;
  }
  if (!found.steps.length) return line("It has no step yet.");
  return html`${groupsOf(found.steps).map(({ key, kind, name, spans }) => {
    const row = { key: `${id} ${key}`, depth, axis, skew };
    const all = spans.map((each) => each.span);
    if (kind !== "child") return html`<${GroupRow} ...${row} id=${id} kind=${kind} name=${name} spans=${all} />`;
    const step = found.steps.find((each) => each.number === spans[0].step);
    return html`<${Row} ...${row} ...${{ open, children, below, toggle, step }} span=${all[0]} tool=""
      session=${id} />`;
  })}`;
}

function GroupRow({ id, kind, name, spans, depth, axis, skew }) {
  const words = wordsOf({ ...spans[0], kind, name, note: "", outcome: null }, "");
  const trouble = spans.filter((each) => TROUBLE[each.outcome]);
  const failed = trouble.length;
  const number = kind === "model" || kind === "tool" ? plural(spans.length, "call") : count(spans.length);
  const cost = sumOf(spans.map((each) => each.cost));
  const seconds = spans.map(timesOf).reduce((sum, { start, end }) => sum + (end === null ? 0 : end - start), 0) / 1000;
  return html`<tr role="row" class=${`span ${failed ? "trouble" : ""}`}><th role="rowheader" scope="row">
    <span class="branch" style=${{ "--depth": Math.min(depth, 6) }}>
      ${failed > 0 && html`<${Glyph} of="failed" />`}<a class="name" href=${linkTo("sessions", id)}>
        <span dir="auto">${words.name}</span>
        <span class="dim small"> ${number}${failed ? `, ${failed} failed` : ""}</span></a></span></th>
    <td role="cell" class="track"><${Bars} ...${{ spans, axis, skew }}
      label=${spans.length === 1 && failed ? firstLine(trouble[0].note, 120) : ""} /></td>
    <td role="cell" class="number">${duration(seconds)}</td>
    <td role="cell" class="number">${cost === null ? "" : money(cost)}</td></tr>`;
}

/** The words of a span: its name, a note, whether it is an exception, and why. */
function wordsOf(span, tool, step) {
  const isTrouble = Object.hasOwn(TROUBLE, span.outcome);
  const own = firstLine(span.name, 120);
  const error = isTrouble && span.kind === "model" ? step?.error : null;
  const why = firstLine(span.note || (error?.message ?? error), 120);
  const words = (name, note) => ({ name, note, isTrouble, why });
  if (span.outcome === "void") return words("model", why || "a call failed");
  if (span.kind === "model") return words("model", [own, firstLine(span.note, 120)].filter(Boolean).join(", "));
  if (span.kind === "lost" && !span.parent) return words("attempt", why || "its worker was lost");
  if (span.kind === "request") return words(own, tool ? `of ${firstLine(tool, 120)}` : why);
  if (span.kind === "queue" && span.parent) return words("no worker has it", why || NOTES.lease);
  if (span.kind === "message") return words("message", why || own);
  const name = NAMES[span.kind] ?? own;
  const rest = why.startsWith(`${name}: `) ? why.slice(name.length + 2) : why;
  return words(name, rest || (isTrouble ? span.outcome.replaceAll("_", " ") : NOTES[span.kind] ?? ""));
}

function Bars({ spans, axis, label, skew }) {
  const barOf = (span) => {
    const { end } = timesOf(span);
    if (end === null) return html`<${GrowingBar} key=${span.id} span=${span} axis=${axis} skew=${skew} />`;
    return html`<${Bar} key=${span.id} span=${span} axis=${axis} end=${end} label=${label} />`;
  };
  return html`<svg class="bars" aria-hidden="true">${spans.map(barOf)}</svg>`;
}

/** The bar of what still goes on: it alone is drawn again each second. */
const GrowingBar = ({ span, axis, skew }) => html`<${Bar} span=${span} axis=${axis} end=${useNow() + skew} label="" />`;

function Bar({ span, axis, end, label }) {
  const left = axis.place(Date.parse(span.started_at));
  const width = Math.max(0, axis.place(end) - left);
  const fill = fillOf(span);
  const right = 100 - left - width;
  // Beside the bar, or inside of one that is an outline, where there is room first or most.
  const places = [[right, left + width, 6, "start"], [left, left, -6, "end"]];
  if (["lost", "child", "failed"].includes(fill)) places.push([width, left, 6, "start"]);
  const room = Math.max(...places.map(([each]) => each));
  const needed = LETTER * Math.min(label.length, MOST_LABEL);
  const [free, x, dx, anchor] = places.find(([each]) => each >= Math.min(needed, room));
  const letters = Math.min(MOST_LABEL, Math.floor(free / LETTER));
  const isInside = label && x === left && anchor === "start" && width > 0;
  const words = letters >= LEAST_LABEL && label && html`<text class=${span.kind === "request" ? "person" : ""}
    x=${`${x}%`} dx=${dx} y="18" text-anchor=${anchor}>${firstLine(label, letters)}</text>`;
  if (span.kind === "message") return html`<circle class="moment" cx=${`${left}%`} cy="14" r="4" />${words}`;
  return html`<${Filled} kind=${fill} x=${`${left}%`} y=${isInside ? 5 : 8} width=${width < THINNEST ? 3 : `${width}%`}
    height=${isInside ? 18 : 12} rx="2" />${words}`;
}

/** Accent is for people: a result that a service brings is drawn like a child. */
function fillOf({ kind, name, outcome }) {
  if (["lost", "void"].includes(outcome)) return "lost";
  if (kind === "child" && outcome === "error") return "failed";
  return kind === "request" && name === "external" ? "service" : kind;
}

function Took({ span, skew }) {
  if (span.kind === "message") return null;
  if (!span.ended_at) return html`<${Growing} from=${Date.parse(span.started_at)} skew=${skew} />`;
  return duration((Date.parse(span.ended_at) - Date.parse(span.started_at)) / 1000);
}

const Growing = ({ from, skew }) => html`<span>${duration((useNow() + skew - from) / 1000)} …</span>`;
