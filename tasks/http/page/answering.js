// Sends an answer to one request, or to several equal ones, each once.
import { newKey, post, Refusal, sessionPath } from "./api.js";
import { actor } from "./person.js";

const NO_REPLY =
  "No reply came. Your answer may have arrived nevertheless. Send it again when the API answers: it counts once.";
const keys = new Map();

/** The same key for the same answer, so that one whose reply was lost is not given twice. */
function idempotencyKey(text) {
  if (!keys.has(text)) keys.set(text, newKey());
  return keys.get(text);
}

/**
 * Answer requests one after another.
 *
 * @param targets requests, {session_id, id}
 * @param {object} answer as the API takes it, such as {deny: "why"}
 * @param {object} about digest (of what was looked at: a request about other arguments is refused), note, remember
 * @param onProgress gets the number of those that are done
 * @returns [[target, refusal or null], …]; it ends early where the others would be refused, too
 */
export async function answerAll(targets, answer, { digest, note, remember }, onProgress) {
  const results = [];
  for (const target of targets) {
    const { id } = target;
    const body = { answers: { [id]: answer }, expect: { [id]: digest }, note, remember, ...actor() };
    const problem = await answerOne(target, body);
    results.push([target, problem]);
    onProgress(results.length);
    if (problem && [0, 401, 403].includes(problem.status)) break;
  }
  return results;
}

async function answerOne(target, body) {
  try {
    const key = idempotencyKey(`${target.session_id} ${JSON.stringify(body)}`);
    await post(sessionPath(target.session_id, "/answers"), body, { key });
    return null;
  } catch (problem) {
    if (!(problem instanceof Refusal)) throw problem;
    return problem.status === 0 ? new Refusal(0, NO_REPLY) : problem;
  }
}
