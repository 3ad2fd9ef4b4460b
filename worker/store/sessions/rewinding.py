"""Taking a session of which nothing runs back to an earlier step.

    WATCH session, ctl, inbox · read · check · MULTI the earlier state as the next version · EXEC

Sections that lose messages begin a new generation, and the messages of the old one are kept as old values are: the
states at all steps stay readable. The records of steps that were packed over these messages are written again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ...errors import ActionRefused, IdempotencyMismatch
from ...moments import moment
from ...state.agent_state import AgentState
from .. import fields
from ..context import SessionScope, StorePart
from ..database import Command
from ..event_records import EventType, NewEvent
from ..inbox import new_change_id
from ..keys import fingerprint_field
from ..records import NextState
from .loading import missing_error
from .repacking import write_steps_again
from .watched_sessions import WatchedSession, check_version

_BUSY: Final = ("run", "wait", "parked")


class RewindVerbs(StorePart):
    """Taking sessions back."""

    def find_rewind(self, session_id: str, operation_id: str, asked: str) -> bool:
        """Whether a session was rewound under this operation id, as far as it remembers.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            IdempotencyMismatch: The operation was a rewind to another step.
        """
        read: Command = ("HMGET", self._context.keys(session_id).session, "version", fingerprint_field(operation_id))
        ((version, applied),) = self._context.database.pipeline("rewind.known", [read])
        if version is None:
            raise missing_error(self._context, session_id)
        if applied is not None:
            _check_same(session_id, fields.text(applied), asked)
        return applied is not None

    def rewind(
        self, session_id: str, past: AgentState, asked: str, *, version: int, operation_id: str = "", by: str = ""
    ) -> int:
        """Make an earlier state of a session its next version; its executions, and what they have spent, stay.

        Args:
            past: As `state_at` reads it.
            asked: What the caller has given for its step, by which the same request is known.
            version: The version that the session must have.
            operation_id: The same one again is known, and changes nothing. "": one that only this call sends again.
        Returns:
            The version afterwards.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            SessionConflict: It has another version; nothing was written.
            IdempotencyMismatch: The operation was a rewind to another step.
            ActionRefused: An execution runs or waits or is parked, or the session is a child; nothing was written.
        """
        rewinding = _Rewind(
            scope=self._context.session(session_id),
            past=past,
            asked=asked,
            version=version,
            operation_id=operation_id or new_change_id(),
            by=by,
        )
        return rewinding.scope.act_once(rewinding.run, "be rewound")


@dataclass(slots=True, kw_only=True)
class _Rewind:
    """One rewind and its attempts, told from others by their operation id."""

    scope: SessionScope
    past: AgentState
    asked: str
    version: int
    operation_id: str
    by: str

    @property
    def to(self) -> str:
        """The step, as `<execution>:<step>`."""
        execution = self.past.execution
        assert execution is not None, "it has committed a step"
        return f"{execution.execution_id}:{len(execution.step_executions)}"

    def run(self) -> int:
        """Make one attempt."""
        scope, keys = self.scope, self.scope.keys
        watching = (keys.session, keys.ctl, keys.inbox)
        reads: list[Command] = [
            *WatchedSession.reads(scope),
            ("HGET", keys.session, fingerprint_field(self.operation_id)),
        ]
        with scope.database.watch("rewind.read", watching, reads) as watched:
            *session, applied = watched.replies
            found = WatchedSession.parse(scope, session)
            if self.operation_id in found.bookkeeping.operations:  # its reply was lost, or it is asked for again
                _check_same(scope.session_id, fields.text(applied), self.asked)
                return found.version
            self._check(found)
            before = found.load_state(watched)
            after = before.rewound(self.past, self.to, now=moment(found.now_ms)).following(before)
            next_state = NextState(
                after,
                events=(self._event(before),),
                operations=(self.operation_id,),
                fingerprints={self.operation_id: self.asked},
            )
            save = found.with_old_values(watched).prepare_save(before, next_state)
            again = write_steps_again(found, before, after, watched, "rewind.steps")
            watched.commit("rewind.exec", [*again, *save.commands])
            return save.version

    def _check(self, found: WatchedSession) -> None:
        name, link = self.scope.session_id, found.bookkeeping.link
        check_version(name, found.version, self.version, "rewound")
        if link is not None:
            raise ActionRefused(
                f"session {name} is a child of {link.session_id}, which has its result; rewind the parent"
            )
        if found.control.phase in _BUSY:
            raise ActionRefused(f"an execution of session {name} runs, waits or is parked; stop it, then rewind")

    def _event(self, before: AgentState) -> NewEvent:
        execution = before.execution
        assert execution is not None, "it has committed a step"
        done = len(execution.step_executions)
        data: dict[str, Any] = {
            "to": self.to,
            "from": f"{execution.execution_id}:{done}" if done else None,
            "version": self.version + 1,
            "by": self.by,
        }
        return NewEvent(type=EventType.REWOUND, execution_id=execution.execution_id, step=done, data=data)


def _check_same(session_id: str, applied: str, asked: str) -> None:
    """Compare what was asked for, since a number alone may mean a step of another execution by now."""
    if applied != asked:
        raise IdempotencyMismatch(
            f"session {session_id} was rewound to {applied} under this idempotency key; use another key"
        )
