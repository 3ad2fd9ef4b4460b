// The place Tree: a session with those below it, what the whole may spend, and where the money went.
import { get, sessionPath } from "./api.js";
import { ask } from "./dialog.js";
import { count, firstLine, inert, money, plural, shortId } from "./format.js";
import { Chunks, Head, html, useMemo, useState } from "./html.js";
import { useActing, usePolled } from "./live.js";
import { Ago, Meter, Problem, Status, useNow, useTitle } from "./parts.js";
import { actor, linkTo } from "./state.js";

const COLUMNS = [["Session"], ["Status, and why"], ["Steps", "number"], ["Tokens", "number"], ["Share of the cost"],
  ["Age", "number"], [html`<span class="unseen">Actions</span>`]];
const ENDED = ["completed", "stopped", "failed", "idle", "parked", "unreadable"];

export function Tree({ id }) {
  const tree = usePolled((signal) => get(sessionPath(id, "/tree"), {}, signal), [id], 3);
  const state = usePolled((signal) => get(sessionPath(id, "/state"), { whole: "false" }, signal), [id], 60);
  const [folded, setFolded] = useState(new Set());
  const { act, problem } = useActing(tree);
  const now = useNow();
  useTitle(`Tree of ${id}`);
  const rows = useMemo(() => (tree.value ? flatten(tree.value, folded) : []), [tree.value, folded]);
  const root = tree.value;
  const fold = (key) => {
    const next = new Set(folded);
    if (!next.delete(key)) next.add(key);
    setFolded(next);
  };
  const stop = async (node) => {
    const below = countBelow(node);
    const where = `${node.session_id}${below ? ` and in ${plural(below, "session")} below it` : ""}`;
    const text = `What runs in ${where} is ended. What was done is kept; `
      + "the session above goes on with a stopped result.";
    if ((await ask({ title: "Stop this branch?", text, action: "Stop it" })) === null) return;
    await act("POST", sessionPath(node.session_id, "/stop"), { body: { timeout_seconds: 0, ...actor() } });
  };
  const drawRow = ({ node, depth }) => html`<${Branch} key=${node.session_id} node=${node} depth=${depth} root=${root}
    now=${now} isFolded=${folded.has(node.session_id)} onFold=${() => fold(node.session_id)}
    onStop=${() => stop(node)} />`;
  return html`
    <div class="heading"><div><p class="small"><a href=${linkTo("sessions")}>Sessions</a>
      <span class="dim"> / </span><a class="mono" href=${linkTo("sessions", id)}>${id}</a></p><h1>Tree</h1>
      ${root && html`<p class="dim">${plural(countBelow(root), "session")} below ${inert(root.agent)};
        ${" "}${plural(root.steps, "step")}, ${count(root.tokens)} tokens, ${money(root.cost)} in all.</p>`}</div></div>
    <${Problem} of=${tree.problem ?? problem} onRetry=${tree.refresh} />
    ${root && html`<${Spent} root=${root} budget=${state.value?.state?.execution?.budget} />`}
    ${root && html`<table class="list cards tree" role="table" aria-label="Sessions of the tree">
      <${Head} columns=${COLUMNS} />
      <${Chunks} as="tbody" role="rowgroup" columns="7" guess=${48} items=${rows} draw=${drawRow} /></table>`}`;
}

/** The nodes in the order of their rows, each with its depth; those below a folded one are left out. */
function flatten(root, folded) {
  const rows = [];
  const rest = [{ node: root, depth: 0 }];
  while (rest.length) {
    const { node, depth } = rest.pop();
    rows.push({ node, depth });
    if (folded.has(node.session_id)) continue;
    for (const child of [...node.children].reverse()) rest.push({ node: child, depth: depth + 1 });
  }
  return rows;
}

function countBelow(node) {
  let found = 0;
  const rest = [...node.children];
  while (rest.length) {
    found += 1;
    rest.push(...rest.pop().children);
  }
  return found;
}

/** The budget of the tree as bars: the root's own part, and the part of the sessions below. */
function Spent({ root, budget }) {
  const below = { cost: 0, tokens: 0 };
  for (const each of root.children) {
    below.cost += each.cost ?? 0;
    below.tokens += each.tokens;
  }
  const lines = [
    ["cost", root.cost, below.cost, budget?.max_cost, money],
    ["tokens", root.tokens, below.tokens, budget?.max_tokens, count],
  ].filter(([, used, , most]) => used !== null && most);
  if (!lines.length) return null;
  return html`<section class="budget" aria-label="Budget of the tree">
    ${lines.map(([name, used, part, most, write]) => html`<span>${name}</span>
      <${Meter} parts=${[[(used - part) / most, "used"], [part / most, "below"]]} />
      <span class="number">${write(used)} of ${write(most)}</span>`)}
    <p class="small dim">The grey part went to the sessions below.</p></section>`;
}

function Branch({ node, depth, root, now, isFolded, onFold, onStop }) {
  const own = (name) => node.children.reduce((rest, each) => rest - (each[name] ?? 0), node[name] ?? 0);
  const share = root.cost ? own("cost") / root.cost : 0;
  const hasBelow = node.children.length > 0;
  return html`<tr role="row"><th role="rowheader" scope="row" class="full">
    <span class="branch" style=${{ "--depth": Math.min(depth, 6) }}>
      ${hasBelow ? html`<button class="fold" type="button" aria-expanded=${String(!isFolded)}
        aria-label=${`Sessions below ${node.session_id}`} onClick=${onFold}></button>`
        : html`<span class="fold"></span>`}
      <span><a class="first" href=${linkTo("sessions", node.session_id)}>${inert(node.agent)}</a>
        <span class="small dim mono" title=${node.session_id}>${shortId(node.session_id)}</span></span></span></th>
    <td role="cell" class="full"><${Status} status=${node.status} held=${node.session_status === "suspended"} />
      ${node.reason && html`<div class="why" dir="auto">${firstLine(node.reason, 200)}</div>`}</td>
    <td role="cell" class="number" data-label="steps">${count(own("steps"))}</td>
      <td role="cell" class="number" data-label="tokens">${count(own("tokens"))}</td>
    <td role="cell" data-label="cost"><span class="slots">
      <${Meter} parts=${[[share, "used"]]} />${money(node.cost === null ? null : own("cost"))}</span></td>
    <td role="cell" class="number" data-label="age"><${Ago} at=${node.created_at} now=${now} /></td>
    <td role="cell" class="do">${!ENDED.includes(node.status)
      && html`<button class="button bare" type="button" onClick=${onStop}>Stop…</button>`}</td></tr>`;
}
