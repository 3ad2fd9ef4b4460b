// The conversation of a session: its pages, stored messages as entries of a chat with their calls and what these gave,
// and the box at its end.
import { newKey, post, Refusal, sessionPath } from "./api.js";
import { firstLine, inert } from "./format.js";
import { html, useState } from "./html.js";
import { Problem } from "./parts.js";

const PAGE = 200;
const ACTIVE = ["pending", "in_progress", "waiting"];

/** Whether something of a session runs or waits. */
export const isActive = (header) => ACTIVE.includes(header?.status);

/**
 * Read messages that are new, at first the newest ones: changes of the view, or 0.
 *
 * @param read from a path below the session and a query to its reply
 */
export async function readMessages(read, feed) {
  const { first, messages, from, total } = feed.view; // earlier messages may come meanwhile
  if (total === null) return readNewest(read);
  const known = from + messages.length;
  const last = messages.slice(-1); // it is read again: where it is another one, the conversation was replaced
  const added = [];
  for (let offset = known - last.length; ; offset += PAGE) {
    const page = await read("/messages", { offset, limit: PAGE });
    added.push(...page.messages);
    if (offset + page.messages.length >= page.total || !page.messages.length) break;
  }
  if (JSON.stringify(added.splice(0, last.length)) !== JSON.stringify(last)) return readNewest(read);
  return added.length && { first: first ?? added[0], messages: [...feed.view.messages, ...added],
    total: known + added.length };
}

async function readNewest(read) {
  const head = await read("/messages", { limit: 1 });
  const from = Math.max(0, head.total - PAGE);
  const { messages, total } = head.total > 1 ? await read("/messages", { offset: from, limit: PAGE }) : head;
  return { first: head.messages[0], messages, from, total };
}

/** Read the page of messages before those that are known: changes of the view, or false. */
export async function readEarlier(read, feed) {
  const { from } = feed.view;
  const begin = Math.max(0, from - PAGE);
  const page = await read("/messages", { offset: begin, limit: from - begin });
  // Others may have come meanwhile, and these as well.
  return feed.view.from === from && { messages: [...page.messages, ...feed.view.messages], from: begin };
}

/**
 * Messages as entries.
 *
 * @param messages as GET /v1/sessions/{id}/messages gives them
 * @param from index of the first one
 * @param execution id of the execution whose steps the timeline has; "" when there is none
 * @returns [{key, role, name, step, text, calls, results}]; step null for messages of no step, or of an earlier
 *   execution; each call has its index and result (the message of the tool, or null); results counts those that are
 *   there
 */
export function entriesOf(messages, from, execution) {
  const entries = [];
  const waiting = new Map(); // calls without a result yet, by their id
  messages.forEach((message, number) => {
    if (message.role === "tool" && waiting.has(message.tool_call_id)) {
      const { call, entry } = waiting.get(message.tool_call_id);
      call.result = message;
      entry.results += 1;
      waiting.delete(message.tool_call_id);
      return;
    }
    const calls = (message.tool_calls ?? []).map((each, index) => ({ ...each, index, result: null }));
    const entry = { key: from + number, role: message.role, name: message.name ?? "", step: stepOf(message, execution),
      text: message.content ?? "", calls, results: 0 };
    for (const call of calls) waiting.set(call.id, { call, entry });
    entries.push(entry);
  });
  return entries;
}

/** The number of the step that wrote a message; null where it is of no step or of another execution. */
export function stepOf({ metadata = {} }, execution) {
  const id = metadata.step_id ?? "";
  const number = Number(id.slice(execution.length + 1));
  return execution && id.startsWith(`${execution}-`) && number > 0 ? number : null;
}

/** What became of calls, in words: ok, failed, 3 ok and 1 failed, no result yet. */
export function stateOf(calls) {
  const failed = calls.filter((each) => each.result?.is_error).length;
  const open = calls.filter((each) => !each.result).length;
  const ok = calls.length - failed - open;
  const numbers = [[ok, "ok"], [failed, "failed"], [open, "no result yet"]].filter(([number]) => number);
  if (numbers.length === 1) return `${["", "", "both "][calls.length] ?? "all "}${numbers[0][1]}`;
  return numbers.map(([number, word]) => `${number} ${word}`).join(", ");
}

/** The modes of a message to an execution that runs or waits. Without a text it says when that will be. */
const MODES = {
  steer: { word: "with the next step" },
  interrupt: { word: "at once", text: "The model call is left off for it, and what has not begun." },
  queue: { word: "after this one", text: "It starts an execution of its own, after this one." },
};

const drafts = new Map(); // by session: {text}, typed and not sent yet, and {key, mode} that it is sent with

/** The box at the end. What was typed stays until it is sent; sent again, it is the same message. */
export function MessageBox({ view, feed, onSent, isChat }) {
  const { header, messages } = view;
  const id = header.session_id;
  const { text = "" } = drafts.get(id) ?? {};
  const [, drawAgain] = useState(0);
  const [problem, setProblem] = useState(null);
  const [isSending, setSending] = useState(false);
  const [sent, setSent] = useState([]); // in a chat: messages that wait behind a running step
  const [when, setWhen] = useState("steer");
  const isChild = id.includes(".") && !header.forked_from;
  const change = (value) => {
    drafts.set(id, { text: value }); // another message
    drawAgain((times) => times + 1);
  };
  const choose = ({ target }) => {
    setWhen(target.value);
    change(text);
  };
  const send = async (event) => {
    event.preventDefault();
    if (!text.trim() || isSending) return;
    setSending(true);
    setProblem(null);
    const draft = drafts.get(id);
    draft.key ??= newKey();
    draft.mode ??= isActive(header) ? when : "steer";
    try {
      const job = await post(sessionPath(id, "/messages"), { message: text, when: draft.mode }, { key: draft.key });
      const waits = isChat && (!job.execution_id || isActive(header));
      if (waits) setSent((before) => [...before, { text, known: view.total ?? 0 }]);
      if (drafts.get(id) === draft) change(""); // what was typed meanwhile stays
      onSent();
    } catch (refusal) {
      if (!(refusal instanceof Refusal)) throw refusal;
      setProblem(refusal);
    }
    setSending(false);
    feed.refresh("messages", "header", "timeline", "line");
  };
  if (isChild && !isActive(header)) {
    return html`<p class="small dim after">
      This session was started by another one and has ended: it takes no further messages.${text && html`
      What you have typed was not sent: <span dir="auto">${inert(text)}</span>`}</p>`;
  }
  const since = (known) => messages.slice(Math.max(0, known - view.from));
  const isRead = ({ text: said, known }) =>
    since(known).some((each) => each.role === "user" && each.content === said);
  return html`<form class="message" onSubmit=${send}>
    ${sent.filter((each) => !isRead(each)).map((each) => html`<p class="small" key=${each.text}>
      <b>Sent:</b> <span dir="auto">${firstLine(each.text, 80)}</span>
      <span class="dim"> It is read with the next step.</span></p>`)}
    <label class="field"><span class="label">Message to ${inert(header.agent)}</span>
      <textarea dir="auto" rows=${view.requests.length ? 1 : 3} value=${text}
        onInput=${(event) => change(event.target.value)}
        onKeyDown=${(event) => (event.ctrlKey || event.metaKey) && event.key === "Enter" && send(event)}></textarea>
    </label>
    <${Problem} of=${problem} />
    <span class="small dim">${(isActive(header) && MODES[when].text) || whenItJoins(view)}</span>
    <div class="actions">${isActive(header) && html`<label class="small">When <select value=${when}
        onChange=${choose}>${Object.entries(MODES)
          .filter(([mode]) => !(mode === "queue" ? isChild : mode === "interrupt" && isChat))
          .map(([mode, { word }]) => html`<option value=${mode}>${word}</option>`)}</select></label>`}
      <button class="button go" type="submit" disabled=${isSending || !text.trim()}>
        ${isSending ? "Sending …" : "Send message"}</button></div></form>`;
}

/** When a message that is sent now becomes part of the conversation. */
export function whenItJoins({ header, timeline, steps, requests }) {
  const running = steps.findLast((each) => each.status !== "committed");
  const step = running?.number ?? (timeline ? timeline.total_steps + 1 : header.step);
  if (header.session_status === "suspended") return "It is read when the session is resumed.";
  if (header.status === "parked") return "It is read when the session was retried.";
  if (header.status === "waiting") {
    const asked = requests.filter((each) => each.session_id === header.session_id); // not those of sessions below it
    return asked.some((each) => each.while_waiting === "withdraw") ? "It takes the place of the answer."
      : "It is read after the answer that the agent waits for.";
  }
  if (header.status === "in_progress" && step) return `It joins after step ${step}.`;
  if (header.status === "pending") return "It joins before the first step.";
  return header.execution_id ? "It starts the next execution." : "It starts the first execution.";
}
