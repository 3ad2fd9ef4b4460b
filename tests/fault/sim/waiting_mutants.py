"""Breakages of waiting. The simulation of sessions that ask has to find each of them.

python -m fault.sim.mutants --waiting                # all
python -m fault.sim.mutants --waiting wake_forgotten # one
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Final

from celery_agents.worker.state import AnswerRecord, AnswerVerb, Request
from celery_agents.worker.state.execution.requests import WhileWaiting
from celery_agents.worker.store import Claim, Claimed, ClaimResult, OpenedRequests, StepRef
from celery_agents.worker.store.database import Command, Reply
from celery_agents.worker.store.requests import yielding
from celery_agents.worker.store.requests.later import LaterMessages

from .database import QUEUE
from .mutants import Mutant, with_journal
from .process import SimSteps
from .sessions import here
from .smart_mutants import patched
from .substitutes import NOT_SENT, EditedDatabase, Substitutes, blanked
from support.points import Points

_OPERATION: Final = re.compile(rb'"operation_id":"[^"]*"')
_CLAIMS: Final = (Points.CLAIM_READ, Points.CLAIM_EXEC)


def _is_answer(field: bytes) -> bool:
    return re.fullmatch(rb"t\d+:a\d+", field) is not None


def _edited(reply: Reply, edit: Callable[[bytes, bytes], bytes | None]) -> Reply:
    """The reply to an HGETALL with other values; None leaves a field out."""
    if not isinstance(reply, list):
        return reply
    pairs = [(field, edit(field, value)) for field, value in zip(reply[::2], reply[1::2], strict=True)]
    return [word for field, value in pairs if value is not None for word in (field, value)]


def _without_answers(reply: Reply) -> Reply:
    return _edited(reply, lambda field, value: None if _is_answer(field) else value)


def _is_wake(command: Command) -> bool:
    """Whether a command is part of a wake."""
    if command[0] == "HSET":
        return _sets_phase(command)
    return command[:2] == ("RPUSH", QUEUE) or _moves_due(command)


def _moves_due(command: Command) -> bool:
    return command[0] == "ZADD" and str(command[1]).endswith(":due")


class _NotWatched(EditedDatabase):
    points: tuple[str, ...] = ()
    part = ""

    def keys(self, point: str, keys: Sequence[str]) -> Sequence[str]:
        if point not in self.points:
            return keys
        # Another key in its place, for nothing else may change.
        return [f"{key}:not watched" if self.part in key else key for key in keys]


class _WaitIgnoresJournal(_NotWatched):
    points, part = (Points.WAIT_READ,), ":j:"


class _AnswerIgnoresControl(_NotWatched):
    points, part = (Points.ANSWER_READ,), ":ctl"


class _WithoutCommands(EditedDatabase):
    """Leaves out, at some points, the commands that `left_out` tells."""

    points: tuple[str, ...] = ()
    left_out: Callable[[Command], bool]

    def command(self, point: str, command: Command) -> Command | None:
        return NOT_SENT if point in self.points and self.left_out(command) else command


def _sets_phase(command: Command) -> bool:
    return command[0] == "HSET" and command[2:4] == ("phase", "run")


class _NobodyWoken(_WithoutCommands):
    points, left_out = (Points.ANSWER_EXEC,), staticmethod(_is_wake)


class _WokenAndNotDue(_WithoutCommands):
    points, left_out = (Points.ANSWER_EXEC,), staticmethod(_moves_due)


class _ResumedAndNotWoken(_WithoutCommands):
    points, left_out = (Points.RESUME_EXEC,), staticmethod(_is_wake)


class _StoppedAndWaiting(_WithoutCommands):
    points, left_out = (Points.STOP_ASK,), staticmethod(_sets_phase)


class _ClaimedAndWaiting(_WithoutCommands):
    points, left_out = (Points.CLAIM_EXEC,), staticmethod(_sets_phase)


class _BeginRecordKept(_WithoutCommands):
    points, left_out = (Points.REQUEST_OPEN,), staticmethod(lambda command: command[0] == "HDEL")


class _HoldKept(_WithoutCommands):
    points = (Points.COMMIT_EXEC, Points.COMMIT_ATTEMPT, Points.STOP_EXEC)
    left_out = staticmethod(lambda command: command[0] == "HDEL" and "held" in command)


class _RequestsStayListed(_WithoutCommands):
    points = (Points.ANSWER_EXEC, Points.REQUEST_CLOSE, Points.COMMIT_EXEC, Points.COMMIT_ATTEMPT)
    left_out = staticmethod(lambda command: command[0] == "ZREM" and str(command[1]).endswith(":requests"))


class _NotDueWhileWaiting(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        if point != Points.WAIT_EXEC or not _moves_due(command):
            return command
        return ("ZREM", command[1], command[-1])


class _ExpiryOverwrites(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return _without_answers(reply) if point == Points.REQUEST_LOOK and command[0] == "HGETALL" else reply

    def command(self, point: str, command: Command) -> Command | None:
        is_one = point == Points.REQUEST_CLOSE and command[0] == "HSETNX"
        return ("HSET", *command[1:]) if is_one else command


class _SecondDecision(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return _without_answers(reply) if point == Points.ANSWER_JOURNAL else reply

    def command(self, point: str, command: Command) -> Command | None:
        is_one = point == Points.ANSWER_EXEC and command[0] == "HSETNX"
        return ("HSET", *command[1:]) if is_one else command


class _AnswerNotRecognised(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        if point != Points.ANSWER_JOURNAL:
            return reply
        return _edited(reply, lambda _field, value: _OPERATION.sub(b'"operation_id":""', value))


class _HoldHidden(EditedDatabase):
    points: tuple[str, ...] = ()

    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return blanked(command, reply, "held") if point in self.points else reply


class _ClaimIgnoresHold(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        is_control = command[0] == "HMGET" and "held" in command and isinstance(reply, list)
        if point not in _CLAIMS or not is_control:
            return reply
        until = reply[command[2:].index("held")]
        # At the end of a hold the claim is right.
        return blanked(command, reply, "held") if until and int(until) > here().world.now else reply


class _CommitIgnoresHold(_HoldHidden):
    points = (Points.COMMIT_READ,)


class _StopHiddenFromClaims(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        is_held = command[0] == "HMGET" and "held" in command and isinstance(reply, list)
        if point not in _CLAIMS or not is_held or not reply[command[2:].index("held")]:
            return reply
        return blanked(command, reply, "cancel")


class _StopHiddenFromWaits(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return blanked(command, reply, "cancel") if point == Points.WAIT_READ else reply


class _StopHiddenFromHolds(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return blanked(command, reply, "cancel") if point == Points.SUSPEND_READ else reply


class _EditsForgotten(SimSteps):
    def claim(self, ref: StepRef, claim_id: str, worker: str, *, alone: bool) -> ClaimResult:
        answer = super().claim(ref, claim_id, worker, alone=alone)
        if not isinstance(answer, Claimed):
            return answer
        answers = answer.loaded.journal.answers
        return with_journal(answer, answers={place: _as_asked(record) for place, record in answers.items()})


def _as_asked(record: AnswerRecord) -> AnswerRecord:
    """An approval without the arguments that it brought."""
    return AnswerRecord(**{**record.__dict__, "value": None}) if record.verb is AnswerVerb.APPROVE else record


class _ModelAskedAgain(SimSteps):
    """A woken leg asks the model again."""

    def claim(self, ref: StepRef, claim_id: str, worker: str, *, alone: bool) -> ClaimResult:
        answer = super().claim(ref, claim_id, worker, alone=alone)
        if not isinstance(answer, Claimed) or not answer.loaded.legs:
            return answer
        return with_journal(answer, answer=None)


class _ResultLaterForgotten(SimSteps):
    """A call whose result comes later asks like one that was never started."""

    def open_requests(
        self, claim: Claim, requests: Sequence[Request], *, begins: Mapping[int, int] | None = None
    ) -> OpenedRequests:
        plain = [Request(**{**each.__dict__, "options": None}) if each.has_begun else each for each in requests]
        return super().open_requests(claim, plain, begins=begins)


class _YieldsHidden(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return blanked(command, reply, "yields") if point in (Points.ACT_READ, Points.MODE_READ) else reply


class _InboxHiddenFromWaits(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return [] if point == Points.WAIT_READ and command[0] == "LRANGE" else reply


class _NobodyWokenByMessages(_WithoutCommands):
    points, left_out = (Points.ACT_PUSH, Points.MODE_EXEC), staticmethod(_is_wake)


WAITING_MUTANTS: Final = (
    Mutant("wait_ignores_journal", "the wait does not watch the journal", Substitutes(_WaitIgnoresJournal), 582),
    Mutant("wait_ignores_stop", "the wait does not look for a stop", Substitutes(_StopHiddenFromWaits), 148),
    Mutant("wait_not_due", "a session that waits leaves the due index", Substitutes(_NotDueWhileWaiting), 18),
    Mutant(
        "answer_ignores_control", "an answer does not watch the control fields", Substitutes(_AnswerIgnoresControl), 328
    ),
    Mutant("answer_not_recognised", "an answer sent again is not recognised", Substitutes(_AnswerNotRecognised)),
    Mutant("second_decision", "a second decision replaces the first", Substitutes(_SecondDecision)),
    Mutant("wake_forgotten", "an answer wakes nobody", Substitutes(_NobodyWoken), 9),
    Mutant("wake_not_due", "a wake leaves the due entry as it was", Substitutes(_WokenAndNotDue), 10),
    Mutant("expiry_overwrites", "an expiry replaces an answer that came before it", Substitutes(_ExpiryOverwrites), 89),
    Mutant("claim_leaves_wait", "a claim leaves phase wait", Substitutes(_ClaimedAndWaiting), 5),
    Mutant("stop_leaves_wait", "a stop leaves phase wait", Substitutes(_StoppedAndWaiting), 72),
    Mutant("claim_ignores_hold", "a held session is claimed", Substitutes(_ClaimIgnoresHold), 6),
    Mutant("commit_ignores_hold", "a commit keeps its claim on a held session", Substitutes(_CommitIgnoresHold), 2),
    Mutant(
        "hold_refuses_stop", "a held session refuses the claim after a stop", Substitutes(_StopHiddenFromClaims), 52
    ),
    Mutant(
        "hold_replaces_stop", "a session that is being stopped is suspended", Substitutes(_StopHiddenFromHolds), 184
    ),
    Mutant("hold_outlives_end", "an execution that ends keeps the hold", Substitutes(_HoldKept), 2),
    Mutant("resume_does_not_wake", "resume leaves a waiting session waiting", Substitutes(_ResumedAndNotWoken), 87),
    Mutant("begin_record_kept", "a tool that asked counts as begun", Substitutes(_BeginRecordKept), 7),
    Mutant("requests_stay_listed", "a request stays listed after its step", Substitutes(_RequestsStayListed)),
    Mutant(
        "edits_forgotten", "an approved call runs with the arguments as asked", Substitutes(steps=_EditsForgotten), 15
    ),
    Mutant(
        "result_later_forgotten",
        "a call that went on elsewhere counts as not run",
        Substitutes(steps=_ResultLaterForgotten),
        67,
    ),
    Mutant("model_asked_again", "a woken leg asks the model again", Substitutes(steps=_ModelAskedAgain)),
    Mutant("yields_hidden", "a message leaves a request open whose place it takes", Substitutes(_YieldsHidden)),
    Mutant("wait_ignores_messages", "a step waits beside a message", Substitutes(_InboxHiddenFromWaits)),
    Mutant(
        "messages_close_others",
        "a message closes requests that are to be held",
        Substitutes(during=patched(yielding, "WhileWaiting", SimpleNamespace(WITHDRAW=WhileWaiting.HOLD))),
    ),
    Mutant("message_wakes_nobody", "a message closes a request, and wakes nobody", Substitutes(_NobodyWokenByMessages)),
    Mutant(
        "seen_not_compared",
        "an answer is not compared with the newest message",
        Substitutes(during=patched(LaterMessages, "check", lambda later, session, seen: None)),
        201,
    ),
)
