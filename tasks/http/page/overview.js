// The tab Overview of a session: its budget, why it has not ended, its plan, notes, facts, and earlier executions.
import { sessionPath, tokenClaims } from "./api.js";
import { isActive } from "./conversation.js";
import { asNumber, brief, count, duration, exactTime, firstLine, inert, money, tokensOf } from "./format.js";
import { html, Table } from "./html.js";
import { useActing } from "./live.js";
import { Clock, Glyph, Json, Long, Meter, Problem, sendForm, Status, useNow } from "./parts.js";
import { actor, linkTo } from "./state.js";

const OWN_PARTS = ["smart_plan", "smart_memory", "smart_reflections"]; // drawn by their own section
const LIMITS = [["max_steps", "Steps", 1], ["max_tokens", "Tokens", 1], ["max_cost", "Dollars", "any"],
  ["max_seconds", "Seconds", "any"]];
const MOST_JSON = 1500; // characters that are drawn at first
const ADVICE = [
  [/^waits for (an|a) (approval|answer)/, "Answer it in the conversation, or in the inbox."],
  [/^suspended/, "Resume it."],
  [/no worker is alive|no live worker offers|is ending; start another/,
    "Start a worker that imports the agent: it continues by itself."],
  [/^it waits for a slot/, "It begins when a slot is free; start another worker, or give this one more slots."],
  [/waits for the provider|was delayed/, "It is tried again by itself. The provider's state page says more."],
  [/is gone or cut off|takes the step over/, "Another worker takes it over by itself."],
  [/^it is parked/, "Mend the cause, then retry it."],
  [/^waits for agent/, "Look at the child: it says what it waits for."],
];

export function Overview({ view, feed }) {
  const { header, state, results, problems, timeline } = view;
  const now = useNow();
  const execution = state?.execution;
  const parts = { ...state?.parts?.values, ...execution?.parts?.values, ...listsOf(state?.parts),
    ...listsOf(execution?.parts) };
  const { metadata, prompt } = state ?? {};
  const asJson = (title, value) =>
    html`<section><h3>${title}</h3><${Json} value=${value} most=${MOST_JSON} /></section>`;
  return html`<div class="overview"><${Problem} of=${problems.state} />
    ${header.reason && html`<${Why} reason=${header.reason} />`}
    ${execution && html`<${Budget} execution=${execution} view=${view} feed=${feed}
      now=${now + (timeline?.skew ?? 0)} />`}
    ${parts.smart_plan && html`<${Plan} plan=${parts.smart_plan} />`}
    ${parts.smart_reflections && html`<${Notes} notes=${parts.smart_reflections} />`}
    ${parts.smart_memory?.facts?.length > 0 && html`<${Remembered} facts=${parts.smart_memory.facts} now=${now} />`}
    ${Object.entries(parts).filter(([name]) => !OWN_PARTS.includes(name)).map(([name, value]) =>
      asJson(html`<code dir="auto">${firstLine(name, 80)}</code>`, value))}
    ${prompt && asJson("System prompt of this session", prompt)}
    ${metadata && Object.keys(metadata).length > 0 && asJson("Metadata", metadata)}
    ${results?.length > 0 && html`<${Executions} results=${results} />`}
    <section><h3>Session</h3><dl class="facts"><dt>created</dt><dd>${exactTime(header.created_at)}</dd>
      <dt>changed</dt><dd>${exactTime(header.updated_at)}</dd>
      <dt>execution</dt><dd class="mono">${header.execution_id || "none"}</dd>
      <dt>version</dt><dd>${count(header.version)}</dd>
      ${header.session_status !== "active" && html`<dt>session status</dt><dd>${inert(header.session_status)}</dd>`}
      ${execution?.retries > 0 && html`<dt>retries</dt><dd>${count(execution.retries)}</dd>`}</dl></section></div>`;
}

/** Lists of parts, where the state has them beside the values. */
const listsOf = (parts) =>
  Object.fromEntries(Object.entries(parts?.lists ?? {}).map(([name, list]) => [name, list?.items ?? list]));

function Why({ reason }) {
  const advice = ADVICE.find(([pattern]) => pattern.test(reason))?.[1];
  return html`<section><h3>Why it has not ended</h3><p dir="auto"><${Long} text=${reason} most=${800} /></p>
    ${advice && html`<p><b>What frees it:</b> ${advice}</p>`}</section>`;
}

function Budget({ execution, view, feed, now }) {
  const { budget = {}, usage = {}, cost = null, waited_seconds: waited = 0 } = execution;
  const begin = Date.parse(execution.started_at);
  const end = Date.parse(execution.completed_at ?? execution.waiting_since) || now;
  const children = execution.child_steps ?? 0;
  const lines = [
    ["steps", (execution.step_count ?? 0) + children, budget.max_steps ?? (execution.default_steps || null), count],
    ["tokens", tokensOf(usage) ?? 0, budget.max_tokens, count],
    ["cost", cost, budget.max_cost, money],
    ["time", begin ? Math.max(0, (end - begin) / 1000 - waited) : 0, budget.max_seconds, duration],
  ];
  return html`<section><h3>Budget of the execution</h3><table class="limits" role="table" aria-label="Budget">
      <thead class="unseen"><tr><th>Limit</th><th>Share</th><th>Used</th></tr></thead>
      <tbody>${lines.map(([name, used, limit, write]) => html`<tr key=${name}><th scope="row">${name}</th>
        <td>${limit ? html`<${Meter} parts=${[[asNumber(used ?? 0) / asNumber(limit), "used"]]} />`
          : html`<span class="small dim">no limit</span>`}</td>
        <td class="number">${write(used)}${limit ? ` of ${write(limit)}` : ""}</td></tr>`)}</tbody></table>
    ${budget.deadline && html`<p>It ends at ${exactTime(budget.deadline)} at the latest.</p>`}
    <p class="small dim">${children > 0 && "With what its children used. "}Time without what it waited for people.
      ${view.tree && html` <a href=${linkTo("tree", view.header.session_id)}>Where it went</a>`}</p>
    ${isActive(view.header) && tokenClaims() === null && html`<${Limits} budget=${budget}
      id=${view.header.session_id} feed=${feed} />`}</section>`;
}

/** Other limits for what runs: all of the form hold in place of the present ones; an empty one is the agent's own. */
function Limits({ budget, id, feed }) {
  const { act, problem } = useActing({ refresh: () => feed.refresh("header", "state") });
  const submit = sendForm((given) => {
    const limits = Object.fromEntries(LIMITS.map(([name]) => [name, given[name] ? Number(given[name]) : null]));
    return act("POST", sessionPath(id, "/budget"), { body: { budget: { ...limits, deadline: budget.deadline ?? null },
      beyond_agent: "beyond_agent" in given, ...actor() } });
  });
  const fold = ({ target }) => (target.parentElement.open = false);
  return html`<details><summary>Change the limits</summary><form class="chosen" onSubmit=${submit} onReset=${fold}>
    ${LIMITS.map(([name, word, step]) => html`<label key=${name} class="field"><span class="label">${word}</span>
      <input type="number" min="0" step=${step} name=${name} defaultValue=${budget[name] ?? ""} /></label>`)}
    <label class="whole named"><input type="checkbox" name="beyond_agent" />
      Above those of the agent, which needs the scope admin</label>
    <button class="button" type="submit">Change</button></form><${Problem} of=${problem} /></details>`;
}

const PLAN = { completed: "completed", "in-progress": "in_progress", "not-started": "pending" };

function Plan({ plan: { steps = [], version } }) {
  const done = steps.filter((each) => each.status === "completed").length;
  return html`<section>
    <h3>Plan <span class="dim">${count(done)} of ${count(steps.length)} done, version ${count(version)}</span></h3>
    <ol class="plan">${steps.map((each) => html`<li key=${each.id}><${Glyph} of=${PLAN[each.status] ?? "idle"} />
      <span class="dim">${firstLine(each.status, 40).replaceAll("-", " ")}</span>
      <span dir="auto">${firstLine(each.title ?? each.step, 300)}</span>
      ${each.evidence && html` <span class="dim" dir="auto">${firstLine(each.evidence, 200)}</span>`}</li>`)}
    </ol></section>`;
}

function Notes({ notes }) {
  const list = Array.isArray(notes) ? notes : notes.items ?? [];
  if (!list.length) return null;
  const last = list.slice(-5);
  return html`<section>
    <h3>Notes of the agent <span class="dim">the last ${count(last.length)} of ${count(list.length)}</span></h3>
    <ul class="notes">${last.map((each, at) => html`<li key=${at} dir="auto">
      <${Long} text=${String(each.text ?? brief(each, 400))} most=${1000} />
      ${each.step && html` <span class="dim">step ${each.step}</span>`}</li>`)}</ul></section>`;
}

function Remembered({ facts, now }) {
  const columns = [["Fact"], ["Value", "own-words"], ["Confidence", "number"], ["Since"]];
  return html`<section><h3>Facts it remembers</h3><${Table} label="Facts" columns=${columns}
    rows=${facts.map((each) => [`${each.key} ${each.updated_at}`, [
      html`<span dir="auto">${firstLine(each.key, 120)}</span>`,
      html`<span dir="auto">${firstLine(each.value, 300)}</span>
        ${each.status !== "active" && html` <span class="dim">${firstLine(each.status, 40)}</span>`}`,
      `${Math.round(each.confidence * 100)} %`,
      html`<${Clock} at=${each.updated_at} now=${now} />`,
    ]])} /></section>`;
}

function Executions({ results }) {
  const columns = [["Status, and why", "full"], ...["Steps", "Tokens", "Cost"].map((each) => [each, "number"])];
  return html`<section><h3>Executions that have ended</h3><${Table} label="Executions that have ended"
    columns=${columns} rows=${[...results].reverse().slice(0, 50).map((each) => [each.execution_id, [
      html`<${Status} status=${each.status} /> <span class="mono small dim">${each.execution_id.slice(0, 8)}</span>
        <div class="why" dir="auto">
          ${firstLine(each.stop_message || each.errors.at(-1) || each.final_response, 240)}</div>
        ${each.output !== null && html`<${Json} value=${each.output} />`}`,
      count(each.step_count),
      count(tokensOf(each.usage)),
      money(each.cost),
    ]])} /></section>`;
}
