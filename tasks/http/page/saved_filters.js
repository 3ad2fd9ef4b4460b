// Filters that one comes back to: named, and kept in this browser.
import { linkTo } from "./address.js";
import { ask } from "./dialog.js";
import { html, useState } from "./html.js";

const SAVED = "celery-agents.filters";
const GIVEN = [["Failed", { status: "failed" }], ["Waiting", { status: "waiting" }], ["Parked", { status: "parked" }]];

function readSaved() {
  try {
    const saved = JSON.parse(localStorage.getItem(SAVED) ?? "[]");
    return Array.isArray(saved) ? saved.filter((each) => Array.isArray(each) && typeof each[0] === "string") : [];
  } catch {
    return []; // storage is forbidden, or holds something else: there are none
  }
}

export function SavedFilters({ query }) {
  const [saved, setSaved] = useState(readSaved);
  const keep = (next) => {
    setSaved(next);
    try {
      localStorage.setItem(SAVED, JSON.stringify(next));
    } catch {
      // storage is forbidden: the filters live as long as the page
    }
  };
  const current = Object.fromEntries([...query].filter(([name]) => ["agent", "status", "text"].includes(name)));
  const save = async () => {
    const text = "It is kept in this browser.";
    const name = await ask({ title: "Save this filter", text, field: "Name", action: "Save" });
    if (name?.trim()) keep([...saved.filter((each) => each[0] !== name.trim()), [name.trim(), current]]);
  };
  return html`<button class="button" type="button" disabled=${!Object.keys(current).length}
    onClick=${save}>Save this filter</button>
    <div class="saved"><a href=${linkTo("sessions")}>All</a>
      ${GIVEN.map(([name, values]) => html`<a href=${linkTo("sessions", "", values)}>${name}</a>`)}
      ${saved.map(([name, values]) => html`<span><a href=${linkTo("sessions", "", values)} dir="auto">${name}</a>
        <button class="button bare" type="button" aria-label=${`Forget the filter ${name}`}
          onClick=${() => keep(saved.filter((each) => each[0] !== name))}>×</button></span>`)}</div>`;
}
