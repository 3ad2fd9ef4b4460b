// What a timeline's steps say, as rows and sums: pure, so that it is tested without a browser.
import { unite } from "./axis.js";

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

/** Put newly read steps in the place of those from the first of them on. */
export function mergeSteps(known, read, firstRead) {
  return [...known.filter((each) => each.number < firstRead), ...read];
}

/** The number of the step from which a change may be: the first that is not committed, else the last. */
export function firstOpen(steps) {
  return steps.find((each) => each.status !== "committed")?.number ?? steps.at(-1)?.number ?? 1;
}
