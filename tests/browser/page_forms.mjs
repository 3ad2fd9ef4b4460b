// What the page computes of forms without a browser: plans of JSON Schemas, drafts, values with exact numbers, refusals by field.
import assert from "node:assert/strict";
import { test } from "node:test";
import { page } from "./page_globals.mjs";

const { planOf } = await page("schema_plan.js");
const { at, countChanges, draftOf, isSame, startOf, valueOf } = await page("schema_values.js");
const { fieldErrors } = await page("decision.js");
const { answersOf, blankAnswers } = await page("request_parts.js");
const { groupByAgent, groupEqual } = await page("inbox_list.js");

const order = {
  $defs: {
    Line: { type: "object", required: ["sku"], properties: { sku: { type: "string", minLength: 3 }, pieces: { type: "integer", default: 1, minimum: 1, maximum: 99 } } },
  },
  type: "object",
  required: ["order", "lines"],
  additionalProperties: false,
  properties: {
    order: { type: "string", maxLength: 8 },
    lines: { type: "array", items: { $ref: "#/$defs/Line" }, maxItems: 3 },
    method: { enum: ["card", "bank"], default: "card" },
    floor: { anyOf: [{ type: "integer" }, { type: "null" }], default: null },
    extra: { anyOf: [{ type: "object", additionalProperties: true }, { type: "null" }] },
    pair: { type: "array", prefixItems: [{ type: "integer" }] },
  },
};
const field = (plan, name) => plan.fields.find((each) => each.name === name);
const errorsOf = (plan, draft) => {
  const errors = new Map();
  valueOf(plan, draft, errors);
  return Object.fromEntries(errors);
};

test("each value of a schema has its control, and its constraints are words", () => {
  const plan = planOf(order, { order: "4812", lines: [{ sku: "TEA-01" }] });
  assert.deepEqual(plan.fields.map(({ name, kind }) => `${name} ${kind}`), ["order text", "lines list", "method choice", "floor number", "extra json", "pair json"]);
  assert.equal(field(plan, "order").words, "text, at most 8 characters");
  assert.equal(field(plan, "lines").item.fields[1].words, "whole number, 1 to 99");
  assert.deepEqual(plan.fields.map((each) => each.isOptional), [false, false, true, true, true, true]);
  assert.equal(field(plan, "floor").isNullable, true);
});

test("arguments that do not have the types of their schema are shown as JSON, and none is dropped", () => {
  const plan = planOf(order, { order: 4812, lines: [{ sku: "TEA-01", colour: "red" }], surplus: true });
  assert.equal(field(plan, "order").kind, "json");
  assert.equal(field(plan, "lines").kind, "json");
  assert.equal(field(plan, "surplus").kind, "boolean");
  const args = { order: 4812, lines: [{ sku: "TEA-01", colour: "red" }], surplus: true };
  assert.deepEqual(valueOf(plan, draftOf(plan, args), new Map()), args);
});

test("a type that holds itself in several fields is planned in a moment, and each level is given by a button", () => {
  const inner = { anyOf: [{ $ref: "#/$defs/Node" }, { type: "null" }] };
  const names = ["left", "right", "above", "below", "next", "last"];
  const properties = { name: { type: "string" }, ...Object.fromEntries(names.map((name) => [name, inner])) };
  const schema = { $ref: "#/$defs/Node", $defs: { Node: { type: "object", required: ["name", ...names], properties } } };
  const began = performance.now();
  const plan = planOf(schema, undefined);
  assert.ok(performance.now() - began < 2000);
  assert.equal(field(field(field(plan, "left"), "left"), "left").kind, "object");
  assert.deepEqual(startOf(plan), { name: undefined, ...Object.fromEntries(names.map((name) => [name, undefined])) });
});

test("a field that is required and has no rules is asked for", () => {
  const plan = planOf({ type: "object", properties: { a: { type: "string" } }, required: ["a", "b"] }, undefined);
  assert.deepEqual(plan.fields.map(({ name, kind, isOptional }) => [name, kind, isOptional]), [["a", "text", false], ["b", "json", false]]);
});

test("a schema whose properties have no form together is written as JSON", () => {
  const base = { type: "object", required: ["a"], properties: { a: { type: "string" } } };
  const more = { required: ["b"], properties: { b: { type: "string" } } };
  const text = { type: "string" };
  for (const schema of [
    { $ref: "#/$defs/Base", ...more, $defs: { Base: base } },
    { allOf: [base], ...more },
    { type: "object", patternProperties: { "^[ab]$": text }, additionalProperties: false },
  ]) {
    const [plan, errors] = [planOf(schema), new Map()];
    assert.equal(plan.kind, "json");
    assert.deepEqual(valueOf(plan, draftOf(plan, { a: "x", b: "y" }), errors), { a: "x", b: "y" });
    assert.equal(errors.size, 0);
  }
  assert.equal(planOf({ $ref: "#/$defs/Base", required: ["a"], $defs: { Base: base } }).kind, "object");
});

test("a schema that makes no sense gives a form all the same, and no value is lost in it", () => {
  const schemas = [
    null, true, [], 5, { type: 7 }, { type: [] }, { type: ["null"] }, { enum: [] }, { enum: "a" }, { anyOf: [] }, { anyOf: [null] }, { oneOf: "x" }, { allOf: [5] },
    { $ref: "#" }, { $ref: "#/$defs/none" }, { $ref: 5 }, { allOf: [{ $ref: "#" }] }, { type: "object", properties: { a: { $ref: "#" } } },
    { type: "object", properties: null, required: "a" }, { type: "object", properties: { a: null, b: 5 }, required: [5] }, { type: "array", items: true },
    { type: "array", items: { $ref: "#" } }, { type: "string", minLength: "x", maxLength: {}, pattern: "(", format: 5, default: 5 }, { type: "integer", minimum: "x", maximum: [] },
    { type: "object", additionalProperties: { $ref: "#" } }, { description: {}, default: { a: [] } }, { const: null }, { anyOf: [{ type: "null" }, { type: "null" }] },
  ];
  const values = [{}, { a: 1 }, { a: { a: { a: {} } }, b: "x" }, JSON.parse('{"__proto__": 1, "constructor": {"x": 2}}'), { a: [], b: [[[]]] }];
  for (const schema of schemas) {
    for (const value of values) {
      const plan = planOf(schema, value);
      assert.deepEqual(valueOf(plan, draftOf(plan, value), new Map()), value, JSON.stringify([schema, value]));
    }
    const plan = planOf(schema, undefined);
    valueOf(plan, startOf(plan), new Map());
  }
});

test("what was not changed comes back as it was", () => {
  const schema = { type: "object", properties: { a: {}, b: {}, c: {}, d: { type: "array", items: { type: "number" } }, constructor: {} } };
  for (const args of [{ a: 1, b: "x", c: null, d: [] }, { a: [1, { x: null }], b: "", c: 0.5, d: [1.25, -3] }, { constructor: "x" }, {}]) {
    const plan = planOf(schema, args);
    assert.deepEqual(valueOf(plan, draftOf(plan, args), new Map()), args);
    assert.equal(countChanges(plan, draftOf(plan, args), draftOf(plan, args)), 0);
  }
});

test("changes are counted by field, and what was put back is none", () => {
  const args = { order: "4812", lines: [{ sku: "TEA-01", pieces: 2 }], method: "card" };
  const plan = planOf(order, args);
  const before = draftOf(plan, args);
  const changed = { ...before, order: "4813", floor: "2", lines: [{ ...before.lines[0], draft: { ...before.lines[0].draft, pieces: "3" } }] };
  assert.equal(countChanges(plan, changed, before), 3);
  assert.deepEqual(valueOf(plan, changed, new Map()), { order: "4813", lines: [{ sku: "TEA-01", pieces: 3 }], method: "card", floor: 2 });
  assert.equal(countChanges(plan, { ...changed, order: "4812", floor: undefined }, before), 1);
  assert.ok(!isSame({ floor: null }, { floor: undefined }), "null is not the same as left out");
});

test("each rule that a value breaks is said at its field", () => {
  const plan = planOf(order, undefined);
  const line = (sku, pieces) => ({ key: 1, draft: { sku, pieces } });
  const draft = { ...startOf(plan), order: "123456789", lines: [line("ab", "1.5"), line(undefined, "100"), line("TEA-01", "1"), line("TEA-02", "1")], pair: "[1," };
  const errors = errorsOf(plan, draft);
  assert.deepEqual(Object.keys(errors).sort(), ["lines", "lines.0.pieces", "lines.0.sku", "lines.1.pieces", "lines.1.sku", "order", "pair"]);
  assert.match(errors.order, /9 characters, at most 8 fit. Shorten it by 1/);
  assert.match(errors.lines, /4 given, at most 3 fit/);
  assert.match(errors.pair, /no JSON/);
  assert.deepEqual(errorsOf(plan, { ...startOf(plan), order: "1", lines: [] }), {});
});

test("numbers are whole where the schema says so, within their limits to the last digit, and sent as typed", () => {
  const plan = planOf({ type: "integer", minimum: 1, maximum: 9007199254740993 }, undefined);
  for (const wrong of ["", "x", "1.5", "1e3", "0", "-1", "0x10"]) assert.ok("" in errorsOf(plan, wrong), wrong);
  assert.equal(valueOf(plan, "+007", new Map()), 7);
  const large = planOf({ type: "integer" }, undefined);
  const errors = new Map();
  const value = valueOf(large, "9007199254740993", errors);
  if (JSON.rawJSON) assert.equal(JSON.stringify({ value }), '{"value":9007199254740993}');
  else assert.match(errors.get(""), /cannot send so large a number exactly/);
  const number = planOf({ type: "number", exclusiveMinimum: 0 }, undefined);
  assert.equal(valueOf(number, "1.50", new Map()), 1.5);
  for (const wrong of ["0", "1e999", ".", "1,5"]) assert.ok("" in errorsOf(number, wrong), wrong);
});

test("a refusal is split into its fields", () => {
  const fields = new Map([["answers.r1.args.items.0.sku", "it breaks minLength 3. args.order: it must be a string. args.to.postcode: it breaks pattern ^\\d{5}$."]]);
  assert.deepEqual(Object.fromEntries(fieldErrors({ fields }, "r1")), {
    "items.0.sku": "It breaks minLength 3.", order: "It must be a string.", "to.postcode": "It breaks pattern ^\\d{5}$.",
  });
  assert.deepEqual(Object.fromEntries(fieldErrors({ fields: new Map([["expect.r1", "the request is about other arguments."]]) }, "r1")), {});
  assert.equal(at({ items: [{ key: 1, draft: { sku: "ab" } }] }, "items.0.sku"), "ab");
});

test("questions with options are answered by the values of the options, or in words", () => {
  const questions = [
    { question: "Which?", multi_select: true, options: [{ label: "A", value: "a" }, { label: "B" }] },
    { question: "Why?" },
    { question: "More?", required: false },
  ];
  const errors = new Map();
  assert.deepEqual(answersOf({ questions, mayWrite: true }, blankAnswers(questions), errors), {});
  assert.deepEqual([...errors.keys()], ["0", "1"]);
  const draft = [{ chosen: [0, 1], text: "" }, { chosen: [], text: " so " }, { chosen: [], text: "" }];
  assert.deepEqual(answersOf({ questions, mayWrite: true }, draft, new Map()), { "Which?": { values: ["a", "B"] }, "Why?": { values: [], free_text: "so" } });
});

test("equal requests are one entry, under their agent in the order of the oldest", () => {
  const ask = (id, agent, call) => ({ id, agent, call, kind: "approval", to: null, text: "", session_id: `s${id}` });
  const entries = groupEqual([ask(1, "b", "f()"), ask(2, "a", "f()"), ask(3, "b", "g()"), ask(4, "b", "f()")]);
  assert.deepEqual(entries.map((entry) => entry.map((each) => each.id)), [[1, 4], [2], [3]]);
  assert.deepEqual(groupByAgent(entries).map(([agent, each]) => [agent, each.length]), [["b", 2], ["a", 1]]);
});

test("the pattern of a text is said, and left to the server, whose expressions are others", () => {
  const slow = { type: "string", pattern: "^(a+)+$" }; // thirty letters would take a browser minutes
  assert.match(planOf(slow, undefined).words, /of the form \^\(a\+\)\+\$/);
  assert.deepEqual(errorsOf(planOf(slow, undefined), `${"a".repeat(30)}!`), {});
  assert.deepEqual(errorsOf(planOf({ type: "string", pattern: "^\\w+$" }, undefined), "Jürgen"), {});
});
