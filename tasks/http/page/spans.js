// The steps of a timeline: read page by page, and what they say as rows and sums.
import { serverNow } from "./api.js";
import { unite } from "./axis.js";

const FIRST_STEPS = 50; // few, so that something is seen soon
const STEPS = 1000;
const SHORTEST_QUEUE_MS = 100;
const NESTED = ["tool", "child", "request"];

/** Times of a span in milliseconds: {kind, start, end}; end null where it still goes on. */
export function timesOf(span) {
  if (!times.has(span)) times.set(span, { kind: span.kind, start: Date.parse(span.started_at), end: span.ended_at
    ? Date.parse(span.ended_at) : null });
  return times.get(span);
}

const times = new WeakMap(); // they are asked for each second

/**
 * The spans of a step in the order of time, with their depth: calls and what belongs to them are below the model's.
 *
 * @returns [{span, depth}]
 */
export function rowsOf(step) {
  const rows = step.spans.filter((each) => !isBrief(each)).map((span) => ({ span, depth: span.parent
    || NESTED.includes(span.kind) ? 1 : 0 }));
  return rows.sort((one, other) => timesOf(one.span).start - timesOf(other.span).start);
}

/** A queue that was empty: a worker took the step at once, and there is nothing to see. */
function isBrief(span) {
  const { kind, start, end } = timesOf(span);
  return kind === "queue" && end !== null && end - start < SHORTEST_QUEUE_MS;
}

/**
 * The steps of a child in few rows: all model calls in one, the calls of a tool in one, each child of its own alone.
 *
 * @returns [{kind, name, spans: [{span, step}]}]
 */
export function groupsOf(steps) {
  const groups = new Map();
  for (const step of steps) {
    for (const { span } of rowsOf(step)) {
      const isAlone = span.kind === "child";
      const key = isAlone ? `${step.number} ${span.id}` : `${span.kind} ${span.kind === "tool"
        || span.kind === "request" ? span.name : ""}`;
      if (!groups.has(key)) groups.set(key, { key, kind: span.kind, name: span.name, spans: [] });
      groups.get(key).spans.push({ span, step: step.number });
    }
  }
  return [...groups.values()];
}

/** How long the steps worked and waited for people, in seconds, and how often a worker was lost. */
export function sumUp(steps, now) {
  const lengths = (isMeant) => {
    const parts = steps.flatMap((step) => step.spans.filter(isMeant).map(timesOf)).map((each) => [each.start, each.end
      ?? now]);
    return unite(parts).reduce((sum, each) => sum + each[1] - each[0], 0) / 1000;
  };
  const all = (isMeant) => steps.reduce((sum, step) => sum + step.spans.filter(isMeant).length, 0);
  return {
    worked: lengths((each) => ["model", "tool"].includes(each.kind) || each.outcome === "void"),
    waitedForPeople: lengths((each) => each.kind === "request" && ["approval", "question"].includes(each.name)),
    recovered: all((each) => each.kind === "lost" && each.outcome === "lost"),
  };
}

export const callsChildren = (steps) => steps.some((step) => step.spans.some((each) => each.kind === "child"));

/** How many sessions below each session of a tree have failed, by its id. */
export function failedBelow(tree) {
  const found = new Map();
  const countIn = (node) => {
    const failed = node.children.reduce((sum, each) => sum + countIn(each) + (each.status === "failed" ? 1 : 0), 0);
    found.set(node.session_id, failed);
    return failed;
  };
  if (tree) countIn(tree);
  return found;
}

/** Calls by tool: [{name, count, failed, lost, seconds, steps}], the most called first; `steps` are numbers. */
export function countCalls(steps) {
  const tools = new Map();
  for (const step of steps) {
    for (const span of step.spans) {
      const isCall = span.kind === "tool" || span.kind === "child";
      const owner = span.kind === "lost" && step.spans.find((each) => each.id === span.parent);
      if (!isCall && !owner) continue;
      const name = isCall ? span.name : owner.name;
      const found = tools.get(name) ?? { name, count: 0, failed: 0, lost: 0, seconds: 0, steps: [] };
      tools.set(name, found);
      if (!isCall) {
        found.lost += 1;
        continue;
      }
      const { start, end } = timesOf(span);
      found.count += 1;
      found.failed += ["error", "unknown"].includes(span.outcome) ? 1 : 0;
      found.seconds += end === null ? 0 : (end - start) / 1000;
      if (found.steps.at(-1) !== step.number) found.steps.push(step.number);
    }
  }
  return [...tools.values()].sort((one, other) => other.count - one.count);
}

/** Read the steps from the first that may have changed on, page by page: at first a short one. */
export async function* readSteps(read, view) {
  let known = view.timeline ? view.steps : [];
  for (let next = firstOpen(known), isFirst = true; next !== null; isFirst = false) {
    const { steps, ...timeline } = await read("/timeline", { first_step: next, limit: known.length ? STEPS
      : FIRST_STEPS });
    timeline.skew = skewOf(timeline, view.timeline);
    if (isFirst && known.length && timeline.execution_id !== view.timeline.execution_id) {
      known = [];
      next = 1;
      continue;
    }
    known = mergeSteps(known, steps.map(withoutUnbegun), next);
    next = timeline.next_step ?? null;
    yield { steps: known, timeline, isPartial: next !== null };
  }
}

/** A step without calls that have not begun: their open requests say that they wait. */
function withoutUnbegun(step) {
  const open = step.spans.filter((each) => each.kind === "request" && each.outcome === "open");
  const waiting = new Set(open.map((each) => each.parent));
  const hasBegun = (each) => each.kind !== "tool" || each.ended_at || !waiting.has(each.id);
  return { ...step, spans: step.spans.filter(hasBegun) };
}

/** The server's clock beyond what this page takes for it, in ms; the former value as long as it nearly holds. */
function skewOf({ now }, before) {
  const skew = Date.parse(now) - serverNow();
  return before && Math.abs(skew - before.skew) < 1000 ? before.skew : skew;
}

/** Put newly read steps in the place of those from the first of them on. */
export function mergeSteps(known, read, firstRead) {
  return [...known.filter((each) => each.number < firstRead), ...read];
}

/** The number of the step from which a change may be: the first that is not committed, else the last. */
export function firstOpen(steps) {
  return steps.find((each) => each.status !== "committed")?.number ?? steps.at(-1)?.number ?? 1;
}
