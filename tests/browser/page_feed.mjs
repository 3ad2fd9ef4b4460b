// What the page of a session keeps while its reads are on their way: replies are held until the test lets them go.
import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";
import { page } from "./page_globals.mjs";

const { post } = await page("api.js");
const { Feed } = await page("feed.js");
const { followEvents } = await page("live.js");

let messages; // of the session, as the API has them
let told; // the controller of its stream of events
let held; // replies of GET …/messages that wait: {offset, limit, letGo}
let isHolding;
let isRefusing; // the header
let refused; // how often
let isCut; // replies arrive without their end
let feed;

const messageOf = (number) => ({ role: "assistant", content: `said ${number}` });
const until = async (isTrue) => {
  for (const end = Date.now() + 5000; !isTrue(); ) {
    assert.ok(Date.now() < end, `waited for ${isTrue}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
};
const contents = () => feed.view.messages.map((each) => each.content);
const all = () => messages.map((each) => each.content);

function cutOff() {
  const pull = (controller) => controller.error(new TypeError("network error"));
  return new Response(new ReadableStream({ pull }));
}

async function answer(url) {
  if (isCut && !url.pathname.endsWith("/events")) return isCut();
  if (url.pathname.endsWith("/events")) {
    const body = new ReadableStream({ start: (controller) => (told = controller) });
    return new Response(body);
  }
  if (url.pathname.endsWith("/requests")) return Response.json({ requests: [] });
  if (!url.pathname.endsWith("/messages")) {
    if (isRefusing) refused += 1;
    if (isRefusing) return new Response("", { status: 503 });
    return Response.json({ session_id: "s", execution_id: "e", status: "in_progress" });
  }
  const [offset, limit] = ["offset", "limit"].map((name) => Number(url.searchParams.get(name) ?? 0));
  const reply = Response.json({ messages: messages.slice(offset, offset + limit), total: messages.length });
  if (isHolding) await new Promise((letGo) => held.push({ offset, limit, letGo }));
  return reply;
}

function tell(type, data) {
  const frame = `event: ${type}\ndata: ${JSON.stringify({ type, at: new Date(Date.now() + 60_000).toISOString(), ...data })}\n\n`;
  told.enqueue(new TextEncoder().encode(frame));
}

async function open(count) {
  messages = Array.from({ length: count }, (_, number) => messageOf(number));
  feed = new Feed("s", true, () => {});
  await feed.start();
  await until(() => told);
}

beforeEach(() => {
  [told, held, isHolding, isRefusing, refused, isCut] = [null, [], false, false, 0, null];
  globalThis.fetch = answer;
  globalThis.document = { hidden: false, addEventListener: () => {}, removeEventListener: () => {} };
});

afterEach(() => feed.stop());

test("the text of a step that is committed while messages are read stays until they are read again", async () => {
  await open(1);
  isHolding = true;
  feed.refresh("messages");
  await until(() => held.length);
  messages.push(messageOf(1));
  tell("step_committed", { execution_id: "e", step: 1, text: "said 1", data: {} });
  await until(() => feed.transcript.pieces.length);
  held.pop().letGo();
  await until(() => held.length);
  assert.deepEqual(feed.transcript.pieces.map((each) => each.text), ["said 1"]);
  held.pop().letGo();
  await until(() => contents().length === 2);
  assert.deepEqual(feed.transcript.pieces, []);
});

test("the text of a step that is told while the messages that have it are read is there once", async () => {
  await open(1);
  isHolding = true;
  messages.push(messageOf(1));
  feed.refresh("messages");
  await until(() => held.length);
  tell("step_committed", { execution_id: "e", step: 1, text: "said 1", data: {} });
  await until(() => feed.transcript.pieces.length);
  held.pop().letGo();
  await until(() => contents().length === 2);
  assert.deepEqual(feed.transcript.pieces, []);
});

test("messages that arrive while earlier ones are read stay", async () => {
  await open(250);
  assert.equal(feed.view.from, 50);
  isHolding = true;
  const earlier = feed.readEarlier();
  await until(() => held.length);
  const { letGo } = held.pop();
  isHolding = false;
  messages.push(messageOf(250));
  feed.refresh("messages");
  await until(() => contents().at(-1) === "said 250");
  letGo();
  await earlier;
  assert.deepEqual(contents(), all());
});

test("earlier messages that arrive while new ones are read stay", async () => {
  await open(250);
  isHolding = true;
  messages.push(messageOf(250));
  feed.refresh("messages");
  await until(() => held.length);
  isHolding = false;
  await feed.readEarlier();
  held.pop().letGo();
  await until(() => contents().at(-1) === "said 250");
  assert.deepEqual(contents(), all());
});

test("earlier messages that are asked for twice at once are there once", async () => {
  await open(250);
  await Promise.all([feed.readEarlier(), feed.readEarlier()]);
  assert.deepEqual(contents(), all());
});

test("a conversation that was replaced by one as long is read anew", async () => {
  await open(3);
  messages = [messageOf(0), ...[7, 8, 9].map(messageOf)]; // rewound, and gone on with, while nothing was read
  feed.refresh("messages");
  await until(() => contents().length === 4);
  assert.deepEqual(contents(), all());
});

test("a read that is tried again does not run beside those of the start", async () => {
  [messages, isRefusing, isHolding] = [[messageOf(0)], true, true];
  feed = new Feed("s", true, () => {});
  const started = feed.start();
  await until(() => held.length);
  isRefusing = false;
  await new Promise((resolve) => setTimeout(resolve, 1200)); // until the header would be tried again
  feed.refresh("messages");
  await new Promise((resolve) => setTimeout(resolve, 700));
  assert.equal(held.length, 1);
  isHolding = false;
  held.pop().letGo();
  await started;
});

test("what is cut off, or is the page of another server, is read again", async () => {
  await open(1);
  for (const reply of [cutOff, () => new Response("<p>Sign in to this network</p>")]) {
    isCut = reply;
    messages.push(messageOf(messages.length));
    feed.refresh("messages");
    await until(() => feed.view.problems.messages);
    assert.equal(feed.view.problems.messages.status, 0);
    isCut = null;
    await until(() => contents().length === messages.length);
    assert.deepEqual(contents(), all());
  }
});

test("what was sent and got half of a reply is the same when it is sent again", async () => {
  const keys = [];
  globalThis.fetch = async (url, { headers }) => {
    keys.push(headers["Idempotency-Key"]);
    return keys.length < 2 ? cutOff() : Response.json({});
  };
  await assert.rejects(post("v1/sessions/s/fork", {}, { isOnce: true }), (refusal) => refusal.status === 0);
  await post("v1/sessions/s/fork", {}, { isOnce: true });
  assert.equal(keys[0], keys[1]);
});

test("the stream of a session that is gone is asked for once", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  try {
    const problems = [];
    let asked = 0;
    globalThis.fetch = async () => {
      asked += 1;
      return Response.json({ detail: "It was deleted." }, { status: 410 });
    };
    const end = followEvents("s", () => {}, (problem) => problems.push(problem?.status));
    while (!problems.length) await new Promise(setImmediate);
    mock.timers.tick(100_000);
    await new Promise(setImmediate);
    assert.deepEqual([asked, problems], [1, [410]]);
    end();
  } finally {
    mock.timers.reset();
  }
});
