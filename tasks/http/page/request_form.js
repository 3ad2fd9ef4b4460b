// One open request in full: what is asked, its form, and the decision. The inbox and the place of a session show it.
import { get, Refusal, sessionPath } from "./api.js";
import { answerAll, Decision, fieldErrors, questionErrors, useDecisionKeys } from "./decision.js";
import { inert, plural } from "./format.js";
import { html, useLayoutEffect, useMemo, useRef, useState } from "./html.js";
import { usePolled } from "./live.js";
import { Problem } from "./parts.js";
import { answersOf, blankAnswers, Content, Equal, questionsOf, Refused, Unsent } from "./request_parts.js";
import { Asks, Conversation, Expiry, isPast, keyOf, nameOf, Outcome, Since, titleOf } from "./request_words.js";
import { planOf } from "./schema_plan.js";
import { at, countChanges, draftOf, isRounded, startOf, valueOf } from "./schema_values.js";
import { linkTo } from "./state.js";

const NOTHING = { note: "", remember: "call", reason: "", isDenying: false, values: undefined, isTried: false,
  isOnlyThis: false };
const NO_REFUSAL = { list: [], errors: new Map(), values: null, isAlone: true };
const WRONG = '[aria-invalid="true"], .wrong input, .wrong button';
const NOT_SENT = "It was not sent, since the one before was refused.";

/**
 * @param session the session that asks
 * @param request its id, or the request as a listing gives it
 * @param onDone gets {done, text}: the requests that have an answer now, and a sentence that says so
 * @param {object} inbox what the inbox adds: equal (requests of the same call, this one among them), onPutAway,
 *   pressed, and focus, a number other than 0 when the heading takes the focus, which changes to take it again
 */
export function RequestForm({ session, request, onDone, inbox = null }) {
  const id = typeof request === "string" ? request : request.id;
  const path = sessionPath(session, `/requests/${encodeURIComponent(id)}`);
  const { value: found, problem, refresh } = usePolled((signal) => get(path, undefined, signal), [path], 3);
  if (!found && problem) return html`<${Problem} of=${problem} onRetry=${refresh} />`;
  if (!found) return html`<${Reading} ...${inbox} />`;
  return html`<${Asked} key=${found.id} ...${{ found, problem, refresh, onDone, inbox }} />`;
}

function Reading({ pressed }) {
  useDecisionKeys(pressed);
  return html`<p class="dim" role="status">Reading the request …</p>`;
}

function Asked({ found, problem, refresh, onDone, inbox }) {
  const isOpen = found.status === "open";
  const heading = useRef(null);
  const wasPressed = useRef(inbox?.pressed.current); // the decision below acts on the key, and has the focus then
  useLayoutEffect(() => {
    if (inbox?.focus && !wasPressed.current) heading.current.focus();
    wasPressed.current = "";
  }, [inbox?.focus]);
  const title = titleOf(found);
  const text = String(found.text ?? "").trim();
  const hasMore = text && text !== title && found.kind !== "external" && !found.options?.questions;
  return html`<article class="ask-form" aria-labelledby=${`ask-${found.id}-title`}>
    ${inbox && html`<${Path} of=${found} />`}
    <h2 id=${`ask-${found.id}-title`} ref=${heading} tabindex="-1" dir="auto">${title}</h2>
    ${hasMore && html`<p class="prose" dir="auto">${inert(text)}</p>`}
    <p><${Asks} request=${found} /></p>
    ${isOpen
      ? html`<${Expiry} request=${found} />`
      : html`<div class="ask-outcome" role="status"><${Outcome} request=${found} /></div>`}
    ${inbox && !isPast(found) && html`<${Conversation} request=${found} />`}
    <${Form} ...${{ found, isOpen, refresh, onDone, inbox }} />
    <${Problem} of=${problem} /></article>`;
}

const Path = ({ of }) => html`<p class="small dim">${of.agent && html`<span dir="auto">${inert(of.agent)}</span> / `}
  <a class="mono" dir="auto" href=${linkTo("sessions", of.session_id)}>${inert(of.session_id)}</a>
  ${" "}/ step ${of.step}</p>`;

/** What there is to fill in: {plan, before, isEdit} for a schema, {questions, mayWrite}; else {isRounded} or {}. */
function formOf(found) {
  if (isPast(found)) return {};
  const questions = questionsOf(found);
  const mayWrite = found.options?.allow_free_text !== false;
  if (questions) return { questions, mayWrite, start: blankAnswers(questions) };
  if (found.kind === "question") {
    const plan = planOf(found.answer_schema ?? {}, undefined);
    return { plan, start: startOf(plan), isEdit: false };
  }
  if (found.kind !== "approval" || !found.edits_allowed || !Object.keys(found.args ?? {}).length) return {};
  if (isRounded(found.args)) return { isRounded: true };
  const plan = planOf(found.answer_schema ?? { type: "object" }, found.args);
  const before = draftOf(plan, found.args);
  return { plan, before, start: before, isEdit: true };
}

function Form({ found, isOpen, refresh, onDone, inbox }) {
  const form = useMemo(() => formOf(found), [found.id]); // as it was asked: later it has no arguments any more
  const [draft, change] = useDraft(keyOf(found), NOTHING);
  const [sending, setSending] = useState(null);
  const [refused, setRefused] = useState(NO_REFUSAL);
  const place = useRef(null);
  const values = draft.values ?? form.start;
  const known = useRef(null); // those that arrive later are not answered unseen
  if (inbox?.equal.length) known.current ??= new Set(inbox.equal.map(keyOf));
  const equal = (inbox?.equal ?? []).filter((each) => known.current.has(keyOf(each)));
  const targets = [found, ...(draft.isOnlyThis ? [] : equal.filter((each) => keyOf(each) !== keyOf(found)))];
  const filled = fill(form, values, draft.isTried);
  // A field is marked as refused until it is changed.
  const marked = [...refused.errors].filter(([path]) => at(values, path) === at(refused.values, path));
  const errors = new Map([...marked, ...filled.shown]);

  const send = async (given, remember) => {
    change({ mayBeSent: true });
    setRefused(NO_REFUSAL);
    setSending({ done: 0, of: targets.length });
    const about = { digest: found.digest, note: draft.note, remember };
    const results = await answerAll(targets, given, about, (done) => setSending({ done, of: targets.length }));
    const done = results.filter(([, refusal]) => !refusal).map(([target]) => target);
    const list = [
      ...results.filter(([, refusal]) => refusal),
      ...targets.slice(results.length).map((target) => [target, new Refusal(0, NOT_SENT)]),
    ];
    const first = results[0][1];
    change({ mayBeSent: first?.status === 0 });
    const errorsOf = form.questions ? questionErrors : fieldErrors;
    setSending(null);
    const fields = first ? errorsOf(first, form.questions ?? found.id) : new Map();
    setRefused({ list, errors: fields, values, isAlone: targets.length === 1 });
    for (const each of done) dropDraft(keyOf(each));
    refresh();
    const args = given.approve?.args ?? found.args;
    const name = done.length > 1 ? plural(done.length, "request") : nameOf({ ...found, args });
    if (done.length) onDone?.({ done, text: `${wordFor(given)}: ${name}.`.replace(/\?\.$/, "?") });
  };
  const approve = () => {
    change({ isTried: true });
    if (filled.isWrong) requestAnimationFrame(() => place.current.querySelector(WRONG)?.focus());
    else if (found.kind === "question") send({ answer: filled.value }, "call");
    else send({ approve: filled.changes ? { args: filled.value } : true }, draft.remember);
  };
  const leave = () => {
    dropDraft(keyOf(found));
    onDone?.({ done: [found], text: "" });
  };
  const hasContent = !isPast(found) || hasDraft(keyOf(found));
  return html`<div ref=${place} class="ask-rest">
    ${!isOpen && !sending && isBegun(keyOf(found)) && html`<${Unsent} ...${{ found, draft }}
      isTyped=${hasDraft(keyOf(found)) && !draft.mayBeSent} onLeave=${leave} />`}
    ${hasContent && html`<fieldset class="plain" disabled=${!isOpen || sending !== null}>
      <legend class="unseen">What is asked</legend>
      <${Content} ...${{ found, form, values, errors, isOpen }} onChange=${(changed) => change({ values: changed })} />
    </fieldset>`}
    ${isOpen && html`<${Since} requests=${targets} />`}
    ${isOpen && equal.length > 1 && html`<${Equal} ...${{ found, equal }} isOnlyThis=${draft.isOnlyThis}
      onChange=${(isOnlyThis) => change({ isOnlyThis })} />`}
    ${!refused.isAlone && refused.list.length > 0 && html`<h3>${plural(refused.list.length, "answer")} not taken</h3>`}
    ${(marked.length > 0 || !refused.errors.size) && refused.list.map(([target, refusal]) => html`
      <${Refused} ...${{ target, refusal }} isAlone=${refused.isAlone} hasFields=${marked.length > 0} />`)}
    ${isOpen && found.kind !== "external" && html`<${Decision} request=${found} ...${{ draft, change, sending }}
      changes=${filled.changes} number=${targets.length} wrong=${filled.isWrong ? filled.shown.size : 0}
      ...${inbox} onApprove=${approve} onDeny=${() => send({ deny: draft.reason }, "call")} />`}</div>`;
}

/** The value of a draft, the number of changed arguments, and what is wrong: `shown` as soon as it is of use. */
function fill(form, values, isTried) {
  const errors = new Map();
  const value = form.questions ? answersOf(form, values, errors) : form.plan && valueOf(form.plan, values, errors);
  const changes = form.isEdit ? countChanges(form.plan, values, form.before) : 0;
  const isWrong = errors.size > 0 && (changes > 0 || !form.isEdit); // what was asked is approved as it is
  return { value, changes, isWrong, shown: isWrong && (isTried || changes > 0) ? errors : new Map() };
}

const wordFor = (given) => ("deny" in given ? "Denied" : "answer" in given ? "Answered" : "Approved");

const drafts = new Map();

/** Whether something was typed for a request. */
export function hasDraft(key) {
  const { note, reason, values } = drafts.get(key) ?? {};
  return Boolean(note || reason || values);
}

/** Whether something was typed or sent for a request, and its answer was not taken yet. */
export const isBegun = (key) => drafts.has(key);

/** Forget what was typed: the request is answered. */
const dropDraft = (key) => drafts.delete(key);

/** What was typed for a request, and a function that changes parts of it. */
function useDraft(key, initial) {
  const [, drawAgain] = useState(0);
  const change = (parts) => {
    drafts.set(key, { ...(drafts.get(key) ?? initial), ...parts });
    drawAgain((times) => times + 1);
  };
  return [drafts.get(key) ?? initial, change];
}
