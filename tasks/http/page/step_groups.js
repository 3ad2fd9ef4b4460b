// Steps of a timeline in groups that are drawn near the visible part of the page. Far away a group is one empty body of
// the table, so that a thousand steps cost as much as a few.
import { Component, html } from "./html.js";
import { rowsOf } from "./spans.js";
import { StepRows } from "./timeline_rows.js";

const SIZE = 8;
const MARGIN = 800; // pixels
const ROW = 28;
const groups = new Map(); // watched elements and their groups
const drawn = new Set();
const waiting = new Set(); // groups that came near: drawn one in each frame, so that the page stays quick
const watcher = new IntersectionObserver(
  (entries) => {
    for (const each of entries) if (each.isIntersecting) groups.get(each.target)?.show();
    for (const each of drawn) each.hideIfFar();
  },
  { rootMargin: `${MARGIN}px 0px` },
);

function drawNext() {
  const [next] = waiting;
  if (!next) return;
  waiting.delete(next);
  next.draw();
  requestAnimationFrame(drawNext);
}

/** Cut steps into groups. */
export function groupSteps(steps) {
  const cut = [];
  for (let first = 0; first < steps.length; first += SIZE) cut.push(steps.slice(first, first + SIZE));
  return cut;
}

/** The id of the element that keeps the place of a step, or of its group while that is not drawn. */
export const placeOf = (number) => document.getElementById(`step-${number}`)
  ?? document.getElementById(`steps-${Math.floor((number - 1) / SIZE)}`);

/** Bodies of the table for a group of steps: props are those of Step, and `steps`. */
export class StepGroup extends Component {
  state = { isNear: false };
  height = null; // when it was drawn last
  edges = [];

  shouldComponentUpdate(next, { isNear }) {
    const { steps, axis, open, children, skew } = this.props;
    const isSame = next.steps.length === steps.length && next.steps.every((each, at) => each === steps[at]);
    return !isSame || isNear !== this.state.isNear || next.axis !== axis || next.open !== open
      || next.children !== children || next.skew !== skew;
  }

  componentDidMount() {
    this.watch();
  }

  componentDidUpdate() {
    this.watch();
  }

  componentWillUnmount() {
    this.leave();
    drawn.delete(this);
    waiting.delete(this);
  }

  /** Watch its first and its last element. */
  watch() {
    const edges = [...new Set([this.first, this.last])].filter(Boolean);
    if (edges.length === this.edges.length && edges.every((each, at) => each === this.edges[at])) return;
    this.leave();
    this.edges = edges;
    for (const each of edges) {
      groups.set(each, this);
      watcher.observe(each);
    }
  }

  leave() {
    for (const each of this.edges) {
      watcher.unobserve(each);
      groups.delete(each);
    }
    this.edges = [];
  }

  show() {
    if (this.state.isNear) return;
    if (!waiting.size) requestAnimationFrame(drawNext);
    waiting.add(this);
  }

  draw() {
    drawn.add(this);
    this.setState({ isNear: true });
  }

  hideIfFar() {
    if (!this.state.isNear || !this.edges.length) return;
    const top = this.edges[0].getBoundingClientRect().top;
    const bottom = this.edges.at(-1).getBoundingClientRect().bottom;
    if (bottom >= -MARGIN && top <= innerHeight + MARGIN) return;
    this.height = bottom - top;
    drawn.delete(this);
    this.setState({ isNear: false });
  }

  render({ steps, open, ...rest }, { isNear }) {
    const id = `steps-${Math.floor((steps[0].number - 1) / SIZE)}`;
    if (!isNear) {
      const height = this.height ?? steps.reduce((sum, each) => sum + ROW * (rowsOf(each).length + 1), 0);
      const keep = (element) => (this.first = this.last = element);
      return html`<tbody key="far" id=${id} ref=${keep} role="presentation"><tr role="presentation">
        <td colspan="4" style=${{ height: `${height}px` }}></td></tr></tbody>`;
    }
    return steps.map((step, at) => {
      const keep = at === 0 || at === steps.length - 1 ? (element) => this.keep(at, steps.length, element) : undefined;
      return html`<${Step} key=${step.number} place=${keep} step=${step} open=${open.get(step.number)} ...${rest} />`;
    });
  }

  keep(at, length, element) {
    if (at === 0) this.first = element;
    if (at === length - 1) this.last = element;
  }
}

/** The rows of one step. They are made again only when something of the step has changed. */
class Step extends Component {
  shouldComponentUpdate(next) {
    return ["step", "axis", "open", "children", "skew"].some((name) => next[name] !== this.props[name]);
  }

  render({ step, place, ...rest }) {
    return html`<tbody ref=${place} role="rowgroup" id=${`step-${step.number}`} class="step"><${StepRows} step=${step}
      ...${rest} /></tbody>`;
  }
}
