// Small pieces that every place shows: shapes and fills, statuses, times, problems, copied links, JSON.
import { serverNow } from "./api.js";
import { clockTime, count, duration, exactTime, inert } from "./format.js";
import { html, useEffect, useState } from "./html.js";

const TROUBLE = ["failed", "parked", "unreadable"];

/** The status of a session as a shape and a word; a hold is shown instead of the status. */
export function Status({ status, held = false, archived = false }) {
  const name = held ? "suspended" : status;
  return html`<span class=${`status ${TROUBLE.includes(name) ? "bad" : ""}`}>
    <${Glyph} of=${name} />${name.replaceAll("_", " ")}</span>${archived && html` <span class="dim small"
      title="It is in the archive. What is done with it brings it back.">in the archive</span>`}`;
}

const tickers = new Set();
let ticking = 0;

/** The server's time, again each second while the page is seen, or after so many of them. */
export function useNow(seconds = 1) {
  const [now, setNow] = useState(serverNow);
  useEffect(() => {
    const tick = (time) => setNow((before) => (Math.abs(time - before) >= seconds * 1000 - 500 ? time : before));
    tickers.add(tick);
    ticking ||= setInterval(() => {
      if (!document.hidden) for (const each of tickers) each(serverNow());
    }, 1000);
    return () => tickers.delete(tick);
  }, []);
  return now;
}

/** The title of the page in its window. */
export function useTitle(text) {
  useEffect(() => {
    document.title = `${text} – celery-agents`;
  }, [text]);
}

/** Whether a media query matches, and again when that changes. */
export function useMedia(text) {
  const [matches, setMatches] = useState(() => matchMedia(text).matches);
  useEffect(() => {
    const media = matchMedia(text);
    const onChange = () => setMatches(media.matches);
    media.addEventListener("change", onChange);
    return () => media.removeEventListener("change", onChange);
  }, [text]);
  return matches;
}

/** How long ago something was; its exact time on hover. */
export function Ago({ at, now, suffix = "" }) {
  if (!at) return html`<span>–</span>`;
  const seconds = Math.max(0, Math.round((now - Date.parse(at)) / 1000));
  return html`<time datetime=${at} title=${exactTime(at)}>
    ${seconds < 10 ? `${seconds} s` : duration(seconds)}${suffix}</time>`;
}

/** The time of a day; its exact time on hover. */
export const Clock = ({ at, now }) => html`<time datetime=${at} title=${exactTime(at)}>${clockTime(at, now)}</time>`;

/** A refusal as a sentence where it happened; nothing without one. `children`: what helps where a retry does not. */
export function Problem({ of, onRetry, children }) {
  if (!of) return null;
  const again = onRetry && html`<button class="button" type="button" onClick=${onRetry}>Try again</button>`;
  return html`<div class="problem" role="alert"><${Glyph} of="failed" />
    <div><p><span dir="auto">${inert(of.message)}</span> ${of.isTemporary ? again : children}</p>
      <${Wrong} of=${of} /></div></div>`;
}

/** The fields of a refused request with what is wrong of each, but for those that its sentence names. */
export function Wrong({ of }) {
  const rest = [...of.fields ?? []].filter(([, message]) => !of.message.includes(message));
  return rest.length > 0 && html`<ul>${rest.map(([field, message]) => html`<li dir="auto"><code>${inert(field)}</code>
    ${" "}${inert(message)}</li>`)}</ul>`;
}

/** What is shown where a list is empty: a sentence, and the command that changes that. */
export const Empty = ({ children, command }) =>
  html`<div class="empty"><p>${children}</p>${command && html`<p><code>${command}</code></p>`}</div>`;

/**
 * Submit a form: `send` gets its values by the names of its fields, without those that are empty. Once it says that
 * they were taken, the form is blank again, unless others were typed meanwhile.
 */
export const sendForm = (send) => async (event) => {
  event.preventDefault();
  const form = event.target;
  const read = () => Object.fromEntries([...new FormData(form)].filter(([, value]) => value.trim()));
  const given = read();
  if (await send(given) && JSON.stringify(read()) === JSON.stringify(given)) form.reset();
};

/** A part of a whole as a bar. `parts` are [share from 0 to 1, class] from the left. */
export function Meter({ parts }) {
  let left = 0;
  const bars = parts.map(([share, name]) => {
    const width = Math.max(0, Math.min(1 - left, share));
    const bar = html`<rect class=${name} x=${`${left * 100}%`} width=${`${width * 100}%`} height="8" rx="2" />`;
    left += width;
    return bar;
  });
  return html`<svg class="meter" aria-hidden="true"><rect width="100%" height="8" rx="2" />${bars}</svg>`;
}

/** A text, inert, of which so many characters are drawn until more is asked for. */
export function Long({ text, most = 400 }) {
  const [isWhole, setWhole] = useState(false);
  if (isWhole || text.length <= most) return html`${inert(text)}`;
  return html`${inert(text.slice(0, most))}… <${ShowAll} of=${text} onClick=${() => setWhole(true)} />`;
}

const ShowAll = ({ of, onClick }) => html`<button class="button bare" type="button" onClick=${onClick}>
  Show all ${count(of.length)} characters</button>`;

/** A value as indented JSON, of which so many characters are drawn until more is asked for. */
export function Json({ value, most = 4000 }) {
  const [isWhole, setWhole] = useState(false);
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "–";
  const isCut = !isWhole && text.length > most;
  return html`<div class="json"><pre dir="auto" tabindex="0">${inert(isCut ? text.slice(0, most) : text)}</pre>
    ${isCut && html`<${ShowAll} of=${text} onClick=${() => setWhole(true)} />`}</div>`;
}

/** A button that copies a text and says so. */
export function Copy({ text, children, className = "button" }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setSaid("Copied");
    } catch {
      setSaid("Copying is not allowed here");
    }
    setTimeout(() => setSaid(""), 2000);
  };
  return html`<button class=${className} type="button" onClick=${copy}>
    <span aria-live="polite">${said || children}</span></button>`;
}

/** The shape of a status, without a word; index.html has it. */
export const Glyph = ({ of }) => html`<svg class="glyph" aria-hidden="true"><use href=${`#g-${of}`} /></svg>`;

/** What a bar or a key is filled with, by the kind of its meaning: a class, or a pattern of index.html. */
const FILLS = {
  running: "model", model: "model", tool: "tool", held: "tool", hold: "tool", paused: "tool",
  person: "person", request: "person",
  queue: "hatch", provider: "dots", delay: "dots", child: "child", service: "child", no_worker: "grid",
  parked: "lost", lost: "lost", failed: "failed",
};

/** A rectangle with the fill of a kind; hatched ones get an edge. Positions are SVG attributes: percent or pixels. */
export function Filled({ kind, ...place }) {
  const fill = FILLS[kind] ?? "tool";
  if (!["hatch", "dots", "grid"].includes(fill)) return html`<rect class=${`k-${fill}`} ...${place} />`;
  return html`<${"g"}><rect fill=${`url(#${fill})`} ...${place} /><rect class="k-edge" ...${place} /></${"g"}>`;
}

/** The key of a legend: a small sample of a fill. */
export const Key = ({ kind }) => html`<svg class="key" aria-hidden="true">
  <${Filled} kind=${kind} x="0.5" y="0.5" width="15" height="11" /></svg>`;
