// Limits, caps, shares and pauses of the fleet, with forms.
import { get, serverNow } from "./api.js";
import { ask } from "./dialog.js";
import { count, inert } from "./format.js";
import { html, Table } from "./html.js";
import { useActing, usePolled } from "./live.js";
import { Ago, Clock, sendForm, Glyph, Meter, Problem } from "./parts.js";
import { ActingAs, actor } from "./state.js";

const NUMBERS = [
  ["rpm", "Requests a minute"], ["tpm", "Tokens a minute"], ["input_tpm", "Input tokens a minute"],
  ["output_tpm", "Output tokens a minute"],
];
const COUNTED = { rpm: "requests", tpm: "tokens", input_tpm: "input tokens", output_tpm: "output tokens" };
const KINDS = ["tool", "model", "provider", "agent", "queue"];
const ENDS = [["", "until it is ended"], ["3600", "for an hour"], ["86400", "for a day"]];
const SOURCES = { header: "its headers", text: "the text of a refusal", refusals: "its refusals" };
const GLYPHS = {
  open: "in_progress", slow: "pending", waiting: "waiting", away: "lost", quota: "failed", closed: "stopped",
};

export function Providers({ now }) {
  const all = ["limits", "pauses", "concurrency", "caps", "shares"].map((name) =>
    usePolled((signal) => get(`v1/${name}`, {}, signal), [], 3));
  const [limits, pauses, concurrency, caps, shares] = all;
  const { act, problem, notes } = useActing(...all);
  const buckets = limits.value?.limits ?? [];
  return html`<section class="part" aria-labelledby="providers-title">
    <header><h2 id="providers-title">Limits and pauses</h2><${ActingAs} /></header>
    <${Problem} of=${problem ?? all.find((each) => each.problem)?.problem} />
    ${notes.map((note) => html`<p class="small" role="status">${inert(note)}</p>`)}
    ${buckets.length
      ? html`<${Buckets} buckets=${buckets} act=${act} />`
      : limits.value && html`<p class="dim">
        No limit of a model provider is set, and none was learned within the last hour.</p>`}
    <${Concurrency} limits=${concurrency.value?.concurrency ?? []} act=${act} />
    <${Caps} caps=${caps.value?.caps ?? []} now=${now} act=${act} />
    ${shares.value?.shares && html`<div>Waiting by ${inert(shares.value.shares.label)}
      ${removing("the shares", "shares", {}, act)}
      ${shares.value.waiting.map((each) => html`<div>
        ${inert([each.share, ...Object.entries(each.waiting).flat()].join(" "))}</div>`)}</div>`}
    <${Pauses} pauses=${pauses.value?.pauses ?? []} now=${now} act=${act} />
    <details><summary>Set a limit</summary><${LimitForm} act=${act} /></details>
    <details><summary>Limit what runs at a time</summary><${ConcurrencyForm} act=${act} /></details>
    <details><summary>Pause something</summary><${PauseForm} act=${act} /></details></section>`;
}

function Buckets({ buckets, act }) {
  const columns = [["Model", "full"], ["Now", "full own-words"], ["Requests"], ["Limits", "full"],
    ["Actions", "own-words"]];
  return html`<${Table} label="Model providers" columns=${columns} rows=${buckets.map((each) => [
    [each.model, each.group, each.endpoint].join(" "), [
      html`<span class="mono">${inert(each.model)}</span>
        ${each.group && html`<div class="small dim">
          ${each.group.startsWith("~") ? "key" : "group"} ${inert(each.group)}</div>`}
        ${each.endpoint && html`<div class="small dim">${inert(each.endpoint)}</div>`}`,
      html`<span class=${`status ${["away", "quota"].includes(each.state) ? "bad" : ""}`}>
        <${Glyph} of=${GLYPHS[each.state] ?? "idle"} />${inert(each.sentence)}</span>`,
      html`<span class="slots">
        <${Meter} parts=${[[each.in_flight / Math.max(1, each.in_flight + each.waiting), "used"]]} />
        ${count(each.in_flight)} asked, ${count(each.waiting)} wait</span>`,
      limitsOf(each).map((text) => html`<div>${inert(text)}</div>`),
      each.limit && removing(`the limit of ${[each.model, each.group].join(" ")}`, "limits",
        { model: each.limit.model, group: each.limit.group }, act),
    ]])} />`;
}

function limitsOf({ limit, learned }) {
  const set = NUMBERS.filter(([name]) => limit?.[name] !== null && limit?.[name] !== undefined)
    .map(([name]) => `${count(limit[name])} ${COUNTED[name]} a minute, set${limit.by ? ` by ${limit.by}` : ""}`);
  const found = learned.map((each) => [count(Math.round(each.per_minute)), each.counts.replace("_", " "),
    `a minute, learned from ${SOURCES[each.source] ?? each.source}`].join(" "));
  return [...set, ...found];
}

function Concurrency({ limits, act }) {
  if (!limits.length) return null;
  const columns = [["Limit", "full"], ["At a time", "full"], ["Now", "full own-words"], ["Actions", "own-words"]];
  return html`<${Table} label="Concurrency limits" columns=${columns} rows=${limits.map((each) => [each.name, [
    html`<span class="mono">${inert(each.name)}</span>
      ${each.by && html`<div class="small dim">set by ${inert(each.by)}</div>`}`,
    [...(each.total === null ? [] : [`${count(each.total)} in all`]),
      ...Object.entries(each.per).map(([label, most]) => `${count(most)} for each ${label}`),
    ].map((text) => html`<div>${inert(text)}</div>`),
    each.parts.map(({ name, held, waiting }) => html`<div>${inert(name && `${name}: `)}
      ${count(held)} run, ${count(waiting)} wait</div>`),
    removing(`the limit ${each.name}`, "concurrency", { name: each.name }, act),
  ]])} />`;
}

function Caps({ caps, now, act }) {
  if (!caps.length) return null;
  const columns = [["Cap", "full"], ["Spent", "full own-words"], ["Until"], ["Actions", "own-words"]];
  return html`<${Table} label="Spend caps" columns=${columns} rows=${caps.map((each) => [each.name, [
    html`<span class="mono">${inert(each.name)}</span> <div class="small dim">${inert(
      `${each.usd ?? ""} $ a ${each.per}${each.label && ` for each ${each.label}`}${
        each.agent && ` of ${each.agent}`}, then ${each.then}`)}</div>`,
    each.spent.slice(0, 5).map(({ value, usd, most }) => html`<div>${inert(value && `${value}: `)}
      ${usd.toFixed(2)} $${most !== null && ` of ${most} $`}</div>`),
    html`<${Clock} at=${each.ends_at} now=${now} />`,
    removing(`the cap ${each.name}`, "caps", { name: each.name }, act),
  ]])} />`;
}

/** A button that removes what is set, once somebody has read what follows from that. */
export function removing(what, place, query, act, text = "What it holds or has begun continues.") {
  const remove = async () => {
    if ((await ask({ title: `Remove ${what}?`, text, action: "Remove it" })) === null) return;
    await act("DELETE", `v1/${place}`, { query });
  };
  return html`<button class="button bare" type="button" aria-label=${`Remove ${what}`}
    onClick=${remove}>Remove</button>`;
}

function Pauses({ pauses, now, act }) {
  if (!pauses.length) return null;
  const end = ({ kind, name }) => act("DELETE", "v1/pauses", { query: { [kind]: name, ...actor() } });
  return html`<ul class="look" aria-label="Pauses">${pauses.map((each) => html`<li key=${`${each.kind} ${each.name}`}>
    <${Glyph} of="suspended" /><span dir="auto"><b>${each.kind} ${inert(each.name)}</b> ${inert(each.reason)}
      <div class="small dim">Paused <${Ago} at=${each.since} now=${now} />
        ${` ago${each.by && ` by ${inert(each.by)}`}, until `}
        ${each.until ? html`<${Clock} at=${each.until} now=${now} />` : "it is ended"}
        ${each.tell && ". The model is told."}</div></span>
    <button class="button bare" type="button" aria-label=${`End the pause of ${each.kind} ${each.name}`}
      onClick=${() => end(each)}>End it</button></li>`)}</ul>`;
}

const number = (text) => (Number.isFinite(+text) ? +text : text);

function LimitForm({ act }) {
  const submit = sendForm(({ model, group, ...given }) => {
    const numbers = Object.entries(given).map(([name, text]) => [name, number(text)]);
    const body = { limit: { model, group, ...Object.fromEntries(numbers) }, ...actor() };
    return act("PUT", "v1/limits", { body });
  });
  return html`<form onSubmit=${submit}>
    <p class="dim">It holds for all workers together, at once. 0 admits no request.</p>
    <div class="fields"><${Field} name="model" label="Model" hint="openai:gpt-5-mini" required />
      <${Field} name="group" label="Group" hint="each group" />
      ${NUMBERS.map(([name, label]) =>
        html`<${Field} name=${name} label=${label} hint="unlimited" mode="decimal" />`)}</div>
    <div class="actions"><button class="button go" type="submit">Set this limit</button></div></form>`;
}

function ConcurrencyForm({ act }) {
  const submit = sendForm(({ name, total, label, most }) => {
    const limit = { name, ...(total && { total: number(total) }), ...(label && { per: { [label]: number(most) } }) };
    return act("PUT", "v1/concurrency", { body: { limit, ...actor() } });
  });
  return html`<form onSubmit=${submit}>
    <p class="dim">Agents and tools name the limit: <code>concurrency="crm"</code>. 0 lets nothing begin.</p>
    <div class="fields"><${Field} name="name" label="Name of the limit" hint="crm" required />
      <${Field} name="total" label="In all" hint="unlimited" mode="numeric" />
      <${Field} name="label" label="For each value of the label" hint="customer" />
      <${Field} name="most" label="At most" hint="2" mode="numeric" /></div>
    <div class="actions"><button class="button go" type="submit">Set it</button></div></form>`;
}

function PauseForm({ act }) {
  const submit = sendForm(({ kind, name, reason, seconds, tell }) => {
    const until = seconds && new Date(serverNow() + 1000 * seconds).toISOString();
    const body = { [kind]: name, reason, until: until || undefined, tell: tell ? true : undefined, ...actor() };
    return act("POST", "v1/pauses", { body });
  });
  return html`<form onSubmit=${submit}>
    <p class="dim">Steps that would use it wait without a slot, and continue when the pause ends.</p>
    <div class="fields"><label class="field"><span class="label">What</span>
        <select name="kind">${KINDS.map((kind) => html`<option>${kind}</option>`)}</select></label>
      <${Field} name="name" label="Name" hint="refund" required />
      <${Field} name="reason" label="Reason" hint="the bank is down" required />
      <label class="field"><span class="label">How long</span>
        <select name="seconds">
          ${ENDS.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select></label>
      <label class="whole named"><input type="checkbox" name="tell" value="yes" />
        Of a tool: the model reads the reason and does not wait</label></div>
    <div class="actions"><button class="button go" type="submit">Pause it</button></div></form>`;
}

/** A field of a form with a line of text. */
const Field = ({ name, label, hint, mode = "text", required = false }) =>
  html`<label class="field"><span class="label">${label}</span><input name=${name} placeholder=${hint} inputmode=${mode}
    autocomplete="off" required=${required} /></label>`;
