"""The verbs of a client on whole sessions: fork, clear, and the store of the session runtime."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...worker.errors import SessionConflict, SessionNotFound
from ...worker.state.values.ids import ChildSessionId, read_session_id
from .connection import ClientConnection
from .inputs import derive_id
from .verbs import Scope, verb

if TYPE_CHECKING:
    from ...worker.session.redis_store import RedisSessionStore


class WholeSessionVerbs(ClientConnection):
    """Forks and clears sessions, and lends them to the session runtime."""

    def session_store(self) -> RedisSessionStore:
        """The sessions of the workers as a store of the session runtime; it uses this client's connections."""
        from ...worker.session.redis_store import RedisSessionStore

        return RedisSessionStore(self.store, self._publish)

    @verb(
        "POST", "/v1/sessions/{session_id}/fork", "fork_session", scope=Scope.ADMIN,
        headers=("expected_version", "idempotency_key"), task=("session_id", "idempotency_key", "expected_version"),
    )  # fmt: skip
    def fork(
        self, session_id: str, *, idempotency_key: str | None = None, expected_version: int | None = None
    ) -> ChildSessionId:
        """Copy a session as it stands after its last commit; the original goes on, and nothing of it changes.

        The fork has the messages, the metadata, the parts and the definition, and no execution: send it a message.
        Keyed effects happen again in it. It belongs to no tree, and is not deleted with its source.

        Args:
            idempotency_key: The same key makes one fork of this session, however often it is asked for.
            expected_version: The version that the session must have. None: any.
        Returns:
            The id of the fork: `<root>.<32 hexadecimal digits>`.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            SessionConflict: It has another version; nothing was written.
            StateUnreadable: A part of it cannot be read; nothing was written.
        """
        source = read_session_id(session_id)
        root = source.root if isinstance(source, ChildSessionId) else source
        key = None if idempotency_key is None else f"{source}:{idempotency_key}"
        fork_id = ChildSessionId.of(f"{root}.{derive_id(key, 'fork')}")
        try:
            self.store.sessions.fork(source, fork_id, version=expected_version)
        except SessionConflict:
            if idempotency_key is None or not self._is_fork(fork_id, source):
                raise
        return fork_id

    @verb(
        "POST", "/v1/sessions/{session_id}/clear", "clear_session", scope=Scope.ADMIN,
        headers=("expected_version",), task=("session_id", "expected_version"),
    )  # fmt: skip
    def clear(self, session_id: str, *, expected_version: int | None = None) -> int:
        """Remove the conversation of a session; prompt, model, metadata and the count of executions stay.

        Args:
            expected_version: The version that the session must have. None: any.
        Returns:
            The version afterwards.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            SessionConflict: It has another version; nothing was written.
            ActionRefused: An execution of it runs or waits; nothing was written.
        """
        source = read_session_id(session_id)
        while True:
            stored = self.store.sessions.whole(source)
            wanted = stored.version if expected_version is None else expected_version
            cleared = replace(stored, state=stored.state.without_conversation(), version=wanted)
            try:
                return self.store.sessions.save(source, cleared).session.version
            except SessionConflict:
                if expected_version is not None:
                    raise

    def _is_fork(self, fork_id: str, source: str) -> bool:
        try:
            return self.store.sessions.header(fork_id).forked_from == source
        except SessionNotFound:
            return False
