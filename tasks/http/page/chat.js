// The conversation of a session as a chat: messages, a line for each call, what is written now, what is asked, and the
// messages that wait.
import { sessionPath } from "./api.js";
import { entriesOf, isActive, MessageBox, stateOf } from "./conversation.js";
import { callText, count, duration, firstLine, inert, plural } from "./format.js";
import { drawnWhen, html, useLayoutEffect, useMemo, useRef } from "./html.js";
import { useActing } from "./live.js";
import { LiveText } from "./live_text.js";
import { Glyph, Long, Problem, Status } from "./parts.js";
import { isBegun, RequestForm } from "./request_form.js";
import { keyOf } from "./request_words.js";
import { reasonOf } from "./session_head.js";
import { actor } from "./state.js";

const MOST_CALLS = 3;
const MOST_TEXT = 4000;
const NEAR_END = 40; // pixels
const TOUCHED_MS = 1000; // how long the reader's wheel, finger or key scrolls
const ABOVE = 48; // pixels of what was said before a request
const PLACES = {
  joins: "It is read with the next step.",
  queued: "It starts an execution of its own.",
  held: "It waits until the queue is released.",
};

export function Chat({ view, feed, isChat }) {
  const { header, messages, from, total, requests, timeline, steps, problems } = view;
  const place = useRef(null);
  const isAtEnd = useRef(true);
  const touchedAt = useRef(-Infinity); // by the reader: other scrolling is that of a layout
  const before = useRef(null);
  const execution = timeline?.execution_id ?? "";
  const entries = useMemo(() => entriesOf(messages, from, execution), [messages, from, execution]);
  const answered = useMemo(() => answeredIn(steps), [steps]);
  const asked = [...requests, ...view.gone.filter((each) => isBegun(keyOf(each)))]
    .filter((each) => each.kind !== "child");
  const touch = () => {
    touchedAt.current = performance.now();
  };
  const followEnd = () => {
    isAtEnd.current = true;
    touchedAt.current = -Infinity;
  };
  const toEnd = () => {
    const isAsked = place.current?.querySelector(".asked");
    if (isAtEnd.current && place.current && !isAsked) place.current.scrollTop = place.current.scrollHeight;
  };
  const first = asked[0]?.id;
  useLayoutEffect(() => {
    const element = place.current;
    if (before.current !== null) element.scrollTop += element.scrollHeight - before.current;
    before.current = null;
  }, [messages]);
  useLayoutEffect(() => {
    const watcher = new ResizeObserver(toEnd); // whatever grows: what was said, what is written, a form, the box below
    for (const each of [place.current, place.current.firstChild]) watcher.observe(each);
    return () => watcher.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (!first || !isAtEnd.current) return;
    const request = place.current.querySelector(".asked"); // from its beginning: it may be longer than what is seen
    place.current.scrollTop = request.offsetTop - place.current.offsetTop - ABOVE;
  }, [first, messages]);
  const onScroll = ({ currentTarget: it }) => {
    const isEnd = it.scrollHeight - it.scrollTop - it.clientHeight < NEAR_END;
    if (isEnd || performance.now() - touchedAt.current < TOUCHED_MS) isAtEnd.current = isEnd;
  };
  const onAnswered = () => {
    followEnd(); // what the answer leads to is shown, though the form was scrolled
    feed.refresh("requests", "header", "timeline", "messages");
  };
  const showEarlier = async () => {
    isAtEnd.current = false;
    before.current = place.current.scrollHeight;
    await feed.readEarlier();
  };
  return html`<div class="chat"><h2 class=${isChat ? "unseen" : ""}>Conversation</h2>
    <div class="said" ref=${place} role="log" aria-label="Messages" tabindex="0" onScroll=${onScroll}
      onWheel=${touch} onTouchMove=${touch} onPointerDown=${touch} onKeyDown=${touch}><div>
      ${from > 0 && html`<p><button class="button" type="button" onClick=${showEarlier}>Show earlier messages</button>
        <span class="small dim"> ${count(from)} before these</span></p>`}
      <${Problem} of=${problems.messages} />
      ${total === 0 && !asked.length && html`<p class="dim">Nothing was said yet.</p>`}
      ${entries.map((each) => html`<${Entry} ...${each} agent=${header.agent}
        answered=${answered.get(each.step)} />`)}
      ${["failed", "stopped"].includes(header.status) && html`<p class="end-note"><${Status} status=${header.status} />
        <span dir="auto"> ${reasonOf(view)}</span></p>`}
      <${LiveText} transcript=${feed.transcript} agent=${header.agent} isQuiet=${isChat} />
      ${asked.map((each) => html`<${Asked} key=${keyOf(each)} request=${each} session=${header.session_id}
        onDone=${onAnswered} />`)}
      <${Problem} of=${problems.requests} />
    </div></div>
    ${!isChat && html`<${Queue} view=${view} feed=${feed} />`}
    <${MessageBox} view=${view} feed=${feed} onSent=${followEnd} isChat=${isChat} /></div>`;
}

/** Requests that have an answer: from the number of a step to its spans, each with the name of its tool. */
function answeredIn(steps) {
  const found = new Map();
  for (const step of steps) {
    const spans = step.spans.filter((each) => each.kind === "request" && each.outcome !== "open");
    if (!spans.length) continue;
    const toolOf = (span) => step.spans.find((each) => each.id === span.parent)?.name ?? "";
    found.set(step.number, spans.map((span) => ({ span, tool: toolOf(span) })));
  }
  return found;
}

/** One message with its calls. `results` is the number of those that have one. */
const Entry = drawnWhen(["text", "results", "step", "agent", "answered"], (props) => {
  const { role, step, text, calls, agent, answered } = props;
  const name = role === "assistant" ? agent : props.name || role;
  return html`<article class=${`entry ${role}`}><header><h3 dir="auto">${firstLine(name, 80)}</h3>
      ${step && html`<a class="small dim" href=${`#${step}.m`} dir="auto">step ${step}</a>`}</header>
    ${text && html`<div class="text" dir="auto"><${Long} text=${text} most=${MOST_TEXT} /></div>`}
    ${calls.length > 0 && html`<${CallLines} calls=${calls} step=${step} />`}
    ${answered?.map(({ span, tool }) => html`<${Answered} key=${span.id} span=${span} tool=${tool} />`)}</article>`;
});

function CallLines({ calls, step }) {
  const lineOf = (call) => ({ text: callText(call.name, call.args, 90), state: stateOf([call]), id: `t${call.index}` });
  const isMany = calls.length > MOST_CALLS;
  const lines = isMany ? [{ text: namesOf(calls), state: stateOf(calls), id: "m" }] : calls.map(lineOf);
  return html`<ul class="calls">${lines.map(({ text, state, id }) => {
    const words = html`<span dir="auto">${text}</span>: ${state}`;
    return html`<li>${state.includes("failed") && html`<${Glyph} of="failed" />`}
      ${step ? html`<a href=${`#${step}.${id}`}>${words}</a>` : html`<span>${words}</span>`}</li>`;
  })}</ul>`;
}

/** The names of many calls with their numbers: find_order ×12, look ×3. */
function namesOf(calls) {
  const numbers = new Map();
  for (const { name } of calls) numbers.set(name, (numbers.get(name) ?? 0) + 1);
  return firstLine([...numbers].map(([name, number]) => (number > 1 ? `${name} ×${number}` : name)).join(", "), 120);
}

function Answered({ span, tool }) {
  const took = (Date.parse(span.ended_at) - Date.parse(span.started_at)) / 1000;
  return html`<div class="answered"><b><span class="capital">${firstLine(span.name, 40)}</span>
      ${tool && html` of <code>${firstLine(tool, 80)}</code>`}</b>
    <p dir="auto">${firstLine(span.note || span.outcome, 240)}<span class="dim"> after ${duration(took)}</span></p>
    <a class="small" href=${`#${span.id}`}>Show it in the timeline</a></div>`;
}

function Asked({ request, session, onDone }) {
  const isOwn = request.session_id === session;
  return html`<section class="asked" aria-label=${`Request of ${request.tool}`}>
    ${!isOwn && html`<p class="small dim">Asked by
      <span dir="auto"> ${inert(request.agent)}</span>, a session below this one</p>`}
    ${request.kind === "external"
      ? html`<p><b>Waits for the result of <code dir="auto">${inert(request.tool)}</code></b>
        ${` from ${inert(request.to ?? "a service")}. There is nothing to do here.`}</p>`
      : html`<${RequestForm} session=${request.session_id} request=${request} onDone=${onDone} />`}</section>`;
}

/**
 * Messages that wait: for the running step, or for executions of their own. They are taken back, moved, and released
 * where an end holds them.
 */
function Queue({ view, feed }) {
  const { header, line } = view;
  const id = header.session_id;
  const { act, problem, isBusy } = useActing({ refresh: () => feed.refresh("line", "header", "messages", "timeline") });
  if (!line?.messages.length) return html`<${Problem} of=${problem} />`;
  const path = ({ operation_id: operation }) => sessionPath(id, `/messages/${encodeURIComponent(operation)}`);
  const withdraw = (message) => () => act("DELETE", path(message), { query: actor() });
  const move = (message, when) => () => act("PUT", `${path(message)}/mode`, { body: { when, ...actor() } });
  const release = () => act("POST", sessionPath(id, "/queue/release"), { body: actor() });
  const button = (word, run, label) => html`<button class="button" type="button" disabled=${isBusy} aria-label=${label}
    onClick=${run}>${word}</button>`;
  return html`<section class="queue" aria-label="Messages that wait">
    ${line.held && html`<p class="small"><b>The queue is held</b>
      ${` since the last execution ${line.held === "failed" ? "failed" : `was ${line.held}`}. `}
      ${button("Go on", release, `Go on with ${plural(line.messages.length, "message")}`)}</p>`}
    <ol>${line.messages.map((each) => {
      const words = firstLine(each.text, 80);
      const isQueued = each.placed !== "joins";
      const isInterrupting = each.when === "interrupt";
      return html`<li class="small" key=${each.operation_id}><div><span dir="auto">${words}</span>
        <span class="dim"> ${isInterrupting ? "The step is left off for it." : PLACES[each.placed]}</span></div>
        <span class="actions">${isQueued ? button("Send now", move(each, "steer"), `Send now: ${words}`)
          : button("After this one", move(each, "queue"), `After this one: ${words}`)}
        ${isActive(header) && !isInterrupting && button("Interrupt", move(each, "interrupt"), `Interrupt: ${words}`)}
        ${button("Withdraw", withdraw(each), `Withdraw: ${words}`)}</span></li>`;
    })}</ol><${Problem} of=${problem} /></section>`;
}
