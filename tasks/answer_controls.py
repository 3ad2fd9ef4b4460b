"""Answers, suspend and resume as Celery tasks; see `controls`.

An answer that comes twice is the same action: its operation id follows from the id of the Celery task.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from celery import Celery, Task

from ..worker.errors import InvalidInput
from .lazy_client import LazyClient
from .names import ANSWER, ANSWER_BY_TOKEN, COMPLETE, FAIL, RESUME, SUSPEND


def register_answers(app: Celery, client: LazyClient, options: Mapping[str, Any]) -> None:
    """Add the tasks that answer requests."""

    @app.task(name=ANSWER, **options)  # pyright: ignore[reportUntypedFunctionDecorator]
    def answer(  # pyright: ignore[reportUnusedFunction]
        self: Task[Any, Any],
        session_id: str,
        answers: dict[str, Any],
        by: str | None = None,
        note: str = "",
        expect: Any = None,
        remember: str = "call",
    ) -> str:
        """Answer requests of a session, such as `{"<id>": {"approve": true}}`; see `AgentClient.answer`."""
        result = client().answer(
            session_id, answers, by=by, note=note, expect=expect, remember=remember,
            idempotency_key=f"task:{self.request.id}",
        )  # fmt: skip
        return f"session {session_id} {result.outcome}"

    _register_tokens(app, client, options)


def _register_tokens(app: Celery, client: LazyClient, options: Mapping[str, Any]) -> None:
    @app.task(name=ANSWER_BY_TOKEN, **options)  # pyright: ignore[reportUntypedFunctionDecorator]
    def answer_by_token(  # pyright: ignore[reportUnusedFunction]
        self: Task[Any, Any], token: str, answer: dict[str, Any], by: str | None = None, note: str = ""
    ) -> str:
        """Answer the request that a token is for; see `AgentClient.answer_by_token`."""
        del self
        return client().answer_by_token(token, answer, by=by, note=note).outcome

    @app.task(name=COMPLETE, **options)  # pyright: ignore[reportUntypedFunctionDecorator]
    def complete(  # pyright: ignore[reportUnusedFunction]
        self: Task[Any, Any], token: str, value: Any = None, by: str | None = None
    ) -> str:
        """Bring the result of a call; see `AgentClient.complete`."""
        del self
        return client().complete(token, value, by=by).outcome

    @app.task(name=FAIL, **options)  # pyright: ignore[reportUntypedFunctionDecorator]
    def fail(  # pyright: ignore[reportUnusedFunction]
        self: Task[Any, Any], token: str, error: str, by: str | None = None
    ) -> str:
        """Tell that a call failed; see `AgentClient.fail`."""
        del self
        return client().fail(token, error, by=by).outcome


def register_holding(app: Celery, client: LazyClient, options: Mapping[str, Any]) -> None:
    """Add the tasks that hold a session and let it go on."""

    @app.task(name=SUSPEND, **options)  # pyright: ignore[reportUntypedFunctionDecorator]
    def suspend(  # pyright: ignore[reportUnusedFunction]
        self: Task[Any, Any], session_id: str, reason: str, by: str | None = None, until: str | None = None
    ) -> str:
        """Hold a session; see `AgentClient.suspend`."""
        del self
        client().suspend(session_id, reason=reason, by=by, until=read_time("until", until))
        return f"session {session_id}"

    @app.task(name=RESUME, **options)  # pyright: ignore[reportUntypedFunctionDecorator]
    def resume(self: Task[Any, Any], session_id: str, by: str | None = None) -> str:  # pyright: ignore[reportUnusedFunction]
        """Let a held session go on; see `AgentClient.resume`."""
        del self
        client().resume(session_id, by=by)
        return f"session {session_id}"


def read_time(field: str, text: str | None) -> datetime | None:
    """Read a time in ISO 8601 with its offset from UTC; None stays None.

    Raises:
        InvalidInput: It is no such time.
    """
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        moment = None
    if moment is None or moment.utcoffset() is None:
        raise InvalidInput(field, text, "give a time like 2030-01-31T18:00:00+01:00.")
    return moment
