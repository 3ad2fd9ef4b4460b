// What has been typed into the forms of requests. It stays while others are looked at, until the answer is given.
import { useState } from "./html.js";

const drafts = new Map();

/** Whether something was typed for a request. */
export function hasDraft(key) {
  const { note, reason, values } = drafts.get(key) ?? {};
  return Boolean(note || reason || values);
}

/** Forget what was typed: the request is answered. */
export const dropDraft = (key) => drafts.delete(key);

/** What was typed for a request, and a function that changes parts of it. */
export function useDraft(key, initial) {
  const [, drawAgain] = useState(0);
  const change = (parts) => {
    drafts.set(key, { ...(drafts.get(key) ?? initial), ...parts });
    drawAgain((times) => times + 1);
  };
  return [drafts.get(key) ?? initial, change];
}
