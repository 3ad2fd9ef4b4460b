// The list of the inbox: open requests by agent, equal ones together; what is put away, and what waits for services. It
// does not move under the pointer: new entries wait behind a button, those that are gone keep their place.
import { serverNow } from "./api.js";
import { choose } from "./dialog.js";
import { clockTime, count, firstLine, inert, plural } from "./format.js";
import { drawnWhen, html, useEffect, useRef, useState } from "./html.js";
import { Ago } from "./parts.js";
import { addressee, isTimer, keyOf, nameOf, timeLeft } from "./request_words.js";
import { parseKept, useKept } from "./state.js";

const MOST_AWAY = 500;
const HOUR_MS = 3_600_000;
const LET_GO_MS = 2000; // the way from the list to the button that shows what is new
const COMPARED = ["number", "href", "isCurrent", "isGone", "isBegun", "until", "now", "said"];

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
 * One entry: what is asked, of whom, since when and until when. isBegun: something was typed; until: it comes back;
 * said: the number of messages that came meanwhile.
 */
export const Entry = drawnWhen(COMPARED, ({ entry, href, isCurrent, isGone, isBegun, until, now, said, onOpen }) => {
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
    <span class="about">${place}${said > 0 && html`<b>${plural(said, "message")} since</b>`}
      ${mark && html`<b>${mark}</b>`}</span></a>`;
});

function asksWhom(request, number) {
  const word = request.kind === "question" ? "to" : "by";
  if (number > 1) return `${plural(number, `equal ${request.kind}`)} ${word} ${addressee(request)}`;
  if (isTimer(request)) return "continues by itself";
  if (request.kind === "external") return `a result from ${inert(request.to || "a service")}`;
  return `${request.kind} ${word} ${addressee(request)}`;
}

/** Put requests of the same call together: [[request, …], …], in the order of the first of each. */
export const groupEqual = (requests) => groupBy(requests, (each) =>
  JSON.stringify([each.agent, each.kind, each.to, each.call, each.text])).map(([, group]) => group);

/** Put entries under the names of their agents, in the order of the oldest: [[agent, entries], …]. */
export const groupByAgent = (entries) => groupBy(entries, ([{ agent }]) => agent);

function groupBy(list, groupOf) {
  const groups = new Map();
  for (const each of list) groups.set(groupOf(each), [...(groups.get(groupOf(each)) ?? []), each]);
  return [...groups];
}

/**
 * The requests that are put away for a while: {away, put, back}. `away` maps their keys to the time in milliseconds
 * until when; put(keys, until) and back(keys) change it. This browser alone knows it: others see them as before.
 */
export function usePutAway() {
  const [text, keep] = useKept("put-away");
  const all = Object.entries(parseKept(text, {}, (found) => found && typeof found === "object"));
  const away = new Map(all.filter(([, until]) => typeof until === "number" && until > serverNow()));
  const write = (entries) => keep(JSON.stringify(Object.fromEntries([...entries].slice(-MOST_AWAY))));
  return {
    away,
    put: (keys, until) => write(new Map([...away, ...keys.map((key) => [key, until])])),
    back: (keys) => write([...away].filter(([key]) => !keys.includes(key))),
  };
}

/** Ask until when a request shall be out of the way, given the end of its time (Infinity: none); null when it stays. */
export function askUntil(expiresMs) {
  const now = serverNow();
  const morning = new Date(now);
  morning.setDate(morning.getDate() + 1);
  morning.setHours(9, 0, 0, 0);
  const times = [
    ["For an hour", now + HOUR_MS],
    ["For 4 hours", now + 4 * HOUR_MS],
    ["Until tomorrow, 9:00", morning.getTime()],
    ["For a week", now + 168 * HOUR_MS],
  ].filter(([, until]) => until < expiresMs);
  const end = expiresMs < Infinity ? clockTime(expiresMs, now) : "";
  const ends = end && ` Its time ends at ${end}, put away or not.`;
  return choose({
    title: times.length ? "Not now" : "It cannot be put away",
    text: times.length
      ? `This browser shows it under “Not now” until then. It stays open, and others see it as before.${ends}`
      : `Its time to be answered ends within the hour, at ${end}.`,
    choices: times.map(([label, until]) => [until, label]),
  });
}

/** Whether a place is pointed at or holds the focus, or did so just now: then it must not move. `place` is its ref. */
export function useIsTouched(place) {
  const [isTouched, setTouched] = useState(false);
  useEffect(() => {
    const element = place.current;
    let timer = 0;
    const touch = () => {
      clearTimeout(timer);
      setTouched(true);
    };
    const leave = () => {
      clearTimeout(timer);
      timer = setTimeout(() => setTouched(element.matches(":hover, :focus-within")), LET_GO_MS);
    };
    const handlers = { pointerenter: touch, focusin: touch, pointerleave: leave, focusout: leave };
    for (const [name, handler] of Object.entries(handlers)) element.addEventListener(name, handler);
    return () => {
      clearTimeout(timer);
      for (const [name, handler] of Object.entries(handlers)) element.removeEventListener(name, handler);
    };
  }, []);
  return isTouched;
}

/**
 * @param fresh the list as it is now; null before it is known
 * @param keyOf the key of an entry
 * @param isHeld it must not move now
 * @param scope a text: a list of another scope is shown at once
 * @returns {shown, gone, waiting, show}: gone are the keys of shown entries that are not in the list any more, waiting
 *   the number of new ones
 */
export function useSteady(fresh, keyOf, isHeld, scope) {
  const kept = useRef({ scope: "", list: null });
  const [, drawAgain] = useState(0);
  const now = new Set((fresh ?? []).map(keyOf));
  const before = kept.current.list;
  const isLoose = !isHeld || !before?.length || kept.current.scope !== scope;
  if (fresh && isLoose) kept.current = { scope, list: fresh };
  const shown = kept.current.list ?? [];
  const known = new Set(shown.map(keyOf));
  return {
    shown,
    gone: new Set(fresh ? shown.map(keyOf).filter((key) => !now.has(key)) : []),
    waiting: (fresh ?? []).filter((each) => !known.has(keyOf(each))).length,
    show: () => {
      kept.current = { scope, list: fresh };
      drawAgain((times) => times + 1);
    },
  };
}
