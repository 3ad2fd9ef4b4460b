// The address of the page: which place it shows, and with which filters. Each address can be sent to a colleague.
import { root } from "./api.js";
import { useEffect, useState } from "./html.js";

const PLACES = ["sessions", "requests", "tree", "fleet"];
const CHANGED = "celery-agents:address";

/** Read the current address: {place, id, query}; the place of an unknown address is "unknown". */
export function readAddress() {
  const [place = "", id = "", ...rest] = location.pathname.slice(root.pathname.length).split("/");
  const query = new URLSearchParams(location.search);
  try {
    const name = place || "sessions";
    if (!PLACES.includes(name) || rest.some(Boolean)) return { place: "unknown", id: "", query };
    return { place: name === "sessions" && id ? "session" : name, id: decodeURIComponent(id), query };
  } catch {
    return { place: "unknown", id: "", query }; // malformed %-escapes
  }
}

/** The address of a place: linkTo("sessions", "order-7") or linkTo("sessions", "", {status: "failed"}). */
export function linkTo(place, id = "", query = {}) {
  const url = new URL(id ? `${place}/${encodeURIComponent(id)}` : place, root);
  for (const [name, value] of Object.entries(query)) if (value) url.searchParams.set(name, value);
  return url.pathname + url.search;
}

/** Go to an address of this page without loading it anew. */
export function go(href, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", href);
  dispatchEvent(new Event(CHANGED));
}

/** Change parts of the query of the current place; an empty value removes one. */
export function setQuery(changes) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(changes)) {
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }
  go(url.pathname + url.search + url.hash, { replace: true });
}

/** The address, and again whenever it changes. */
export function useAddress() {
  const [address, setAddress] = useState(readAddress);
  useEffect(() => {
    const read = () => setAddress(readAddress());
    addEventListener("popstate", read);
    addEventListener(CHANGED, read);
    return () => {
      removeEventListener("popstate", read);
      removeEventListener(CHANGED, read);
    };
  }, []);
  return address;
}

/** Follow links to places of this page by `go`; others, and clicks with a key held, are the browser's. */
export function followLinks() {
  addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey
      || event.altKey) return;
    const url = new URL(link.href);
    const isPlace = PLACES.includes(url.pathname.slice(root.pathname.length).split("/")[0]);
    if (url.origin !== location.origin || !url.pathname.startsWith(root.pathname) || !isPlace || link.target
      || link.download) return;
    if (url.pathname === location.pathname && url.search === location.search && url.hash) return;
    event.preventDefault();
    go(url.pathname + url.search + url.hash);
    if (url.pathname !== location.pathname || !url.hash) scrollTo(0, 0);
  });
}
