// What a request asks, of whom, until when, and what became of it, in words; with what was said before it and since.
import { get, sessionPath } from "./api.js";
import { brief, callText, duration, firstLine, inert, plural } from "./format.js";
import { html } from "./html.js";
import { usePolled } from "./live.js";
import { Ago, Clock, Meter, Problem, useNow } from "./parts.js";
import { linkTo } from "./state.js";

/** The name of a request among those of all sessions. */
export const keyOf = ({ session_id: session, id }) => `${session}/${id}`;

const iso = (ms) => new Date(ms).toISOString();
const endOf = (request) => request.on_expiry?.then ?? request.on_expiry ?? "deny";

/** Whether a request only waits for a time: it is approved when that comes. */
export const isTimer = (request) =>
  request.kind === "approval" && request.to === "clock" && endOf(request) === "approve";

/** Whether it is for people: a service brings the result of the others, or the time does. */
export const isForPeople = (request) => ["approval", "question"].includes(request.kind) && !isTimer(request);

/** Who shall answer. */
export const addressee = ({ to }) => inert(to || "anybody");

/** Whether its step is committed: then its text and its arguments are not kept as a request any more. */
export const isPast = (request) => request.args === undefined && request.status !== "open";

/** The first line of what is asked. */
export function titleOf(request) {
  if (isPast(request)) return request.kind === "question" ? "A question" : nameOf(request);
  if (request.kind === "external") return `The result of ${inert(request.tool)}`;
  if (isTimer(request)) return `${inert(request.tool)} waits for a time`;
  const questions = request.options?.questions?.length ?? 0;
  if (questions > 1) return `Answer ${questions} questions`;
  return firstLine(request.text, 200) || `May ${inert(request.tool)} be called?`;
}

/** What a request is called in a list or a sentence. */
export function nameOf(request) {
  if (request.kind === "question" && request.text) return firstLine(request.text, 120);
  return request.args ? callText(request.tool, request.args, 120) : firstLine(request.call, 140);
}

/** A sentence: which agent asks whom for what. */
export function Asks({ request }) {
  const agent = request.agent ? html`Agent <b dir="auto">${inert(request.agent)}</b>` : "An agent";
  const tool = html`<code dir="auto">${inert(request.tool)}</code>`;
  if (isPast(request)) {
    const to = html`<b dir="auto">${addressee(request)}</b>`;
    return html`Asked of ${to}. Its step has ended.`;
  }
  if (request.kind === "external") {
    return html`${agent} waits for a service, which brings the result of ${tool}. There is nothing to do here.`;
  }
  if (isTimer(request)) return html`${agent} continues with ${tool} at the time below. You may let it continue now.`;
  if (request.kind === "question") return html`${agent} asks <b dir="auto">${addressee(request)}</b>.`;
  return html`${agent} asks for an approval of ${tool} by <b dir="auto">${addressee(request)}</b>.`;
}

/** What happens without an answer, as the end of a sentence that begins with it. */
function expiryWords(request) {
  const rule = request.on_expiry?.then ? request.on_expiry : { then: endOf(request) };
  switch (rule.then) {
    case "approve":
      return isTimer(request) ? "It continues" : "Without an answer it is approved as asked";
    case "value":
      return `Without an answer this counts as one: ${brief(rule.value, 100)},`;
    case "fail":
      return "Without an answer the execution fails";
    case "pass_on":
      return `Without an answer it is passed on to ${rule.to ? inert(rule.to) : "another addressee"}`;
    default:
      return request.kind === "question" ? "Without an answer it counts as declined" : "Without an answer it is denied";
  }
}

/** Its time as a clock: how much is left, since when it is open, and what happens at the end. */
export function Expiry({ request }) {
  const now = useNow();
  const { asked_at_ms: asked, expires_at_ms: expires } = request;
  const yields = request.while_waiting === "withdraw" && " A message to the session takes the place of the answer.";
  const since = html`Asked <${Ago} at=${iso(asked)} now=${now} suffix=" ago" />.${yields}`;
  if (!expires) {
    return html`<div class="clock"><p>
      <b>No expiry.</b> <span class="dim">${since} It waits until it is answered.</span></p></div>`;
  }
  const left = expires - now;
  const share = Math.min(1, Math.max(0, (now - asked) / (expires - asked)));
  const at = html`<${Clock} at=${iso(expires)} now=${now} />`;
  return html`<div class="clock"><${Meter} parts=${[[share, "person"]]} />
    <p><b>${left > 0 ? `${duration(left / 1000)} left.` : "Its time is over."}</b>${" "}
      <span class="dim">${since} ${expiryWords(request)} at ${at}.</span></p></div>`;
}

/** How long a request of the list has, in a few words. */
export function timeLeft(request, now) {
  const expires = request.expires_at_ms;
  if (!expires) return "no expiry";
  return expires > now ? `${duration((expires - now) / 1000)} left` : "its time is over";
}

const VERBS = {
  approve: "Approved", deny: "Denied", answer: "Answered", complete: "Completed", fail: "Failed", cancel: "Cancelled",
  pass_on: "Passed on to another addressee",
};
const STATUSES = {
  expired: "Its time is over",
  cancelled: "Cancelled before an answer came: its execution was stopped, or a message took its place",
};

/** What became of a request that is not open any more. */
export function Outcome({ request }) {
  const now = useNow();
  const { answer } = request;
  if (!answer) return html`<p><b>${STATUSES[request.status] ?? inert(request.status)}.</b></p>`;
  const isByExpiry = answer.by_expiry || answer.status === "expired";
  const by = answer.by ? html` by <b dir="auto">${inert(answer.by)}</b>` : isByExpiry ? " by its expiry" : "";
  const changed = answer.verb === "approve" && answer.value
    && html` as <code dir="auto">${callText(request.tool, answer.value)}</code>`;
  const when = html`<${Ago} at=${iso(answer.at_ms)} now=${now} suffix=" ago" />`;
  const verb = VERBS[answer.verb] ?? inert(answer.verb);
  return html`<p><b>${verb}</b>${by}${changed}, ${when}.${" "}
      <span class="dim">The first answer counts.</span></p>
    ${answer.reason && html`<p><span class="dim">Reason:</span> <span dir="auto">${inert(answer.reason)}</span></p>`}
    ${answer.note && html`<p><span class="dim">Note:</span> <span dir="auto">${inert(answer.note)}</span></p>`}`;
}

const MOST = 4;
const READ = 12;
const MOST_TEXT = 800;

/**
 * The last messages of a session, the user's last one among them, without those of the system. What the step that asks
 * has said is not known yet.
 */
async function readLast(session, signal) {
  const path = sessionPath(session, "/messages");
  const { total } = await get(path, { limit: 1 }, signal);
  const { messages } = await get(path, { offset: Math.max(0, total - READ), limit: READ }, signal);
  const said = messages.filter((each) => each.role !== "system" && (each.content || each.tool_calls?.length));
  const asked = said.findLastIndex((each) => each.role === "user"); // what it is all about
  const from = Math.max(0, said.length - MOST);
  const shown = asked >= 0 && asked < from ? [said[asked], ...said.slice(from + 1)] : said.slice(from);
  return { said: shown, isAll: total === messages.length && said.length <= MOST };
}

/** The conversation before a request. */
export function Conversation({ request }) {
  const session = request.session_id;
  const { value, problem } = usePolled((signal) => readLast(session, signal), [session, request.step], 60);
  return html`<section class="ask-before" aria-label="The conversation before it">
    <${Problem} of=${problem} />
    ${value?.said.map((each) => html`<${Said} message=${each} agent=${request.agent} />`)}
    ${value && !value.said.length && html`<p class="dim">Nothing was said before.</p>`}
    <p class="small"><a href=${linkTo("sessions", session)}>
      Open the session${value?.isAll === false && " with all that was said before"}</a></p>
  </section>`;
}

function Said({ message, agent }) {
  const { role, content, name } = message;
  const who = role === "assistant" ? agent : role === "tool" ? `result of ${name ?? "a tool"}` : name ?? role;
  const isCut = content.length > MOST_TEXT;
  const short = (text) => html`<p class="mono dim" dir="auto">${text}</p>`;
  const text = isCut ? `${content.slice(0, MOST_TEXT)}…` : content;
  const long = content && html`<p class="prose" dir="auto">${inert(text)}</p>`;
  return html`<div class="ask-said"><p><b dir="auto">${inert(who)}</b></p>
    ${role === "tool" ? short(firstLine(content, 240)) : long}
    ${(message.tool_calls ?? []).map((call) => short(callText(call.name, call.args)))}</div>`;
}

/**
 * The messages that the agent has not read while requests wait: of the sessions that ask, and of those above them.
 * Nothing without one.
 */
export function Since({ requests }) {
  const now = useNow();
  const [{ session_id: shown }] = requests;
  const all = requests.flatMap((each) => each.messages ?? []);
  const it = all.length === 1 ? "it" : "them";
  return html`<div role="status">${all.length > 0 && html`<div class="ask-since">
    <h3>${plural(all.length, "message")} that the agent has not read</h3>
    ${all.map(({ number, session_id: session, text, at, operation_id: key }) => html`<div class="ask-said" key=${key}>
      <p class="small dim">Message ${number}${session !== shown && html` to
        <a class="mono" dir="auto" href=${linkTo("sessions", session)}>${inert(session)}</a>`}${at && html`,
        <${Ago} at=${at} now=${now} suffix=" ago" />`}</p>
      <p class="prose" dir="auto">${inert(text)}</p></div>`)}
    <p class="small">It reads ${it} behind your answer, which is refused where a further message has come.</p></div>`}
  </div>`;
}
