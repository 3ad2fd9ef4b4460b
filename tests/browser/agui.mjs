// The official client of AG-UI against a served interface: node agui.mjs URL TOKEN. It prints what it found as JSON.
import { HttpAgent } from "@ag-ui/client";
import { randomUUID } from "node:crypto";

const [url, token] = process.argv.slice(2);

function agentFor(name) {
  return new HttpAgent({
    url: `${url}/agui/${name}`,
    headers: { Authorization: `Bearer ${token}` },
    threadId: randomUUID(),
  });
}

async function run(agent, parameters = {}) {
  const seen = { types: [], outcome: null, error: null };
  await agent.runAgent(parameters, {
    onEvent: ({ event }) => void seen.types.push(event.type),
    onRunFinishedEvent: ({ event }) => void (seen.outcome = event.outcome),
    onRunErrorEvent: ({ event }) => void (seen.error = event.message),
  });
  return seen;
}

function say(agent, text) {
  agent.addMessage({ id: randomUUID(), role: "user", content: text });
}

const plan = (steps, answer) => JSON.stringify({ steps, answer, driver: {} });
const call = (tool, args) => ({ tool, arguments: args });

const talk = agentFor("planned");
say(talk, plan([[call("pure", { work: "a" })]], "it is done"));
const first = await run(talk);
say(talk, plan([], "and again"));
const second = await run(talk);

const asking = agentFor("asking");
say(asking, plan([[call("refund", { work: "by the official client" })]], "refunded"));
const asked = await run(asking);
const resume = (asked.outcome?.interrupts ?? []).map((each) => ({
  interruptId: each.id,
  status: "resolved",
  payload: { approved: true },
}));
const resumed = await run(asking, { resume });

const failing = agentFor("planned");
say(failing, "no plan at all");
const failed = await run(failing).catch((error) => ({ error: String(error), types: [] }));

console.log(
  JSON.stringify({
    first,
    second,
    asked,
    resumed,
    failed,
    messages: talk.messages.map(({ role, content }) => ({ role, content })),
    refunded: asking.messages.at(-1).content,
  }),
);
