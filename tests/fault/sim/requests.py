"""Requests, answers, waits and holds as they were written to Redis, and the invariants that can only be seen in passing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from celery_agents.worker.state import AnswerRecord, Request
from celery_agents.worker.state.execution.requests import WhileWaiting
from celery_agents.worker.store.database import Command, Reply

from .inboxes import Inboxes
from .world import World

Place = tuple[str, int, int, int]
"""Execution, step, call index, round."""

# A wake-up that came through is looked at within this time of the last fault: a busy worker ends its step before.
LONGEST_WAKE_MS = 90_000
_FIELD = re.compile(r"t(\d+):([qa])(\d+)")


@dataclass
class Asked:
    """A request as it was journaled."""

    session: str
    place: Place
    request: Request


@dataclass
class Answered:
    """An answer as it was journaled."""

    record: AnswerRecord
    seq: int


class RequestHistory:
    """Everything about waiting that was written, in order."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.asked: dict[Place, Asked] = {}
        self.answered: dict[Place, Answered] = {}
        # Requests of journals that are gone: a retry after that may ask the same again.
        self.past_answers: list[Answered] = []
        self._gone: set[tuple[str, int]] = set()
        self.inboxes = Inboxes()
        self.on_asked: Callable[[Asked], None] = lambda asked: None
        self._owed: dict[str, float] = {}
        self._phases: dict[str, str] = {}
        self._held: set[str] = set()
        self._steps: dict[str, str | None] = {}
        # Answers in order, and how many there were when the wait of a session last read its journal.
        self._answers = 0
        self._read: dict[str, int] = {}
        self._last_answer: dict[str, int] = {}

    # --- the journal ------------------------------------------------------------------------------------------

    def journal(self, session: str, step: tuple[str, int], command: Command, reply: Reply) -> None:
        """One field of a journal was written."""
        match = _FIELD.fullmatch(str(command[2]))
        if match is None or (command[0] == "HSETNX" and not reply):
            return
        if step in self._gone:
            self._begin_anew(step)
        place = (*step, int(match[1]), int(match[3]))
        world, raw = self._world, bytes(command[3])  # type: ignore[arg-type]
        name = f"{step[0]}.{step[1]} call {match[1]} round {match[3]}"
        if match[2] == "q":
            world.expect(place not in self.asked, "I12", f"the request of {name} is opened twice")
            self.asked[place] = asked = Asked(session, place, Request.from_json(raw))
            world.tally.answers[f"asked {asked.request.kind.value}"] += 1
            self.on_asked(asked)
            return
        world.expect(place not in self.answered, "I12", f"the request of {name} is answered twice")
        world.expect(place in self.asked, "I12", f"{name} is answered, and nobody asked")
        self.answered[place] = answered = Answered(AnswerRecord.from_json(raw), world.seq)
        self._check_messages(session, name, self.asked.get(place), answered.record)
        self._answers += 1
        self._last_answer[session] = self._answers
        by = "expired" if answered.record.by_expiry else "answered"
        world.tally.answers[f"{by} {answered.record.verb.value}"] += 1
        if self._phases.get(session) == "wait" and session not in self._held:
            self._owed.setdefault(session, world.now)

    def _check_messages(self, session: str, name: str, asked: Asked | None, record: AnswerRecord) -> None:
        """I12: a message closes what says so and nothing else; nobody answers who has looked, and was shown less."""
        world, inboxes = self._world, self.inboxes
        if record.note.startswith("message "):
            world.tally.answers["closed by a message"] += 1
            may = asked is not None and asked.request.while_waiting is WhileWaiting.WITHDRAW
            world.expect(may, "I12", f"{name} was closed by a message, and is to be held")
            is_there = record.note.removeprefix("message ") in inboxes.messages(session)
            world.expect(is_there, "I12", f"{name} was closed by {record.note}, which does not wait")
        unseen = inboxes.unseen(session, record.operation_id)
        world.expect(not unseen, "I12", f"{name} was answered by somebody who has not seen {unseen}")

    def _check_wait(self, session: str, ctl: Mapping[str, str]) -> None:
        """I13: no session waits for what a message closes beside a message."""
        if ctl.get("phase") != "wait" or ctl.get("cancel") == ctl.get("execution"):
            return
        asked = self.open(session, ctl["execution"], int(ctl["step"]))
        yields = [each.place for each in asked if each.request.while_waiting is WhileWaiting.WITHDRAW]
        waiting = self.inboxes.messages(session) if yields else []
        self._world.expect(not waiting, "I13", f"{session} waits for {yields}, and {waiting} have come")

    def waits(self, session: str) -> None:
        """A step reads, in order to wait."""
        self._read[session] = self._answers

    def forget(self, execution: str, step: int) -> None:
        """A journal is gone. What it said stays known until a retry asks anew."""
        self._gone.add((execution, step))

    def _begin_anew(self, step: tuple[str, int]) -> None:
        self._gone.discard(step)
        for place in [place for place in self.asked if place[:2] == step]:
            del self.asked[place]
            if (answered := self.answered.pop(place, None)) is not None:
                self.past_answers.append(answered)

    def newest(self, execution: str, step: int, index: int) -> tuple[Request, AnswerRecord | None] | None:
        """The newest request of a call, with its answer."""
        rounds = [place for place in self.asked if place[:3] == (execution, step, index)]
        if not rounds:
            return None
        place = max(rounds)
        answered = self.answered.get(place)
        return self.asked[place].request, answered.record if answered is not None else None

    def open(self, session: str, execution: str, step: int) -> list[Asked]:
        """Open requests of the step that a session is at."""
        return [
            asked
            for place, asked in self.asked.items()
            if asked.session == session and place[:2] == (execution, step) and place not in self.answered
        ]

    def all_answers(self) -> list[Answered]:
        """Every answer that was ever journaled."""
        return [*self.answered.values(), *self.past_answers]

    # --- the control fields -----------------------------------------------------------------------------------

    def check_control(self, session: str, ctl: Mapping[str, str], *, is_claimed: bool) -> None:
        """Check the control fields of a session after a transaction that has changed them.

        Args:
            is_claimed: It was a claim.
        """
        world, now = self._world, self._world.now
        phase, before = ctl.get("phase", ""), self._phases.get(session, "")
        self._phases[session] = phase
        self._check_wait(session, ctl)
        is_held = float(ctl.get("held") or 0) > now and ctl.get("cancel") != ctl.get("execution")
        world.expect(phase != "wait" or not ctl.get("claim"), "I13", f"{session} waits and has a claim")
        world.expect(phase != "end" or not ctl.get("held"), "I13", f"the hold of {session} outlives its execution")
        goes_on = ctl.get("claim") and ctl.get("step") != self._steps.get(session, ctl.get("step"))
        world.expect(not (is_held and goes_on and not is_claimed), "I13", f"{session} is held and goes on")
        self._steps[session] = ctl.get("step")
        was_held = session in self._held
        (self._held.add if is_held else self._held.discard)(session)
        if is_claimed:
            world.expect(not is_held, "I13", f"{session} is held and was claimed")
            self._look(session)
        elif phase == "end" or is_held:
            self._owed.pop(session, None)
        elif before == "wait" and (phase == "run" or was_held or ctl.get("cancel") == ctl.get("execution")):
            self._owed.setdefault(session, now)
        if phase == "wait" and before != "wait":
            is_stopped = ctl.get("cancel") == ctl.get("execution")
            if is_stopped or (self._last_answer.get(session, 0) > self._read.get(session, 0) and not is_held):
                self._owed.setdefault(session, now)  # a stop or an answer came that the wait has not seen
            world.tally.answers["waited"] += 1
        if is_claimed and before == "wait":
            world.tally.answers["claimed at its time"] += 1

    def look(self) -> None:
        """Look whether anybody should have claimed a step long ago."""
        for session in list(self._owed):
            if self._waited(session) > LONGEST_WAKE_MS:
                self._look(session)

    def _look(self, session: str) -> None:
        """Somebody has claimed the step, and sees whatever came."""
        if session in self._owed:
            waited = self._waited(session)
            del self._owed[session]
            self._world.expect(
                waited <= LONGEST_WAKE_MS, "I13", f"{session} was woken, and nobody came for {waited / 1000:.0f} s"
            )

    def _waited(self, session: str) -> float:
        """For how long nobody came, since the last fault."""
        world = self._world
        return world.now - max(self._owed[session], min(world.last_fault, world.now))
