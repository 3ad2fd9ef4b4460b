"""A worker's request for a step, and what every way to grant it writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...state import AgentState
from ..cache import CachedSession
from ..context import SessionScope
from ..control import ControlFields
from ..database import Command
from ..event_records import EventType, NewEvent
from ..events import event_commands
from ..journal import Journal
from ..records import Claim, Claimed, LoadedSession, StepRef

_NOTHING_JOURNALED: Final = Journal()


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A worker that wants to run a step.

    Attributes:
        claim_id: Fresh for each attempt; the same when it is asked again after a lost reply.
        alone: Nothing else runs in this process.
    """

    scope: SessionScope
    ref: StepRef
    claim_id: str
    worker: str
    alone: bool

    @property
    def journal(self) -> str:
        """The key of the step's journal."""
        return self.scope.keys.journal(self.ref.execution_id, self.ref.step)

    def begin_execution(self, now_ms: int) -> list[Command]:
        """Commands that the first claim of an execution writes besides the claim."""
        event = NewEvent(
            type=EventType.EXECUTION_STARTED, execution_id=self.ref.execution_id, step=self.ref.step, data={}
        )
        return [
            ("HSET", self.scope.keys.ctl, "started", now_ms),
            ("HSET", self.scope.keys.session, "status", "in_progress"),
            *event_commands(self.scope, [event]),
        ]

    def grant(self, *, attempt: int, now_ms: int) -> Claim:
        """The claim, once it is stored."""
        return Claim(id=self.claim_id, worker=self.worker, ref=self.ref, attempt=attempt, now_ms=now_ms)

    def is_next_in(self, state: AgentState) -> bool:
        """Whether a session's state waits for this step."""
        execution = state.execution
        if execution is None or execution.status.is_terminal():
            return False
        return (execution.execution_id, execution.step_count + 1) == (self.ref.execution_id, self.ref.step)


def make_first_claimed(
    claim: Claim, session: CachedSession, started_ms: int, waiting: int | None = None, followed_until_ms: int = 0
) -> Claimed:
    """The first claim of a step: nothing is journaled, delayed or asked to stop.

    Args:
        started_ms: When the execution was claimed first.
        waiting: Messages in the queue; None: not known.
        followed_until_ms: As in `LoadedSession`.
    """
    loaded = LoadedSession(
        session=session,
        journal=_NOTHING_JOURNALED,
        cancel=None,
        attempts=claim.attempt,
        delays=0,
        delayed_since_ms=0,
        started_ms=started_ms,
        now_ms=claim.now_ms,
        followed_until_ms=followed_until_ms,
    )
    return Claimed(claim, loaded, waiting)


def load_claimed(claim: Claim, session: CachedSession, control: ControlFields, journal: Journal) -> LoadedSession:
    """The session of a claim, as its control fields and its journal were read with it."""
    return LoadedSession(
        session=session,
        journal=journal,
        cancel=control.requested_stop,
        attempts=claim.attempt,
        delays=control.delays,
        delayed_since_ms=control.delayed_ms,
        started_ms=control.started_ms or claim.now_ms,
        now_ms=claim.now_ms,
        legs=control.legs,
        hold=control.hold,
        followed_until_ms=control.followed_until_ms,
    )
