// What surrounds a request: the conversation before it, and the messages that came since it was asked.
import { linkTo } from "./address.js";
import { get, sessionPath } from "./api.js";
import { callText, firstLine, inert, plural } from "./format.js";
import { html, useEffect, useState } from "./html.js";
import { followEvents, usePolled } from "./live.js";
import { Ago, Problem, useNow } from "./parts.js";

const MOST = 4;
const READ = 12;
const MOST_TEXT = 800;

/** The last messages of a session, without those of the system. What the step that asks has said is not known yet. */
async function readLast(session, signal) {
  const path = sessionPath(session, "/messages");
  const { total } = await get(path, { limit: 1 }, signal);
  const { messages } = await get(path, { offset: Math.max(0, total - READ), limit: READ }, signal);
  const said = messages.filter((each) => each.role !== "system" && (each.content || each.tool_calls?.length));
  return { said: said.slice(-MOST), isAll: total === messages.length && said.length <= MOST };
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

/** The times of the messages that wait in a session's inbox since a request was asked; events tell of each. */
function useReceived(request) {
  const [received, setReceived] = useState([]);
  const { session_id: session, id, asked_at_ms: asked } = request;
  useEffect(() => {
    setReceived([]);
    const hear = (frame) => {
      if (frame.type !== "message_received" || !frame.data.data?.queued) return;
      setReceived((before) => [...before.filter((each) => each.id !== frame.id), { id: frame.id, at: frame.data.at }]);
    };
    return followEvents(session, hear, () => {}, `${Math.max(0, asked - 1)}-0`);
  }, [session, id]);
  return received;
}

/** Tells of messages that came after a request was asked: the agent has not seen them. Nothing without one. */
export function Since({ request }) {
  const received = useReceived(request);
  const now = useNow();
  const last = received.at(-1);
  const [it, first] = received.length === 1 ? ["it", "It came"] : ["them", "The last one came"];
  return html`<div role="status">${last && html`<div class="ask-since">
    <h3>${plural(received.length, "message")} came after this was asked</h3>
    <p>${first} <${Ago} at=${last.at} now=${now} suffix=" ago" />. The agent has not read ${it}, and the conversation
      does not show ${it} before this step has ended.</p></div>`}</div>`;
}
