// What keeps the page up to date: polled reads, and the one stream of a session's events. Both rest while it is hidden.
import { addressOf, headers, refusalOf, Refusal, request, serverNow, sessionPath } from "./api.js";
import { useEffect, useLayoutEffect, useRef, useState } from "./html.js";

const LONGEST_MS = 15_000;
const SOON_MS = 3_000;
const listeners = new Set();
let state = { isLive: true, at: null };

/** Whether the last read succeeded, and when: for the line in the page's head. */
export function useConnection() {
  const [value, set] = useState(state);
  useEffect(() => {
    listeners.add(set);
    return () => listeners.delete(set);
  }, []);
  return value;
}

function tell(isLive) {
  state = { isLive, at: isLive ? serverNow() : state.at };
  for (const each of listeners) each(state);
}

/**
 * Read something again and again while it is looked at.
 *
 * @param load from an AbortSignal to the value
 * @param deps read anew when one of them changes; the former value is forgotten
 * @param seconds between two reads, 0: it is read once. It is more where a read takes long: a page takes a tenth of a
 *   server at most
 * @param isOn whether it is read now; false where something else is wanted first
 * @returns {value, problem, refresh}: value null before the first one; problem, a Refusal, stays until a read succeeds
 */
export function usePolled(load, deps, seconds = 3, isOn = true) {
  const [found, setFound] = useState({ value: null, problem: null });
  const refresh = useRef(() => {});
  useLayoutEffect(() => { // before the first frame is drawn, and not after it
    let timer = 0;
    let failures = 0;
    let reading = null;
    setFound({ value: null, problem: null });
    let pause = seconds * 1000 || SOON_MS; // after a failure
    const read = async () => {
      clearTimeout(timer);
      reading?.abort();
      const mine = (reading = new AbortController());
      const began = performance.now();
      try {
        const value = await load(mine.signal);
        if (mine.signal.aborted) return;
        pause = seconds && Math.max(seconds * 1000, 10 * (performance.now() - began));
        failures = 0;
        tell(true);
        setFound({ value, problem: null });
      } catch (problem) {
        if (mine.signal.aborted) return;
        if (!(problem instanceof Refusal)) throw problem;
        failures += 1;
        tell(problem.status !== 0);
        setFound((before) => ({ value: before.value, problem }));
        if (!problem.isTemporary) return; // it would be refused again
      }
      if (pause) timer = setTimeout(next, Math.min(pause * 2 ** failures, Math.max(LONGEST_MS, pause)));
    };
    const next = () => !document.hidden && pause && read();
    if (!isOn) return undefined;
    refresh.current = read;
    document.addEventListener("visibilitychange", next);
    read();
    return () => {
      clearTimeout(timer);
      reading?.abort();
      refresh.current = () => {}; // what an action asks for whose place was left
      document.removeEventListener("visibilitychange", next);
    };
  }, [...deps, isOn]);
  return { ...found, refresh: () => refresh.current() };
}

/**
 * Follow a session's events with live text, and come back after each lost connection.
 *
 * @param onItem gets each {type, id, data}
 * @param onProblem gets a Refusal, and null when the stream is open again
 * @param after the id behind which it begins; "" from the first event that is stored
 * @returns a function that ends it
 */
export function followEvents(id, onItem, onProblem, after = "") {
  let cursor = after;
  let reading = null;
  let isOver = false;
  let timer = 0;
  const hear = () => {
    clearTimeout(timer);
    // The server says something every 15 seconds: a stream that says nothing is none any more.
    timer = setTimeout(() => { onProblem(new Refusal(0)); read(); }, 40_000);
  };
  const read = async () => {
    reading?.abort();
    const mine = (reading = new AbortController());
    for (let failures = 0; !isOver && !document.hidden && !mine.signal.aborted; ) {
      try {
        hear();
        const sent = headers({ Accept: "text/event-stream", ...(cursor ? { "Last-Event-ID": cursor } : {}) });
        const url = addressOf(sessionPath(id, "/events"), { live: "true" });
        const response = await fetch(url, { headers: sent, signal: mine.signal });
        if (!response.ok) throw refusalOf(response.status, await response.text());
        tell(true);
        onProblem(null);
        failures = 0;
        await readFrames(response.body, hear, (frame) => {
          cursor = frame.id || cursor;
          onItem(frame);
        });
      } catch (error) {
        if (mine.signal.aborted) return;
        clearTimeout(timer);
        const problem = error instanceof Refusal ? error : new Refusal(0);
        if (problem.status === 0) tell(false);
        onProblem(problem);
        if ([401, 404, 410].includes(problem.status)) return; // it would be refused again
        if (!problem.isTemporary) failures = 9; // it may be mended; not soon
      }
      failures += 1;
      await new Promise((resolve) => setTimeout(resolve, Math.min(500 * 2 ** failures, LONGEST_MS)));
    }
  };
  const onVisible = () => (document.hidden ? reading?.abort() : read());
  document.addEventListener("visibilitychange", onVisible);
  read();
  return () => {
    isOver = true;
    reading?.abort();
    document.removeEventListener("visibilitychange", onVisible);
  };
}

/** What is to be read of a session again after an event of this type. */
export function staleAfter(type) {
  const names = ["header", "timeline"];
  if (/^step_committed|^message_|^execution_|^snapshot|^session_saved|^rewound/.test(type)) names.push("messages");
  if (/^request_|^child_|^execution_|^snapshot/.test(type)) names.push("requests");
  if (/^execution_(completed|stopped|failed)|^snapshot/.test(type)) names.push("results");
  if (/^child_|^step_committed/.test(type)) names.push("tree");
  if (/^message_|^queue_|^execution_(completed|stopped|failed)/.test(type)) names.push("line");
  if (/^step_committed|^execution_|^budget_|^rewound|^snapshot/.test(type)) names.push("state");
  return names;
}

/** Read frames of Server-Sent Events: {type, id, data}, data parsed as JSON; `hear` is told of each piece. */
async function readFrames(body, hear, onFrame) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    hear();
    const frames = (rest + value).split(/\r?\n\r?\n/);
    rest = frames.pop();
    for (const frame of frames) {
      const lines = frame.split(/\r?\n/);
      const field = (name) => lines.find((each) => each.startsWith(`${name}:`))?.slice(name.length + 1).trimStart();
      const data = lines.filter((each) => each.startsWith("data:")).map((each) => each.slice(5).trimStart());
      if (!data.length) continue;
      onFrame({ type: field("event") ?? "message", id: field("id") ?? "", data: JSON.parse(data.join("\n")) });
    }
  }
}

/** Read every page of a listing by its cursor, at most `most` entries: {items, isComplete}. */
export async function readPages(path, query, name, most, signal) {
  const items = [];
  for (let cursor = null; ; ) {
    const page = await request("GET", path, { query: { ...query, cursor, limit: Math.min(200, most) }, signal });
    items.push(...page[name]);
    cursor = page.cursor;
    if (!cursor || items.length >= most) return { items, isComplete: !cursor };
  }
}

/** Act on what is polled: {act(method, path, more) → whether it was done, isBusy, problem, notes of the reply}. */
export function useActing(...polled) {
  const [said, setSaid] = useState({ problem: null, notes: [] });
  const [isBusy, setBusy] = useState(false);
  const act = async (method, path, more) => {
    setBusy(true);
    try {
      setSaid({ problem: null, notes: (await request(method, path, more))?.notes ?? [] });
      return true;
    } catch (problem) {
      setSaid({ problem, notes: [] });
      return false;
    } finally {
      setBusy(false);
      for (const each of polled) each.refresh();
    }
  };
  return { act, isBusy, ...said };
}
