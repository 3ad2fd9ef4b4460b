// Stored messages as entries of a chat: each message with its calls and with what became of them. Pure.

/**
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
  if (numbers.length === 1) return calls.length > 2 ? `all ${numbers[0][1]}` : calls.length === 2
    ? `both ${numbers[0][1]}` : numbers[0][1];
  return numbers.map(([number, word]) => `${number} ${word}`).join(", ");
}
