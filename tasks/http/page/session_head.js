// The head of a session: its place, its first words, its status with the reason, its numbers, and what can be done with
// it: each action only where its status allows it; what cannot be taken back asks once.
import { get, post, Refusal, sessionPath, tokenClaims } from "./api.js";
import { isActive } from "./conversation.js";
import { ask } from "./dialog.js";
import { count, duration, firstLine, inert, money, plural, sumOf, tokensOf } from "./format.js";
import { html, useMemo, useState } from "./html.js";
import { Copy, Problem, Status, useNow } from "./parts.js";
import { callsChildren, sumUp } from "./spans.js";
import { ActingAs, actor, forkSession, linkTo } from "./state.js";

export const WHY = "Why? It is shown wherever the session is.";
export const SUSPENDED = "suspended on the page";
const UNCONFIRMED = "Its end is not confirmed by a replica of Redis: a failover may forget it.";

export function SessionHead({ view, feed, words, isChat }) {
  const { header } = view;
  const id = header.session_id;
  const isVisitor = tokenClaims() !== null;
  const unknown = view.problems.header ?? lostStream(view.streamProblem);
  return html`<div class="heading"><div>
      <p class="path">${!isVisitor && html`<a href=${linkTo("sessions")}>Sessions</a><span class="dim"> / <a
        href=${linkTo("sessions", "", { agent: header.agent })}>${inert(header.agent)}</a> / </span>`}
        <span class="mono">${id}</span>${header.forked_from && html`<span class="dim">, a fork of <a class="mono"
          href=${linkTo("sessions", header.forked_from)}>${header.forked_from}</a></span>`}<${Labels}
        of=${isVisitor ? {} : header} /></p>
      <h1 dir="auto">${words || (view.total === 0 ? "Nothing was said yet" : id)}</h1>
      <p class="state"><${Status} status=${header.status} held=${header.session_status === "suspended"}
        archived=${header.is_archived} /> <span
        class="dim" dir="auto">${reasonOf(view)}</span></p></div>
    ${!isChat && html`<div class="do"><${Actions} view=${view} feed=${feed} />
      ${!isVisitor && html`<${ActingAs} />`}</div>`}</div>
    <${Problem} of=${unknown} />
    <${Problem} of=${header.history_lost && { message: header.history_lost }} />
    <${Problem} of=${header.confirmed === false && { message: UNCONFIRMED }} />
    ${!isChat && header.status !== "unreadable" && html`<${Facts} view=${view} />`}`;
}

/** The labels of a session or of its row, each as key=value. */
export const labelsOf = ({ labels = {} }) => Object.entries(labels).map((each) => each.join("="));

export function Labels({ of }) {
  return labelsOf(of).map((label) => html` <a class="small" dir="auto" href=${linkTo("sessions", "", { label })}>
    ${inert(label)}</a>`);
}

/** Why nothing new is told of, and what is done about it; null while events arrive. */
function lostStream(problem) {
  if (!problem) return null;
  const what = problem.status === 0 ? "cut off. Look whether a proxy ends it." : `refused: ${problem.message}`;
  return { message: `The stream of events is ${what} This page reads every 5 seconds until it is open again.` };
}

/** Why it has not ended, or how it has, in a sentence; "" where there is nothing to say. */
export function reasonOf({ header, result }) {
  if (header.reason) return firstLine(header.reason, 400);
  if (header.status === "idle") return "nothing runs; a message starts it";
  if (!result) return "";
  const why = result.stop_message || result.errors.at(-1) || (result.stop_reason ?? "").replaceAll("_", " ");
  if (["failed", "stopped"].includes(header.status)) return `after ${plural(result.step_count,
    "step")}: ${firstLine(why, 400)}`;
  const { finish_reason: finish } = result;
  if (["length", "content_filter"].includes(finish)) return `its answer is cut short: ${finish.replace("_", " ")}`;
  return "";
}

function Facts({ view }) {
  const { steps, timeline, tree, state, isPartial } = view;
  const isOpen = timeline?.ended_at === null;
  const second = useNow();
  const now = isOpen ? second : 0;
  const sums = useMemo(() => (timeline && !isPartial ? sumUp(steps, now + (timeline.skew ?? 0))
    : null), [steps, timeline, isPartial, now]);
  if (!timeline) return html`<dl class="numbers" aria-busy="true"></dl>`;
  const execution = state?.execution?.execution_id === timeline.execution_id ? state.execution : null;
  const usage = execution ? tokensOf(execution.usage) ?? 0 : null;
  const budget = execution?.budget ?? {};
  const below = execution?.child_steps ?? 0; // they count against the limit of steps
  const mostSteps = budget.max_steps ?? (execution?.default_steps || null);
  const known = (name) => (isPartial ? null : sumOf(steps.map((each) => each[name])));
  const hasChildren = (tree?.children?.length ?? 0) > 0;
  const of = (value, most, write) => (most === null || most === undefined ? write(value)
    : `${write(value)} of ${write(most)}`);
  const withChildren = hasChildren ? " with children" : "";
  const facts = [
    ["worked", sums && duration(sums.worked)],
    ["waited for a person", sums && sums.waitedForPeople > 0 && duration(sums.waitedForPeople)],
    [below ? "steps with children" : "steps", of(timeline.total_steps + below, mostSteps, count)],
    [`tokens${withChildren}`, of(tree?.tokens ?? usage ?? known("tokens"), budget.max_tokens, count)],
    [`cost${withChildren}`, of(tree ? tree.cost : known("cost"), budget.max_cost, money)],
    ["recovered", sums && sums.recovered > 0 && (sums.recovered === 1 ? "once" : `${sums.recovered} times`)],
  ];
  return html`<dl class="numbers">${facts.filter(([, value]) => value).map(([name, value]) => html`<div key=${name}>
    <dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** Whether the token may do this; a service's token does not say, and the server does. */
function may(scope) {
  const claims = tokenClaims();
  return claims === null || claims.scopes.includes(scope);
}

function Actions({ view, feed }) {
  const { header } = view;
  const id = header.session_id;
  const [problem, setProblem] = useState(null);
  const [isRunning, setRunning] = useState(false);
  const [said, setSaid] = useState("");
  const isHeld = header.session_status === "suspended";
  const isReadable = header.status !== "unreadable";
  const isChild = id.includes(".") && !header.forked_from;
  const say = (text) => {
    setSaid(text);
    if (text) setTimeout(() => setSaid((now) => (now === text ? "" : now)), 8000);
  };
  const act = async (work) => {
    setRunning(true);
    setProblem(null);
    try {
      say((await work()) ?? "");
    } catch (refusal) {
      if (!(refusal instanceof Refusal)) throw refusal;
      setProblem(refusal);
    }
    setRunning(false);
    feed.refresh("header", "timeline", "requests", "results", "messages");
  };
  const suspend = async () => {
    const text = "Its running step ends. Nothing begins after it, here and in the sessions below, until it is resumed.";
    const reason = await ask({ title: "Suspend this session?", text,
      field: WHY, action: "Suspend" });
    if (reason === null) return;
    await act(async () => {
      await post(sessionPath(id, "/suspend"), { reason: reason.trim() || SUSPENDED, ...actor() });
    });
  };
  const stop = async () => {
    const text = "The execution ends, with all sessions below it. What was done is kept, and Retry goes on from there.";
    if ((await ask({ title: "Stop this execution?", text, action: "Stop it" })) === null) return;
    await act(async () => {
      const { stopped } = await post(sessionPath(id, "/stop"), { timeout_seconds: 0, ...actor() });
      if (stopped) return "Stopped.";
      const { status } = await get(sessionPath(id));
      return isActive({ status }) ? "A stop was asked for." : status === "stopped" ? "Stopped."
        : `It was ${status.replaceAll("_", " ")} already. Nothing was stopped.`;
    });
  };
  const resume = () => act(async () => {
    await post(sessionPath(id, "/resume"), actor());
  });
  const retry = () => act(async () => {
    await post(sessionPath(id, "/retry"), actor());
    return "It goes on at the step at which it ended.";
  });
  const fork = () => act(() => forkSession(id));
  const rewind = async () => {
    const text = "The next message goes on from the step. What tools have done stays, and the last run is not retried.";
    const to = await ask({ title: "Rewind this session?", text, field: "To step", action: "Rewind" });
    if (to === null) return;
    await act(async () => {
      await post(sessionPath(id, "/rewind"), { to: to.trim(), ...actor() });
      return `It is as step ${to.trim()} has left it.`;
    });
  };
  const snapshot = () => act(async () => {
    save(`${id}.snapshot.json`, await get(sessionPath(id, "/snapshot"), {}));
  });
  const shown = [
    isActive(header) && !isHeld && may("stop") && ["Suspend…", suspend],
    isHeld && may("stop") && ["Resume", resume],
    (isActive(header) || header.status === "parked") && may("stop") && ["Stop…", stop],
    ["failed", "stopped", "parked"].includes(header.status) && !isChild && may("submit") && ["Retry", retry],
    isReadable && tokenClaims() === null && ["Fork", fork],
    ["completed", "stopped", "failed", "waiting"].includes(header.status) && !isChild && tokenClaims() === null
      && ["Rewind…", rewind],
    isReadable && ["Snapshot", snapshot],
  ].filter((each) => each && !view.problem);
  const hasTree = isChild || callsChildren(view.steps);
  return html`<div class="actions">${shown.map(([word, run]) => html`<button key=${word} class="button"
    type="button" disabled=${isRunning} onClick=${run}>${word}</button>`)}
      <${Copy} text=${new URL(linkTo("sessions", id), location.href).href}>Copy link</${Copy}>
      ${hasTree && tokenClaims() === null && html`<a class="button" href=${linkTo("tree", isChild ? id.split(".")[0]
        : id)}>Tree</a>`}</div>
    <${Problem} of=${problem} /><p class="small dim" role="status">${said}</p>`;
}

/** Save a JSON value as a file of this name. */
export function save(name, value) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(value)], { type: "application/json" }));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
