// The list of the inbox: open requests by agent, equal ones together; what is put away, and what waits for services.
import { clockTime, count, firstLine, inert, plural } from "./format.js";
import { html } from "./html.js";
import { Ago } from "./parts.js";
import { hasDraft } from "./request_drafts.js";
import { addressee, isTimer, keyOf, nameOf, timeLeft } from "./request_words.js";

/**
 * A titled part of the list.
 *
 * @param entries requests that are one entry each, as arrays
 * @param row makes what an entry shows below its line: nothing, or the open request on a narrow screen
 */
export function Part({ title, note, entries, row }) {
  return html`<section class="ask-part"><header><h2 dir="auto">${inert(title)}</h2><span class="small dim">${note}</span></header>
    <ul>${entries.map((entry) => html`<li key=${keyOf(entry[0])}>${row(entry)}</li>`)}</ul></section>`;
}

/** One entry: what is asked, of whom, since when and until when. */
export function Entry({ entry, href, isCurrent, isGone, until, now, onOpen }) {
  const [first] = entry;
  const number = entry.length;
  const open = (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    onOpen();
  };
  const asked = new Date(first.asked_at_ms).toISOString();
  const isQuestion = first.kind === "question" && first.text;
  const kind = first.kind === "question" ? "to" : "by";
  const asks = number > 1 ? `${plural(number, `equal ${first.kind}`)} ${kind} ${addressee(first)}`
    : isTimer(first) ? "goes on by itself" : first.kind === "external" ? `a result from ${inert(first.to || "a service")}` : `${first.kind} ${kind} ${addressee(first)}`;
  const end = until ? `back at ${clockTime(until, now)}` : number > 1 ? "" : timeLeft(first, now);
  const sessions = new Set(entry.map((each) => each.session_id)).size;
  const mark = isGone ? "not open any more" : entry.some((each) => hasDraft(keyOf(each))) ? "begun by you" : "";
  return html`<a class=${`ask-entry ${isGone ? "gone" : ""}`} href=${href} aria-current=${isCurrent ? "true" : undefined} onClick=${open}>
    <span class=${`what ${isQuestion ? "" : "mono"}`} dir="auto">${nameOf(first)}</span>
    <span class="about"><span dir="auto">${asks}</span><span>asked <${Ago} at=${asked} now=${now} suffix=" ago" /></span>${end && html`<span>${end}</span>`}</span>
    <span class="about">${sessions > 1 ? html`<span>in ${count(sessions)} sessions</span>` : html`<span class="mono" dir="auto">${firstLine(first.session_id, 36)}</span>`}
      ${mark && html`<b>${mark}</b>`}</span></a>`;
}
