// The inbox: open requests of all agents, oldest first, and the one that is looked at, with its form.
import { useKeys } from "./dialog.js";
import { count, inert, plural } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { askUntil, Entry, groupByAgent, groupEqual, Part, useIsTouched, usePutAway, useSteady } from "./inbox_list.js";
import { readPages, usePolled } from "./live.js";
import { Empty, Problem, useMedia, useNow, useTitle } from "./parts.js";
import { hasDraft, RequestForm } from "./request_form.js";
import { isForPeople, keyOf } from "./request_words.js";
import { linkTo, setQuery } from "./state.js";

const PAGE = 200;
const addressees = new Set(); // of all that was read since the page was loaded

/** Read what is open for people and for services; the ends of children are left out, however many there are. */
async function readInbox(to, most, signal) {
  const read = (kind) => readPages("v1/requests", { kind, to }, "requests", most, signal);
  const found = await Promise.all([read("approval"), read("question"), read("external")]);
  const requests = found.flatMap((each) => each.items).sort((one, other) => one.asked_at_ms - other.asked_at_ms);
  for (const each of requests) if (each.to && isForPeople(each)) addressees.add(each.to);
  return { requests, isComplete: found.every((each) => each.isComplete) };
}

export function Inbox({ query }) {
  const to = query.get("to") ?? "";
  const open = query.get("open") ?? "";
  const [most, setMost] = useState(PAGE);
  const [told, setTold] = useState("");
  const [focus, setFocus] = useState(0);
  const list = useRef(null);
  const pressed = useRef("");
  const above = useRef(null); // what was opened on a narrow page before the list had it: its form stays above it
  const isWide = useMedia("(min-width: 901px)");
  const now = useNow(10);
  const { value, problem, refresh } = usePolled((signal) => readInbox(to, most, signal), [to, most], 3);
  const { away, put, back } = usePutAway();
  const isTouched = useIsTouched(list);
  const isHeld = isTouched || (!isWide && open !== "");
  const { shown, gone, waiting, show } = useSteady(value?.requests ?? null, keyOf, isHeld, `${to} ${most}`);
  useTitle("Inbox");

  const people = shown.filter((each) => isForPeople(each) && !away.has(keyOf(each)));
  const groups = groupByAgent(groupEqual(people));
  const entries = groups.flatMap(([, each]) => each);
  const putAway = shown.filter((each) => isForPeople(each) && away.has(keyOf(each)));
  const others = shown.filter((each) => !isForPeople(each));
  const chosen = entries.find((entry) => entry.some((each) => keyOf(each) === open));
  const first = entries.length ? keyOf(entries[0][0]) : "";
  useEffect(() => {
    if (isWide && !open && first) setQuery({ open: first }); // it stays, whatever becomes of the list
  }, [isWide, open, first]);

  const select = (key, kept) => {
    pressed.current = kept;
    setQuery({ open: key });
    setFocus((times) => times + 1);
  };
  /** Select the entry behind the one that is left, else the one before it, unless another was opened since. */
  const goOn = useRef(null);
  goOn.current = (left) => {
    const isLeft = (each) => left.includes(keyOf(each));
    if (!list.current) return; // the inbox itself was left
    if (chosen ? !chosen.every(isLeft) : !left.includes(open)) return;
    const stays = (entry) => !entry.some(isLeft) && !gone.has(keyOf(entry[0]));
    const next = entries.slice(entries.indexOf(chosen) + 1).find(stays) ?? entries.findLast(stays);
    select(next ? keyOf(next[0]) : "", next && pressed.current);
  };
  const onDone = ({ done, text }) => {
    setTold(text);
    refresh();
    goOn.current(done.map(keyOf));
  };
  const putOff = async () => {
    const keys = chosen.map(keyOf);
    const until = await askUntil(Math.min(...chosen.map((each) => each.expires_at_ms ?? Infinity)));
    if (until === null) return;
    put(keys, until);
    setTold("Put away in this browser.");
    goOn.current(keys);
  };
  useMoves(list);

  const slash = open.lastIndexOf("/");
  const inbox = { equal: chosen ?? [], focus, pressed, onPutAway: chosen && putOff };
  const form = open && html`<${RequestForm} key=${open} session=${open.slice(0, slash)} request=${open.slice(slash + 1)}
    ...${{ onDone, inbox }} />`;
  const isListed = shown.some((each) => keyOf(each) === open);
  if (above.current !== open) above.current = isWide || isListed ? null : open;
  const isAbove = above.current === open;
  const row = (until) => (entry) => {
    const isCurrent = entry.some((each) => keyOf(each) === open);
    const isBegun = entry.some((each) => hasDraft(keyOf(each)));
    const key = keyOf(entry[0]);
    const said = entry.reduce((sum, each) => sum + (each.messages?.length ?? 0), 0);
    return html`<${Entry} ...${{ entry, isCurrent, isBegun, now, said }} number=${entry.length} isGone=${gone.has(key)}
        until=${until && away.get(key)} href=${linkTo("requests", "", { to, open: key })} onOpen=${() => select(key)} />
      ${until && html`<button class="link small" type="button" onClick=${() => back(entry.map(keyOf))}>
        Bring it back now</button>`}
      ${!isWide && isCurrent && !isAbove && form}`;
  };
  return html`<div class="heading"><div><h1>Inbox</h1><${Summary} ...${{ value, people, putAway, told }} /></div>
      <div role="status">${waiting > 0 && html`<button class="button ask-new" type="button" onClick=${show}>
        Show ${plural(waiting, "new request")}</button>`}</div>
      <${Addressee} to=${to} /></div>
    <${Problem} of=${problem} onRetry=${refresh}>${to && html`<${ToEverybody} />`}</${Problem}>
    ${!isWide && isAbove && form}
    <div class=${shown.length || open ? "inbox" : ""}><nav class="ask-list" ref=${list} aria-label="Open requests">
      ${groups.map(([agent, each]) => html`<${Part} key=${agent} title=${agent}
        note=${`${count(each.flat().length)} open`} entries=${each} row=${row(false)} />`)}
      ${value && !people.length && html`<${Nothing} to=${to} />`}
      ${putAway.length > 0 && html`<${Part} title="Not now" note=${`${count(putAway.length)}, in this browser`}
        entries=${groupEqual(putAway)} row=${row(true)} />`}
      ${others.length > 0 && html`<${Part} title="Waits for services or a time" note="nothing to do"
        entries=${others.map((each) => [each])} row=${row(false)} />`}
      ${value && !value.isComplete && html`<button class="button" type="button" onClick=${() => setMost(most + PAGE)}>
        Read further requests</button>`}
    </nav>${isWide && html`<div class="ask-one">${form}</div>`}</div>`;
}

function Summary({ value, people, putAway, told }) {
  const more = value?.isComplete === false ? " and more" : "";
  const order = people.length > 1 ? ", oldest first in each agent" : "";
  const open = `${plural(people.length, "open request")}${more}${order}.`;
  const number = people.length ? open : "Nothing is open for people.";
  return html`<p class="dim"><span role="status" class="ask-told">${told}</span>${told && " "}
    ${value ? number : "Reading …"}${putAway.length > 0 && ` ${count(putAway.length)} put away.`}</p>`;
}

const ToEverybody = () => html`<a href=${linkTo("requests")}>Show those to everybody</a>`;

function Nothing({ to }) {
  if (to) {
    return html`<${Empty}>No open request is for ${inert(to)}. <${ToEverybody} /></${Empty}>`;
  }
  return html`<${Empty} command="celery-agents requests">
    No agent asks for anything now. What is asked comes here by itself. In a terminal the same list is:</${Empty}>`;
}

function Addressee({ to }) {
  const known = [...new Set([...addressees, ...(to ? [to] : [])])].sort();
  const change = ({ target }) => setQuery({ to: target.value, open: "" });
  return html`<label><span class="unseen">Addressed to</span><select value=${to} onChange=${change}>
    <option value="" selected=${!to}>to everybody</option>
    ${known.map((each) => html`<option value=${each} selected=${each === to}>to ${inert(each)}</option>`)}
  </select></label>`;
}

/** The keys that go through the list. */
function useMoves(list) {
  const move = (by) => {
    const links = [...list.current.querySelectorAll(".ask-entry")];
    const at = links.indexOf(document.activeElement);
    const next = at < 0 ? links.findIndex((each) => each.ariaCurrent) : at + by; // at first the one that is open
    links[Math.min(links.length - 1, Math.max(0, next))]?.focus();
  };
  useKeys([
    ["j", "The next request", () => move(1)],
    ["k", "The one before", () => move(-1)],
  ]);
}
