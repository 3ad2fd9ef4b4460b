// The place Session: its head, the conversation as a chat, and beside it the timeline and further tabs: what the model
// saw, calls by tool, and the whole state as JSON.
import { get, sessionPath, tokenClaims } from "./api.js";
import { Chat } from "./chat.js";
import { Feed } from "./feed.js";
import { count, duration, firstLine, plural } from "./format.js";
import { html, Table, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./html.js";
import { usePolled } from "./live.js";
import { Overview } from "./overview.js";
import { Empty, Json, Problem, useMedia, useTitle } from "./parts.js";
import { save, SessionHead } from "./session_head.js";
import { Saw } from "./seen.js";
import { countCalls } from "./spans.js";
import { linkTo, setQuery } from "./state.js";
import { Timeline } from "./timeline.js";

const TABS = { timeline: "Timeline", overview: "Overview", stored: "What the model saw", tools: "Tools", raw: "Raw" };
const NARROW = "(max-width: 900px)";

/** Whether the token that this page has allows the conversation of its session alone. */
function isChatOnly() {
  const claims = tokenClaims();
  return claims !== null && !claims.scopes.includes("read");
}

export function Session({ id, query }) {
  const isChat = isChatOnly();
  const [view, setView] = useState(null);
  const feed = useRef(null);
  useLayoutEffect(() => {
    const mine = (feed.current = new Feed(id, isChat, setView));
    setView(mine.view);
    mine.start();
    return () => mine.stop();
  }, [id]);
  const header = view?.header;
  const words = firstLine(view?.first?.content, 120);
  useTitle(words || id);
  if (!view) return null;
  if (!header) return html`<${NotShown} id=${id} problem=${view.problems.header} />`;
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
  const wanted = query.get("tab");
  const initial = isNarrow && !/^#\d/.test(location.hash) ? "conversation" : "timeline";
  const tab = Object.hasOwn(tabs, wanted) ? wanted : initial;
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
        ${tab === "overview" && html`<${Overview} view=${view} feed=${feed} />`}
        ${tab === "stored" && html`<${Saw} view=${view} feed=${feed} query=${query} />`}
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

/** Calls by tool: how many, failed, lost, and how long they took. */
function Calls({ view: { steps, isPartial } }) {
  const tools = useMemo(() => countCalls(steps), [steps]);
  if (!tools.length) return html`<${Empty}>No tool was called in the latest execution.</${Empty}>`;
  const numbers = ["Calls", "Failed", "Lost", "Took"].map((each) => [each, "number"]);
  const columns = [["Tool", "mono full"], ...numbers, ["Steps"]];
  return html`<${Table} label="Calls by tool" columns=${columns} rows=${tools.map((each) => [each.name, [
      html`<span dir="auto">${firstLine(each.name, 120)}</span>`,
      count(each.count),
      each.failed ? html`<b>${count(each.failed)}</b>` : "0",
      count(each.lost),
      duration(each.seconds),
      html`${each.steps.length > 6 && "…, "}${each.steps.slice(-6).map((number, at) =>
        html`${at > 0 && ", "}<a href=${`#${number}.m`}>${number}</a>`)}`,
    ]])} />
    ${isPartial && html`<p class="small dim" role="status">
      Reading further steps: ${plural(steps.length, "step")} so far …</p>`}`;
}

/** The whole state as it is stored: it may be large, and is read when this is opened. */
function Raw({ view }) {
  const id = view.header.session_id;
  const { value: state, problem, refresh } = usePolled((signal) => get(sessionPath(id, "/state"), {}, signal), [id], 0);
  if (!state && problem) return html`<${Problem} of=${problem} onRetry=${refresh} />`;
  if (!state) return html`<p class="dim" role="status">Reading the state …</p>`;
  return html`<div class="bar-of-tools"><p class="dim">The whole state, as the API gave it when this was opened.</p>
      <div class="actions"><button class="button" type="button" onClick=${refresh}>Read again</button>
        <button class="button" type="button" onClick=${() => save(`${id}.state.json`, state)}>Save as a file</button>
      </div></div>
    <${Problem} of=${problem} /><${Json} value=${state} />`;
}
