// Messages as they are stored, in their order: those of a session, and those of one request.
import { entriesOf } from "./conversation.js";
import { count, firstLine } from "./format.js";
import { Chunks, html, useMemo } from "./html.js";
import { Empty, Json, Problem } from "./parts.js";

const MOST_CALL = 1500; // characters of its arguments

/** The stored messages of a session, the earlier ones when they are asked for. */
export function Stored({ view, feed }) {
  const { messages, from, total, timeline, steps, problems } = view;
  const execution = timeline?.execution_id ?? "";
  const entries = useMemo(() => messages.map((message, at) => ({ number: from + at + 1, message,
    step: entriesOf([message], 0, execution)[0].step })), [messages, from, execution]);
  const tokens = useMemo(() => new Map(steps.map((each) => [each.number, each.tokens])), [steps]);
  if (total === 0) return html`<${Empty}>No message is stored yet.</${Empty}>`;
  return html`<p class="dim">The stored messages, in their order: ${count(total)} in all. With them the model got a
      system prompt and tools: choose a step to read its request.</p>
    ${view.state?.prompt && html`<${Part} title="System prompt of this session" value=${view.state.prompt} />`}
    <${Problem} of=${problems.messages} />
    ${from > 0 && html`<p><button class="button" type="button" onClick=${() => feed.readEarlier()}>
      Show earlier messages</button> <span class="small dim">${count(from)} before these</span></p>`}
    <${Messages} entries=${entries} tokens=${tokens} />`;
}

/** Messages, each with its number; `entries` are [{number, message, step}], `tokens` maps steps to theirs. */
export function Messages({ entries, tokens = new Map() }) {
  const drawOne = (each) => html`<${Message} key=${each.number} ...${each}
    tokens=${each.message.role === "assistant" ? tokens.get(each.step) : null} />`;
  return html`<${Chunks} items=${entries} keyOf=${({ number }) => number} draw=${drawOne} />`;
}

/** A value under its title. */
export const Part = ({ title, value }) => html`<article class="stored"><header><h3 dir="auto">${title}</h3></header>
  <${Json} value=${value} /></article>`;

function Message({ number, message, step, tokens }) {
  const { role, name, content, tool_calls: calls = [], is_error: isError } = message;
  const facts = [step && `step ${step}`, tokens && `${count(tokens)} tokens`].filter(Boolean);
  return html`<article class="stored"><header>
      <h3>${count(number)} <span class="role">${firstLine(role, 40)}</span>
        ${name && html` <code dir="auto">${firstLine(name, 120)}</code>`}${isError && " reports an error"}</h3>
      <span class="small dim">${facts.join(", ")}</span></header>
    ${content && html`<${Json} value=${content} />`}
    ${calls.map((call) => html`<div class="call">
      <p>calls <code dir="auto">${firstLine(call.name, 120)}</code>
        <span class="small dim mono"> ${firstLine(call.id, 80)}</span></p>
      <${Json} value=${call.args} most=${MOST_CALL} /></div>`)}
    ${!content && !calls.length && html`<p class="dim">empty</p>`}</article>`;
}
