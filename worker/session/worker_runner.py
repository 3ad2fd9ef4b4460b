"""`WorkerRunner`: leaves executions to the workers, for sessions in a `RedisSessionStore`."""

from __future__ import annotations

import time
from typing import Final

from ..state.agent_state import AgentState
from ..store.store import Store
from .actions import SaveSession
from .redis_store import RedisSessionStore
from .repository import SessionRepository
from .values import AgentSession

_BLOCK_MS: Final = 1_000


class WorkerRunner:
    """A `SessionRunner` that hands an execution to the workers, with the save that stores it.

    Args:
        store: Where the sessions are. None: nobody waits, and it is not needed.
        timeout: Seconds to wait for the end; None: as long as it takes. Only with a store.

    Without a store, `SendMessage` returns the session with its execution pending. With one, it waits, and returns the
    session with the answer.
    """

    def __init__(self, store: Store | None = None, timeout: float | None = None) -> None:
        self._store = store
        self._timeout = timeout

    def run(self, session: AgentSession, state: AgentState, save: SaveSession) -> AgentSession:
        """Submit the execution of `state` to the workers; see `SessionRunner.run`.

        Raises:
            TimeoutError: It has not ended in time; it goes on.
            SessionNotFound: The session was deleted meanwhile.
        """
        started = session.with_state(state)
        if self._store is None:
            return started
        saved = save(started)
        assert state.execution is not None
        self._wait(self._store, saved.session_id, state.execution.execution_id)
        return SessionRepository(RedisSessionStore(self._store)).load(saved.session_id)

    def _wait(self, store: Store, session_id: str, execution_id: str) -> None:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        position = "0"
        while store.sessions.outcome(session_id, execution_id) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"execution {execution_id} has not ended within {self._timeout:g} s; it goes on")
            left_ms = _BLOCK_MS if deadline is None else round((deadline - time.monotonic()) * 1000)
            events = store.sessions.watch(session_id, position, max(1, min(_BLOCK_MS, left_ms)))
            position = events[-1].id if events else position
