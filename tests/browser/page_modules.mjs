// What the page computes without a browser: the axis of a timeline, its rows and sums, the conversation, text that is written.
import assert from "node:assert/strict";
import { test } from "node:test";
import { page } from "./page_globals.mjs";

const { clockTime, firstLine, inert } = await page("format.js");
const { makeAxis, unite } = await page("axis.js");
const { countCalls, firstOpen, groupsOf, mergeSteps, rowsOf, sumUp } = await page("spans.js");
const { entriesOf, stateOf, stepOf, whenItJoins } = await page("conversation.js");
const { Transcript } = await page("live_text.js");
const { differencesOf } = await page("seen.js");

const HOUR = 3_600_000;
const near = (value, wanted) => assert.ok(Math.abs(value - wanted) < 0.01, `${value} is not ${wanted}`);
const time = (seconds) => new Date(Date.UTC(2026, 10, 25) + seconds * 1000).toISOString();
const span = (id, kind, from, to, more = {}) => ({ id, kind, parent: null, name: kind, note: "", started_at: time(from), ended_at: to === null ? null : time(to),
  outcome: null, tokens: null, cost: null, session: null, request: null, data: null, ...more });
const step = (number, spans, more = {}) => ({ number, status: "committed", spans, tokens: null, cost: null, ...more });

test("an axis without long waits is proportional", () => {
  const axis = makeAxis([{ kind: "model", start: 0, end: 4000 }, { kind: "tool", start: 4000, end: 8000 }], { start: 0, now: 8000 });
  assert.equal(axis.foldedMs, 0);
  for (const [ms, percent] of [[0, 0], [2000, 25], [8000, 100], [-5, 0], [99_000, 100]]) near(axis.place(ms), percent);
});

test("a long wait for a person becomes a narrow column, and times on both sides keep their order and one scale", () => {
  const spans = [{ kind: "model", start: 0, end: 10_000 }, { kind: "request", start: 10_000, end: HOUR }, { kind: "tool", start: HOUR, end: HOUR + 10_000 }];
  const axis = makeAxis(spans, { start: 0, now: HOUR + 10_000 });
  assert.deepEqual(axis.folds.map((each) => [each.from, each.to, each.kind]), [[10_000, HOUR, "request"]]);
  assert.equal(axis.foldedMs, HOUR - 10_000);
  near(axis.place(10_000), 47);
  near(axis.place(HOUR), 53);
  near(axis.place(HOUR + 10_000), 100);
  near(axis.place(5_000) * 2, axis.place(10_000));
  assert.ok(axis.ticks.some((each) => each.kind === "wait person"));
  assert.ok(axis.ticks.filter((each) => each.at > 54).every((each) => each.text.startsWith("+")));
});

test("an unfolded axis shows the wait in its length, and still says how much can be folded", () => {
  const spans = [{ kind: "model", start: 0, end: 10_000 }, { kind: "request", start: 10_000, end: 100_000 }];
  const axis = makeAxis(spans, { start: 0, now: 100_000, isUnfolded: true });
  assert.deepEqual(axis.folds, []);
  assert.equal(axis.foldedMs, 90_000);
  near(axis.place(10_000), 10);
});

test("work that runs beside a request keeps the time unfolded", () => {
  const spans = [{ kind: "request", start: 0, end: HOUR }, { kind: "tool", start: 0, end: HOUR }];
  assert.deepEqual(makeAxis(spans, { start: 0, now: HOUR }).folds, []);
});

test("a wait that still goes on ends at now, however long ago the axis was made", () => {
  const spans = [{ kind: "model", start: 0, end: 10_000 }, { kind: "request", start: 10_000, end: null }];
  const axis = makeAxis(spans, { start: 0, now: HOUR, isOpen: true });
  const [fold] = axis.folds;
  near(axis.place(HOUR), fold.left + fold.width);
  near(axis.place(HOUR + 60_000), fold.left + fold.width);
});

test("an axis that grows leaves room, so that its bars do not move with each second", () => {
  const at = (now) => makeAxis([{ kind: "model", start: 0, end: null }], { start: 0, now, isOpen: true });
  near(at(5_300).place(1_000), at(5_600).place(1_000));
  assert.ok(at(5_600).place(5_600) < 100);
});

test("labels of the axis do not touch, whatever its length and however many waits there are", () => {
  for (const waits of [0, 1, 3, 12, 40]) {
    for (const work of [5, 900, 60_000, 7 * HOUR]) {
      const spans = [];
      let now = 0;
      for (let number = 0; number <= waits; number += 1) {
        spans.push({ kind: "model", start: now, end: now + work });
        if (number < waits) spans.push({ kind: "request", start: now + work, end: now + work + 100 * HOUR });
        now += work + (number < waits ? 100 * HOUR : 0);
      }
      const axis = makeAxis(spans, { start: 0, now });
      assert.equal(axis.folds.length, waits);
      const places = axis.ticks.map((each) => each.at);
      places.forEach((each, number) => assert.ok(number === 0 || each - places[number - 1] >= 8, `${work} ms, ${waits} waits: ${places}`));
      spans.forEach((each) => assert.ok(axis.place(each.start) <= axis.place(each.end)));
      near(axis.place(now), 100);
    }
  }
});

test("intervals are joined where they overlap", () => {
  assert.deepEqual(unite([[5, 9], [1, 3], [2, 4], [9, 10]]), [[1, 4], [5, 10]]);
});

test("the spans of a step are drawn in the order of time, calls and what belongs to them below the model", () => {
  const rows = rowsOf(step(3, [span("3.m", "model", 0, 2), span("3.t0", "tool", 90, 91), span("3.t1", "tool", 2, 3),
    span("3.r0", "request", 2.5, 80, { parent: "3.t0" }), span("3.x0", "lost", 81, 82, { parent: "3.t0" }), span("3.g", "message", 40, 40)]));
  assert.deepEqual(rows.map((each) => each.span.id), ["3.m", "3.t1", "3.r0", "3.g", "3.x0", "3.t0"]);
  assert.deepEqual(rows.map((each) => each.depth), [0, 1, 1, 0, 1, 1]);
});

test("a queue that a worker emptied at once is not drawn, and one that still waits is", () => {
  const rows = rowsOf(step(1, [span("1.q1", "queue", 0, 0.05), span("1.q2", "queue", 1, 2), span("1.q3", "queue", 3, null)]));
  assert.deepEqual(rows.map((each) => each.span.id), ["1.q2", "1.q3"]);
});

test("a span whose parent is not there is drawn all the same", () => {
  assert.deepEqual(rowsOf(step(1, [span("1.r0", "request", 0, 1, { parent: "1.t9" })])).map((each) => each.span.id), ["1.r0"]);
});

test("a child is drawn in few rows: one for its model calls, one for each tool, one for each child", () => {
  const steps = [1, 2, 3].map((number) => step(number, [span(`${number}.m`, "model", 0, 1), span(`${number}.t0`, "tool", 1, 2, { name: "look" }),
    span(`${number}.c0`, "child", 1, 2, { name: "reader", session: `s${number}` })]));
  assert.deepEqual(groupsOf(steps).map((each) => [each.kind, each.spans.length]), [["model", 3], ["tool", 3], ["child", 1], ["child", 1], ["child", 1]]);
});

test("sums count overlapping work once, and people's time apart from services'", () => {
  const steps = [step(1, [span("1.m", "model", 0, 2), span("1.t0", "tool", 2, 6), span("1.t1", "tool", 3, 5), span("1.r0", "request", 6, 100, { name: "approval" }),
    span("1.r1", "request", 6, 500, { name: "external" }), span("1.x0", "lost", 100, 101, { outcome: "lost" }), span("1.x1", "lost", 100, 101, { outcome: "void" })])];
  assert.deepEqual(sumUp(steps, Date.parse(time(600))), { worked: 7, waitedForPeople: 94, recovered: 1 });
});

test("calls are counted by tool with those that failed and those that were lost", () => {
  const steps = [step(1, [span("1.t0", "tool", 0, 2, { name: "look", outcome: "ok" }), span("1.t1", "tool", 0, 1, { name: "pay", outcome: "unknown" })]),
    step(2, [span("2.t0", "tool", 5, 6, { name: "look", outcome: "error" }), span("2.x0", "lost", 3, 4, { parent: "2.t0", name: "look", outcome: "lost" })])];
  assert.deepEqual(countCalls(steps), [{ name: "look", count: 2, failed: 1, lost: 1, seconds: 3, steps: [1, 2] }, { name: "pay", count: 1, failed: 1, lost: 0, seconds: 1, steps: [1] }]);
});

test("newly read steps take the place of those from the first open one on", () => {
  const known = [step(1, []), step(2, []), step(3, [], { status: "running" })];
  assert.equal(firstOpen(known), 3);
  assert.equal(firstOpen([]), 1);
  const merged = mergeSteps(known, [step(3, [], { status: "committed" }), step(4, [])], 3);
  assert.deepEqual(merged.map((each) => [each.number, each.status]), [[1, "committed"], [2, "committed"], [3, "committed"], [4, "committed"]]);
});

test("results join their calls, and a message knows its step of the execution that is shown", () => {
  const messages = [{ role: "user", content: "Hello" },
    { role: "assistant", tool_calls: [{ id: "a", name: "look", args: {} }, { id: "b", name: "look", args: {} }], metadata: { step_id: "e1-12", execution_id: "e1" } },
    { role: "tool", content: "Error", tool_call_id: "b", is_error: true }];
  const entries = entriesOf(messages, 40, "e1");
  assert.deepEqual(entries.map((each) => [each.key, each.role, each.step]), [[40, "user", null], [41, "assistant", 12]]);
  assert.deepEqual(entries[1].calls.map((each) => [each.index, each.result?.is_error ?? null]), [[0, null], [1, true]]);
  assert.equal(stateOf(entries[1].calls), "1 failed, 1 no result yet");
  assert.equal(stepOf({ metadata: { step_id: "e0-3" } }, "e1"), null);
  assert.equal(stepOf({}, "e1"), null);
});

test("the box says what becomes of a message to a session that asks", () => {
  const header = { session_id: "s", status: "waiting" };
  const joins = (...requests) => whenItJoins({ header, timeline: null, steps: [], requests });
  const asks = (session_id, while_waiting) => ({ session_id, while_waiting });
  assert.match(joins(asks("s", "hold"), asks("s", "withdraw")), /takes the place of the answer/);
  assert.match(joins(asks("s", "hold"), asks("s.1", "withdraw")), /is read after the answer/);
  assert.match(joins(), /is read after the answer/);
});

const live = (text, more = {}) => ({ type: "live", data: { execution_id: "e", step: 1, attempt: "a", call: 1, part: "text", offset: 0, text, ...more } });
const shown = (transcript) => transcript.pieces.map((each) => each.text).join("|");

test("pieces of one part are one text, and each listener gets each piece once, unchanged", () => {
  const transcript = new Transcript();
  const told = [];
  transcript.follow((piece) => told.push(piece));
  for (const each of ["Good ", "news: ", "24.00"]) transcript.apply(live(each));
  assert.equal(shown(transcript), "Good news: 24.00");
  assert.deepEqual(told.map((each) => each.text), ["Good ", "news: ", "24.00"]);
});

test("a void attempt is taken back, but for an answer that stays valid", () => {
  const transcript = new Transcript();
  transcript.apply(live("answer"));
  transcript.apply(live("output", { call: 0, part: "t0" }));
  transcript.apply({ type: "attempt_voided", data: { execution_id: "e", step: 1, data: { attempt: "a", call: 0, keeps_answer: true } } });
  assert.equal(shown(transcript), "answer");
  transcript.apply(live("once more", { call: 2 }));
  transcript.apply({ type: "attempt_voided", data: { execution_id: "e", step: 1, data: { attempt: "a", call: 1 } } });
  assert.equal(shown(transcript), "once more");
  transcript.apply({ type: "attempt_voided", data: { execution_id: "e", step: 1, data: { attempt: "another", call: 0 } } });
  assert.equal(shown(transcript), "once more");
  transcript.apply({ type: "attempt_voided", data: { execution_id: "e", step: 1, data: { attempt: "a", call: 0 } } });
  assert.equal(shown(transcript), "");
});

test("a commit replaces what was shown of its step until the conversation has it", () => {
  const transcript = new Transcript();
  transcript.apply(live("Good"));
  transcript.apply({ type: "step_committed", data: { execution_id: "e", step: 1, text: "Good news", data: {} } });
  transcript.apply(live(" late", { offset: 4 }));
  transcript.apply(live("next", { step: 2 }));
  assert.equal(shown(transcript), "Good news|next");
  transcript.settle("e", 1);
  assert.equal(shown(transcript), "Good news|next");
  transcript.settleCommitted(() => true);
  assert.equal(shown(transcript), "next");
  transcript.apply(live("old", { step: 1 }));
  assert.equal(shown(transcript), "next");
});

test("an execution that ends takes what was not committed with it", () => {
  const transcript = new Transcript();
  transcript.apply(live("half an ans"));
  transcript.apply({ type: "execution_waiting", data: { execution_id: "e" } });
  assert.equal(shown(transcript), "half an ans");
  transcript.apply({ type: "execution_stopped", data: { execution_id: "e" } });
  assert.equal(shown(transcript), "");
});

test("two values are compared value by value, and lists place by place", () => {
  const before = { step: 1, prompt: "a", messages: [{ role: "user", args: { at: 1, "a.b": null } }], kind: [1], gone: 0 };
  const after = { step: 2, prompt: "b", messages: [{ role: "user", args: { at: true, "a.b": null } }, "more"], kind: { 0: 1 } };
  assert.deepEqual(differencesOf(before, after, ["step"]), [
    { path: "prompt", before: "a", after: "b" },
    { path: "messages[0].args.at", before: 1, after: true },
    { path: "messages[1]", before: undefined, after: "more" },
    { path: "kind", before: [1], after: { 0: 1 } },
    { path: "gone", before: 0, after: undefined },
  ]);
  assert.deepEqual(differencesOf(after, structuredClone(after)), []);
});

test("a time of day names its zone, since the sentences of the server are in UTC", () => {
  const zone = process.env.TZ;
  process.env.TZ = "America/New_York";
  assert.equal(clockTime("2026-11-30T10:45:00Z", Date.parse("2026-11-30T12:00:00Z")), "05:45 GMT-5");
  assert.equal(clockTime("2026-12-01T01:00:00Z", Date.parse("2026-11-30T12:00:00Z")), "20:00 GMT-5");
  assert.equal(clockTime("2026-12-01T06:00:00Z", Date.parse("2026-11-30T12:00:00Z")), "1 Dec, 01:00 GMT-5");
  process.env.TZ = "UTC";
  assert.equal(clockTime("2026-11-30T10:45:00Z", Date.parse("2026-11-30T12:00:00Z")), "10:45 UTC");
  if (zone === undefined) delete process.env.TZ;
  else process.env.TZ = zone;
});

test("whatever would change a text unseen is written in it, and what letters are made of stays", () => {
  const unseen = ["\u0000", "\u202e", "\u2066", "\ufeff", "\u200b", "\u2060", "\u00ad", "\u3164", "\u180e", "\ufe01", "\u2028", "\ud800"];
  for (const each of unseen) assert.equal(inert(`48${each}12`), `48\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}12`);
  assert.equal(inert("pay\u{e0041}\u{e0101}"), "pay\\u{e0041}\\u{e0101}");
  const seen = "tab\tline\n\u{1f469}\u200d\u{1f680} \u2764\ufe0f \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645\r\n";
  assert.equal(inert(seen), seen);
  assert.equal(firstLine("4\u200b8"), "4\\u200b8");
  assert.equal(firstLine("of\r\nWindows"), "of");
});
