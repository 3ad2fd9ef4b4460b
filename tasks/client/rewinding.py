"""The verb of a client that takes a session back to an earlier step."""

from __future__ import annotations

import time
from typing import Final

from pydantic import Field

from ...worker.engine.transitions import stop_transition
from ...worker.errors import InvalidInput, SessionConflict
from ...worker.state.values.ids import read_session_id
from ...worker.store.session_records import Header
from .inputs import check_caller, derive_id, read_address
from .trees import TreeVerbs
from .verbs import BY, Scope, verb

_STOP_SECONDS: Final = 30.0


class RewindingVerbs(TreeVerbs):
    """Takes sessions back."""

    @verb(
        "POST", "/v1/sessions/{session_id}/rewind", "rewind_session", scope=Scope.ADMIN,
        body=("Rewind", "The step to which a session is taken back."),
        http={
            "to": Field(description="A step of the latest execution, from 1; `<execution>:<step>` for an earlier one."),
            "by": BY,
        },
        headers=("expected_version", "idempotency_key"),
        task=("session_id", "to", "idempotency_key", "expected_version", "by"),
    )  # fmt: skip
    def rewind(
        self,
        session_id: str,
        *,
        to: str | int,
        idempotency_key: str | None = None,
        expected_version: int | None = None,
        by: str | None = None,
    ) -> int:
        """Take a session back to what it was when a step was committed: conversation, prompt, metadata, parts, grants.

        The next message goes on from there. What was spent stays, operations that were applied are known, and what
        tools have done is not undone. The last execution cannot be retried any more. The states at all steps stay
        readable, and a fork at one of them reaches what was rewound. An execution that waits is stopped first, with
        its requests.

        Args:
            to: A step of the latest execution, from 1; `"<execution>:<step>"` for one of an earlier execution.
            idempotency_key: The same request with the same key rewinds once, however often it comes.
            expected_version: The version that the session must have. None: any.
            by: Who asks; kept in the event `rewound`.
        Returns:
            The version afterwards.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            InvalidInput: The session has no such step.
            NotKept: What the session was at that step is not kept, or not any more.
            SessionConflict: It has another version; nothing was written.
            IdempotencyMismatch: The key was used for a rewind to another step.
            ActionRefused: An execution runs or is parked, or the session is a child of another one.
            TimeoutError: The execution that waits has not ended yet; it will be stopped all the same.
        """
        check_caller(by)
        session, address = read_session_id(session_id), read_address(to, "to")
        if address is None:
            raise InvalidInput("to", None, "give a step: its number, or <execution>:<number>.")
        operation_id = "" if idempotency_key is None else derive_id(idempotency_key, "rewind")
        while True:
            header, past = self.store.sessions.header(session), self.store.sessions.state_at(session, address)
            assert past.execution is not None
            place = f"{past.execution.execution_id}:{address.number}"
            is_known = bool(operation_id and self.store.sessions.read_joined(session, operation_id))
            version = header.version if expected_version is None else expected_version
            if header.status == "waiting" and version == header.version and not is_known:
                version = self._end_waiting(header, by)
            try:
                return self.store.sessions.rewind(
                    session, past, place, version=version, operation_id=operation_id, by=by or ""
                )
            except SessionConflict:
                if expected_version is not None:
                    raise

    def _end_waiting(self, header: Header, by: str | None) -> int:
        """Stop an execution that waits, with the sessions below it; the version afterwards."""
        session, deadline = header.session_id, time.monotonic() + _STOP_SECONDS
        applied = self.store.sessions.stop(session, header.execution_id, stop_transition, by=by)
        self._publish(applied.publish)
        self._wait_for_ends({session, *self._stop_below(session, by)}, deadline)
        return self.store.sessions.header(session).version
