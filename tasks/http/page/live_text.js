// Text while it is written: its pieces in order, taken back where an attempt is void, and how they are shown. They go
// straight into the document, outside of what is rendered: a hundred pieces a second.
import { brief, inert } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";

const BLOCK = 1500; // characters: a new block after that, so that only the last one is laid out again
const MOST_LINES = 30;

/** The pieces that are shown now. Each is {execution, step, attempt, call, part, text, data}. */
export class Transcript {
  pieces = [];
  #committed = new Map(); // execution to the last step whose text the conversation has
  #listeners = new Set();

  /** Be told of changes: `onChange(piece)` of a piece that was added, `onChange(null)` where pieces were taken back. */
  follow(onChange) {
    this.#listeners.add(onChange);
    return () => this.#listeners.delete(onChange);
  }

  /** Take a frame of the stream of events. */
  apply({ type, data }) {
    if (type === "live") this.#add(data);
    else if (type === "attempt_voided") this.#keep((piece) => !isVoid(data, piece));
    else if (type === "step_committed") this.#commit(data);
    else if (type.startsWith("execution_")) this.#keep((piece) => !isEnd(type) || piece.execution !== data.execution_id
      || piece.isCommitted);
  }

  /** The conversation has what was said up to this step: nothing of it is written any more. */
  settle(execution, step) {
    this.#committed.set(execution, Math.max(step, this.#committed.get(execution) ?? 0));
    this.#keep((piece) => piece.isCommitted || piece.execution !== execution || piece.step > step);
  }

  /** Forget the texts of committed steps that the conversation has by now, as `isRead` says of a piece. */
  settleCommitted(isRead) {
    this.#keep((piece) => !piece.isCommitted || !isRead(piece));
  }

  #add({ execution_id: execution, step, attempt, call, part, text = "", data = null }) {
    if (step <= (this.#committed.get(execution) ?? 0)) return;
    if (this.pieces.some((each) => each.isCommitted && each.execution === execution && each.step >= step)) return;
    const last = this.pieces.at(-1);
    const piece = { execution, step, attempt, call, part, text, data };
    const isSame = last && data === null && last.data === null && last.step === step && last.attempt === attempt
      && last.call === call && last.part === part;
    if (isSame) last.text += text;
    else this.pieces.push({ ...piece }); // what is told stays as it is when the next text joins it
    this.#tell(piece);
  }

  #commit({ execution_id: execution, step, text, data }) {
    const whole = text ?? data?.text ?? "";
    this.pieces = this.pieces.filter((each) => each.isCommitted || each.execution !== execution || each.step > step);
    const before = this.pieces.filter((each) => each.isCommitted).length;
    if (whole) this.pieces.splice(before, 0, { execution, step, attempt: "", call: 1, part: "text", text: whole,
      data: null, isCommitted: true });
    this.#tell(null);
  }

  #keep(isKept) {
    const kept = this.pieces.filter(isKept);
    if (kept.length === this.pieces.length) return;
    this.pieces = kept;
    this.#tell(null);
  }

  #tell(piece) {
    for (const each of this.#listeners) each(piece);
  }
}

const isEnd = (type) => ["execution_completed", "execution_stopped", "execution_failed"].includes(type);

/** Whether an event `attempt_voided` takes a piece back. */
function isVoid({ execution_id: execution, step, data }, piece) {
  if (execution !== piece.execution || step !== piece.step || data.attempt !== piece.attempt) return false;
  if (data.call) return data.call === piece.call;
  return !(data.keeps_answer && piece.call);
}

/**
 * @param transcript the pieces that are written now
 * @param isQuiet without thoughts and the output of tools
 */
export function LiveText({ transcript, agent, isQuiet }) {
  const place = useRef(null);
  const [step, setStep] = useState(null); // the step that writes; null: nothing is written
  useEffect(() => {
    const writer = new Writer(place.current, isQuiet);
    let frame = 0;
    let isStale = true;
    let waiting = [];
    const write = () => {
      frame = 0;
      if (isStale) writer.replace(transcript.pieces);
      else for (const each of waiting) writer.add(each);
      isStale = false;
      waiting = [];
      setStep(transcript.pieces.at(-1)?.step ?? null);
    };
    const unfollow = transcript.follow((piece) => {
      if (piece) waiting.push(piece);
      else isStale = true;
      frame ||= requestAnimationFrame(write);
    });
    write();
    return () => {
      unfollow();
      cancelAnimationFrame(frame);
    };
  }, [transcript]);
  return html`<article class="entry assistant writing" hidden=${step === null} aria-live="off"><header>
    <h3 dir="auto">${inert(agent)}</h3>
    <span class="small dim">${step !== null && `step ${step}, being written`}</span></header><div ref=${place}></div>
      </article>`;
}

/** Writes pieces into an element: the answer as text, thoughts dim before it, what tools say as lines. */
class Writer {
  #place;
  #isQuiet;
  #part = "";
  #last = null; // the text node that grows

  constructor(place, isQuiet) {
    this.#place = place;
    this.#isQuiet = isQuiet;
  }

  replace(pieces) {
    this.#place.replaceChildren();
    this.#part = "";
    this.#last = null;
    for (const each of pieces) this.add(each);
  }

  add({ step, call, part, text, data }) {
    if (this.#isQuiet && part !== "text") return;
    const name = `${step} ${call} ${part}`;
    if (data !== null) return this.#addLine(`${brief(data, 200)}`);
    if (name !== this.#part || !this.#last || this.#last.length > BLOCK) this.#begin(name, part);
    this.#last.appendData(inert(text));
  }

  #begin(name, part) {
    const isContinued = name === this.#part;
    const block = document.createElement("div");
    block.className = `text ${part === "text" ? "" : part === "thinking" ? "thought" : "output"} ${isContinued ? "more"
      : ""}`;
    block.dir = "auto";
    this.#last = block.appendChild(document.createTextNode(""));
    this.#place.append(block);
    this.#part = name;
  }

  #addLine(text) {
    const lines = this.#place.getElementsByClassName("line");
    if (lines.length >= MOST_LINES) lines[0].remove();
    const line = Object.assign(document.createElement("div"), { className: "text output line", textContent: text,
      dir: "auto" });
    this.#place.append(line);
    this.#part = "";
  }
}
