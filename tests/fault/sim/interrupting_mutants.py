"""Breakages of messages that interrupt a step. Seeds in which messages do have to find each of them."""

from __future__ import annotations

from typing import Final

from celery_agents.worker.engine import arrivals
from celery_agents.worker.engine.run_values import Progress
from celery_agents.worker.engine.tool_calls import BegunCalls
from celery_agents.worker.state import ExecutionState
from celery_agents.worker.store.database import Command, Reply

from .mutants import Mutant
from .smart_mutants import patched
from .substitutes import NOT_SENT, EditedDatabase, Substitutes, blanked
from support.points import Points

_CLAIMS: Final = frozenset({Points.CLAIM_READ, Points.CLAIM_LOAD, Points.CLAIM_FIRST, Points.CLAIM_BEHIND})


class _HiddenFromCalls(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return blanked(command, reply, "interrupt") if point == Points.JOURNAL_BEGIN else reply


class _HiddenFromClaims(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return blanked(command, reply, "interrupt") if point in _CLAIMS else reply


class _HiddenFromWaits(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return blanked(command, reply, "interrupt") if point == Points.WAIT_READ else reply


class _NeverForgotten(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        return NOT_SENT if command[0] == "HDEL" and "interrupt" in command else command


class _WaitSleepsOn(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        wakes = (
            command[0] == "HSET" and command[2:4] == ("phase", "run") and point in (Points.ACT_PUSH, Points.MODE_EXEC)
        )
        return NOT_SENT if wakes else command


def _when(owner: object, name: str, other: object) -> Substitutes:
    return Substitutes(during=patched(owner, name, other))


def _always(progress: Progress) -> bool:
    """As if whatever interrupts the step had been looked at."""
    del progress
    return True


INTERRUPTING_MUTANTS: Final = (
    Mutant("interrupt_hidden_from_calls", "a call begins behind a message that interrupts", Substitutes(_HiddenFromCalls)),
    Mutant("interrupt_hidden_from_claims", "a claim does not learn that its step is interrupted", Substitutes(_HiddenFromClaims)),
    Mutant("interrupt_hidden_from_waits", "a step that was interrupted waits for an approval", Substitutes(_HiddenFromWaits)),
    Mutant("interrupt_taken_for_known", "a step waits although it was interrupted a moment before", _when(Progress, "is_left_off", property(_always))),
    Mutant("interrupt_never_forgotten", "nothing takes the mark away", Substitutes(_NeverForgotten)),
    Mutant("wait_sleeps_on", "a message that interrupts wakes no wait", Substitutes(_WaitSleepsOn)),
    Mutant("left_off_is_final", "half an answer ends the execution", _when(ExecutionState, "is_interrupted", lambda state: False)),
    Mutant("interrupt_in_order", "a message that interrupts is delivered behind others", _when(arrivals, "in_delivery_order", lambda inbox: inbox)),
    Mutant("calls_go_on", "calls that have not begun begin all the same", _when(BegunCalls, "leave_others_off", lambda calls, run, planned: (run, planned))),
)  # fmt: skip
