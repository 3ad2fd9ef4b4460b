// The pages of a session's conversation and of its timeline: each read gives the changes of what is known (see Feed).
import { serverNow } from "./api.js";
import { firstOpen, mergeSteps } from "./spans.js";

const PAGE = 200;
const FIRST_STEPS = 100; // few, so that something is seen soon
const STEPS = 1000;

/**
 * Read messages that are new, at first the newest ones; null when nothing changed.
 *
 * @param read from a path below the session and a query to its reply
 */
export async function readMessages(read, { first, messages, from, total }) {
  if (total === null) return readNewest(read);
  const known = from + messages.length;
  const added = [];
  for (let offset = known; ; offset += PAGE) {
    const page = await read("/messages", { offset, limit: PAGE });
    if (page.total < known) return readNewest(read); // the conversation was replaced
    added.push(...page.messages);
    if (offset + page.messages.length >= page.total || !page.messages.length) break;
  }
  return added.length ? { first: first ?? added[0], messages: [...messages, ...added], total: known + added.length }
    : null;
}

async function readNewest(read) {
  const head = await read("/messages", { limit: 1 });
  const from = Math.max(0, head.total - PAGE);
  const { messages, total } = head.total > 1 ? await read("/messages", { offset: from, limit: PAGE }) : head;
  return { first: head.messages[0] ?? null, messages, from, total };
}

/** Read the page of messages before those that are known. */
export async function readEarlier(read, { messages, from }) {
  const begin = Math.max(0, from - PAGE);
  const page = await read("/messages", { offset: begin, limit: from - begin });
  return { messages: [...page.messages, ...messages], from: begin };
}

/** Read the steps from the first that may have changed on, page by page: at first a short one. */
export async function* readSteps(read, view) {
  let known = view.timeline ? view.steps : [];
  for (let next = firstOpen(known), isFirst = true; next !== null; isFirst = false) {
    const { steps, ...timeline } = await read("/timeline", { first_step: next, limit: known.length ? STEPS
      : FIRST_STEPS });
    timeline.skew = skewOf(timeline, view.timeline);
    if (isFirst && known.length && timeline.execution_id !== view.timeline.execution_id) {
      known = [];
      next = 1;
      continue;
    }
    known = mergeSteps(known, steps.map(withoutUnbegun), next);
    next = timeline.next_step ?? null;
    yield { steps: known, timeline, isPartial: next !== null };
  }
}

/** A step without calls that have not begun: their open requests say that they wait. */
function withoutUnbegun(step) {
  const open = step.spans.filter((each) => each.kind === "request" && each.outcome === "open");
  const waiting = new Set(open.map((each) => each.parent));
  const hasBegun = (each) => each.kind !== "tool" || each.ended_at || !waiting.has(each.id);
  return { ...step, spans: step.spans.filter(hasBegun) };
}

/** The server's clock beyond what this page takes for it, in ms; the former value as long as it nearly holds. */
function skewOf({ now }, before) {
  const skew = Date.parse(now) - serverNow();
  return before && Math.abs(skew - before.skew) < 1000 ? before.skew : skew;
}

/** Read the state without what is large and known from elsewhere: messages, and the steps of the execution. */
export async function readState(read) {
  const { state } = await read("/state", {});
  const { metadata, system_prompt: prompt } = state.context ?? {};
  const execution = state.execution && { ...state.execution, step_executions: [], current_step: null };
  return { execution, metadata, prompt, parts: state.parts };
}
