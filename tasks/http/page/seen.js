// What the model saw: the stored messages, the request of a step, and what two steps have otherwise.
import { get, sessionPath } from "./api.js";
import { entriesOf } from "./conversation.js";
import { count, firstLine, inert, plural } from "./format.js";
import { Chunks, html, useMemo, useState } from "./html.js";
import { usePolled } from "./live.js";
import { Empty, Json, Problem } from "./parts.js";
import { setQuery } from "./state.js";

const OWN = ["session_id", "execution_id", "step"]; // of each request: no difference between two of them
const MOST_CALL = 1500; // characters of its arguments
const PARTS = { request: "the request", state: "the state after it" };

export function Saw({ view, feed, query }) {
  const [step, against] = ["step", "against"].map((name) => query.get(name) ?? "");
  const part = Object.hasOwn(PARTS, query.get("of")) ? query.get("of") : "request";
  const id = view.header.session_id;
  return html`<${Chosen} step=${step} against=${against} part=${part} last=${view.steps.at(-1)?.number} />
    ${!step ? html`<${Stored} view=${view} feed=${feed} />`
      : against ? html`<${Differences} id=${id} before=${against} after=${step} part=${part} />`
        : html`<${Request} id=${id} step=${step} />`}`;
}

/** The fields for a step and for another one that it is compared with; what they hold is part of the address. */
function Chosen({ step, against, part, last }) {
  const move = (to, name) => html`<button class="button" type="button" disabled=${to < 1 || to > last}
    onClick=${() => setQuery({ step: `${to}` })}>${name}</button>`;
  return html`<form class="chosen" onSubmit=${(event) => event.preventDefault()}>
    <${StepField} label="Request of step" name="step" value=${step} hint="all messages" />
    ${step && html`<div class="actions">${move(+step - 1, "Earlier")}${move(+step + 1, "Later")}</div>
      <${StepField} label="Compared with step" name="against" value=${against} hint="none" />`}
    ${step && against && html`<label class="field"><span class="label">Of both</span>
      <select value=${part} onChange=${(event) => setQuery({ of: event.target.value })}>
        ${Object.entries(PARTS).map(([name, words]) => html`<option value=${name}>${words}</option>`)}
      </select></label>`}
  </form>`;
}

/** The number of a step: what is typed stays while the session goes on, and is in the address once it is complete. */
function StepField({ label, name, value, hint }) {
  const [typed, setTyped] = useState(null);
  return html`<label class="field"><span class="label">${label}</span>
    <input type="number" inputmode="numeric" min="1" value=${typed ?? value} placeholder=${hint}
      onInput=${(event) => setTyped(event.target.value)} onBlur=${() => setTyped(null)}
      onChange=${(event) => setQuery({ [name]: event.target.value })} /></label>`;
}

const read = (id, step, part, signal) => get(sessionPath(id, `/steps/${encodeURIComponent(step)}/${part}`), {}, signal);

/** A request as it was asked: prompt, messages, tools, settings, and what is not kept of it. */
function Request({ id, step }) {
  const { value, problem, refresh } = usePolled((signal) => read(id, step, "request", signal), [id, step], 0);
  const entries = useMemo(() => (value?.messages ?? []).map((message, at) => ({ number: at + 1, message })), [value]);
  if (problem) return html`<${Problem} of=${problem} onRetry=${refresh} />`;
  if (!value) return html`<p class="dim" role="status">Reading the request …</p>`;
  const { agent, model, system_prompt: prompt, messages, tools, settings, response_format: format } = value;
  return html`<p dir="auto">${firstLine(agent, 120) || "An agent"} asked
      ${" "}<b>${firstLine(model, 120) || "a model whose name is not known"}</b> with
      ${" "}${messages ? plural(messages.length, "message") : "messages that are not kept"}
      ${" "}and ${tools ? plural(tools.length, "tool") : "tools that are not kept"}.</p>
    ${value.not_kept.length > 0 && html`<p class="dim">Not kept any more: ${value.not_kept.join(", ")}.</p>`}
    ${value.notes.map((note) => html`<p class="dim" dir="auto">${inert(note)}</p>`)}
    ${prompt && html`<${Part} title="System prompt" value=${prompt} />`}
    ${Object.keys(settings).length > 0 && html`<${Part} title="Settings" value=${settings} />`}
    ${format && html`<${Part} title="Response format" value=${format} />`}
    ${(tools ?? []).map((tool) => html`<${Tool} key=${tool.name} tool=${tool} />`)}
    <${Messages} entries=${entries} />`;
}

const Tool = ({ tool }) => html`<article class="stored"><details><summary>Tool
    ${" "}<code dir="auto">${firstLine(tool.name, 120)}</code>
    ${" "}<span class="dim" dir="auto">${firstLine(tool.description, 120)}</span></summary>
  <${Json} value=${tool} /></details></article>`;

/** What two requests, or two states, have otherwise, value by value. */
function Differences({ id, before, after, part }) {
  const load = async (signal) => {
    const found = await Promise.all([before, after].map((step) => read(id, step, part, signal)));
    return part === "state" ? found.map((each) => each.state) : found;
  };
  const { value, problem, refresh } = usePolled(load, [id, before, after, part], 0);
  const found = useMemo(() => value && differencesOf(...value, part === "request" ? OWN : []), [value]);
  if (problem) return html`<${Problem} of=${problem} onRetry=${refresh} />`;
  if (!found) return html`<p class="dim" role="status">Comparing …</p>`;
  if (!found.length) return html`<${Empty}>Both are equal.</${Empty}>`;
  return html`<p class="dim">${plural(found.length, "difference")} between step ${inert(before)} and step
      ${" "}${inert(after)}.</p>
    <${Chunks} items=${found} keyOf=${({ path }) => path}
      draw=${(each) => html`<${Difference} key=${each.path} ...${each} />`} />`;
}

const Difference = ({ path, before, after }) => html`<article class="stored">
  <header><h3><code dir="auto">${firstLine(path, 400)}</code></h3></header>
  ${before !== undefined && html`<del><span class="small">before</span><${Json} value=${before} most=${1500} /></del>`}
  ${after !== undefined && html`<ins><span class="small">after</span><${Json} value=${after} most=${1500} /></ins>`}
  </article>`;

const isNested = (value) => typeof value === "object" && value !== null && !JSON.isRawJSON?.(value);

/**
 * Compare two values. Lists are compared place by place: most of them only grow.
 *
 * @param without names of the outermost values that are not compared
 * @returns [{path, before, after}]: path as in `messages[3].content`; undefined where a side has no such value
 */
export function differencesOf(before, after, without = []) {
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])].filter((name) => !without.includes(name));
  return names.flatMap((name) => compare(name, before[name], after[name]));
}

function compare(path, before, after) {
  if (isNested(before) && isNested(after) && Array.isArray(before) === Array.isArray(after)) {
    const step = (name) => (Array.isArray(before) ? `${path}[${name}]` : `${path}.${name}`);
    const names = new Set([...Object.keys(before), ...Object.keys(after)]);
    return [...names].flatMap((name) => compare(step(name), before[name], after[name]));
  }
  return JSON.stringify(before) === JSON.stringify(after) ? [] : [{ path, before, after }];
}

/** The stored messages of a session, the earlier ones when they are asked for. */
function Stored({ view, feed }) {
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
function Messages({ entries, tokens = new Map() }) {
  const drawOne = (each) => html`<${Message} key=${each.number} ...${each}
    tokens=${each.message.role === "assistant" ? tokens.get(each.step) : null} />`;
  return html`<${Chunks} items=${entries} keyOf=${({ number }) => number} draw=${drawOne} />`;
}

/** A value under its title. */
const Part = ({ title, value }) => html`<article class="stored"><header><h3 dir="auto">${title}</h3></header>
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
