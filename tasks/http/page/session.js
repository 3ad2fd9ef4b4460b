// The place Session: its head, the conversation as a chat, and beside it the timeline and further tabs.
import { linkTo, setQuery } from "./address.js";
import { tokenClaims } from "./api.js";
import { Chat } from "./chat.js";
import { Feed } from "./feed.js";
import { firstLine } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { Overview } from "./overview.js";
import { Empty, Problem } from "./parts.js";
import { SessionHead } from "./session_head.js";
import { Calls, Raw, Stored } from "./session_tabs.js";
import { Timeline } from "./timeline.js";

const TABS = { timeline: "Timeline", overview: "Overview", stored: "What the model saw", tools: "Tools", raw: "Raw" };
const NARROW = "(max-width: 900px)";

/** Whether the token that this page has allows the conversation of its session alone. */
function isChatOnly() {
  const claims = tokenClaims();
  return claims !== null && !claims.scopes.includes("read");
}

export function Session({ id, query, onUnauthorized }) {
  const isChat = isChatOnly();
  const [view, setView] = useState(null);
  const feed = useRef(null);
  useEffect(() => {
    const mine = (feed.current = new Feed(id, isChat, setView));
    setView(mine.view);
    mine.start();
    return () => mine.stop();
  }, [id]);
  const header = view?.header;
  const refused = view && [view.problem, view.streamProblem, ...Object.values(view.problems)].find((each) =>
    each?.status === 401);
  useEffect(() => {
    if (refused) onUnauthorized(refused);
  }, [refused]);
  const words = firstLine(view?.first?.content, 120);
  useEffect(() => {
    document.title = `${words || id} – celery-agents`;
  }, [words, id]);
  if (!view) return null;
  if (!header) return html`<${NotShown} id=${id} problem=${view.problem ?? view.problems.header} />`;
  return html`<${SessionHead} view=${view} feed=${feed.current} words=${words} isChat=${isChat} />
    ${header.status === "unreadable"
      ? html`<${Unreadable} header=${header} />`
      : isChat
        ? html`<div class="alone"><${Chat} view=${view} feed=${feed.current} isChat=${true} /></div>`
        : html`<${Body} view=${view} feed=${feed.current} query=${query} />`}`;
}

/** The conversation beside the tabs; on a narrow page it is the first of them. */
function Body({ view, feed, query }) {
  const isNarrow = useMedia(NARROW);
  const tabs = isNarrow ? { conversation: "Conversation", ...TABS } : TABS;
  const wanted = query.get("tab") ?? "";
  const initial = isNarrow && !/^#\d/.test(location.hash) ? "conversation" : "timeline";
  const tab = Object.hasOwn(tabs, wanted) ? wanted : initial;
  useEffect(() => {
    feed.wantState(tab === "overview");
  }, [feed, tab]);
  useEffect(() => {
    const onHash = () => /^#\d+\./.test(location.hash) && setQuery({ tab: isNarrow ? "timeline"
      : "" }); // a link to a span
    addEventListener("hashchange", onHash);
    return () => removeEventListener("hashchange", onHash);
  }, [isNarrow]);
  const choose = (name) => setQuery({ tab: name === (isNarrow ? "conversation" : "timeline") ? "" : name });
  const chat = html`<${Chat} view=${view} feed=${feed} isChat=${false} />`;
  return html`<div class="session">${!isNarrow && html`<section class="beside" aria-label="Conversation">${chat}
    </section>`}
    <section class="tabbed"><${TabList} tabs=${tabs} current=${tab} onChoose=${choose} />
      <div id="panel" role="tabpanel" aria-labelledby=${`tab-${tab}`} tabindex="-1"><h2 class="unseen">${tabs[tab]}</h2>
        ${tab === "conversation" && chat}
        ${tab === "timeline" && html`<${Timeline} view=${view} />`}
        ${tab === "overview" && html`<${Overview} view=${view} />`}
        ${tab === "stored" && html`<${Stored} view=${view} feed=${feed} />`}
        ${tab === "tools" && html`<${Calls} view=${view} />`}
        ${tab === "raw" && html`<${Raw} view=${view} />`}</div></section></div>`;
}

function TabList({ tabs, current, onChoose }) {
  const names = Object.keys(tabs);
  const onKeyDown = (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const next = names[(names.indexOf(current) + move + names.length) % names.length];
    onChoose(next);
    document.getElementById(`tab-${next}`)?.focus();
  };
  return html`<div class="tabs" role="tablist" aria-label="About this session" onKeyDown=${onKeyDown}>
    ${names.map((name) => html`<button key=${name} id=${`tab-${name}`}
    role="tab" type="button" aria-selected=${String(name === current)} aria-controls="panel"
      tabindex=${name === current ? 0 : -1} onClick=${() => onChoose(name)}>${tabs[name]}</button>`)}</div>`;
}

function useMedia(text) {
  const [matches, setMatches] = useState(() => matchMedia(text).matches);
  useEffect(() => {
    const media = matchMedia(text);
    const onChange = () => setMatches(media.matches);
    media.addEventListener("change", onChange);
    return () => media.removeEventListener("change", onChange);
  }, [text]);
  return matches;
}

/** Nothing is known of the session: it is being read, it is gone, or the server refused. */
function NotShown({ id, problem }) {
  const path = html`<p class="path"><a href=${linkTo("sessions")}>Sessions</a> / <span class="mono">${id}</span></p>`;
  if (!problem) return html`<div class="heading"><div>${path}<h1 class="dim">Reading the session …</h1></div></div>`;
  const title = { 404: "There is no such session", 410: "This session is gone",
    403: "This session may not be read" }[problem.status];
  return html`<div class="heading"><div>${path}<h1>${title ?? "The session cannot be read now"}</h1></div></div>
    <${Problem} of=${problem} />
    ${[404, 410].includes(problem.status) && html`<${Empty}
      command="celery-agents list">The sessions that are kept are shown under Sessions, and by:</${Empty}>`}`;
}

function Unreadable({ header }) {
  return html`<${Problem} of=${{ message: header.problem || "What is stored of this session cannot be read." }} />
    <p>Its conversation and its timeline cannot be shown. Other sessions are not affected.</p>`;
}
