// What a span holds, read when it is opened: arguments as asked and as approved, result, error, facts of the call.
import { get, parseExact, Refusal, sessionPath, tokenClaims } from "./api.js";
import { ask } from "./dialog.js";
import { brief, callText, count, duration, exactTime, firstLine, inert, money } from "./format.js";
import { html, useState } from "./html.js";
import { usePolled } from "./live.js";
import { Copy, Glyph, Json, Long, Problem } from "./parts.js";
import { forkSession, linkTo } from "./state.js";

const OUTCOMES = {
  ok: "completed", error: "failed", unknown: "lost", lost: "lost", void: "lost", open: "waiting", answered: "completed",
};
const EFFECTS = {
  pure: "no effect outside: it may run again",
  keyed: "it runs again under the same key, and the effect happens once",
  lookup: "after a crash it is looked up whether it happened",
  unsafe: "after a crash it does not run again: its outcome is unknown",
};

export function SpanDetails({ span, session, step, tool }) {
  const read = async (signal) => {
    const query = { data: "true", first_step: step.number, limit: 1 };
    const { steps, execution_id: execution } = await get(sessionPath(session, "/timeline"), query, signal);
    return { execution, ...steps[0]?.spans.find((each) => each.id === span.id)?.data };
  };
  const { value: data, problem } = usePolled(read, [session, step.status, step.number, span.id, span.ended_at], 0);
  const link = new URL(`${linkTo("sessions", session)}#${span.id}`, location.href).href;
  const name = span.kind === "request" && tool ? `${span.name} of ${tool}` : span.name;
  return html`<section class="details" aria-label=${`Details of ${span.name}`}>
    <header><h3><code dir="auto">${firstLine(name, 200)}</code>
        ${span.outcome && html`<span class="status"><${Glyph} of=${OUTCOMES[span.outcome] ?? "stopped"} />
          ${span.outcome.replaceAll("_", " ")}</span>`}
        <span class="dim" dir="auto">step ${step.number}${span.note ? `, ${firstLine(span.note, 240)}` : ""}</span></h3>
      <${Copy} className="button bare" text=${link}>Copy a link to this span</${Copy}></header>
    <${Problem} of=${problem} />
    ${!data && !problem && html`<p class="dim" role="status">Reading …</p>`}
    ${data && html`<div class="two"><div><${Content} data=${data} /></div>
      <dl class="facts">${factsOf({ span, data, step, session }).map(([fact, value]) =>
        html`<dt>${fact}</dt><dd dir="auto">${value}</dd>`)}</dl></div>`}
    ${data?.call_id && span.outcome && step.status === "committed" && tokenClaims() === null
      && html`<${ForkHere} ...${{ session, data }} name=${span.name} step=${step.number} />`}
  </section>`;
}

/** A copy of the session that goes on behind a step as if a tool had returned something else. */
function ForkHere({ session, step, name, data: { execution, call_id: call, value } }) {
  const [problem, setProblem] = useState(null);
  const fork = async () => {
    const text = `A copy of this session goes on behind step ${step} with what you write. Effects behind it happen`
      + " again in the copy, and those that have happened stay. This session is not changed.";
    const initial = typeof value === "string" ? value : JSON.stringify(value, null, 2);
    const field = `Result of ${firstLine(name, 120)}, JSON or text`;
    const given = await ask({ title: "Fork with another result?", text, field, initial, action: "Fork, and go on" });
    if (given === null) return;
    const body = { at: `${execution}:${step}`, edit: [{ call_id: call, value: asValue(given, value) }], go_on: true };
    try {
      await forkSession(session, body);
    } catch (refusal) {
      if (!(refusal instanceof Refusal)) throw refusal;
      setProblem(refusal);
    }
  };
  return html`<p class="after"><button class="button" type="button" onClick=${fork}>
      Fork with another result…</button></p>
    <${Problem} of=${problem} />`;
}

/** What was written as a result: a text where the tool has returned one, or where it is no JSON. */
function asValue(text, before) {
  if (typeof before === "string") return text;
  try {
    return parseExact(text);
  } catch {
    return text;
  }
}

const isGiven = (each) => each !== undefined && each !== null && each !== "";

/** What was asked, given and returned. */
function Content({ data }) {
  const { args, approved_args: approved, value, error, text, thinking, tool_calls: calls = [] } = data;
  if (![args, value, error, text, thinking].some(isGiven) && !calls.length) {
    return html`<p class="dim">Nothing more is stored of it.</p>`;
  }
  return html`${isGiven(args) && html`<${Arguments} args=${args} approved=${approved} />`}
    ${isGiven(thinking) && html`<h4>Thoughts</h4>
      <div class="text thought" dir="auto"><${Long} text=${thinking} most=${2000} /></div>`}
    ${isGiven(text) && html`<h4>Text</h4><div class="text" dir="auto"><${Long} text=${text} most=${4000} /></div>`}
    ${calls.length > 0 && html`<h4>Calls that it asked for</h4><ul class="asked-for">${calls.map((each) =>
      html`<li key=${each.id}><code dir="auto">${callText(each.name, each.args, 300)}</code></li>`)}</ul>`}
    ${isGiven(value) && html`<h4>Result</h4><${Value} value=${value} />`}
    ${isGiven(error) && html`<h4>Error</h4><p dir="auto"><b>${firstLine(error.kind, 120)} </b>
      <${Long} text=${String(error.message ?? brief(error, 2000))} most=${2000} /></p>`}`;
}

/** Arguments in lines; what was approved differently is marked. */
function Arguments({ args, approved }) {
  if (typeof args !== "object") return html`<h4>Arguments, as the model wrote them</h4><${Json} value=${args} />`;
  const names = [...new Set([...Object.keys(args), ...Object.keys(approved ?? {})])];
  if (!names.length) return html`<h4>Arguments</h4><p class="dim">none</p>`;
  return html`<h4>${approved ? "Arguments, as asked and as approved" : "Arguments"}</h4>
    <dl class="arguments">${names.map((name) => html`<${Argument} name=${name} before=${args[name]}
      after=${approved ? approved[name] : args[name]} />`)}</dl>`;
}

const write = (value) => (value === undefined ? "left out" : JSON.stringify(value, null, 1) ?? "");

/** One argument in a list of definitions: as it was asked, and as it was approved where that differs. */
function Argument({ name, before, after }) {
  const [asked, approved] = [write(before), write(after)];
  return html`<dt dir="auto">${firstLine(name, 80)}</dt><dd dir="auto">${asked === approved
    ? html`<${Long} text=${asked} />`
    : html`<del><${Long} text=${asked} /></del> <ins><${Long} text=${approved} /></ins>`}</dd>`;
}

/** A result: JSON that a tool returned as text is shown as JSON. */
function Value({ value }) {
  let shown = value;
  if (typeof value === "string" && /^[[{]/.test(value)) {
    try {
      shown = parseExact(value);
    } catch {
      // a text that only looks like it
    }
  }
  return html`<${Json} value=${shown} most=${2000} />`;
}

function factsOf({ span, data, step, session }) {
  const { effect, key, cached, attempt, worker = step.worker, request_id: request, usage, resolutions = [], to } = data;
  const { expires_at: expires, finish_reason: finish } = data;
  const took = (Date.parse(span.ended_at) - Date.parse(span.started_at)) / 1000;
  const code = (text) => html`<code>${firstLine(text, 200)}</code>`;
  const facts = [
    [["model", "request"].includes(span.kind) ? "asked" : "began", html`<time datetime=${span.started_at}>
      ${preciseTime(span.started_at)}</time>, ${span.ended_at ? duration(took) : "still going on"}`],
    span.session
      && ["session", html`<a class="mono" href=${linkTo("sessions", span.session)}>${inert(span.session)}</a>`],
    span.kind === "model" && ["model", firstLine(span.name, 120)],
    span.kind === "model" && ["request", html`<a
      href=${linkTo("sessions", session, { tab: "stored", step: step.number })}>what the model saw</a>`],
    to && ["asked of", firstLine(to, 120)],
    expires && ["expires", preciseTime(expires)],
    effect && ["effect class", html`<b>${firstLine(effect, 40)}</b>${EFFECTS[effect] ? `: ${EFFECTS[effect]}` : ""}`],
    cached && ["did not run", "the result is that of an equal call"],
    key && ["key", code(key)],
    attempt && ["attempt", count(attempt)],
    worker && ["worker", code(worker)],
    finish && ["answer ended", firstLine(finish, 40).replace("_", " ")],
    request && ["request id", code(request)],
    ...resolutions.filter((each) => each.kind !== "child").map((each) =>
      [VERBS[each.verb] ?? "answered by", html`<${Resolution} of=${each} />`]),
    span.tokens !== null
      && ["tokens", html`${count(span.tokens)}${usage && html` <span class="dim">${usageText(usage)}</span>`}`],
    span.cost !== null && ["cost", money(span.cost)],
  ];
  return facts.filter(Boolean);
}

/** Who answered, when, how and why. */
function Resolution({ of: { by, at, args, note, reason, status } }) {
  const who = by || (status === "expired" ? "its expiry" : "a person who gave no name");
  return html`<b>${firstLine(who, 120)}</b>${at ? `, ${preciseTime(at)}` : ""}${args ? ", with other arguments" : ""}
    ${[reason, note].filter(Boolean).map((each) => html`<br />“<${Long} text=${each} />”`)}`;
}

const VERBS = { approve: "approved by", deny: "denied by", answer: "answered by", complete: "brought by",
  fail: "failed by", pass_on: "passed on by", cancel: "cancelled by" };

const usageText = (usage) => Object.entries(usage).filter(([name, number]) => number && name !== "requests")
  .map(([name, number]) => `${firstLine(name, 40).replace("_", " ")} ${count(number)}`).join(", ");

/** A moment to a tenth of a second, with its zone. */
function preciseTime(iso) {
  const at = new Date(iso);
  return Number.isNaN(at.getTime()) ? exactTime(iso) : `${at.toISOString().slice(0, 21).replace("T", " ")} UTC`;
}
