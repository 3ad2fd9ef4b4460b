// The list of the inbox: open requests by agent, equal ones together; what is put away, and what waits for services.
import { clockTime, firstLine, inert, plural } from "./format.js";
import { html } from "./html.js";
import { Ago } from "./parts.js";
import { hasDraft } from "./request_drafts.js";
import { addressee, isTimer, keyOf, nameOf, timeLeft } from "./request_words.js";

const KINDS = { approval: "approval by", question: "question to", external: "a result from" };

/** Put requests of the same call together: [[request, …], …], in the order of the first of each. */
export function groupEqual(requests) {
  const groups = new Map();
  for (const each of requests) {
    const name = JSON.stringify([each.agent, each.kind, each.to, each.call, each.text]);
    if (groups.has(name)) groups.get(name).push(each);
    else groups.set(name, [each]);
  }
  return [...groups.values()];
}

/** Put entries under the names of their agents, in the order of the oldest: [[agent, entries], …]. */
export function groupByAgent(entries) {
  const groups = new Map();
  for (const entry of entries) {
    const { agent } = entry[0];
    if (groups.has(agent)) groups.get(agent).push(entry);
    else groups.set(agent, [entry]);
  }
  return [...groups];
}

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
  const facts = [
    number > 1 ? `${plural(number, `equal ${first.kind}`)} ${first.kind === "question" ? "to" : "by"} ${addressee(first)}`
      : isTimer(first) ? "goes on by itself" : `${KINDS[first.kind] ?? first.kind} ${first.kind === "external" ? inert(first.to || "a service") : addressee(first)}`,
    html`asked <${Ago} at=${asked} now=${now} suffix=" ago" />`,
    until ? `back at ${clockTime(until, now)}` : number > 1 ? "answer them at once" : timeLeft(first, now),
  ];
  return html`<a class=${`ask-entry ${isGone ? "gone" : ""}`} href=${href} aria-current=${isCurrent ? "true" : undefined} onClick=${open}>
    <span class=${`what ${isQuestion ? "" : "mono"}`} dir="auto">${nameOf(first)}</span>
    <span class="about">${facts.map((each) => html`<span dir="auto">${each}</span>`)}
      ${number > 1 ? html`<span>in ${plural(new Set(entry.map((each) => each.session_id)).size, "session")}</span>` : html`<span class="mono" dir="auto">${firstLine(first.session_id, 40)}</span>`}
      ${hasDraft(keyOf(first)) && !isGone && html`<b>begun by you</b>`}${isGone && html`<b>not open any more</b>`}</span></a>`;
}
