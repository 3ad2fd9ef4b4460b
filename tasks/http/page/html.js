// The templates and hooks that all modules render with: values become text nodes and attributes, never markup. Tables
// whose rows become labelled facts on a phone, and long lists of which only what is near is drawn.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.mjs";
import htm from "./vendor/htm.mjs";
import { Component, h, render } from "./vendor/preact.mjs";

export { Component, render, useEffect, useLayoutEffect, useMemo, useRef, useState };

/** A component that is drawn again only when one of these of its properties has changed. */
export const drawnWhen = (names, draw) => class extends Component {
  shouldComponentUpdate(next) {
    return names.some((name) => next[name] !== this.props[name]);
  }

  render(props) {
    return draw(props);
  }
};

/** Make virtual nodes of a template: html`<p>${text}</p>`. */
export const html = htm.bind(h);

/** The head of a table: columns are [title, classes]; the first letters of its title label a cell on a phone. */
export const Head = ({ columns }) => html`<thead role="rowgroup"><tr role="row">${columns.map(([title, classes]) =>
  html`<th role="columnheader" class=${/number/.exec(classes)?.[0]}>${title}</th>`)}</tr></thead>`;

/**
 * A table.
 *
 * @param columns [title, classes]: "number", "mono", "full" (on a phone a line of its own), "own-words" (no label)
 * @param rows [key, cells]: the first cell is the head of its row
 */
export const Table = ({ label, columns, rows }) => html`<table class="cards" role="table" aria-label=${label}>
  <${Head} columns=${columns} />
  <tbody role="rowgroup">${rows.map(([key, [first, ...cells]]) => html`<tr role="row" key=${key}>
    <th role="rowheader" scope="row" class=${columns[0][1]}>${first}</th>
    ${cells.map((cell, at) => {
      const [title, classes = ""] = columns[at + 1];
      const words = classes.includes("own-words") ? undefined : title.toLowerCase();
      return html`<td role="cell" class=${classes} data-label=${words}>${cell}</td>`;
    })}</tr>`)}</tbody></table>`;

const nearTo = new Map();
const waiting = new Set(); // what came near: one is drawn in each frame, but at once what is seen
const watcher = new IntersectionObserver(
  (entries) => {
    for (const each of entries) nearTo.get(each.target)?.(each);
  },
  { rootMargin: "800px 0px" },
);

function drawNext() {
  const [next] = waiting;
  waiting.delete(next);
  next?.();
  if (waiting.size) requestAnimationFrame(drawNext);
}

/**
 * Children that are drawn only near the visible part of the page: a piece of a long list. Elsewhere one element of the
 * height that they had keeps their place.
 *
 * @param as "tbody" or "div"
 * @param draw makes the children
 * @param columns of the table, for "tbody"
 * @param guess their height in pixels before they were drawn once
 */
export function Chunk({ as, draw, columns, guess, ...attributes }) {
  const place = useRef(null);
  const height = useRef(guess);
  const [isNear, setNear] = useState(false);
  useEffect(() => {
    const element = place.current;
    const show = () => setNear(true);
    nearTo.set(element, ({ isIntersecting, boundingClientRect: { top, bottom } }) => {
      waiting.delete(show);
      if (isIntersecting && bottom > 0 && top < innerHeight) return show();
      if (isIntersecting) {
        if (!waiting.size) requestAnimationFrame(drawNext);
        waiting.add(show);
      } else {
        height.current = bottom - top || height.current;
        setNear(false);
      }
    });
    watcher.observe(element);
    return () => {
      watcher.unobserve(element);
      nearTo.delete(element);
      waiting.delete(show);
    };
  }, []);
  const style = { height: `${height.current}px` };
  const spacer = as === "tbody"
    ? html`<tr role="presentation"><td colspan=${columns} style=${style}></td></tr>`
    : html`<div style=${style}></div>`;
  return html`<${as} ref=${place} ...${attributes}>${isNear ? draw() : spacer}</${as}>`;
}

const GROUP = 20;

/**
 * A long list in pieces, of which only what is near is drawn.
 *
 * @param keyOf tells an item from others; without it pieces are told by their places
 * @param draw makes one
 * @param guess the height of one; see Chunk for what else it has
 */
export const Chunks = ({ as = "div", items, keyOf, draw, guess = 96, ...more }) =>
  Array.from({ length: Math.ceil(items.length / GROUP) }, (_, at) => {
    const group = items.slice(at * GROUP, (at + 1) * GROUP);
    return html`<${Chunk} as=${as} ...${more} key=${keyOf ? keyOf(group[0]) : at} guess=${guess * group.length}
      draw=${() => group.map(draw)} />`;
  });
