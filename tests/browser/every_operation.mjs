// A client in plain JavaScript that uses every operation of a served interface: node every_operation.mjs URL TOKEN LEDGER SECRET.
// It prints the operations that it used, and what it found, as JSON.
import assert from "node:assert/strict";
import { createHmac, randomUUID } from "node:crypto";

const [url, token, ledger, webhookSecret] = process.argv.slice(2);
const used = new Set();

async function request(method, template, places = {}, { body, query, headers = {}, bearer = token } = {}) {
  used.add(`${method} ${template}`);
  const path = template.replace(/{(\w+)}/g, (_, name) => encodeURIComponent(places[name]));
  const target = `${url}${path}${query ? `?${new URLSearchParams(query)}` : ""}`;
  const given = { ...headers };
  if (bearer) given.Authorization = `Bearer ${bearer}`;
  if (body !== undefined) given["Content-Type"] = "application/json";
  return fetch(target, { method, headers: given, body: body === undefined ? undefined : JSON.stringify(body) });
}

async function call(...asked) {
  const response = await request(...asked);
  const text = await response.text();
  assert.ok(response.ok, `${asked[0]} ${asked[1]}: ${response.status} ${text}`);
  return { value: text ? JSON.parse(text) : null, response };
}

async function* eventsOf(response) {
  assert.ok(response.ok, `${response.status}`);
  let pending = "";
  for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
    pending += piece.replaceAll("\r\n", "\n");
    const frames = pending.split("\n\n");
    pending = frames.pop();
    for (const frame of frames) {
      const found = Object.fromEntries(
        frame.split("\n").filter((line) => !line.startsWith(":")).map((line) => line.split(/: (.*)/s).slice(0, 2)),
      );
      if (found.data) yield { id: found.id, event: found.event, value: JSON.parse(found.data) };
    }
  }
}

// One stream of a session and all below it: each session that is started is followed, too.
async function followTree(session) {
  const found = [];
  const below = [];
  const place = { session_id: session };
  const stream = await request("GET", "/v1/sessions/{session_id}/events", place, { query: { until: "end" } });
  for await (const { event, value } of eventsOf(stream)) {
    found.push([session, event]);
    if (event === "child_started") below.push(followTree(value.data.session));
  }
  return [...found, ...(await Promise.all(below)).flat()];
}

async function until(what, look) {
  for (const begin = Date.now(); Date.now() - begin < 60_000; ) {
    const found = await look();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`${what} has not come in a minute`);
}

const plan = (steps, answer = "done") => JSON.stringify({ steps, answer, driver: {} });
const tool = (name, args) => ({ tool: name, arguments: args });
const path = "/v1/sessions/{session_id}";
const job = (agent, body, more = {}) => call("POST", "/v1/agents/{agent}/jobs", { agent }, { body, ...more });
const header = async (session) => (await call("GET", path, { session_id: session })).value;
const statusOf = async (session) => (await header(session)).status;
const openRequests = (session) =>
  until("a request", async () => {
    const { value } = await call("GET", `${path}/requests`, { session_id: session });
    return value.requests.length ? value.requests : null;
  });

async function workAndRead() {
  const key = { "Idempotency-Key": randomUUID() };
  const asked = [{ message: plan([[tool("pure", { work: "a" })]]), metadata: { from: "node" } }, { headers: key, query: { wait: 30 } }];
  const first = (await job("planned", ...asked)).value;
  assert.equal((await job("planned", ...asked)).value.session_id, first.session_id);
  assert.equal(first.result.final_response, "done");
  const place = { session_id: first.session_id };
  const next = await call("POST", `${path}/messages`, place, { body: { message: plan([], "again") }, query: { wait: 30 } });
  assert.equal(next.value.result.final_response, "again");
  assert.equal((await call("GET", `${path}/executions`, place)).value.executions.length, 2);
  const one = { ...place, execution_id: next.value.execution_id };
  assert.equal((await call("GET", `${path}/executions/{execution_id}`, one)).value.ended, true);
  assert.equal((await call("GET", `${path}/messages`, place)).value.total, 6);
  assert.equal((await call("GET", `${path}/steps`, place)).value.steps.length, 1);
  assert.equal((await call("GET", `${path}/state`, place)).value.state.context.metadata.from, "node");
  assert.equal((await call("GET", `${path}/trace`, place, { query: { data: false } })).value.status, "success");
  const { value: timeline } = await call("GET", `${path}/timeline`, place, { query: { limit: 1, data: true } });
  assert.deepEqual([timeline.steps.length, timeline.status, timeline.steps[0].status], [1, "completed", "committed"]);
  const { value: listed } = await call("GET", "/v1/sessions", {}, { query: { agent: "planned", limit: 1000 } });
  assert.ok(listed.sessions.some((each) => each.session_id === first.session_id));
  return first.session_id;
}

async function change(session) {
  const place = { session_id: session };
  await call("PUT", `${path}/metadata/{key}`, { ...place, key: "color" }, { body: { value: ["red"] } });
  await call("PUT", `${path}/system-prompt`, place, { body: { prompt: "Be brief." } });
  await call("PUT", `${path}/model`, place, { body: { model: "openai:gpt-5-mini" } });
  const { value: snapshot, response } = await call("GET", `${path}/snapshot`, place, { query: { tag: "before" } });
  const moved = { snapshot, session_id: randomUUID(), context: { moved: true } };
  const { value: copy } = await call("POST", "/v1/snapshots", {}, { body: moved });
  assert.equal((await call("GET", `${path}/state`, copy)).value.state.context.metadata.moved, true);
  const { value: fork } = await call("POST", `${path}/fork`, place, { headers: { "If-Match": response.headers.get("ETag") } });
  assert.equal((await header(fork.session_id)).forked_from, session);
  await call("POST", `${path}/clear`, fork);
  assert.equal((await call("GET", `${path}/messages`, fork)).value.total, 0);
  const stale = await request("DELETE", path, fork, { headers: { "If-Match": '"1"' } });
  assert.equal(stale.status, 412);
  await call("DELETE", path, fork);
  assert.equal((await request("GET", path, fork)).status, 410);
}

async function lookBackAndRewind(session) {
  const place = { session_id: session };
  const { value: then } = await call("GET", `${path}/steps/{at}/state`, { ...place, at: 1 });
  assert.ok(then.state);
  assert.ok((await call("GET", `${path}/steps/{step}/request`, { ...place, step: 1 })).value);
  await call("POST", `${path}/rewind`, place, { body: { to: 1, by: "node" } });
  const { value: costs } = await call("GET", "/v1/costs", {}, { query: { by: "agent" } });
  assert.ok(costs);
}

async function changeMindsAndErase() {
  const { value: asked } = await job("asking", { message: plan([[tool("careful", { work: "not by node" })]]) });
  const place = { session_id: asked.session_id };
  await call("POST", `${path}/labels`, place, { body: { labels: { story: "minds" } } });
  const [{ id }] = await openRequests(asked.session_id);
  await call("POST", `${path}/budget`, place, { body: { budget: { max_steps: 20 } } });
  await call("POST", `${path}/messages`, place, { body: { message: "no, not this one" } });
  await call("POST", `${path}/messages`, place, { body: { message: plan([], "later"), when: "queue" } });
  const [said, later] = (await call("GET", `${path}/queue`, place)).value.messages;
  const { value: shown } = await call("GET", `${path}/requests/{request_id}`, { ...place, request_id: id });
  assert.deepEqual(shown.messages.map((each) => [each.number, each.text]), [[1, "no, not this one"]]);
  const answers = { [id]: { approve: true } };
  const unseen = await request("POST", `${path}/answers`, place, { body: { answers, seen: 0 } });
  assert.equal(unseen.status, 409);
  assert.equal((await unseen.json()).newest_message, 1);
  await call("PUT", `${path}/messages/{operation_id}/mode`, { ...place, operation_id: later.operation_id }, {
    body: { when: "steer" },
  });
  await call("DELETE", `${path}/messages/{operation_id}`, { ...place, operation_id: said.operation_id });
  await call("POST", `${path}/queue/release`, place, { body: {} });
  const { value: preview } = await call("POST", "/v1/acts", {}, {
    body: { act: "stop", label: { story: "minds" }, dry_run: true },
  });
  assert.ok(preview);
  await call("POST", `${path}/stop`, place, { body: { timeout_seconds: 30 } });
  await call("POST", "/v1/erasures", {}, { body: { label: { story: "minds" } } });
  assert.equal((await request("GET", path, place)).status, 410);
}

async function ask() {
  const calls = [tool("refund", { work: "by node" }), tool("measured", { work: "box" })];
  const { value: asked } = await job("asking", { message: plan([calls]) });
  const place = { session_id: asked.session_id };
  const open = await until("both requests", async () => {
    const found = await openRequests(asked.session_id);
    return found.length === 2 ? found : null;
  });
  const { value: counts } = await call("GET", "/v1/waiting", {}, { query: { agent: "asking" } });
  assert.ok(counts.reasons.find((each) => each.reason === "person").count >= 1);
  const everybody = await call("GET", "/v1/requests", {}, { query: { limit: 1000 } });
  assert.ok(everybody.value.requests.some((each) => each.session_id === asked.session_id));
  const approval = open.find((each) => each.kind === "approval");
  const question = open.find((each) => each.kind === "question");
  const { value: shown } = await call("GET", `${path}/requests/{request_id}`, { ...place, request_id: approval.id });
  assert.equal(shown.args.work, "by node");
  await call("POST", `${path}/answers`, place, {
    body: { answers: { [approval.id]: { approve: true } }, remember: "session", by: "reviewer" },
  });
  const { value: link } = await call("POST", `${path}/requests/{request_id}/links`, { ...place, request_id: question.id }, {
    body: { ttl_seconds: 60 },
  });
  const linked = { bearer: null };
  assert.equal((await call("GET", "/v1/answers/{token}", link, linked)).value.id, question.id);
  await call("POST", "/v1/answers/{token}", link, { ...linked, body: { answer: { answer: { size: "XL" } } } });
  await until("the end", async () => (await statusOf(asked.session_id)) === "completed");
  const { value: grants } = await call("GET", `${path}/grants`, place);
  await call("DELETE", `${path}/grants/{grant_id}`, { ...place, grant_id: grants.grants[0].id });
}

async function complete() {
  const { value: asked } = await job("asking", { message: plan([[tool("render", { work: "elsewhere" })]]) });
  const entry = await until("the work handed over", async () => {
    const entries = await (await fetch(`${ledger}/entries`)).json();
    return entries.find((each) => each.kind === "start" && each.work === "elsewhere");
  });
  await until("the wait", async () => (await statusOf(asked.session_id)) === "waiting");
  const { value } = await call("POST", "/v1/completions/{token}", { token: entry.token }, {
    bearer: null,
    body: { value: { found: 2 } },
  });
  assert.equal(value.outcome, "woken");
  await until("the end", async () => (await statusOf(asked.session_id)) === "completed");
}

async function holdAndStop() {
  const { value: asked } = await job("asking", { message: plan([[tool("refund", { work: "never" })]]) });
  const place = { session_id: asked.session_id };
  await openRequests(asked.session_id);
  assert.equal((await call("POST", `${path}/suspend`, place, { body: { reason: "a look" } })).value.changed, true);
  assert.equal((await call("POST", `${path}/resume`, place, { body: {} })).value.changed, true);
  assert.equal((await call("POST", `${path}/stop`, place, { body: { timeout_seconds: 30 } })).value.stopped, true);
  await call("POST", `${path}/retry`, place, { body: { budget: { max_steps: 5 } } });
  await until("the end", async () => (await statusOf(asked.session_id)) === "completed");
  const { value: mine } = await call("POST", `${path}/tokens`, place, { body: { scopes: ["read", "stop"] } });
  await call("POST", `${path}/stop`, place, { body: {}, bearer: mine.token });
  const elsewhere = await request("GET", "/v1/sessions", {}, { bearer: mine.token });
  assert.equal(elsewhere.status, 403);
}

async function delegate() {
  const steps = [[tool("delegate", { prompt: plan([[tool("pure", { work: "below" })]], "found") })]];
  const { value: asked } = await job("node", { message: plan(steps) });
  const seen = await followTree(asked.session_id);
  const { value: tree } = await call("GET", `${path}/tree`, asked);
  const below = tree.children[0].session_id;
  assert.ok(seen.some(([from, event]) => from === below && event === "execution_completed"));
  assert.deepEqual(seen.filter(([from]) => from === asked.session_id).at(-1), [asked.session_id, "execution_completed"]);
}

async function look() {
  assert.ok((await call("GET", "/v1/agents")).value.planned);
  assert.equal(Object.keys((await call("GET", "/v1/workers")).value).length, 1);
  assert.equal((await call("GET", "/v1/health")).value.ok, true);
}

async function tellAsAProvider() {
  const body = { type: "response.completed", data: { id: "resp_of_nobody" } };
  const [id, at] = [randomUUID(), Math.floor(Date.now() / 1000)];
  const key = Buffer.from(webhookSecret.replace("whsec_", ""), "base64");
  const digest = createHmac("sha256", key).update(`${id}.${at}.${JSON.stringify(body)}`).digest("base64");
  const headers = { "webhook-id": id, "webhook-timestamp": `${at}`, "webhook-signature": `v1,${digest}` };
  const asked = ["POST", "/v1/provider-webhooks/{provider}", { provider: "openai" }];
  assert.equal((await call(...asked, { body, headers, bearer: "" })).response.status, 204);
}

async function limit() {
  const body = { limit: { model: "openai:gpt-5-mini", rpm: 500 }, by: "node" };
  assert.equal((await call("PUT", "/v1/limits", {}, { body })).value.notes.length, 1);
  const { value: listed } = await call("GET", "/v1/limits");
  assert.equal(listed.limits.find((each) => each.model === "openai:gpt-5-mini").limit.rpm, 500);
  const query = { model: "openai:gpt-5-mini" };
  assert.equal((await call("DELETE", "/v1/limits", {}, { query })).value.changed, true);
  const some = { limit: { name: "crm", total: 2, per: { customer: 1 } }, by: "node" };
  assert.equal((await call("PUT", "/v1/concurrency", {}, { body: some })).value.notes.length, 1);
  assert.deepEqual((await call("GET", "/v1/concurrency")).value.concurrency[0].per, { customer: 1 });
  assert.equal((await call("DELETE", "/v1/concurrency", {}, { query: { name: "crm" } })).value.changed, true);
  const cap = { cap: { name: "daily", usd: 20, per: "day", label: "customer", values: { acme: 100 } }, by: "node" };
  const shares = { shares: { label: "customer", weights: { acme: 2 } }, by: "ops" };
  await call("PUT", "/v1/shares", {}, { body: shares });
  assert.equal((await call("GET", "/v1/shares")).value.shares.weights.acme, 2);
  assert.equal((await call("DELETE", "/v1/shares")).value.changed, true);
  assert.deepEqual((await call("PUT", "/v1/caps", {}, { body: cap })).value.notes, []);
  assert.equal((await call("GET", "/v1/caps")).value.caps[0].usd, 20);
  assert.equal((await call("DELETE", "/v1/caps", {}, { query: { name: "daily" } })).value.changed, true);
  await call("POST", "/v1/pauses", {}, { body: { tool: "no such tool", reason: "a look" } });
  assert.equal((await call("GET", "/v1/pauses")).value.pauses[0].reason, "a look");
  assert.equal((await call("DELETE", "/v1/pauses", {}, { query: { tool: "no such tool" } })).value.changed, true);
}

async function schedule() {
  const body = { schedule: { name: "yearly", cron: "0 0 1 1 *", agent: "planned", message: plan([]).replace(/[{}]/g, "$&$&") } };
  assert.deepEqual((await call("PUT", "/v1/schedules", {}, { body })).value.notes, []);
  assert.equal((await call("GET", "/v1/schedules")).value.schedules[0].agent, "planned");
  assert.ok((await call("POST", "/v1/schedules/{name}/run", { name: "yearly" })).value.session_id);
  assert.equal((await call("DELETE", "/v1/schedules", {}, { query: { name: "yearly" } })).value.changed, true);
}

async function talk() {
  await call("GET", "/agui/{agent}", { agent: "planned" });
  const body = {
    threadId: randomUUID(),
    runId: randomUUID(),
    messages: [{ id: randomUUID(), role: "user", content: plan([], "hello") }],
    tools: [],
  };
  const kinds = [];
  const stream = await request("POST", "/agui/{agent}", { agent: "planned" }, { body });
  for await (const { value } of eventsOf(stream)) kinds.push(value.type);
  assert.equal(kinds.at(-1), "RUN_FINISHED");
}

async function live() {
  const { value: asked } = await job("planned", { message: plan([[tool("pure", { work: "b" })]]) });
  const seen = [];
  const stream = await request("GET", `${path}/events`, asked, { query: { live: true, until: "end" } });
  for await (const { event } of eventsOf(stream)) seen.push(event);
  assert.equal(seen.at(-1), "execution_completed");
}

const worked = await workAndRead();
await lookBackAndRewind(worked);
await change(worked);
await Promise.all([ask(), changeMindsAndErase(), complete(), holdAndStop(), delegate(), talk(), live(), look(), limit(),
  schedule(), tellAsAProvider()]);
console.log(JSON.stringify([...used].sort()));
