"""A session as a transaction reads it under WATCH, before it decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import SessionConflict, StateUnreadable, VersionConflict
from ...state.agent_state import AgentState
from ...state.execution.execution import ExecutionState
from .. import fields
from ..bookkeeping import BOOKKEEPING, Bookkeeping
from ..cache import CachedSession
from ..context import SessionScope
from ..control import ControlFields, control_command
from ..database import Changed, Command, Reply, WatchedTransaction
from ..past import is_over
from ..records import Claim, NextState, StepRef, claim_lost
from . import loading
from .loading import missing_error
from .saving import Save, SessionSave


@dataclass(frozen=True, slots=True)
class WatchedSession:
    """A session under WATCH, without its state, as stored at one moment.

    Attributes:
        version: 0 where there is no such session.
        last: The mark of the step that was committed, or has begun to wait, last.
        now_ms: Redis time of the moment.
        old_values: The old values as stored, where the next save has to drop the oldest; see `with_old_values`.
    """

    scope: SessionScope
    version: int
    last: str
    bookkeeping: Bookkeeping
    control: ControlFields
    now_ms: int
    old_values: Sequence[bytes] | None = None

    @staticmethod
    def reads(scope: SessionScope) -> list[Command]:
        """Three commands whose replies `parse` takes."""
        return [
            ("HMGET", scope.keys.session, "version", "last", *BOOKKEEPING),
            control_command(scope.keys),
            scope.clock.now(),
        ]

    @classmethod
    def parse(cls, scope: SessionScope, replies: Sequence[Reply]) -> WatchedSession:
        """Parse the replies to `reads`.

        Raises:
            SessionNotFound: There is no such session, or it has expired; `SessionDeleted` where it was deleted.
        """
        found = cls.parse_if_there(scope, replies)
        if not found.version:
            raise missing_error(scope.context, scope.session_id)
        return found

    @classmethod
    def parse_if_there(cls, scope: SessionScope, replies: Sequence[Reply]) -> WatchedSession:
        """Parse the replies to `reads`, for a step whose claim is checked next: a session that is gone has none."""
        (version, last, *bookkeeping), control, now = replies
        return cls(
            scope=scope,
            version=fields.number(version),
            last=fields.text(last),
            bookkeeping=Bookkeeping.read(*bookkeeping),
            control=ControlFields.read(control),
            now_ms=scope.clock.milliseconds(now),
        )

    @property
    def step(self) -> StepRef:
        """The step that the session waits for."""
        return self.control.ref(self.scope.session_id)

    @property
    def journal(self) -> str:
        """The key of that step's journal."""
        return self.scope.keys.journal(self.control.execution, self.control.step)

    def check_claim(self, claim: Claim, version: int) -> None:
        """Check that a claim is there, and that the session was not saved since the step has loaded it.

        Raises:
            ClaimLost: The session was claimed by another worker, or is gone.
            VersionConflict: It has another version.
        """
        if not self.control.is_claimed_by(claim.id, claim.ref):
            raise claim_lost(claim)
        if self.version != version:
            raise VersionConflict(f"session {claim.ref.session_id} is at version {self.version}, not {version}")

    def prepare_save(self, before: AgentState, next_state: NextState, **facts: Any) -> Save:
        """Make the commands that save the session's next version; `facts` are further fields of `SessionSave`."""
        return SessionSave(
            scope=self.scope,
            before=before,
            next_state=next_state,
            bookkeeping=self.bookkeeping,
            version=self.version + 1,
            now_ms=self.now_ms,
            queue=self.control.queue,
            lane=self.control.lane,
            old_values=self.old_values,
            **facts,
        ).prepare()

    def with_old_values(self, watched: WatchedTransaction) -> WatchedSession:
        """The same with the old values, where a save has to drop the oldest of them; usually unchanged."""
        if not is_over(self.bookkeeping.past, self.scope.settings.history_bytes):
            return self
        (stored,) = watched.pipeline("past.read", [("HGETALL", self.scope.keys.old_values)])
        return replace(self, old_values=stored)

    def load_state(self, watched: WatchedTransaction) -> AgentState:
        """Load the state that belongs to this version; see `load_session`."""
        return self.load_session(watched).state

    def load_session(self, watched: WatchedTransaction) -> CachedSession:
        """Load the session at this version.

        Raises:
            Changed: The session has been saved since.
            StateUnreadable: It cannot be read.
        """
        scope, control = self.scope, self.control
        cached = scope.cache.get(scope.session_id)
        replies = watched.pipeline("act.load", loading.reads(scope, control.execution, cached))
        loaded = loading.finish(scope, control.execution, cached, watched, replies)
        if loaded.version != self.version:
            raise Changed
        self.check_execution(loaded.state)
        return loaded

    def check_execution(self, state: AgentState) -> ExecutionState | None:
        """The execution of the session's state, which has to be the one that the control fields name.

        Raises:
            StateUnreadable: A step of another execution is due.
        """
        execution, control = state.execution, self.control
        if control.phase == "run" and (execution is None or execution.execution_id != control.execution):
            raise StateUnreadable("head", "it tells of another execution than the control fields")
        return execution


def check_version(session_id: str, stored: int, wanted: int | None, purpose: str) -> None:
    """Refuse a request that names another version than the stored one; None names none.

    Args:
        purpose: What is asked for, as in "before it is deleted".

    Raises:
        SessionConflict: It names another one.
    """
    if wanted is not None and wanted != stored:
        raise SessionConflict(
            f"session {session_id} is at version {stored}, and the request names version {wanted}; look at it again "
            f"before it is {purpose}",
            expected=wanted,
            stored=stored,
        )
