// Schedules in the fleet: when each comes next, and what became of its slots; they are run now and removed.
import { get } from "./api.js";
import { ask } from "./dialog.js";
import { count, inert } from "./format.js";
import { html, Table } from "./html.js";
import { useActing, usePolled } from "./live.js";
import { Clock, Glyph, Problem } from "./parts.js";
import { removing } from "./providers.js";
import { linkTo } from "./state.js";

const DEPLOYED = "A worker whose code has it sets it again when it starts.";

export function Schedules({ now }) {
  const listed = usePolled((signal) => get("v1/schedules", {}, signal), [], 3);
  const { act, problem } = useActing(listed);
  const schedules = listed.value?.schedules ?? [];
  return html`<section class="part" aria-labelledby="schedules-title">
    <header><h2 id="schedules-title">Schedules</h2></header>
    <${Problem} of=${problem ?? listed.problem} />
    ${schedules.length
      ? html`<${Listed} schedules=${schedules} now=${now} act=${act} />`
      : listed.value && html`<p class="dim">No schedule is set.</p>`}</section>`;
}

function Listed({ schedules, now, act }) {
  const columns = [["Schedule", "full"], ["Next"], ["Last", "own-words"], ["Slots", "full own-words"],
    ["Actions", "own-words"]];
  return html`<${Table} label="Schedules" columns=${columns} rows=${schedules.map((each) => [each.name, [
    html`<b dir="auto">${inert(each.name)}</b> <span class="mono">${inert(each.cron)}</span> ${inert(each.zone)}
      <div class="small dim">${inert(each.agent)}: ${inert(each.message)}</div>`,
    each.next_at ? html`<${Clock} at=${each.next_at} now=${now} />` : "never again",
    html`<${Last} last=${each.last} now=${now} />`,
    slotsOf(each),
    html`<button class="button bare" type="button" aria-label=${`Run ${each.name} now`}
        onClick=${() => runNow(each, act)}>Run now</button>
      ${removing(each.name, "schedules", { name: each.name }, act, each.deployed ? DEPLOYED : undefined)}`,
  ]])} />`;
}

function Last({ last, now }) {
  if (!last) return "none yet";
  if (last.refused) {
    return html`<span class="status bad"><${Glyph} of="failed" />refused: ${inert(last.refused)}</span>`;
  }
  return html`<a class="mono" href=${linkTo("sessions", last.session_id)}><${Clock} at=${last.slot} now=${now} /></a>`;
}

function slotsOf({ submitted, skipped, missed_slots: missed, refused, waiting }) {
  const more = [[skipped, "skipped"], [missed, "missed"], [refused, "refused"], [waiting.length, "waiting"]];
  return [`${count(submitted)} submitted`, ...more.filter(([number]) => number)
    .map(([number, word]) => `${count(number)} ${word}`)].join(", ");
}

async function runNow({ name, agent }, act) {
  const text = `${agent} gets its message at once.`;
  if ((await ask({ title: `Run ${name} now?`, text, action: "Run it" })) === null) return;
  await act("POST", `v1/schedules/${encodeURIComponent(name)}/run`, { isOnce: true });
}
