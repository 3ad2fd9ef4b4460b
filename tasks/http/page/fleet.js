// The place Fleet: what needs a look, the workers with their slots, who offers which agent, and what steps wait for.
import { get, sessionPath } from "./api.js";
import { ask } from "./dialog.js";
import { count, duration, inert, plural } from "./format.js";
import { html, Table } from "./html.js";
import { useActing, usePolled } from "./live.js";
import { Ago, Empty, Glyph, Key, Meter, Problem, Status, useNow, useTitle } from "./parts.js";
import { Providers } from "./providers.js";
import { Schedules } from "./schedules.js";
import { actor, linkTo } from "./state.js";

const START = "celery-agents worker --agents MODULE";
const SILENT_MS = 15_000; // workers tell of themselves every five seconds
const MEANING = {
  running: "a worker has claimed them",
  queue: "a worker takes them as slots are free",
  person: "they hold no worker until somebody answers",
  child: "sessions below them work",
  service: "a service brings a result",
  provider: "the provider is away, refuses or is limited; their slots are free",
  delay: "they begin later",
  held: "somebody has suspended them",
  concurrency: "as many run as may; each goes when one has ended",
  spend_cap: "their spend cap is used up; each goes in its next period",
  at_provider: "their answers come later, for less",
  paused: "what they use is paused",
  no_worker: "no live worker offers their agent",
  parked: "no worker can carry them on; mend the cause, then retry them",
};

export function Fleet() {
  const workers = usePolled((signal) => get("v1/workers", {}, signal), [], 2);
  const agents = usePolled((signal) => get("v1/agents", {}, signal), [], 10);
  const waiting = usePolled((signal) => get("v1/waiting", {}, signal), [], 3);
  const hasParked = waiting.value?.reasons.some((each) => each.reason === "parked" && each.count) ?? false;
  const parked = usePolled((signal) => get("v1/sessions", { status: "parked", limit: 20 }, signal), [], 10, hasParked);
  const now = useNow();
  useTitle("Fleet");
  const all = Object.entries(workers.value ?? {}).sort(([one], [other]) => one.localeCompare(other));
  const slots = all.reduce((sum, [, each]) => sum + each.slots, 0);
  const running = all.reduce((sum, [, each]) => sum + each.running, 0);
  return html`
    <div class="heading"><div><h1>Fleet</h1>
      ${workers.value && html`<p class="dim">
        ${plural(all.length, "worker is alive", "workers are alive")}, ${count(running)} of ${count(slots)} slots are
        busy.</p>`}</div></div>
    <${Problem} of=${workers.problem ?? agents.problem} onRetry=${workers.refresh} />
    <${NeedsALook} workers=${all} waiting=${waiting.value} isKnown=${workers.value !== null} />
    <section class="part" aria-labelledby="workers-title"><header><h2 id="workers-title">Workers</h2></header>
      ${workers.value && !all.length
        ? html`<${Empty} command=${START}>No worker is alive. Start one:</${Empty}>`
        : html`<${Workers} workers=${all} now=${now} />`}</section>
    <div class="two">
      <section class="part" aria-labelledby="steps-title"><header><h2 id="steps-title">Steps</h2></header>
        <${Problem} of=${waiting.problem} /><${Steps} waiting=${waiting.value} /></section>
      <section class="part" aria-labelledby="agents-title"><header><h2 id="agents-title">Agents</h2></header>
        <${Agents} agents=${agents.value ?? {}} workers=${all} now=${now} /></section>
    </div>
    <${Providers} now=${now} />
    <${Schedules} now=${now} />
    <${Parked} polled=${parked} />`;
}

const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function NeedsALook({ workers, waiting, isKnown }) {
  const found = [];
  const counted = Object.fromEntries((waiting?.reasons ?? []).map((each) => [each.reason, each.count]));
  if (isKnown && !workers.length) found.push(["failed", "No worker is alive.", "Nothing goes on until one starts."]);
  if (counted.no_worker) found.push(["pending", `${plural(counted.no_worker, "session")} without a worker.`,
    "No live worker offers the agent; start one that imports it.", "pending"]);
  if (counted.parked) found.push(["parked", `${plural(counted.parked, "session")} parked.`,
    "See below why, and bring them back."]);
  for (const [name, facts] of workers) {
    for (const problem of facts.problems ?? []) found.push(["failed", `Worker ${name}:`, textOf(problem)]);
    if (facts.missing?.length) found.push(["failed", `Worker ${name}`,
      `lacks what it needs of its libraries: ${facts.missing.join(", ")}. celery-agents doctor says what follows.`]);
    for (const tool of facts.tools?.left_out ?? []) {
      found.push(["lost", `Worker ${name}`, `has left out a tool: ${textOf(tool)}`]);
    }
  }
  if (!found.length) return null;
  return html`<section class="look" aria-labelledby="look-title"><h2 id="look-title">Needs a look</h2>
    <ul>${found.map(([glyph, title, text, status]) => html`<li><${Glyph} of=${glyph} />
      <span dir="auto"><b>${inert(title)}</b> ${inert(text)}</span>
      ${status && html`<a href=${linkTo("sessions", "", { status })}>Show them</a>`}</li>`)}</ul></section>`;
}

function Workers({ workers, now }) {
  if (!workers.length) return null;
  const columns = [["Worker", "mono full"], ["State", "own-words"], ["Slots"], ["Offers", "full"], ["Queues", "mono"],
    ["Version", "mono"], ["Heard of", "number"]];
  return html`<${Table} label="Workers" columns=${columns} rows=${workers.map(([name, facts]) => [name, [
    `${facts.host}:${facts.pid}`,
    html`<${WorkerState} facts=${facts} now=${now} />`,
    html`<span class="slots"><${Meter} parts=${[[facts.running / Math.max(1, facts.slots), "used"]]} />
      ${count(facts.running)} of ${count(facts.slots)}</span>`,
    Object.keys(facts.agents).sort().join(", ") || "no agent",
    facts.queues.filter((queue) => queue[0] !== "@").map((queue) => queue || "common").join(", "),
    facts.version,
    `${duration((now - facts.seen) / 1000)} ago`,
  ]])} />`;
}

function WorkerState({ facts, now }) {
  if (now - facts.seen > SILENT_MS) return html`<span class="status bad"><${Glyph} of="lost" />not heard of</span>`;
  if (!facts.draining) return html`<span class="status"><${Glyph} of="in_progress" />works</span>`;
  return html`<span class="status"><${Glyph} of="suspended" />ending</span>
    <span class="small dim"> ${plural(facts.running, "step")} left</span>`;
}

function Steps({ waiting }) {
  if (!waiting) return null;
  const columns = [["Sessions"], ["Now", "number"], ["What it means", "dim full own-words"]];
  const shown = waiting.reasons.filter((each) => each.count || ["running", "queue"].includes(each.reason));
  return html`<${Table} label="What steps wait for" columns=${columns}
    rows=${shown.map(({ reason, count: number, sentence }) => [reason, [
      html`<span class="named"><${Key} kind=${reason} />${sentence.replace(/^\d+\s*/, "")}</span>`,
      count(number),
      MEANING[reason] ?? "",
    ]])} />`;
}

function Agents({ agents, workers, now }) {
  const names = Object.keys(agents).sort();
  if (!names.length) return html`<${Empty} command=${START}>No worker has registered an agent yet.</${Empty}>`;
  const columns = [["Agent"], ["Workers", "number"], ["Queue", "mono"], ["Last offered", "number"]];
  return html`<${Table} label="Agents" columns=${columns} rows=${names.map((name) => {
    const offering = workers.filter(([, facts]) => name in facts.agents).length;
    return [name, [
      html`<a href=${linkTo("sessions", "", { agent: name })}>${name}</a>`,
      offering ? count(offering) : html`<${Status} status="parked" /> 0`,
      agents[name].queue || "common",
      html`<${Ago} at=${new Date(agents[name].seen).toISOString()} now=${now} suffix=" ago" />`,
    ]];
  })} />`;
}

function Parked({ polled }) {
  const { act, problem } = useActing(polled);
  const sessions = polled.value?.sessions ?? [];
  if (!sessions.length && !problem) return null; // the last one may be brought back by another
  const bringBack = async (id) => {
    const text = "Its step is published again. Where the cause is not mended, it is parked again.";
    if ((await ask({ title: `Bring ${id} back?`, text, action: "Bring it back" })) === null) return;
    await act("POST", sessionPath(id, "/retry"), { body: actor() });
  };
  return html`<section class="part" aria-labelledby="parked-title"><header><h2 id="parked-title">Parked</h2>
    <p class="dim">No worker can carry these on.</p></header>
    <${Problem} of=${problem} />
    <ul class="look">${sessions.map((each) => html`<li><${Glyph} of="parked" />
      <span><a class="mono" href=${linkTo("sessions", each.session_id)}>${each.session_id}</a>
        <span dir="auto"> ${inert(each.reason)}</span></span>
      <button class="button bare" type="button" onClick=${() => bringBack(each.session_id)}>Bring it back</button>
        </li>`)}
    </ul></section>`;
}
