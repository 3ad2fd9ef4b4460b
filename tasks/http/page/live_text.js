// Text while it is written. It goes straight into the document, outside of what is rendered: a hundred pieces a second.
import { brief, inert } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";

const BLOCK = 1500; // characters: a new block after that, so that only the last one is laid out again
const MOST_LINES = 30;

/**
 * @param transcript the pieces that are written now
 * @param isQuiet without thoughts and the output of tools
 * @param onGrow called after text was added
 */
export function LiveText({ transcript, agent, isQuiet, onGrow }) {
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
      onGrow();
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
