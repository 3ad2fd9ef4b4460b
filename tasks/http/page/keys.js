// Keyboard shortcuts: single keys, and two in a row such as "g i". A place adds its own while it is shown.
import { showKeys } from "./dialog.js";
import { useEffect, useRef } from "./html.js";

const groups = new Set();
let first = "";
const TYPED = "input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]"; // its keys are text

function onKey(event) {
  if (event.metaKey || event.ctrlKey || event.altKey || event.defaultPrevented
    || document.querySelector("dialog[open]")) return;
  if (event.target.closest?.(TYPED)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "?") {
    event.preventDefault();
    return showKeys([...groups].flatMap((group) => group.current.map(([keys, text]) => [keys, text])));
  }
  const pressed = first ? `${first} ${event.key}` : event.key;
  const all = [...groups].reverse().flatMap((group) => group.current);
  const found = all.find(([keys]) => keys === pressed) ?? all.find(([keys]) => keys === event.key);
  first = !found && all.some(([keys]) => keys.startsWith(`${event.key} `)) ? event.key : "";
  if (!found) return;
  event.preventDefault();
  found[2]();
}
addEventListener("keydown", onKey);

/** Take keys while this component is shown: rows of [keys, what they do, action]. */
export function useKeys(rows) {
  const group = useRef(rows);
  group.current = rows;
  useEffect(() => {
    groups.add(group);
    return () => groups.delete(group);
  }, []);
}
