// The head of a session: its place, its first words, its status with the reason, its actions, its numbers.
import { linkTo } from "./address.js";
import { tokenClaims } from "./api.js";
import { count, duration, firstLine, inert, money, plural, sumOf, tokensOf } from "./format.js";
import { html, useMemo } from "./html.js";
import { Problem, Status, useNow } from "./parts.js";
import { ActingAs } from "./person.js";
import { Actions } from "./session_actions.js";
import { sumUp } from "./spans.js";

export function SessionHead({ view, feed, words, isChat }) {
  const { header } = view;
  const id = header.session_id;
  const isVisitor = tokenClaims() !== null;
  const unknown = view.problems.header ?? view.streamProblem;
  return html`<div class="heading"><div>
      <p class="path">${!isVisitor && html`<a href=${linkTo("sessions")}>Sessions</a><span class="dim"> / <a
        href=${linkTo("sessions", "", { agent: header.agent })}>${inert(header.agent)}</a> / </span>`}
        <span class="mono">${id}</span>${header.forked_from && html`<span class="dim">, a fork of <a class="mono"
          href=${linkTo("sessions", header.forked_from)}>${header.forked_from}</a></span>`}</p>
      <h1 dir="auto">${words || (view.total === 0 ? "Nothing was said yet" : id)}</h1>
      <p class="state"><${Status} status=${header.status} held=${header.session_status === "suspended"} /> <span
        class="dim" dir="auto">${reasonOf(view)}</span></p></div>
    ${!isChat && html`<div class="do"><${Actions} view=${view} feed=${feed} />${!isVisitor && !view.requests.length
      && html`<${ActingAs} />`}</div>`}</div>
    <${Problem} of=${unknown?.status === 401 ? null : unknown} />
    ${!isChat && header.status !== "unreadable" && html`<${Facts} view=${view} />`}`;
}

/** Why it has not ended, or how it has, in a sentence; "" where there is nothing to say. */
export function reasonOf({ header, result }) {
  if (header.reason) return firstLine(header.reason, 400);
  if (!result) return header.status === "idle" ? "nothing runs; a message starts it" : "";
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
