// What a session's place shows, read from the API and kept up to date: by the one stream of events, at most twice a
// second, and less often where the reads take long.
import { get, Refusal, serverNow, sessionPath } from "./api.js";
import { isActive, readEarlier, readMessages } from "./conversation.js";
import { followEvents, staleAfter } from "./live.js";
import { Transcript } from "./live_text.js";
import { keyOf } from "./request_words.js";
import { callsChildren, readSteps } from "./spans.js";

const SOONEST_MS = 500;
const LONGEST_MS = 15_000;
const HEADER_MS = 5_000;
const READ = ["messages", "timeline", "requests", "results", "line"];

/**
 * The data of one session. `view` is a new object after each change: header, problem (why nothing is known),
 * streamProblem, first (message), messages, from (index of the first one), total, steps, timeline (without its steps),
 * isPartial (steps are still being read), requests, gone (requests that were open), results, result (of the latest
 * execution), tree, state, line (messages that wait), problems.
 * With isChat the token allows the conversation alone, and nothing else is asked for.
 */
export class Feed {
  view = { messages: [], from: 0, total: null, steps: [], isPartial: true, requests: [], gone: [], problems: {} };
  transcript = new Transcript();
  #id;
  #isChat;
  #onChange;
  #stopped = new AbortController();
  #dirty = new Set();
  #timer = 0;
  #isReading = false;
  #endedAt = 0; // when the last reads ended
  #took = 0; // and how long they took
  #failures = 0;
  #endFollowing = null;
  #followedAt = 0;

  constructor(id, isChat, onChange) {
    this.#id = id;
    this.#isChat = isChat;
    this.#onChange = onChange;
  }

  async start() {
    this.#dirty.add("header");
    await this.#run();
    if (!this.view.problem) {
      for (const each of this.#allowed(READ)) this.#dirty.add(each);
      await this.#run();
      this.#took = 0; // what is still missing of the head is read at once
    }
    if (this.#stopped.signal.aborted || this.view.problem) return;
    this.#follow();
    this.#poll();
  }

  /** Follow the events from the last commit on. A session without an execution has none. */
  #follow() {
    if (this.#endFollowing || !this.view.header?.execution_id) return;
    const { steps, timeline } = this.view;
    const latest = steps.findLast((each) => each.status === "committed")?.ended_at ?? timeline?.submitted_at;
    this.#followedAt = serverNow();
    const after = latest ? `${Date.parse(latest) - 1}-0` : "";
    this.#endFollowing = followEvents(this.#id, (frame) => this.#hear(frame), (streamProblem) => {
      this.#set({ streamProblem });
      if (streamProblem) this.refresh("header", ...READ);
    }, after);
  }

  stop() {
    this.#stopped.abort();
    this.#endFollowing?.();
    clearTimeout(this.#timer);
  }

  /** Read these again soon: header, messages, timeline, requests, results, line, tree, state. */
  refresh(...names) {
    for (const each of this.#allowed(names)) this.#dirty.add(each);
    this.#schedule();
  }

  readEarlier = async () => this.#set(await readEarlier(this.#get, this));

  #allowed(names) {
    if (this.view.header?.status === "unreadable") return names.filter((each) => each === "header");
    return this.#isChat ? names.filter((each) => ["header", "messages", "requests"].includes(each)) : names;
  }

  #get = (path, query) => get(sessionPath(this.#id, path), query, this.#stopped.signal);

  #set(changes) {
    this.view = { ...this.view, ...changes };
    if (!this.#stopped.signal.aborted) this.#onChange(this.view);
  }

  #hear(frame) {
    const { type, data } = frame;
    if (type === "step_committed" && this.#isRead(data)) this.transcript.settle(data.execution_id, data.step);
    else this.transcript.apply(frame);
    if (type !== "live") this.refresh(...staleAfter(type));
  }

  /** Whether a commit that is told was there before the conversation was read. The server's clock may be late. */
  #isRead({ at, text, data }) {
    const later = Date.parse(at) - this.#followedAt;
    const isSaid = ({ role, content }) => role === "assistant" && content === (text ?? data?.text);
    return later <= 0 || (later < LONGEST_MS && this.view.messages.some(isSaid));
  }

  #poll() {
    const timer = setInterval(() => {
      if (document.hidden || this.view.problem) return;
      if (!this.#endFollowing) this.#follow();
      if (this.view.streamProblem) this.refresh("header", ...READ);
      else if (isActive(this.view.header) || !this.#endFollowing) this.refresh("header");
    }, HEADER_MS);
    this.#stopped.signal.addEventListener("abort", () => clearInterval(timer));
  }

  #schedule() {
    if (this.#isReading || this.#timer || this.#stopped.signal.aborted) return;
    const pause = this.#failures ? Math.min(SOONEST_MS * 2 ** this.#failures, LONGEST_MS)
      : Math.max(SOONEST_MS, 2 * this.#took);
    this.#timer = setTimeout(() => this.#run(), Math.max(0, this.#endedAt + pause - performance.now()));
  }

  async #run() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#isReading = true;
    const names = [...this.#dirty];
    this.#dirty.clear();
    const began = performance.now();
    const found = await Promise.all(names.map((each) => this.#readOne(each)));
    this.#isReading = false;
    this.#endedAt = performance.now();
    this.#took = Math.min(this.#endedAt - began, LONGEST_MS / 2);
    this.#failures = found.includes(false) ? this.#failures + 1 : 0;
    if (this.#dirty.size) this.#schedule();
  }

  /** Read one thing; false when the read is to be tried again. */
  async #readOne(name) {
    try {
      await this.#readers[name]();
      if (this.view.problems[name]) this.#set({ problems: { ...this.view.problems, [name]: null } });
      return true;
    } catch (problem) {
      if (this.#stopped.signal.aborted) return true;
      if (!(problem instanceof Refusal)) throw problem;
      const about = problem.status === 410 ? "header" : name; // gone is the session as a whole
      const problems = { ...this.view.problems, [about]: problem };
      this.#set(about === "header" && !problem.isTemporary ? { problem, problems } : { problems });
      if (problem.isTemporary) this.#dirty.add(name);
      return !problem.isTemporary;
    }
  }

  #readers = {
    header: async () => {
      const header = await this.#get("");
      this.#set({ header, problem: null, result: this.#latest(header, this.view.results) });
    },
    messages: async () => {
      const { transcript: { pieces }, view: { total, streamProblem } } = this;
      if (streamProblem) this.#followedAt = serverNow(); // commits up to now are read before they are told
      this.#set(await readMessages(this.#get, this));
      const added = this.view.messages.slice(total - this.view.from).map((each) => each.content);
      // Those of commits that were told meanwhile stay, unless the reply has them.
      this.transcript.settleCommitted((piece) => pieces.includes(piece) || added.includes(piece.text));
    },
    timeline: async () => {
      for await (const changes of readSteps(this.#get, this.view)) {
        const committed = changes.steps.findLast((each) => each.status === "committed");
        if (committed) this.transcript.settle(changes.timeline.execution_id, committed.number);
        this.#set(changes);
      }
      if (!this.view.state) this.#dirty.add("state"); // it has the budget
      if (callsChildren(this.view.steps) && !this.view.tree) this.#dirty.add("tree");
    },
    requests: async () => {
      const { requests } = await this.#get("/requests", { limit: 100 });
      const open = new Set(requests.map(keyOf));
      const gone = [...this.view.gone, ...this.view.requests].filter((each) => !open.has(keyOf(each)));
      this.#set({ requests, gone });
    },
    results: async () => {
      const { executions } = await this.#get("/executions");
      this.#set({ results: executions, result: this.#latest(this.view.header, executions) });
    },
    line: async () => this.#set({ line: await this.#get("/queue") }),
    tree: async () => callsChildren(this.view.steps) && this.#set({ tree: await this.#get("/tree") }),
    state: async () => {
      const { context, execution, parts } = (await this.#get("/state", { whole: "false" })).state;
      this.#set({ state: { execution, metadata: context?.metadata, prompt: context?.system_prompt, parts } });
    },
  };

  #latest = (header, results) => results?.findLast((each) => each.execution_id === header?.execution_id);
}
