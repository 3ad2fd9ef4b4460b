// Keeps a list from moving under the pointer: new entries wait behind a button, those that are gone keep their place.
import { useEffect, useRef, useState } from "./html.js";

const LET_GO_MS = 2000; // the way from the list to the button that shows what is new

/** Whether a place is pointed at or holds the focus, or did so just now: then it must not move. `place` is its ref. */
export function useIsTouched(place) {
  const [isTouched, setTouched] = useState(false);
  useEffect(() => {
    const element = place.current;
    let timer = 0;
    const touch = () => {
      clearTimeout(timer);
      setTouched(true);
    };
    const leave = () => {
      clearTimeout(timer);
      timer = setTimeout(() => setTouched(element.matches(":hover, :focus-within")), LET_GO_MS);
    };
    const handlers = { pointerenter: touch, focusin: touch, pointerleave: leave, focusout: leave };
    for (const [name, handler] of Object.entries(handlers)) element.addEventListener(name, handler);
    return () => {
      clearTimeout(timer);
      for (const [name, handler] of Object.entries(handlers)) element.removeEventListener(name, handler);
    };
  }, []);
  return isTouched;
}

/**
 * @param fresh the list as it is now; null before it is known
 * @param keyOf the key of an entry
 * @param isHeld it must not move now
 * @param scope a text: a list of another scope is shown at once
 * @returns {shown, gone, waiting, show}: gone are the keys of shown entries that are not in the list any more, waiting
 *   the number of new ones
 */
export function useSteady(fresh, keyOf, isHeld, scope) {
  const kept = useRef({ scope: "", list: null });
  const [, drawAgain] = useState(0);
  const now = new Set((fresh ?? []).map(keyOf));
  const before = kept.current.list;
  const isLoose = !isHeld || !before?.length || kept.current.scope !== scope;
  if (fresh && isLoose) kept.current = { scope, list: fresh };
  const shown = kept.current.list ?? [];
  const known = new Set(shown.map(keyOf));
  return {
    shown,
    gone: new Set(fresh ? shown.map(keyOf).filter((key) => !now.has(key)) : []),
    waiting: (fresh ?? []).filter((each) => !known.has(keyOf(each))).length,
    show: () => {
      kept.current = { scope, list: fresh };
      drawAgain((times) => times + 1);
    },
  };
}
