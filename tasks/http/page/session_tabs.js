// Further tabs of a session: the stored messages, calls by tool, and the whole state as JSON.
import { get, sessionPath } from "./api.js";
import { entriesOf } from "./conversation.js";
import { count, duration, firstLine, plural } from "./format.js";
import { html, useEffect, useMemo, useState } from "./html.js";
import { Chunk, Empty, Json, Problem } from "./parts.js";
import { save } from "./session_actions.js";
import { countCalls } from "./spans.js";

const GROUP = 20;
const MOST_TOOLS = 30; // whose effect class is looked up

/** The stored messages in their order, as the model gets them. */
export function Stored({ view, feed }) {
  const { messages, from, total, timeline, steps, problems } = view;
  const execution = timeline?.execution_id ?? "";
  const entries = useMemo(() => messages.map((message, number) => ({ number: from + number + 1, message,
    step: entriesOf([message], 0, execution)[0].step })), [messages, from, execution]);
  const tokens = useMemo(() => new Map(steps.map((each) => [each.number, each.tokens])), [steps]);
  const groups = [];
  for (let first = 0; first < entries.length; first += GROUP) groups.push(entries.slice(first, first + GROUP));
  if (total === 0) return html`<${Empty}>No message is stored yet.</${Empty}>`;
  return html`<p class="dim">The stored messages, in their order: ${count(total)} in all.</p>
    <${Problem} of=${problems.messages} />
    ${from > 0 && html`<p><button class="button" type="button"
      onClick=${() => feed.readEarlier()}>Show earlier messages</button> <span class="small dim">
        ${count(from)} before these</span></p>`}
    ${groups.map((group) => html`<${Chunk} as="div" key=${group[0].number} guess=${96 * group.length}
      draw=${() => group.map((each) => html`<${StoredMessage} key=${each.number} ...${each}
        tokens=${each.message.role === "assistant" ? tokens.get(each.step) : null} />`)} />`)}`;
}

function StoredMessage({ number, message, step, tokens }) {
  const { role, name, content, tool_calls: calls = [], is_error: isError } = message;
  return html`<article class="stored"><header><h3>${count(number)} <span class="role">${firstLine(role, 40)}
    </span>${name && html` <code dir="auto">${firstLine(name, 120)}</code>`}${isError && " reports an error"}</h3>
      <span class="small dim">${[step && `step ${step}`, tokens
        && `${count(tokens)} tokens`].filter(Boolean).join(", ")}</span></header>
    ${content && html`<${Json} value=${content} />`}
    ${calls.map((call) => html`<div class="call"><p>calls <code dir="auto">${firstLine(call.name, 120)}
      </code> <span class="small dim mono">${firstLine(call.id, 80)}</span></p><${Json} value=${call.args} most=${1500}
        /></div>`)}
    ${!content && !calls.length && html`<p class="dim">empty</p>`}</article>`;
}

/** Calls by tool: how many, failed, lost, and how long they took. */
export function Calls({ view }) {
  const { steps, header, isPartial } = view;
  const tools = useMemo(() => countCalls(steps), [steps]);
  const effects = useEffects(header.session_id, tools);
  if (!tools.length) return html`<${Empty}>No tool was called in the latest execution.</${Empty}>`;
  return html`<table class="cards" role="table" aria-label="Calls by tool"><thead role="rowgroup"><tr role="row">
    <th role="columnheader">Tool</th><th role="columnheader">Effect class</th><th role="columnheader"
      class="number">Calls</th>
      <th role="columnheader" class="number">Failed</th><th role="columnheader" class="number">Lost</th>
        <th role="columnheader" class="number">Took in all</th><th role="columnheader">Steps</th></tr></thead>
    <tbody role="rowgroup">${tools.map(({ name, count: calls, failed, lost, seconds, steps: where }) => html`<tr
      role="row" key=${name}><th role="rowheader" scope="row" class="full"><code dir="auto">${firstLine(name, 120)}
        </code></th>
      <td role="cell" data-label="effect class">${firstLine(effects.get(name) ?? "–", 40)}</td>
        <td role="cell" class="number" data-label="calls">${count(calls)}</td>
      <td role="cell" class="number" data-label="failed">${failed ? html`<b>${count(failed)}</b>` : "0"}</td>
        <td role="cell" class="number" data-label="lost">${count(lost)}</td>
      <td role="cell" class="number" data-label="took">${duration(seconds)}</td>
      <td role="cell" class="small" data-label="steps">${where.slice(-6).map((each, at) => html`${at ? ", "
        : where.length > 6 ? "…, " : ""}<a href=${`#${each}.m`}>${each}</a>`)}</td></tr>`)}</tbody></table>
    ${isPartial && html`<p class="small dim" role="status">Reading further steps: ${plural(steps.length,
      "step")} so far …</p>`}`;
}

/** The effect class of each tool, as one of its calls says it. */
function useEffects(session, tools) {
  const [effects, setEffects] = useState(new Map());
  const missing = tools.filter((each) => !effects.has(each.name)).slice(0, MOST_TOOLS).map((each) => [each.name,
    each.steps.at(-1)]);
  const wanted = missing.map(([name]) => name).join("\n");
  useEffect(() => {
    const mine = new AbortController();
    const read = async () => {
      const found = new Map(effects);
      for (const [name, step] of missing) {
        if (found.has(name)) continue;
        found.set(name, null);
        const { steps } = await get(sessionPath(session, "/timeline"), { data: "true", first_step: step, limit: 1 },
          mine.signal);
        for (const span of steps[0]?.spans ?? []) if (span.data?.effect) found.set(span.name, span.data.effect);
      }
      setEffects(found);
    };
    if (missing.length) read().catch(() => {}); // the column stays empty: the timeline says what is wrong
    return () => mine.abort();
  }, [session, wanted]);
  return effects;
}

/** The whole state as it is stored: it may be large, and is read when this is opened. */
export function Raw({ view }) {
  const id = view.header.session_id;
  const [found, setFound] = useState({ state: null, problem: null });
  const [reads, setReads] = useState(0);
  useEffect(() => {
    const mine = new AbortController();
    get(sessionPath(id, "/state"), {}, mine.signal).then(
      (state) => setFound({ state, problem: null }),
      (problem) => problem.name !== "AbortError" && setFound((before) => ({ ...before, problem })),
    );
    return () => mine.abort();
  }, [id, reads]);
  const { state, problem } = found;
  const again = () => setReads(reads + 1);
  if (!state) return html`<${Problem} of=${problem} onRetry=${again} />${!problem && html`<p class="dim"
    role="status">Reading the state …</p>`}`;
  return html`<div class="bar-of-tools"><p class="dim">The whole state, as the API gave it when this was opened.</p>
      <div class="actions"><button class="button" type="button" onClick=${again}>Read again</button>
        <button class="button" type="button" onClick=${() => save(`${id}.state.json`, state)}>Save as a file</button>
          </div></div>
    <${Problem} of=${problem} /><${Json} value=${state} />`;
}
