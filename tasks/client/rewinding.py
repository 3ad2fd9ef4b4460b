"""The verb of a client that takes a session back to an earlier step."""

from __future__ import annotations

import time
from typing import Final

from pydantic import Field

from ...worker.engine.transitions import stop_transition
from ...worker.errors import InvalidInput, NotKept, SessionConflict
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
            header = self.store.sessions.header(session)
            # Asked behind the header: what waits there has not begun behind a rewind that this request has made before.
            if self._has_rewound(session, operation_id, str(address)):
                return self.store.sessions.header(session).version
            try:
                past = self.store.sessions.state_at(session, address)
                version = header.version if expected_version is None else expected_version
                if header.status == "waiting" and version == header.version:
                    version = self._end_waiting(header, by)
                return self.store.sessions.rewind(
                    session, past, str(address), version=version, operation_id=operation_id, by=by or ""
                )
            except SessionConflict:
                if expected_version is not None:
                    raise
            except (InvalidInput, NotKept):
                # The same request has rewound meanwhile, and a message has begun an execution without such a step.
                if not self._has_rewound(session, operation_id, str(address)):
                    raise

    def _has_rewound(self, session: str, operation_id: str, asked: str) -> bool:
        """Whether the same request has rewound the session before; without an operation id, none is the same."""
        return bool(operation_id) and self.store.sessions.find_rewind(session, operation_id, asked)

    def _end_waiting(self, header: Header, by: str | None) -> int:
        """Stop an execution that waits, with the sessions below it; the version afterwards."""
        session, deadline = header.session_id, time.monotonic() + _STOP_SECONDS
        applied = self.store.sessions.stop(session, header.execution_id, stop_transition, by=by)
        self._publish(applied.publish)
        self._wait_for_ends({session, *self._stop_below(session, by)}, deadline)
        ended = self.store.sessions.header(session)
        if ended.execution_id != header.execution_id:
            raise SessionConflict(
                f"another execution of session {session} has run since the one that waited was stopped; look at it "
                "again before it is rewound",
                expected=header.version,
                stored=ended.version,
            )
        return ended.version
