// One session of the list.
import { linkTo } from "./address.js";
import { count, firstLine, inert, money, shortId } from "./format.js";
import { html } from "./html.js";
import { Ago, Status } from "./parts.js";

const ENDED = ["completed", "stopped", "failed", "idle"];

export function SessionRow({ row, now, isSelected, isAt, onToggle }) {
  const id = row.session_id;
  const isHeld = row.session_status === "suspended";
  const why = row.problem ?? row.reason;
  return html`<tr role="row" id=${`row-${id}`} class=${`${isSelected ? "on" : ""} ${isAt ? "at" : ""}`}>
    <td role="cell"><input type="checkbox" aria-label=${`Select ${id}`} checked=${isSelected}
      onChange=${() => onToggle(id)} /></td>
    <th role="rowheader" scope="row" class="full c-what"><a class="first" dir="auto" href=${linkTo("sessions", id)}>
      ${firstLine(row.first_message, 120) || id}</a>
      <span class="dim small">${inert(row.agent)} · <span class="mono" title=${id}>${shortId(id)}</span></span></th>
    <td role="cell" class="full c-why"><${Status} status=${row.status} held=${isHeld} />
      ${why && html`<div class=${`why ${ENDED.includes(row.status) ? "ended" : ""}`} dir="auto">
        ${firstLine(why, 240)}</div>`}</td>
    <td role="cell" class="number" data-label="steps">${count(row.steps)}</td>
    <td role="cell" class="number" data-label="tokens">${count(row.tokens)}</td>
    <td role="cell" class="number" data-label="cost">${money(row.cost)}</td>
    <td role="cell" class="number" data-label="age"><${Ago} at=${row.created_at} now=${now} /></td></tr>`;
}
