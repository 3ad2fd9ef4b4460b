// Messages that wait in a session: for the running step, or for executions of their own. They are taken back, moved,
// and released where an end holds them.
import { post, Refusal, request, sessionPath } from "./api.js";
import { isActive } from "./conversation.js";
import { firstLine, plural } from "./format.js";
import { html, useState } from "./html.js";
import { Problem } from "./parts.js";
import { actor } from "./state.js";

const PLACES = {
  joins: "It is read with the next step.",
  queued: "It starts an execution of its own.",
  held: "It waits until the queue is released.",
};

export function Queue({ view, feed }) {
  const { header, line } = view;
  const id = header.session_id;
  const [problem, setProblem] = useState(null);
  const [isBusy, setBusy] = useState(false);
  if (!line?.messages.length) return html`<${Problem} of=${problem} />`;
  const act = (work) => async () => {
    setBusy(true);
    setProblem(null);
    try {
      await work();
    } catch (refusal) {
      if (!(refusal instanceof Refusal)) throw refusal;
      setProblem(refusal);
    }
    setBusy(false);
    feed.refresh("line", "header", "messages", "timeline");
  };
  const path = ({ operation_id: operation }) => sessionPath(id, `/messages/${encodeURIComponent(operation)}`);
  const withdraw = (message) => act(() => request("DELETE", path(message), { query: actor() }));
  const move = (message, when) => act(() => request("PUT", `${path(message)}/mode`, { body: { when, ...actor() } }));
  const release = act(() => post(sessionPath(id, "/queue/release"), actor()));
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
