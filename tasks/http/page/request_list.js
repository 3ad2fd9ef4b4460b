// The list of the inbox: open requests by agent, equal ones together; what is put away, and what waits for services.
import { clockTime, count, firstLine, inert, plural } from "./format.js";
import { Component, html } from "./html.js";
import { Ago } from "./parts.js";
import { addressee, isTimer, keyOf, nameOf, timeLeft } from "./request_words.js";

const COMPARED = ["href", "isCurrent", "isGone", "isBegun", "until", "now"];

/**
 * A titled part of the list.
 *
 * @param entries requests that are one entry each, as arrays
 * @param row makes what an entry shows below its line: nothing, or the open request on a narrow screen
 */
export function Part({ title, note, entries, row }) {
  return html`<section class="ask-part">
    <header><h2 dir="auto">${inert(title)}</h2><span class="small dim">${note}</span></header>
    <ul>${entries.map((entry) => html`<li key=${keyOf(entry[0])}>${row(entry)}</li>`)}</ul></section>`;
}

/**
 * One entry: what is asked, of whom, since when and until when. It is drawn again when one of these changes:
 * the number of its requests, isCurrent, isGone, isBegun (something was typed), until (when it comes back), now, href.
 */
export class Entry extends Component {
  shouldComponentUpdate(next) {
    return next.entry.length !== this.props.entry.length || COMPARED.some((name) => next[name] !== this.props[name]);
  }

  render({ entry, href, isCurrent, isGone, isBegun, until, now, onOpen }) {
    const [first] = entry;
    const number = entry.length;
    const sessions = new Set(entry.map((each) => each.session_id)).size;
    const asked = new Date(first.asked_at_ms).toISOString();
    const end = until ? `back at ${clockTime(until, now)}` : number > 1 ? "" : timeLeft(first, now);
    const mark = isGone ? "not open any more" : isBegun ? "begun by you" : "";
    const open = (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
      event.preventDefault();
      onOpen();
    };
    const place = sessions > 1 ? html`<span>in ${count(sessions)} sessions</span>`
      : html`<span class="mono" dir="auto">${firstLine(first.session_id, 36)}</span>`;
    return html`<a class=${`ask-entry ${isGone ? "gone" : ""}`} href=${href} onClick=${open}
        aria-current=${isCurrent ? "true" : undefined}>
      <span class=${`what ${first.kind === "question" && first.text ? "" : "mono"}`} dir="auto">${nameOf(first)}</span>
      <span class="about"><span dir="auto">${asksWhom(first, number)}</span>
        <span>asked <${Ago} at=${asked} now=${now} suffix=" ago" /></span>${end && html`<span>${end}</span>`}</span>
      <span class="about">${place}${mark && html`<b>${mark}</b>`}</span></a>`;
  }
}

function asksWhom(request, number) {
  const word = request.kind === "question" ? "to" : "by";
  if (number > 1) return `${plural(number, `equal ${request.kind}`)} ${word} ${addressee(request)}`;
  if (isTimer(request)) return "continues by itself";
  if (request.kind === "external") return `a result from ${inert(request.to || "a service")}`;
  return `${request.kind} ${word} ${addressee(request)}`;
}
