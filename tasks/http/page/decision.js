// The decision about a request: note, how long it is remembered, approve or answer, deny with a reason, or not now; and
// how it is sent, to one request or to several equal ones, each once.
import { post, Refusal, sessionPath } from "./api.js";
import { useKeys } from "./dialog.js";
import { count, inert, plural } from "./format.js";
import { html, useLayoutEffect, useRef } from "./html.js";
import { Meter } from "./parts.js";
import { isTimer } from "./request_words.js";
import { Radios } from "./schema_form.js";
import { ActingAs, actor } from "./state.js";

const LONGEST = 10_000;
const REMEMBER = [["call", "this call"], ["execution", "the execution"], ["session", "the session"]];

const DECISION_KEYS = [
  ["a", "Go to Approve or Answer; Enter gives it"],
  ["d", "Deny or decline, with a reason"],
  ["n", "Write a note"],
  ["l", "Not now: put it away"],
];

/** Take the keys of a decision. Without `acts` there is nothing to decide now: the first that is pressed is kept. */
export const useDecisionKeys = (pressed, acts) => useKeys(pressed ? DECISION_KEYS.map(([key, text]) =>
  [key, text, acts ? acts[key] : () => (pressed.current ||= key)]) : []);

/** The word on the button that says yes. */
function wordOf({ request, changes, number }) {
  const all = number > 1 ? ` all ${count(number)}` : "";
  if (request.kind === "question") return `Answer${all}`;
  if (isTimer(request)) return "Let it continue now";
  return `Approve${all}${changes ? ` with ${plural(changes, "change")}` : ""}`;
}

/**
 * @param draft {note, remember, reason, isDenying}, and `change` to change parts of it
 * @param changes number of arguments that were changed
 * @param number of requests that are answered together
 * @param sending {done, of} while the answer is on its way; null otherwise
 * @param wrong number of fields that must be changed first
 * @param pressed a ref of the key that was pressed before this; none where keys are not taken
 * @param onPutAway none where it cannot be put away
 */
export function Decision(props) {
  const { request, draft, change, changes, number, sending, wrong, pressed, onApprove, onDeny, onPutAway } = props;
  const yes = useRef(null);
  const note = useRef(null);
  const no = useRef(null);
  const wasDenying = useRef(draft.isDenying); // what was begun earlier does not take the focus when it is drawn
  const isQuestion = request.kind === "question";
  const isBusy = sending !== null;
  const deny = () => change({ isDenying: true });
  useLayoutEffect(() => {
    if (draft.isDenying && !wasDenying.current) no.current?.focus(); // before the next key is pressed
    wasDenying.current = draft.isDenying;
  }, [draft.isDenying]);
  const acts = {
    a: () => show(yes.current),
    d: () => (draft.isDenying ? show(no.current) : deny()),
    n: () => show(note.current),
    l: () => onPutAway?.(),
  };
  useDecisionKeys(pressed, isBusy ? null : acts);
  useLayoutEffect(() => {
    if (isBusy || !pressed?.current) return;
    acts[pressed.current](); // while the request was being read, or its answer sent and refused
    pressed.current = "";
  }, [isBusy]);
  const send = (event) => {
    event.preventDefault();
    if (!isBusy) (draft.isDenying ? onDeny : onApprove)();
  };
  return html`<form class="ask-decide" onSubmit=${send} noValidate>
    <div class="fields">
      <label class="field"><span class="label">Note, kept with the answer</span>
        <input ref=${note} value=${draft.note} readonly=${isBusy} maxlength=${LONGEST} dir="auto" autocomplete="off"
        onInput=${(event) => change({ note: event.target.value })} /></label>
      ${!isQuestion && !isTimer(request) && !draft.isDenying && html`<${Memory} ...${{ request, draft, change }} />`}
    </div>
    ${draft.isDenying && html`<label class="field"><span class="label">Reason, which the agent reads</span>
      <textarea ref=${no} value=${draft.reason} readonly=${isBusy} maxlength=${LONGEST} dir="auto"
        onInput=${(event) => change({ reason: event.target.value })} /></label>`}
    <div class="actions">
      ${draft.isDenying
        ? html`<button class="button go" type="submit">
            ${isQuestion ? "Decline" : "Deny"}${number > 1 ? ` all ${count(number)}` : ""}</button>
          <button class="button" type="button" onClick=${() => change({ isDenying: false })}>Back</button>`
        : html`<button class="button go" type="submit" ref=${yes}>${wordOf({ request, changes, number })}</button>
          <button class="button" type="button" onClick=${deny}>${isQuestion ? "Decline…" : "Deny…"}</button>
          ${onPutAway && html`<button class="button" type="button" onClick=${onPutAway}>Not now…</button>`}`}
      <${ActingAs} /></div>
    ${wrong > 0 && !draft.isDenying && html`<p class="small">
      ${plural(wrong, "field")} must be changed first. Nothing is sent before.</p>`}
    <div role="status">${sending && html`<p class="small">
        ${sending.of > 1 ? `${count(sending.done)} of ${count(sending.of)} answered …` : "Sending …"}</p>
      ${sending.of > 1 && html`<${Meter} parts=${[[sending.done / sending.of, "used"]]} />`}`}</div></form>`;
}

/** For how long an approval counts, and what that means. */
function Memory({ request, draft, change }) {
  return html`<fieldset class="field"><legend class="label">Remember an approval for</legend>
    <${Radios} name=${`remember-${request.id}`} options=${REMEMBER} chosen=${draft.remember}
      onChange=${(remember) => change({ remember })} />
    ${draft.remember !== "call" && html`<p class="small">
      Later calls of <code>${inert(request.tool)}</code> in this ${draft.remember} run without a question
      to ${inert(request.to || "anybody")}, whatever their arguments.</p>`}</fieldset>`;
}

function show(element) {
  element?.scrollIntoView({ block: "nearest" });
  element?.focus();
}

const NO_REPLY =
  "No reply came. Your answer may have arrived nevertheless. While it is open, send it again: it counts once.";

/**
 * Answer requests one after another.
 *
 * @param targets requests, {session_id, id, newest_message}: as shown, a further message refuses the answer
 * @param {object} answer as the API takes it, such as {deny: "why"}
 * @param {object} about digest (of what was looked at: a request about other arguments is refused), note, remember
 * @param onProgress gets the number of those that are done
 * @returns [[target, refusal or null], …]; it ends early where the others would be refused, too
 */
export async function answerAll(targets, answer, { digest, note, remember }, onProgress) {
  const results = [];
  for (const target of targets) {
    const { id, newest_message: seen } = target;
    const body = { answers: { [id]: answer }, expect: { [id]: digest }, note, remember, seen, ...actor() };
    const problem = await answerOne(target, body);
    results.push([target, problem]);
    onProgress(results.length);
    if (problem && [0, 401, 403].includes(problem.status)) break;
  }
  return results;
}

async function answerOne(target, body) {
  try {
    await post(sessionPath(target.session_id, "/answers"), body, { isOnce: true });
    return null;
  } catch (problem) {
    if (!(problem instanceof Refusal)) throw problem;
    return problem.status === 0 ? new Refusal(0, NO_REPLY) : problem;
  }
}

/** What a refusal says of the fields of a form, by their path, such as "items.0.pieces". */
export function fieldErrors(problem, id) {
  const found = new Map();
  for (const [field, message] of problem.fields) {
    const [first, ...others] = message.replace(/\.$/, "").split(/\. (?=(?:args|values)(?:\.[^\s:]+)*: )/);
    const parts = [[field.replace(`answers.${id}.`, ""), first], ...others.map((each) => each.split(/: (.*)/s))];
    for (const [place, text] of parts) {
      const path = /^(?:args|values)(?:\.(.*))?$/s.exec(place);
      if (path) found.set(path[1] ?? "", `${text.charAt(0).toUpperCase()}${text.slice(1)}.`);
    }
  }
  return found;
}

/** What a refusal says of questions with options, by the place of the question that it names. */
export function questionErrors(problem, questions) {
  const found = new Map();
  for (const [field, message] of problem.fields) {
    const place = questions.findIndex(({ question }) => field.includes(question.slice(0, 60)));
    if (place >= 0) found.set(String(place), message);
  }
  return found;
}
