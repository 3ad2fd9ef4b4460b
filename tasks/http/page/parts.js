// Small pieces that every place shows: statuses, times, problems, copied links, JSON, rows that are drawn when seen.
import { serverNow } from "./api.js";
import { clockTime, count, duration, exactTime, inert } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { Glyph } from "./sprite.js";

const TROUBLE = ["failed", "parked", "unreadable"];

/** The status of a session as a shape and a word; a hold is shown instead of the status. */
export function Status({ status, held = false }) {
  const name = held ? "suspended" : status;
  return html`<span class=${`status ${TROUBLE.includes(name) ? "bad" : ""}`}>
    <${Glyph} of=${name} />${name.replaceAll("_", " ")}</span>`;
}

const tickers = new Set();
setInterval(() => {
  if (!document.hidden) for (const each of tickers) each(serverNow());
}, 1000);

/** The server's time, again each second while the page is seen, or after so many of them. */
export function useNow(seconds = 1) {
  const [now, setNow] = useState(serverNow);
  useEffect(() => {
    const tick = (time) => setNow((before) => (Math.abs(time - before) >= seconds * 1000 - 500 ? time : before));
    tickers.add(tick);
    return () => tickers.delete(tick);
  }, []);
  return now;
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

/** A refusal as a sentence where it happened; nothing without one. */
export function Problem({ of, onRetry }) {
  if (!of) return null;
  const again = onRetry && html` <button class="button" type="button" onClick=${onRetry}>Try again</button>`;
  return html`<div class="problem" role="alert"><${Glyph} of="failed" />
    <p><span dir="auto">${inert(of.message)}</span>${again}</p></div>`;
}

/** What is shown where a list is empty: a sentence, and the command that changes that. */
export const Empty = ({ children, command }) =>
  html`<div class="empty"><p>${children}</p>${command && html`<p><code>${command}</code></p>`}</div>`;

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
  return html`${inert(text.slice(0, most))}… <button class="button bare" type="button"
    onClick=${() => setWhole(true)}>Show all ${count(text.length)} characters</button>`;
}

/** A value as indented JSON, of which so many characters are drawn until more is asked for. */
export function Json({ value, most = 4000 }) {
  const [isWhole, setWhole] = useState(false);
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "–";
  const isCut = !isWhole && text.length > most;
  return html`<div class="json"><pre dir="auto" tabindex="0">${inert(isCut ? text.slice(0, most) : text)}</pre>
    ${isCut && html`<button class="button bare" type="button" 
      onClick=${() => setWhole(true)}>Show all ${text.length} characters</button>`}</div>`;
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

const nearTo = new Map();
const watcher = new IntersectionObserver(
  (entries) => {
    for (const each of entries) nearTo.get(each.target)?.(each);
  },
  { rootMargin: "800px 0px" },
);

/**
 * Children that are drawn only near the visible part of the page: a piece of a long list. Elsewhere one element of the
 * height that they had keeps their place.
 *
 * @param as "tbody" or "div"
 * @param draw makes the children
 * @param guess their height in pixels before they were drawn once
 */
export function Chunk({ as, draw, guess, ...attributes }) {
  const place = useRef(null);
  const height = useRef(guess);
  const [isNear, setNear] = useState(false);
  useEffect(() => {
    const element = place.current;
    nearTo.set(element, ({ isIntersecting, boundingClientRect }) => {
      if (!isIntersecting) height.current = boundingClientRect.height || height.current;
      setNear(isIntersecting);
    });
    watcher.observe(element);
    return () => {
      watcher.unobserve(element);
      nearTo.delete(element);
    };
  }, []);
  const style = { height: `${height.current}px` };
  const spacer = as === "tbody"
    ? html`<tr role="presentation"><td colspan="9" style=${style}></td></tr>`
    : html`<div style=${style}></div>`;
  return html`<${as} ref=${place} ...${attributes}>${isNear ? draw() : spacer}</${as}>`;
}
