// What can be done with a session: each action only where its status allows it; what cannot be taken back asks once.
import { go, linkTo } from "./address.js";
import { get, newKey, post, Refusal, request, sessionPath, tokenClaims } from "./api.js";
import { ask } from "./dialog.js";
import { isActive } from "./feed.js";
import { html, useRef, useState } from "./html.js";
import { Copy, Problem } from "./parts.js";
import { actor } from "./person.js";

/** Whether the token may do this; a service's token does not say, and the server does. */
function may(scope) {
  const claims = tokenClaims();
  return claims === null || claims.scopes.includes(scope);
}

export function Actions({ view, feed }) {
  const { header } = view;
  const id = header.session_id;
  const [problem, setProblem] = useState(null);
  const [running, setRunning] = useState("");
  const [said, setSaid] = useState("");
  const forkKey = useRef(null);
  const isHeld = header.session_status === "suspended";
  const isReadable = header.status !== "unreadable";
  const isChild = id.includes(".") && !header.forked_from;
  const say = (text) => {
    setSaid(text);
    if (text) setTimeout(() => setSaid(""), 8000);
  };
  const act = async (name, work) => {
    setRunning(name);
    setProblem(null);
    try {
      say((await work()) ?? "");
    } catch (refusal) {
      if (!(refusal instanceof Refusal)) throw refusal;
      setProblem(refusal);
    }
    setRunning("");
    feed.refresh("header", "timeline", "requests", "results", "messages");
  };
  const suspend = async () => {
    const text = "Its running step ends. Nothing begins after it, here and in the sessions below, until it is resumed.";
    const reason = await ask({ title: "Suspend this session?", text,
      field: "Why? It is shown wherever the session is.", action: "Suspend" });
    if (reason === null) return;
    await act("suspend", async () => {
      await post(sessionPath(id, "/suspend"), { reason: reason.trim() || "suspended on the page", ...actor() });
    });
  };
  const stop = async () => {
    const text = "The execution ends, with all sessions below it. What was done is kept, and Retry goes on from there.";
    if ((await ask({ title: "Stop this execution?", text, action: "Stop it" })) === null) return;
    await act("stop", async () => {
      const { stopped } = await post(sessionPath(id, "/stop"), { timeout_seconds: 0, ...actor() });
      return stopped ? "Stopped." : "A stop was asked for.";
    });
  };
  const resume = () => act("resume", async () => {
    await post(sessionPath(id, "/resume"), actor());
  });
  const retry = () => act("retry", async () => {
    await post(sessionPath(id, "/retry"), actor());
    return "It goes on at the step at which it ended.";
  });
  const fork = () => act("fork", async () => {
    forkKey.current ??= newKey(); // the same one after a failure: it makes one fork
    const { session_id: made } = await request("POST", sessionPath(id, "/fork"), { key: forkKey.current });
    forkKey.current = null;
    go(linkTo("sessions", made));
  });
  const snapshot = () => act("snapshot", async () => {
    save(`${id}.snapshot.json`, await get(sessionPath(id, "/snapshot"), {}));
  });
  const shown = [
    isActive(header) && !isHeld && may("stop") && ["suspend", "Suspend…", suspend],
    isHeld && may("stop") && ["resume", "Resume", resume],
    (isActive(header) || header.status === "parked") && may("stop") && ["stop", "Stop…", stop],
    ["failed", "stopped", "parked"].includes(header.status) && !isChild && may("submit") && ["retry", "Retry", retry],
    isReadable && tokenClaims() === null && ["fork", "Fork", fork],
    isReadable && ["snapshot", "Snapshot", snapshot],
  ].filter(Boolean);
  const hasTree = isChild || view.steps.some((step) => step.spans.some((each) => each.kind === "child"));
  return html`<div class="actions">${shown.map(([name, word, run]) => html`<button key=${name} class="button"
    type="button" disabled=${running !== ""} onClick=${run}>${word}</button>`)}
      <${Copy} text=${new URL(linkTo("sessions", id), location.href).href}>Copy link</${Copy}>
      ${hasTree && tokenClaims() === null && html`<a class="button" href=${linkTo("tree", isChild ? id.split(".")[0]
        : id)}>Tree</a>`}</div>
    <${Problem} of=${problem} /><p class="small dim" role="status">${said}</p>`;
}

/** Save a JSON value as a file of this name. */
export function save(name, value) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(value)], { type: "application/json" }));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
