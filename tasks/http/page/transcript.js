// Text that steps write before they are committed: pieces in order, taken back where an attempt is void.

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

  /** Forget the texts of committed steps: the conversation has been read since. */
  settleCommitted() {
    this.#keep((piece) => !piece.isCommitted);
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
export function isVoid({ execution_id: execution, step, data }, piece) {
  if (execution !== piece.execution || step !== piece.step || data.attempt !== piece.attempt) return false;
  if (data.call) return data.call === piece.call;
  return !(data.keeps_answer && piece.call);
}
