// Why sessions have not ended, counted: a band of shares, and each reason with its number.
import { linkTo } from "./address.js";
import { count } from "./format.js";
import { html } from "./html.js";
import { Filled, Key } from "./sprite.js";

const GAP = 0.3; // percent between two shares
const STATUS = {
  running: "in_progress", queue: "pending", person: "waiting", child: "waiting", service: "waiting", parked: "parked",
};

/** @param waiting the reply of GET /v1/waiting; null before it is known */
export function Reasons({ waiting }) {
  if (!waiting) return null;
  const present = waiting.reasons.filter((each) => each.count);
  if (!present.length) return null;
  const all = present.reduce((sum, each) => sum + each.count, 0);
  const room = 100 - GAP * (present.length - 1);
  let left = 0;
  const shares = present.map((each) => {
    const width = Math.max(0.4, (each.count / all) * room);
    const share = html`<${Filled} kind=${each.reason} x=${`${left}%`} y="1" width=${`${width}%`} height="14" />`;
    left += width + GAP;
    return share;
  });
  return html`<section class="reasons" aria-labelledby="reasons-title">
    <h2 id="reasons-title" class="unseen">Why sessions have not ended</h2>
    <svg class="band" aria-hidden="true">${shares}</svg>
    <ul>${present.map((each) => html`<li class=${each.reason === "person" ? "person" : ""}>
      <${Key} kind=${each.reason} />${sentenceOf(each)}</li>`)}</ul>
    ${!waiting.is_complete
      && html`<p class="small dim">Counted among ${count(waiting.counted)} of ${count(waiting.total)} sessions.</p>`}
  </section>`;
}

/** "93 run on a worker", as a link where a list or the inbox shows them. */
function sentenceOf({ reason, count: number, sentence }) {
  const words = sentence.replace(/^\d+\s*/, "");
  const text = html`<b>${count(number)}</b> ${words}`;
  if (reason === "person") return html`<a href=${linkTo("requests")}>${text}</a>`;
  return STATUS[reason]
    ? html`<a href=${linkTo("sessions", "", { status: STATUS[reason] })}>${text}</a>`
    : html`<span>${text}</span>`;
}
