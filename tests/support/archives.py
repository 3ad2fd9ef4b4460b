"""Rows for tests of the archive, and databases that hold one."""

from __future__ import annotations

from typing import Any

from celery_agents.worker.archive.rows import ArchivedSession, Entry, ExecutionCost, SessionKey

DAY_MS = 24 * 3600 * 1000


def key(name: str = "s1", created_ms: int = 1) -> SessionKey:
    """The key of a session."""
    return SessionKey(name, created_ms)


def entry(
    name: str = "s1",
    *,
    created_ms: int = 1,
    document: bytes = b"everything",
    text: str = "",
    costs: tuple[ExecutionCost, ...] = (),
    **facts: Any,
) -> Entry:
    """A session to be stored; facts are fields of `ArchivedSession`."""
    chosen = {"mark": "mark", "agent": "helpdesk", "status": "completed", "updated_ms": 1_000, **facts}
    session = ArchivedSession(key=key(name, created_ms), **chosen)
    return Entry(session=session, document=document, text=text, costs=costs)


def cost(execution_id: str = "e1", **facts: Any) -> ExecutionCost:
    """What an execution has used of a model."""
    chosen = {"agent": "helpdesk", "model": "test:small", "ended_ms": DAY_MS, "steps": 2, "tokens": 100, "cost": 0.5}
    return ExecutionCost(session_id="s1", execution_id=execution_id, **{**chosen, **facts})
