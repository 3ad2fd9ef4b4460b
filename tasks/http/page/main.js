// The frame of the page: its head, the place that the address names, the theme, and the token.
import { get, hasToken, setToken, tokenClaims, UNAUTHORIZED } from "./api.js";
import { followKeys, keepFocus, showKeys, useKeys } from "./dialog.js";
import { Fleet } from "./fleet.js";
import { exactTime } from "./format.js";
import { Component, html, render, useEffect, useState } from "./html.js";
import { Inbox } from "./inbox.js";
import { useConnection, usePolled } from "./live.js";
import { Problem } from "./parts.js";
import { isForPeople } from "./request_words.js";
import { Session } from "./session.js";
import { Sessions } from "./sessions.js";
import { followLinks, go, linkTo, useAddress, useKept } from "./state.js";
import { Tree } from "./tree.js";

const SYSTEM_DARK = matchMedia("(prefers-color-scheme: dark)");
const PLACES = { sessions: Sessions, session: Session, requests: Inbox, tree: Tree, fleet: Fleet };

function Page() {
  const address = useAddress();
  const visitor = tokenClaims(); // the token of one session shows that session and nothing else
  const [problem, setProblem] = useState(null);
  useKeys([
    ["g s", "Go to the sessions", () => go(linkTo("sessions"))],
    ["g i", "Go to the inbox", () => go(linkTo("requests"))],
    ["g f", "Go to the fleet", () => go(linkTo("fleet"))],
    ["o", "Open it", () => document.querySelector(":is(.first, .ask-entry, .name):focus")?.click()],
  ].slice(visitor && 3));
  useEffect(() => {
    const tell = ({ detail }) => setProblem(detail);
    addEventListener(UNAUTHORIZED, tell);
    return () => removeEventListener(UNAUTHORIZED, tell);
  }, []);
  useEffect(() => {
    if (visitor && address.id !== visitor.session) go(linkTo("sessions", visitor.session), { replace: true });
  }, [address.id, visitor?.session]);
  // Else the place would ask for what the token may not see, before the address has changed.
  const isAllowed = !visitor || address.id === visitor.session;
  const Place = isAllowed ? PLACES[address.place] : () => null;
  return html`<a class="skip" href="#main">Skip to the content</a>
    <${Head} key=${!problem} place=${address.place} visitor=${visitor} />
    <main id="main" tabindex="-1">
      ${problem
        ? html`<${TokenForm} problem=${problem} onToken=${() => setProblem(null)} />`
        : Place
          ? html`<${Boundary} key=${`${address.place}/${address.id}`}>
            <${Place} id=${address.id} query=${address.query} /></${Boundary}>`
          : html`<h1>There is nothing at this address</h1><p>Go to the <a href=${linkTo("sessions")}>sessions</a>.</p>`}
    </main>`;
}

function Head({ place, visitor }) {
  const connection = useConnection();
  const at = connection.at === null ? "" : exactTime(connection.at).slice(11);
  const current = place === "session" || place === "tree" ? "sessions" : place;
  const link = (name, text, more) =>
    html`<a href=${linkTo(name)} aria-current=${current === name ? "page" : undefined}>${text}${more}</a>`;
  return html`<header class="top">
    <a class="mark" href=${visitor ? linkTo("sessions", visitor.session) : linkTo("sessions")}>celery-agents</a>
    ${!visitor && html`<nav aria-label="Places">${link("sessions", "Sessions")}
      ${link("requests", "Inbox", html`<${OpenCount} />`)}${link("fleet", "Fleet")}</nav>`}
    <div class="end"><span class="small dim wide">
        ${connection.isLive ? at && `Live, ${at}` : "No connection; trying again"}</span>
      <${ThemeButton} />
      ${!visitor && html`<button class="button bare wide" type="button" onClick=${showKeys}>Keys: ?</button>`}</div>
  </header>`;
}

/** The number of requests that people may answer. */
function OpenCount() {
  const read = (signal) =>
    Promise.all(["approval", "question"].map((kind) => get("v1/requests", { kind, limit: 100 }, signal)));
  const { at } = useConnection();
  const { value } = usePolled(read, [], 10, at !== null); // what the place shows is read first
  const open = (value ?? []).flatMap((each) => each.requests).filter(isForPeople).length;
  const isMore = value?.some((each) => each.cursor);
  return open ? html` <b>${isMore ? `${open}+` : open}<span class="unseen"> open requests</span></b>` : null;
}

/** Light or dark: as it was chosen here, else as the system is. */
function ThemeButton() {
  const [chosen, setChosen] = useKept("theme");
  const isDark = ["light", "dark"].includes(chosen) ? chosen === "dark" : SYSTEM_DARK.matches;
  useEffect(() => {
    document.documentElement.className = chosen ? (isDark ? "dark" : "light") : "";
  }, [chosen, isDark]);
  return html`<button class="button bare" type="button" onClick=${() => setChosen(isDark ? "light" : "dark")}>
    ${isDark ? "Light" : "Dark"}</button>`;
}

function TokenForm({ problem, onToken }) {
  const [given, setGiven] = useState("");
  const submit = (event) => {
    event.preventDefault();
    setToken(given.trim());
    onToken();
  };
  return html`<form class="token" onSubmit=${submit}>
    <h1>This server asks for a token</h1>
    <${Problem} of=${hasToken() ? problem : null} />
    <p>It is one of the setting <code>CELERY_AGENTS_HTTP_TOKEN_SECRETS</code>, with the scope <code>read</code> to look
      and further ones to act. It stays in this tab.</p>
    <label class="field"><span class="label">Token</span>
      <input type="password" autocomplete="off" value=${given} onInput=${(event) => setGiven(event.target.value)}
        required autofocus /></label>
    <div class="actions"><button class="button go" type="submit">Use this token</button></div></form>`;
}

/** Keeps an error of one place from taking the frame away. */
class Boundary extends Component {
  componentDidCatch(error) {
    console.error(error);
    this.setState({ error });
  }

  render({ children }, { error }) {
    if (!error) return children;
    return html`<h1>This place cannot be shown</h1><p>${String(error.message)}</p>
      <button class="button" type="button" onClick=${() => location.reload()}>Load it again</button>`;
  }
}

followLinks();
followKeys();
keepFocus();
const place = document.getElementById("page");
place.replaceChildren(); // what is seen until these modules are there
render(html`<${Page} />`, place);
