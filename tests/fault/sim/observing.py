"""What was written to Redis, transaction by transaction: the history that the final state is compared with.

It also mirrors what the scheduler must know (leases, due times, phases) and checks what can only be seen in passing: that
versions follow each other, that no live claim is taken over, that nothing begins after a stop.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from celery_agents.worker.store.database import Command, Reply

from .database import QUEUE, Renewed
from .requests import RequestHistory
from .smart import AuxiliaryHistory
from .world import World
from support.points import Points

PREFIX = "ca:{0}:"
_LEASE = PREFIX + "lease:"


@dataclass
class Taken:
    """A claim as it was written, at a virtual time in milliseconds."""

    session: str
    execution: str
    step: int
    claim: str
    job: str
    read: int
    seq: int
    at: float


@dataclass
class Journaled:
    """A driver's answer as it was journaled first."""

    raw: bytes
    seq: int
    job: str = ""


class History:
    """Everything written, in order."""

    def __init__(self, world: World, publish: Callable[[str, str, int], None]) -> None:
        self._world = world
        self._publish = publish
        self.versions: dict[str, int] = {}
        self.steps: dict[str, list[bytes]] = {}
        # The head that the commit of a step has stored, by session, execution and step.
        self.heads: dict[tuple[str, str, int], bytes] = {}
        self._head = b""
        self.ctl: dict[str, dict[str, str]] = {}
        self.claims: list[Taken] = []
        self.answers: dict[tuple[str, int], Journaled] = {}
        self.begun: dict[tuple[str, int, int, str], int] = {}
        self.stops: dict[str, int] = {}
        self.closed: dict[str, tuple[int, str]] = {}
        # The event streams that a full Redis made shorter.
        self.trimmed: set[str] = set()
        # Sessions that were deleted, and when.
        self.deleted: dict[str, int] = {}
        self.stop_read = 0
        # How often each session was rewound.
        self.rewinds: Counter[str] = Counter()
        # When a message has interrupted a step, from and until.
        self.interrupts: dict[tuple[str, int], list[tuple[int, float]]] = {}
        self._interrupted = ""
        # The limits of steps that were set, by execution: when, and how many.
        self.limits: dict[str, list[tuple[int, int]]] = {}
        self.leases: dict[str, float] = {}
        self.journals: dict[str, float] = {}
        self.due: dict[str, float] = {}
        self.touched: Counter[str] = Counter()
        self.late_writers: dict[str, set[str]] = {}
        self.restored: dict[str, float] = {}
        self.requests = RequestHistory(world)
        self.beside = AuxiliaryHistory()
        # Sessions whose control fields the round trip at hand has changed, and whether it was a claim.
        self._changed: dict[str, bool] = {}

    def observe(self, point: str, commands: Sequence[Command], replies: Sequence[Reply]) -> None:
        """One round trip, as Redis answered it."""
        tally = self._world.tally.answers
        if point == Points.STOP_JOURNAL:
            self.stop_read = self._world.seq
        if point == Points.CLAIM_READ and self._world.current is not None:  # the last one counts, after lost races
            self._world.current.facts["read"] = self._world.seq
        if point == Points.WAIT_READ and commands[0][0] != "UNWATCH":
            self.requests.waits(str(commands[0][1]).removeprefix(PREFIX + "s:").split(":")[0])
        if commands[0][0] == "MULTI":
            applied = replies[-1]
            if not isinstance(applied, list):
                tally[f"{point} aborted" if applied is None else f"{point} refused"] += 1
                return
            commands, replies = commands[1:-1], applied
        for command, reply in zip(commands, replies, strict=False):
            if isinstance(reply, Exception):
                continue
            name = command[0]
            if name == "EXISTS" and isinstance(command[1], Renewed) and reply:
                self.leases[str(command[1])] = self._world.now + command[1].lease_ms
            if name in (
                "HMGET",
                "ECHO",
                "LRANGE",
                "WATCH",
                "XADD",
                "HGETALL",
                "EXISTS",
                "HGET",
                "UNWATCH",
                "SCRIPT",
                "HINCRBY",
            ):
                continue
            self._written(point, str(name), command, reply)
        for session, is_claimed in self._changed.items():
            self.requests.check_control(session, self.ctl[session], is_claimed=is_claimed)
            self._check_wait(point, session)
            self._interrupted = ""
        self._changed.clear()

    def _written(self, point: str, name: str, command: Command, reply: Reply) -> None:
        key = str(command[1])
        if name == "EVALSHA":
            if point == Points.JOURNAL_FULL:
                self._by_script(command, reply)
            return
        if key == QUEUE:
            session, execution, step = str(command[2]).split(" ")
            self._publish(session, execution, int(step))
            return
        if key.startswith(_LEASE):
            self._lease(name, key, command, reply)
            return
        rest = key[len(PREFIX) :]
        if rest == "due":
            self._due(name, command)
        elif rest.startswith("s:"):
            self._session(point, name, rest[2:].split(":"), command, reply)

    def _lease(self, name: str, key: str, command: Command, reply: Reply) -> None:
        if name == "SET" and reply is not None:
            self.leases[key] = float(command[2])
        elif name == "DEL":
            self.leases.pop(key, None)

    def _due(self, name: str, command: Command) -> None:
        if name == "ZREM":
            self.due.pop(str(command[2]), None)
        elif command[2] == "XX":
            if str(command[4]) in self.due:
                self.due[str(command[4])] = float(command[3])
        else:
            self.due[str(command[3])] = float(command[2])

    def _session(self, point: str, name: str, parts: list[str], command: Command, reply: Reply) -> None:
        world = self._world
        session = parts[0]
        kind = parts[1] if len(parts) > 1 else ""
        if point in (Points.DELETE_EXEC, Points.DELETE_FULL):
            self._deletion(session, name)
        elif name == "HSET" and not kind:
            fields = dict(zip(command[2::2], command[3::2], strict=True))
            version = fields.get("version")
            if version is not None:
                before = self.versions.get(session, 0)
                world.expect(version == before + 1, "I1", f"{point}: version {version} follows {before} in {session}")
                self.versions[session] = int(version)
                self._head = bytes(fields["head"])  # type: ignore[arg-type]
                self.rewinds[session] += point == Points.REWIND_EXEC
        elif name == "HSET" and kind == "ctl":
            self._control(point, session, {str(f): str(v) for f, v in zip(command[2::2], command[3::2], strict=True)})
        elif name == "HDEL" and kind == "ctl":
            for word in command[2:]:
                gone = self.ctl[session].pop(str(word), None)
                if word == "interrupt" and gone:
                    self._interrupted_until(gone)
            self._changed.setdefault(session, False)
        elif name in ("DEL", "RPUSH") and kind == "x" and point == Points.REWIND_EXEC:
            self._steps_written_again(name, parts[2], command)
        elif name == "RPUSH" and kind == "x":
            for item in command[2:]:
                self.steps.setdefault(parts[2], []).append(bytes(item))  # type: ignore[arg-type]
                self.beside.committed[parts[2], len(self.steps[parts[2]])] = world.seq
                self.heads[session, parts[2], len(self.steps[parts[2]])] = self._head
        elif name == "DEL" and kind == "x":
            world.expect(not self.steps.get(parts[2]), "I1", f"{point} deletes the committed steps of {parts[2]}")
        elif kind == "inbox":
            self.requests.inboxes.written(session, name, command)
        elif kind == "j":
            self._journal(point, name, parts[2], int(parts[3]), command, reply)
            if name in ("HSET", "HSETNX"):
                self.requests.journal(session, (parts[2], int(parts[3])), command, reply)

    def _steps_written_again(self, name: str, execution: str, command: Command) -> None:
        """A rewind writes steps anew whose messages go: all of them."""
        if name == "RPUSH":
            written = [bytes(item) for item in command[2:]]  # type: ignore[arg-type]
            is_whole = len(written) == len(self.steps[execution])
            self._world.expect(is_whole, "I1", f"a rewind writes {len(written)} steps of {execution}")
            self.steps[execution] = written

    def _deletion(self, session: str, name: str) -> None:
        """The first command of a deletion removes the fields of the session's hash."""
        if name != "HDEL" or session in self.deleted:
            return
        ctl = self.ctl[session]
        is_over = ctl["phase"] in ("end", "parked")
        self._world.expect(is_over, "I16", f"{session} is deleted in phase {ctl['phase']}")
        self.deleted[session] = self._world.seq
        self.due.pop(session, None)

    def _control(self, point: str, session: str, fields: dict[str, str]) -> None:
        world = self._world
        self.touched[session] += 1
        self._changed.setdefault(session, False)
        ctl = self.ctl.setdefault(session, {})
        claim, before = fields.get("claim"), ctl.get("claim", "")
        if claim and before and claim != before:
            alive = self.leases.get(_LEASE + before, 0) > world.now
            world.expect(not alive, "lease", f"{point}: the claim {before[:6]} was taken over while its lease lived")
        if ctl and (fields.get("phase") == "end" or fields.get("execution", ctl["execution"]) != ctl["execution"]):
            self.closed.setdefault(ctl["execution"], self._last_look(point, ctl.get("claim", "")))
        if point == Points.BUDGET_EXEC and "budget" in fields:
            execution, _, budget = fields["budget"].partition(" ")
            self.limits.setdefault(execution, []).append((world.seq, json.loads(budget)["max_steps"]))
        if fields.get("interrupt"):
            self._interrupted = session
        if fields.get("interrupt") and fields["interrupt"] != ctl.get("interrupt"):
            execution, _, step = fields["interrupt"].partition(" ")
            world.tally.answers["interrupted a wait"] += ctl["phase"] == "wait"
            self.interrupts.setdefault((execution, int(step)), []).append((world.seq, float("inf")))
        if point == Points.STOP_EXEC:
            self.stops.setdefault(ctl["execution"], world.seq)
        ctl.update(fields)
        if claim and point in (
            Points.CLAIM_EXEC,
            Points.CLAIM_ATTEMPT,
            Points.CLAIM_BEHIND,
            Points.CLAIM_NEW,
            Points.CLAIM_FIRST,
        ):
            self._taken(session, ctl, claim)
            self._changed[session] = True
        if point == Points.RESTORE_EXEC and world.current is not None:
            self.restored[world.current.facts.get("job", "")] = world.now
        if fields.get("cancel") and fields["cancel"] == ctl["execution"]:  # and not the mark of a hold
            self.stops.setdefault(fields["cancel"], world.seq)
        if point == Points.RETRY_EXEC:
            self.stops.pop(ctl["execution"], None)
            self.closed.pop(ctl["execution"], None)

    def _interrupted_until(self, field: str) -> None:
        """A message interrupts a step no longer."""
        execution, _, step = field.partition(" ")
        spans = self.interrupts[execution, int(step)]
        spans[-1] = (spans[-1][0], self._world.seq)

    def _check_wait(self, point: str, session: str) -> None:
        """A message that interrupts a wait wakes it; a step that waits on is left with calls that have begun."""
        ctl = self.ctl[session]
        execution, step = ctl["execution"], int(ctl["step"])
        if ctl.get("interrupt") != f"{execution} {step}" or ctl["phase"] != "wait" or float(ctl.get("held") or 0):
            return
        tally = self._world.tally.answers
        if self._interrupted == session:
            self._world.expect(False, "N6", f"{session} sleeps on behind a message that interrupts it")
        elif point == Points.WAIT_EXEC:
            tally["waited interrupted"] += 1
            for asked in self.requests.open(session, execution, step):
                has_begun = asked.request.has_begun or any(key[:3] == asked.place[:3] for key in self.begun)
                self._world.expect(has_begun, "N6", f"{session} waits for {asked.place}, which nothing has begun")

    def _last_look(self, point: str, claim: str) -> tuple[int, str]:
        """When whoever ended an execution had last looked into its journal, and who that was."""
        if point == Points.STOP_EXEC:
            return self.stop_read, ""
        taken = next((each for each in reversed(self.claims) if each.claim == claim), None)
        return (taken.read, taken.job) if taken is not None else (self._world.seq, "")

    def _taken(self, session: str, ctl: dict[str, str], claim: str) -> None:
        actor = self._world.current
        job = actor.facts.get("job", "") if actor is not None else ""
        read = actor.facts.get("read", 0) if actor is not None else 0
        self.claims.append(
            Taken(session, ctl["execution"], int(ctl["step"]), claim, job, read, self._world.seq, self._world.now)
        )

    def _journal(self, point: str, name: str, execution: str, step: int, command: Command, reply: Reply) -> None:
        key = str(command[1])
        if name == "PEXPIRE" and reply:
            self.journals[key] = self._world.now + float(command[2])
            self.beside.ends_at(execution, step, self.journals[key])
        elif name == "PERSIST":
            self.journals.pop(key, None)
            if reply:
                self.beside.ends_at(execution, step, float("inf"))
        elif name in ("DEL", "UNLINK"):
            self.beside.gone(execution, step, self._world.now)
        if name not in ("HSET", "HSETNX", "HDEL"):
            return
        actor = self._world.current
        job = actor.facts.get("job", "") if actor is not None else ""
        word = str(command[2])
        if step <= len(self.steps.get(execution, ())) or execution in self.closed:
            self.late_writers.setdefault(key, set()).add(job)
        if name == "HDEL":
            if word == "llm":
                self.answers.pop((execution, step), None)
        elif word == "llm":
            is_past = step <= len(self.steps.get(execution, ()))
            if (reply or name == "HSET") and not is_past:
                self.answers[execution, step] = Journaled(bytes(command[3]), self._world.seq, job)  # type: ignore[arg-type]
        elif word.startswith("x:"):
            if reply:
                self.beside.add((execution, step, word[2:]), bytes(command[3]), self._world.seq, job)  # type: ignore[arg-type]
        elif word.endswith(":s") and (reply or name == "HSET"):
            self.begun[execution, step, int(word[1:-2]), job] = self._world.seq

    def _by_script(self, command: Command, reply: Reply) -> None:
        """Redis was full, and the script has written: EVALSHA sha 2 journal events field value …"""
        self.trimmed.add(str(command[4]))
        *_, execution, step = str(command[3]).split(":")
        for field, value, first in zip(command[5::2], command[6::2], reply, strict=True):
            written: Command = ("HSETNX", command[3], field, value)
            self._journal(Points.JOURNAL_FULL, "HSETNX", execution, int(step), written, first)

    def phase(self, session: str) -> str:
        """run, end, wait or parked; "" before it exists."""
        return self.ctl.get(session, {}).get("phase", "")
