// Fills of bars and shapes of statuses, drawn once. Each meaning has a shape and a word beside its colour.
import { html } from "./html.js";

export const Sprite = () => html`<svg class="sprite" aria-hidden="true"><defs>
  <pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse">
    <path class="line" d="M-1 1l2-2M0 6l6-6M5 7l2-2" /></pattern>
  <pattern id="dots" width="5" height="5" patternUnits="userSpaceOnUse">
    <circle class="dot" cx="2.5" cy="2.5" r="1.1" /></pattern>
  <pattern id="grid" width="6" height="6" patternUnits="userSpaceOnUse"><path class="line" d="M0 0h6M0 0v6" /></pattern>
  <symbol id="g-idle" viewBox="0 0 12 12"><circle class="dash" cx="6" cy="6" r="1.5" /></symbol>
  <symbol id="g-pending" viewBox="0 0 12 12"><circle class="stroke dash" cx="6" cy="6" r="4.6" /></symbol>
  <symbol id="g-in_progress" viewBox="0 0 12 12"><circle class="stroke" cx="6" cy="6" r="4.6" />
    <path class="solid" d="M6 1.4a4.6 4.6 0 0 1 0 9.2z" /></symbol>
  <symbol id="g-waiting" viewBox="0 0 12 12"><path class="solid" d="M2.5 1.5h2.4v9H2.5zM7.1 1.5h2.4v9H7.1z" /></symbol>
  <symbol id="g-completed" viewBox="0 0 12 12"><path class="stroke" d="M1.8 6.4l3 3 5.4-6.6" /></symbol>
  <symbol id="g-stopped" viewBox="0 0 12 12"><rect class="solid" x="2" y="2" width="8" height="8" rx="1" /></symbol>
  <symbol id="g-failed" viewBox="0 0 12 12"><path class="stroke" d="M2.5 2.5l7 7M9.5 2.5l-7 7" /></symbol>
  <symbol id="g-parked" viewBox="0 0 12 12"><rect class="stroke" x="1.6" y="1.6" width="8.8" height="8.8" rx="1.5" />
    <path class="stroke" d="M4 6h4" /></symbol>
  <symbol id="g-unreadable" viewBox="0 0 12 12"><path class="stroke" d="M6 1.8v5M6 10v.2" /></symbol>
  <symbol id="g-suspended" viewBox="0 0 12 12"><circle class="stroke" cx="6" cy="6" r="4.8" />
    <path class="stroke" d="M4.8 4.4v3.2M7.2 4.4v3.2" /></symbol>
  <symbol id="g-lost" viewBox="0 0 12 12"><circle class="stroke dash" cx="6" cy="6" r="4.8" />
    <path class="stroke" d="M4.4 4.4l3.2 3.2M7.6 4.4L4.4 7.6" /></symbol>
</defs></svg>`;

/** The shape of a status, without a word. */
export const Glyph = ({ of }) => html`<svg class="glyph" aria-hidden="true"><use href=${`#g-${of}`} /></svg>`;

/** What a bar or a key is filled with, by the kind of its meaning. */
export const FILLS = {
  running: "model", model: "model", tool: "tool", held: "tool", hold: "tool", person: "person", request: "person",
  queue: "hatch", provider: "dots", delay: "dots", child: "child", service: "child", no_worker: "grid",
  parked: "lost", lost: "lost",
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
