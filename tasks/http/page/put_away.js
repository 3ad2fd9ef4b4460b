// Requests that are put away for a while. This browser alone knows it: for others they stay where they are.
import { serverNow } from "./api.js";
import { choose } from "./dialog.js";
import { clockTime } from "./format.js";
import { useEffect, useState } from "./html.js";

const NAME = "celery-agents.put-away";
const MOST = 500;
const HOUR_MS = 3_600_000;
const listeners = new Set();
let kept = ""; // where storage is forbidden: as long as the page

function read() {
  try {
    return localStorage.getItem(NAME) ?? "";
  } catch {
    return kept;
  }
}

function write(changed) {
  kept = JSON.stringify(Object.fromEntries([...changed].slice(-MOST)));
  try {
    localStorage.setItem(NAME, kept);
  } catch {
    // storage is forbidden: kept as long as the page
  }
  for (const each of listeners) each(kept);
}

function parse(text) {
  try {
    const all = Object.entries(JSON.parse(text || "{}"));
    return new Map(all.filter(([, until]) => typeof until === "number" && until > serverNow()));
  } catch {
    return new Map();
  }
}

/**
 * The requests that are put away: {away, put, back}. `away` maps their keys to the time in milliseconds until when;
 * put(keys, until) and back(keys) change it.
 */
export function usePutAway() {
  const [text, setText] = useState(read);
  useEffect(() => {
    const onStorage = () => setText(read());
    listeners.add(setText);
    addEventListener("storage", onStorage); // of another tab
    return () => {
      listeners.delete(setText);
      removeEventListener("storage", onStorage);
    };
  }, []);
  const away = parse(text);
  return {
    away,
    put: (keys, until) => write(new Map([...away, ...keys.map((key) => [key, until])])),
    back: (keys) => write(new Map([...away].filter(([key]) => !keys.includes(key)))),
  };
}

/** Ask until when a request shall be out of the way, given the end of its time (Infinity: none); null when it stays. */
export function askUntil(expiresMs) {
  const now = serverNow();
  const morning = new Date(now);
  morning.setDate(morning.getDate() + 1);
  morning.setHours(9, 0, 0, 0);
  const times = [
    ["For an hour", now + HOUR_MS],
    ["For 4 hours", now + 4 * HOUR_MS],
    ["Until tomorrow, 9:00", morning.getTime()],
    ["For a week", now + 168 * HOUR_MS],
  ].filter(([, until]) => until < expiresMs);
  const end = expiresMs < Infinity ? clockTime(expiresMs, now) : "";
  const ends = end && ` Its time ends at ${end}, put away or not.`;
  return choose({
    title: times.length ? "Not now" : "It cannot be put away",
    text: times.length
      ? `This browser shows it under “Not now” until then. It stays open, and others see it as before.${ends}`
      : `Its time to be answered ends within the hour, at ${end}.`,
    choices: times.map(([label, until]) => [until, label]),
  });
}
