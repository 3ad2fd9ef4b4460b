"""Sessions are rewound and forked while clients, workers and Redis are killed.

Clients in processes of their own send messages and rewind at rest and while an approval is waited for, and fork at steps of before. They are killed at round trips
of these acts and at any moment, and send the same act again; so do others, together with them and long after. Readers leave and
come back with their cursors.

    alone    one client acts on the session; it also writes to executions that wait, before it rewinds them
    shared   two clients act on the session; each waits while an execution of the other one runs
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import redis

from celery_agents.worker.errors import SessionNotFound, StoreUnavailable
from celery_agents.worker.state import AgentState, ExecutionStatus, Role
from celery_agents.worker.store.sessions.past_reads import StepAddress

from support.lab import Lab, Supervisor
from support.processes import TESTS, Process
from support.rewinding_client import TARGET_PREFIX, Notes, facts, read_notes, text_of
from support.verdict import Submitted, Verdict, judge_effects, judge_rest
from support.wait import wait_until
from support.waiting_agents import TOKEN_SECRET

DEATHS: Final = (
    ">rewind.exec", "<rewind.exec", ">act.exec", ">rewind.known", "anywhere", ">rewind.steps", ">rewind.read", "<act.exec",
    ">past.lists", ">create.exec", "<create.exec",
)  # fmt: skip
"""Where clients are killed: before or behind a round trip, or at any moment."""
DEATHS_ALONE: Final = (">submit.attempt", ">stop.ask", "<stop.ask")
"""Where clients are killed as well that are alone with their session."""
WORKERS: Final = ("c1", "c7", "w1", "c3", "w0", "c5")
REDIS: Final = ("kill", "stop", "kill")
# A rewind keeps what goes of the conversation; every state is read at the end.
_HISTORY_BYTES: Final = 64_000_000
_LATE_SECONDS: Final = (0.0, 0.0, 1.5)


def rewind_under_fire(
    directory: Path, seed: int, *, sessions: int, rounds: int, deaths: int, workers: int, redis_faults: int,
    append_only: str = "always", timeout: float,
) -> Verdict:  # fmt: skip
    """Rewind sessions until all clients have done their acts.

    Args:
        sessions: Every second one is shared.
        rounds: Rewinds by each client.
        deaths: How often each client is killed.
        workers: So many crash plans of workers.
        redis_faults: So many faults of Redis, spread over the acts.
    """
    chance = random.Random(seed)
    plans = [f"{point}:0.3:{chance.randrange(10**9)}" for point in itertools.islice(itertools.cycle(WORKERS), workers)]
    options = {"append_only": append_only}
    env = {"CELERY_AGENTS_TOKEN_SECRET": TOKEN_SECRET, "CELERY_AGENTS_HISTORY_BYTES": str(_HISTORY_BYTES)}
    with Lab(directory, agents="support.waiting_agents", env=env, redis_options=options) as lab:
        traffic = _Traffic(lab, chance, sessions=sessions, rounds=rounds, deaths=deaths)
        with Supervisor(lab, plans, 2) as supervisor, traffic.readers():
            lab.client.wait_for_agent("asking")
            try:
                traffic.run(redis_faults, timeout)
                traffic.finish(timeout)
            finally:
                traffic.end()
        verdict = _judge(traffic)
        for death in supervisor.deaths:
            verdict.counts["workers_killed"] += death.code == -9
            verdict.expect(death.code == -9, "workers", f"ended with {death.code} at {death.crash}")
    return verdict


# --- clients ----------------------------------------------------------------------------------------------------


@dataclass
class _Actor:
    """A client that acts by a script.

    Attributes:
        deaths: How it is still to be killed.
        kill_at: When it is killed that runs now. None: it kills itself, or is not killed.
    """

    name: str
    session: str
    script: list[dict[str, Any]]
    deaths: list[str]
    folder: Path
    death: str = "-"
    kill_at: float | None = None
    process: Process | None = None
    is_done: bool = False

    def __post_init__(self) -> None:
        self._script = self.folder / f"{self.name}.script"
        self.notes = self.folder / f"{self.name}.notes"
        self._script.write_text(json.dumps(self.script))

    def start(self, lab: Lab, kill_at: float) -> None:
        """Start it, with the next way to be killed."""
        self.death = self.deaths.pop(0) if self.deaths else "-"
        self.kill_at = kill_at if self.death == "anywhere" else None
        plan = "-" if self.kill_at is not None else self.death
        self.process = self._make(lab, self.name, self.notes, plan)
        self.process.start()

    def send_again(self, lab: Lab, seconds: float) -> Process | None:
        """Another process that does the act in which this one was killed, so much later."""
        done = {note["key"] for note in read_notes(self.notes) if "done" in note}
        begun = [each for each in self.script if each["key"] not in done][:1]
        if not begun or begun[0]["kind"] not in ("message", "remark", "rewind", "fork"):
            return None
        name = f"{self.name}-again-{begun[0]['key']}"
        notes = self.folder / f"{name}.notes"
        shutil.copy(self.notes, notes)
        process = self._make(lab, name, notes, "-", begun[0]["key"], f"{seconds:g}")
        process.start()
        return process

    def _make(self, lab: Lab, name: str, notes: Path, death: str, *only: str) -> Process:
        words = [lab.store_url, self.session, str(self._script), str(notes), death, *only]
        command = [sys.executable, "-m", "support.rewinding_client", *words]
        return Process(name, command, self.folder, {"PYTHONPATH": str(TESTS), **lab.settings_env})


def _script(name: str, chance: random.Random, rounds: int, *, begins: bool, is_alone: bool) -> list[dict[str, Any]]:
    """The acts of a client: each round is a message, mostly one that waits, and a rewind."""
    numbers = itertools.count()
    found: list[dict[str, Any]] = []

    def add(kind: str, *tools: str) -> None:
        found.append({"key": f"{name}-{next(numbers)}", "kind": kind, "tools": tools})

    add("submit" if begins else "message", "keyed", "pure")
    add("settle")
    for number in range(rounds):
        add("message", *chance.sample(("keyed", "unsafe", "pure"), 2))
        add("settle")
        if is_alone and number % 2 == 0:
            add("message", "keyed", "approved_keyed")
            add("settle")
            add("remark", "keyed")
        if number % 2 == 0:
            add("fork")
        add("rewind")
    add("message", "unsafe")
    add("settle")
    return found


@dataclass
class _Traffic:
    """The clients of all sessions, and what follows them."""

    lab: Lab
    chance: random.Random
    sessions: int
    rounds: int
    deaths: int
    actors: list[_Actor] = field(default_factory=list["_Actor"])
    followers: list[_Reader] = field(default_factory=list["_Reader"])
    others: list[Process] = field(default_factory=list[Process])
    counts: Counter[str] = field(default_factory=Counter[str])
    problems: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._late = itertools.cycle(_LATE_SECONDS)
        ways = itertools.cycle(DEATHS)
        for number in range(self.sessions):
            session, is_alone = f"s{number}", number % 2 == 0
            for who in ("a",) if is_alone else ("a", "b"):
                script = _script(f"{session}{who}", self.chance, self.rounds, begins=who == "a", is_alone=is_alone)
                deaths = list(itertools.islice(ways, self.deaths))
                if is_alone and self.deaths > len(DEATHS_ALONE):
                    deaths = [*DEATHS_ALONE, *deaths]
                self.actors.append(_Actor(f"{session}{who}", session, script, deaths, self.lab.directory))
            self.followers.append(_Reader(self.lab, session, self.chance.randrange(10**9)))

    @contextmanager
    def readers(self) -> Iterator[None]:
        """Follow all sessions."""
        with ExitStack() as stack:
            for each in self.followers:
                each.start()
                stack.callback(each.close)
            yield

    def notes(self, session: str) -> list[Notes]:
        """What the clients of a session have noted."""
        return [read_notes(each.notes) for each in self.actors if each.session == session]

    def run(self, redis_faults: int, timeout: float) -> None:
        """Let all clients act, with faults of Redis in between."""
        acts = sum(len(each.script) for each in self.actors)
        marks = [acts * (number + 1) // (redis_faults + 1) for number in range(redis_faults)]
        self._until_done(self.actors, timeout, marks)

    def finish(self, timeout: float) -> None:
        """Let what is queued follow; then do everything once more, of which nothing may happen."""
        last: list[_Actor] = []
        for number in range(self.sessions):
            session = f"s{number}"
            acts = [act for each in self.actors if each.session == session for act in each.script]
            kinds: Sequence[tuple[str, Mapping[str, Any]]] = (
                ("release", {}),
                ("settle", {}),
                ("again", {"script": acts}),
            )
            script = [{"key": f"{session}-{kind}", "kind": kind, **more} for kind, more in kinds]
            last.append(_Actor(f"{session}z", session, script, [], self.lab.directory))
            notes = [line for each in self.notes(session) for line in each if "done" not in line]
            last[-1].notes.write_text("".join(json.dumps(line) + "\n" for line in notes))
        self.actors += last
        self._until_done(last, timeout)
        for each in self.followers:
            wait_until(lambda each=each: each.has_all(), f"the reader of {each.session} has read all", 20)

    def _until_done(self, actors: list[_Actor], timeout: float, marks: Sequence[int] = ()) -> None:
        deadline, left, faults = time.monotonic() + timeout, list(marks), itertools.cycle(REDIS)
        while not all(each.is_done for each in actors) or any(each.alive for each in self.others):
            assert time.monotonic() < deadline, self._not_done(timeout)
            for each in actors:
                self._look_after(each)
            if left and sum("done" in note for each in actors for note in read_notes(each.notes)) >= left[0]:
                left.pop(0)
                self._disturb_redis(next(faults))
            time.sleep(0.02)
        for other in self.others:
            if code := other.wait(1):
                self.problems.append(f"{other.name} ended with {code}: {other.tail(5)}")
        self.others.clear()
        assert not self.problems, "\n".join(self.problems)

    def end(self) -> None:
        """End what still acts."""
        for process in (*self.others, *(each.process for each in self.actors)):
            if process is not None:
                process.end(patience=0.0)

    def _not_done(self, timeout: float) -> str:
        running = [each for each in self.actors if not each.is_done]
        tails = [each.process.tail(15) for each in running if each.process is not None]
        return "\n".join([f"not done within {timeout:g} s: {[each.name for each in running]}", *tails])

    def _look_after(self, each: _Actor) -> None:
        """Start a client, kill it, or start it again."""
        if each.is_done:
            return
        if each.process is None:
            each.start(self.lab, self._moment())
        elif each.kill_at is not None and time.monotonic() > each.kill_at and each.process.alive:
            each.process.kill()
        code = each.process.exit_code if each.process is not None else None
        if code is None:
            return
        assert each.process is not None
        each.process.end(patience=0.0)
        if code == -9:
            self.counts[f"killed_{each.death}"] += 1
            self.counts["clients_killed"] += 1
            again = each.send_again(self.lab, next(self._late))
            if again is not None:
                self.others.append(again)
                self.counts["sent_again_by_others"] += 1
            each.start(self.lab, self._moment())
            return
        each.is_done = True
        if code:
            self.problems.append(f"{each.name} ended with {code}: {each.process.tail(15)}")

    def _moment(self) -> float:
        return time.monotonic() + self.chance.uniform(0.8, 2.0)

    def _disturb_redis(self, fault: str) -> None:
        {"kill": self.lab.server.kill, "stop": self.lab.server.stop}[fault]()
        self.lab.server.start()
        self.counts[f"redis_{fault}"] += 1


class _Reader(threading.Thread):
    """Follows a session, leaves, and comes back with its cursor.

    Attributes:
        seen: Ids of events, as they came.
        rewinds: By whom the session was rewound.
        snapshots: How often it was given the whole session, for events that are gone.
    """

    def __init__(self, lab: Lab, session: str, seed: int) -> None:
        super().__init__(name=f"reader of {session}", daemon=True)
        self._lab, self.session, self._chance = lab, session, random.Random(seed)
        self._closed = threading.Event()
        self._cursor: str | None = None
        self.seen: list[str] = []
        self.rewinds: Counter[str] = Counter()
        self.snapshots = 0
        self.returns = 0

    def run(self) -> None:
        """Follow it until it is closed."""
        client = self._lab.new_client()
        while not self._closed.wait(0.05):
            try:
                for item in client.stream(self.session, self._cursor, timeout=self._chance.uniform(0.2, 1.5)):
                    self._cursor = item.cursor
                    self.snapshots += item.snapshot is not None
                    if item.event is not None:
                        self.seen.append(item.event.id)
                        if item.event.type == "rewound":
                            self.rewinds[str(item.event.data["by"])] += 1
                    if self._closed.is_set():
                        return
            except (SessionNotFound, StoreUnavailable):
                continue
            self.returns += self._cursor is not None

    def has_all(self) -> bool:
        """Whether it has the newest event."""
        events = self._lab.client.store.sessions.events(self.session, limit=5000)
        return bool(events) and bool(self.seen) and self.seen[-1] == events[-1].id

    def close(self) -> None:
        """End it."""
        self._closed.set()
        self.join(20)


# --- the verdict ------------------------------------------------------------------------------------------------


def _judge(traffic: _Traffic) -> Verdict:
    lab = traffic.lab
    lab.client = lab.new_client()  # connections of the old one have died with Redis
    verdict = Verdict(counts=Counter(traffic.counts))
    entries = [entry for entry in lab.ledger.entries() if entry.get("kind") == "effect"]
    for number in range(traffic.sessions):
        judged = _JudgedSession(traffic, f"s{number}", verdict)
        judged.judge_acts()
        judged.judge_states()
        judged.judge_executions(entries)
        judged.judge_forks(entries)
        judged.judge_reader(traffic.followers[number])
    known = {entry["session"].partition(".")[0] for entry in entries}
    verdict.expect(known == {f"s{n}" for n in range(traffic.sessions)}, "I5", f"effects of {sorted(known)}")
    try:
        judge_rest(verdict, lab.client, lab.redis)
    except redis.ConnectionError:  # its connection has died with Redis
        judge_rest(verdict, lab.client, lab.redis)
    return verdict


class _JudgedSession:
    """One session: what its clients have noted, beside what is stored."""

    def __init__(self, traffic: _Traffic, session: str, verdict: Verdict) -> None:
        self._client, self._session, self._verdict = traffic.lab.client, session, verdict
        self._events = self._client.store.sessions.events(session, limit=5000)
        self._notes = [line for notes in traffic.notes(session) for line in notes]
        self._acts = {act["key"]: act for each in traffic.actors if each.session == session for act in each.script}
        self._done = {line["key"]: line["done"] for line in self._notes if "done" in line}
        self._states: dict[str, AgentState] = {}
        self._said_before: dict[str, list[str]] = {}
        """The messages by their operations that an execution was begun with, and its own."""

    def _expect(self, holds: bool, invariant: str, text: str) -> None:
        self._verdict.expect(holds, invariant, f"{self._session}: {text}")

    def judge_acts(self) -> None:
        """Each act has happened once, and the conversation is what the events make of them."""
        said: list[str] = []
        began: Counter[str] = Counter()
        rewound: Counter[str] = Counter()
        targets = {line["key"]: line["target"] for line in self._notes if "target" in line}
        runs = ""
        for event in self._events:
            if event.type in ("execution_submitted", "message_joined"):
                self._expect(event.type != "message_joined" or event.data["started"], "I8", f"joined: {event.data}")
                said = [*said, str(event.data["operation"])]
                began[said[-1]] += 1
                runs, self._said_before[event.execution_id] = event.execution_id, said
            elif event.type in _ENDS:
                runs = ""
            elif event.type == "rewound":
                by, to = str(event.data["by"]), str(event.data["to"])
                rewound[by] += 1
                self._expect(not runs, "W4", f"{by} has rewound it while {runs} ran")
                self._expect(targets.get(by) == to, "W1", f"{by} wanted {targets.get(by)} and was rewound to {to}")
                said = self._said_before[to.partition(":")[0]]
            self._expect(event.type != "message_undelivered", "I8", f"undelivered: {event.data}")
        for key, act in self._acts.items():
            done = self._done.get(key)
            self._expect(done is not None, "clients", f"{key} was never done")
            if done is not None and "operation" in done:
                self._expect(began[done["operation"]] == 1, "I8", f"{key} has begun {began[done['operation']]} times")
                self._verdict.counts["messages"] += 1
            elif act["kind"] == "rewind":
                self._expect(rewound[key] == 1, "W3", f"{key} has rewound {rewound[key]} times")
                self._verdict.counts["rewinds"] += 1
            elif act["kind"] == "again" and done is not None:
                self._expect(done["before"] == done["after"], "W3", f"the same acts again have changed it: {done}")
        keys = {done["operation"]: key for key, done in self._done.items() if "operation" in done}
        self._judge_conversation([keys.get(operation, operation) for operation in said])
        refusals = [line for line in self._notes if "refused" in line and self._acts[line["key"]]["kind"] == "rewind"]
        self._verdict.counts["rewinds_refused"] += len(refusals)

    def _judge_conversation(self, keys: Sequence[str]) -> None:
        wanted = [text_of(key, self._acts[key]["tools"]) if key in self._acts else key for key in keys]
        state = self._client.show(self._session).state
        found = [each.content for each in state.store.section().messages if each.role is Role.USER]
        self._expect(found == wanted, "W2", f"said was {wanted}, and the conversation has {found}")
        self._judge_calls("now", state)

    def judge_states(self) -> None:
        """W1: the state behind a rewind is that of its step, and all states are as they were seen."""
        seen = {line["key"].removeprefix(TARGET_PREFIX): line["state"] for line in self._notes if "state" in line}
        targets = {line["key"]: line["target"] for line in self._notes if "target" in line}
        targets = {key: place for key, place in targets.items() if self._acts[key]["kind"] == "rewind"}
        for place, then in seen.items():
            self._states[place] = self._client.state(self._session, at=place)
            self._expect(facts(self._states[place]) == then, "W1", f"the state at {place} has changed")
            self._judge_calls(place, self._states[place])
            self._verdict.counts["states"] += 1
        made = {str(e.data["by"]): int(e.data["version"]) for e in self._events if e.type == "rewound"}
        for key, target in targets.items():
            if any(made[key] < version <= self._done[key]["shown"] for version in made.values()):
                continue  # the other client has rewound it before this one has looked
            self._verdict.counts["compared"] += 1
            now, then = self._done[key]["state"], seen[target]
            kept = now["messages"][: len(then["messages"])]
            self._expect(kept == then["messages"], "W1", f"{key}: {kept} behind a rewind to {then['messages']}")
            self._expect(now["rest"] == then["rest"], "W1", f"{key}: {now['rest']} behind a rewind to {then['rest']}")

    def _judge_calls(self, place: str, state: AgentState) -> None:
        """No call without its result, and no result without its call."""
        messages = state.store.section().messages
        made = Counter(made.id for message in messages for made in message.tool_calls or ())
        results = Counter(message.tool_call_id for message in messages if message.role is Role.TOOL)
        self._expect(made == results, "W2", f"at {place}: calls {made - results}, results {results - made} are alone")

    def judge_executions(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """I1, I3, I5: each step was committed once and stays readable, and its effects were made once."""
        first = StepAddress(1, next(iter(self._said_before)))
        behind = self._client.store.sessions.steps_after(self._session, first)
        read = [(str(first.execution_id), 1), *((execution, step.number) for execution, step in behind)]
        committed = [(e.execution_id, e.step) for e in self._events if e.type == "step_committed"]
        self._expect(read == committed, "W5", f"the steps {committed} were committed, and {read} are there")
        for execution in self._said_before:
            steps = [e.step for e in self._events if e.type == "step_committed" and e.execution_id == execution]
            self._expect(steps == list(range(1, len(steps) + 1)), "I1", f"{execution} has committed {steps}")
            mine = [dict(entry) for entry in entries if entry["execution"] == execution]
            if not steps:
                self._expect(not mine, "I5", f"{execution} has no step, and effects {mine}")
                continue
            state = self._client.state(self._session, at=f"{execution}:{len(steps)}")
            judge_effects(self._verdict, Submitted(self._session, execution, ()), state.execution, mine)
            ends = [e for e in self._events if e.execution_id == execution and e.type in _ENDS]
            self._expect(len(ends) == 1, "I8", f"{execution} has ended {len(ends)} times")
            self._verdict.counts.update(e.type for e in ends)

    def judge_forks(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """I5: each fork is there once, with the conversation of its step, and its effects are its own."""
        seen = {line["key"].removeprefix(TARGET_PREFIX): line["state"] for line in self._notes if "state" in line}
        done = {key: self._done.get(key) for key, act in self._acts.items() if act["kind"] == "fork"}
        stored = set(self._client.store.sessions.find_matching(f"{self._session}.", 1000))
        wanted = {made["fork"] for made in done.values() if made is not None}
        self._expect(stored == wanted, "I5", f"there are the forks {stored}, and {wanted} were made")
        for key, made in done.items():
            self._expect(made is not None, "clients", f"{key} was never done")
            if made is not None:
                self._judge_fork(made, seen[made["target"]], [dict(e) for e in entries if e["session"] == made["fork"]])

    def _judge_fork(self, made: Mapping[str, Any], then: Mapping[str, Any], entries: Sequence[dict[str, Any]]) -> None:
        fork, state = made["fork"], self._client.show(made["fork"]).state
        now = facts(state)
        self._expect(self._client.header(fork).forked_from == self._session, "W1", f"{fork} is no fork of it")
        self._expect(now["rest"] == then["rest"], "W1", f"{fork} has {now['rest']} in place of {then['rest']}")
        kept = now["messages"][: len(then["messages"])] if made["goes_on"] else now["messages"]
        self._expect(kept == then["messages"], "W1", f"{fork} does not begin as it was at {made['target']}")
        self._judge_calls(f"the end of {fork}", state)
        self._verdict.counts["forks"] += 1
        if not made["goes_on"]:
            self._expect(state.execution is None and not entries, "I5", f"{fork} waits, and has made {entries}")
            return
        self._verdict.counts["forks_that_went_on"] += 1
        execution = state.execution
        assert execution is not None
        self._expect(state.status is ExecutionStatus.COMPLETED, "I8", f"{fork} is {state.status}")
        own = execution.step_executions[int(made["target"].rpartition(":")[2]) :]
        job = Submitted(fork, execution.execution_id, ())
        judge_effects(self._verdict, job, SimpleNamespace(step_executions=own), entries)

    def judge_reader(self, reader: _Reader) -> None:
        """W6: a reader that comes back with its cursor is told of each rewind, and of everything else, once."""
        stored = [event.id for event in self._events]
        self._expect(reader.snapshots == 0, "W6", f"a reader was given {reader.snapshots} snapshots")
        self._expect(reader.seen == stored, "W6", f"of {len(stored)} events a reader has seen {len(reader.seen)}")
        wanted = Counter({key: 1 for key, act in self._acts.items() if act["kind"] == "rewind"})
        self._expect(reader.rewinds == wanted, "W6", f"a reader was told of {reader.rewinds}")
        self._verdict.counts["returns"] += reader.returns


_ENDS: Final = ("execution_completed", "execution_stopped", "execution_failed")
