// Maps times to positions on the axis of a timeline, in percent. Long waits are folded: each is a narrow column through
// all rows, and the axis counts on from +0 s behind it.
import { duration } from "./format.js";

const SHORTEST_FOLD_MS = 30_000;
const LEAST_SHARE = 0.25; // of the unfolded time: shorter waits are no trouble to see
const FOLD_PERCENT = 6;
const MOST_FOLDED_PERCENT = 36;
const TICK_GAP = 9; // percent between two labels
const FOLD_LABEL_GAP = 14;
const NEAR_LABEL = 12; // percent between a label of a wait, or of now, and one of the axis
const SHORTEST_AXIS_MS = 2_000;
const WORK = new Set(["model", "tool", "lost"]);
const WAITS = ["request", "hold", "provider", "delay", "queue", "child"];
const STEPS_MS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900,
  1800, 3600, 7200, 10800,
  21600, 43200, 86400, 172800, 432000, 864000].map((each) => each * 1000);

/**
 * Make the axis of a timeline.
 *
 * @param spans [{kind, start, end}] in milliseconds; end null: it still goes on
 * @param start when the execution was submitted
 * @param now the end of what still goes on
 * @param isOpen whether the execution has not ended: the axis then leaves room behind `now`
 * @param isUnfolded whether waits keep their length
 * @returns {place(ms) → percent, folds, ticks, foldedMs, end, key}; `foldedMs` is the length of all that may be folded,
 *   `end` the time at the right, and axes with the same `key` show the same
 */
export function makeAxis(spans, { start, now, isOpen = false, isUnfolded = false }) {
  const until = Math.max(now, start + 1);
  const waits = findWaits(spans, start, until);
  const folds = isUnfolded ? [] : waits;
  const foldedMs = waits.reduce((sum, each) => sum + each.to - each.from, 0);
  const shown = until - start - (isUnfolded ? 0 : foldedMs);
  const length = isOpen ? roundUp(Math.max(shown * 1.05, SHORTEST_AXIS_MS)) : Math.max(shown, 1);
  const width = folds.length ? Math.min(FOLD_PERCENT, MOST_FOLDED_PERCENT / folds.length) : 0;
  const scale = (100 - width * folds.length) / length;
  const segments = cut(folds, start, until, { scale, width });
  const place = (ms) => placeIn(segments, ms, scale);
  const end = until + (100 - place(until)) / scale;
  const ticks = ticksOf(segments, scale, { now: until, isOpen });
  return { folds: segments.filter((each) => each.isFold), place, foldedMs, end, ticks, key: JSON.stringify([start,
    scale, ticks.map((each) => [each.at, each.text])]) };
}

/** Times in which nothing works, and which are long beside those in which something does. */
function findWaits(spans, start, until) {
  const work = spans.filter((each) => WORK.has(each.kind)).map((each) => [each.start, Math.max(each.start, each.end
    ?? until)]);
  const idle = [];
  let reached = start;
  for (const [from, to] of [...unite(work), [until, until]]) {
    if (from - reached >= SHORTEST_FOLD_MS) idle.push({ from: reached, to: from });
    reached = Math.max(reached, to);
  }
  const rest = until - start - idle.reduce((sum, each) => sum + each.to - each.from, 0);
  const least = Math.max(SHORTEST_FOLD_MS, rest * LEAST_SHARE);
  return idle.filter((each) => each.to - each.from >= least).map((each) => ({ ...each, kind: mostOf(spans, each,
    until) }));
}

/** Intervals joined where they overlap, in order. */
export function unite(intervals) {
  const joined = [];
  for (const [from, to] of intervals.filter((each) => each[1] >= each[0]).sort((one, other) => one[0] - other[0])) {
    const last = joined.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else joined.push([from, to]);
  }
  return joined;
}

/** The kind of span that covers half of a wait or more, a person's first; "idle" where there is none. */
function mostOf(spans, { from, to }, until) {
  const inside = spans.filter((each) => !WORK.has(each.kind) && each.start < to && (each.end ?? until) > from);
  const found = WAITS.find((kind) => {
    const parts = inside.filter((each) => each.kind === kind).map((each) => [Math.max(from, each.start), Math.min(to,
      each.end ?? until)]);
    return unite(parts).reduce((sum, each) => sum + each[1] - each[0], 0) >= (to - from) / 2;
  });
  return found ?? "idle";
}

/** The axis in pieces from the left: [{from, to, left, width, isFold, kind}]; the last one has no end. */
function cut(folds, start, until, { scale, width }) {
  const segments = [];
  let left = 0;
  let reached = start;
  const add = (from, to, share, more) => {
    segments.push({ from, to, left, width: share, ...more });
    left += share;
  };
  for (const each of folds) {
    if (each.from > reached) add(reached, each.from, (each.from - reached) * scale, { isFold: false });
    add(each.from, each.to, width, { isFold: true, kind: each.kind });
    reached = each.to;
  }
  const isLastFolded = segments.at(-1)?.isFold && reached >= until; // it may still grow: what is later is at its end
  add(isLastFolded ? Infinity : reached, Math.max(until, reached), Math.max(0, 100 - left), { isFold: false });
  return segments;
}

function placeIn(segments, ms, scale) {
  let low = 0;
  let high = segments.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (segments[middle].from <= ms) low = middle;
    else high = middle - 1;
  }
  const { from, to, left, width, isFold } = segments[low];
  const inside = isFold ? ((ms - from) / Math.max(1, to - from)) * width : (ms - from) * scale;
  return Math.max(0, Math.min(100, left + Math.max(0, Math.min(width, inside))));
}

/** Labels of the axis that do not touch: [{at, text, kind}], kind "", "now", "wait" or "wait person". */
function ticksOf(segments, scale, { now, isOpen }) {
  const labels = [];
  let last = -FOLD_LABEL_GAP;
  for (const each of segments.filter((one) => one.isFold)) {
    const at = each.left + each.width / 2;
    if (at - last < FOLD_LABEL_GAP) continue;
    labels.push({ at, text: duration((each.to - each.from) / 1000), kind: each.kind === "request" ? "wait person"
      : "wait" });
    last = at;
  }
  if (isOpen) {
    const at = placeIn(segments, now, scale);
    if (labels.every((each) => Math.abs(each.at - at) >= TICK_GAP)) labels.push({ at, text: "now", kind: "now" });
  }
  const step = STEPS_MS.find((each) => each * scale >= TICK_GAP) ?? STEPS_MS.at(-1);
  segments.forEach(({ left, width, isFold }, number) => {
    if (isFold) return;
    for (let ms = number ? step : 0; ms * scale <= width + 0.001 && ms / step < 40; ms += step) {
      const at = left + ms * scale;
      const isFree = at <= 98 && labels.every((each) => Math.abs(each.at - at) >= (each.kind ? NEAR_LABEL
        : TICK_GAP - 0.5));
      if (isFree) labels.push({ at, text: `${number ? "+" : ""}${tickText(ms / 1000)}`, kind: "" });
    }
  });
  return labels.sort((one, other) => one.at - other.at);
}

function tickText(seconds) {
  if (seconds >= 86_400) return `${round(seconds / 86_400)} d`;
  if (seconds >= 3_600) return `${round(seconds / 3_600)} h`;
  if (seconds >= 120) return `${round(seconds / 60)} min`;
  return seconds && seconds < 0.1 ? `${round(seconds * 1000)} ms` : `${round(seconds)} s`;
}

const round = (value) => Number(value.toFixed(2));

/** The next length of an axis that still grows: so that its bars rarely move. */
function roundUp(ms) {
  const power = 10 ** Math.floor(Math.log10(ms));
  return [1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((each) => each * power).find((each) => each >= ms);
}
