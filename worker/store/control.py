"""The control fields of a session: which step is due, who has claimed it, and what holds it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from . import fields
from .database import Command, Reply
from .keys import SessionKeys
from .records import StepRef

_FIELDS: Final = (
    "execution",
    "step",
    "claim",
    "phase",
    "attempts",
    "delays",
    "delayed",
    "not_before",
    "cancel",
    "started",
)
UNCLAIMED: Final = {"claim": "", "phase": "run", "attempts": 0, "delays": 0, "not_before": 0, "cancel": ""}
"""The control fields of a step that nobody has begun, besides execution and step."""


@dataclass(frozen=True, slots=True)
class ControlFields:
    """The control hash of a session; an empty `execution` where there is no session.

    Attributes:
        phase: "run", "wait", "end" or "parked".
        attempts: Claims of the step so far.
        delays: How often the step was delayed; `delayed_ms` says since when (Redis ms, 0 never).
        cancel: The execution that somebody asked to stop.
        started_ms: When the execution was claimed first; 0 never.
    """

    execution: str
    step: int
    claim: str
    phase: str
    attempts: int
    delays: int
    delayed_ms: int
    not_before_ms: int
    cancel: str
    started_ms: int

    @classmethod
    def read(cls, reply: Reply) -> ControlFields:
        """Parse the reply to `control_command`."""
        execution, step, claim, phase, attempts, delays, delayed, not_before, cancel, started = reply
        return cls(
            execution=fields.text(execution),
            step=fields.number(step),
            claim=fields.text(claim),
            phase=fields.text(phase),
            attempts=fields.number(attempts),
            delays=fields.number(delays),
            delayed_ms=fields.milliseconds(delayed),
            not_before_ms=fields.milliseconds(not_before),
            cancel=fields.text(cancel),
            started_ms=fields.milliseconds(started),
        )

    @property
    def requested_stop(self) -> str | None:
        """The execution, when somebody asked it to stop."""
        return self.cancel if self.cancel and self.cancel == self.execution else None

    def is_at(self, ref: StepRef) -> bool:
        """Whether this step is the next one."""
        return (self.execution, self.step) == (ref.execution_id, ref.step)

    def is_claimed_by(self, claim_id: str, ref: StepRef) -> bool:
        """Whether this claim of this step stands."""
        return self.claim == claim_id and self.is_at(ref)


def control_command(keys: SessionKeys) -> Command:
    """The command whose reply `ControlFields.read` takes."""
    return ("HMGET", keys.ctl, *_FIELDS)
