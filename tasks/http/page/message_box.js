// The box at the end of a conversation. What was typed stays until it is sent; sent again, it is the same message.
import { newKey, post, Refusal, sessionPath } from "./api.js";
import { isActive } from "./feed.js";
import { firstLine, inert } from "./format.js";
import { html, useRef, useState } from "./html.js";
import { Problem } from "./parts.js";

const drafts = new Map(); // by session: what was typed and not sent yet

export function MessageBox({ view, feed, onSent }) {
  const { header, messages, result } = view;
  const id = header.session_id;
  const [text, setText] = useState(drafts.get(id) ?? "");
  const [problem, setProblem] = useState(null);
  const [isSending, setSending] = useState(false);
  const [sent, setSent] = useState([]); // messages that wait behind a running step
  const key = useRef(null);
  const isChild = id.includes(".") && !header.forked_from;
  const change = (value) => {
    drafts.set(id, value);
    setText(value);
    key.current = null; // another message
  };
  const send = async (event) => {
    event.preventDefault();
    if (!text.trim() || isSending) return;
    setSending(true);
    setProblem(null);
    key.current ??= newKey();
    try {
      const job = await post(sessionPath(id, "/messages"), { message: text }, { key: key.current });
      if (!job.execution_id || isActive(header)) setSent((before) => [...before, { text, known: view.total ?? 0 }]);
      change("");
      onSent();
    } catch (refusal) {
      if (!(refusal instanceof Refusal)) throw refusal;
      setProblem(refusal);
    }
    setSending(false);
    feed.refresh("messages", "header", "timeline");
  };
  if (isChild && !isActive(header)) return html`<p
    class="small dim after">This session was started by another one and has ended: it takes no further messages.</p>`;
  const since = (known) => messages.slice(Math.max(0, known - view.from));
  const waiting = sent.filter((each) => !since(each.known).some((one) => one.role === "user"
    && one.content === each.text));
  return html`<form class="message" onSubmit=${send}>
    ${waiting.map((each) => html`<p class="small" key=${each.text}><b>Sent:</b> <span dir="auto">${firstLine(each.text,
      80)}</span> <span class="dim">It is read with the next step.</span></p>`)}
    <label class="field"><span class="label">Message to ${inert(header.agent)}</span>
      <textarea dir="auto" rows="3" value=${text} onInput=${(event) => change(event.target.value)}
        onKeyDown=${(event) => (event.ctrlKey || event.metaKey) && event.key === "Enter" && send(event)}></textarea>
          </label>
    <${Problem} of=${problem} />
    <div class="actions"><span class="small dim">${whenItJoins(header, view, result)}</span>
      <button class="button go" type="submit" disabled=${isSending || !text.trim()}>${isSending ? "Sending …"
        : "Send message"}</button></div></form>`;
}

/** When a message that is sent now becomes part of the conversation. */
function whenItJoins(header, { timeline, steps }) {
  const running = steps.findLast((each) => each.status !== "committed");
  const step = running?.number ?? (timeline ? timeline.total_steps + 1 : header.step);
  if (header.session_status === "suspended") return "It is read when the session is resumed.";
  if (header.status === "parked") return "It is read when the session was retried.";
  if (header.status === "waiting") return "It is read after the answer that the agent waits for.";
  if (header.status === "in_progress" && step) return `It joins after step ${step}.`;
  if (header.status === "pending") return "It joins before the first step.";
  return header.execution_id ? "It starts the next execution." : "It starts the first execution.";
}
