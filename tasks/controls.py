"""Submit, retry, stop and other actions as Celery tasks, for services without this package and for Flower's HTTP API.

Their queue is acknowledged late: until the wish is in the session, the message is all there is of it. They need a
`session_id` or an `idempotency_key`: there is no result to read an id from, and the message may come twice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from celery import Celery, Task
from celery.exceptions import Ignore

from ..config.settings import Settings
from ..worker.errors import ActionRefused, IdempotencyMismatch, InvalidInput, StoreFull, StoreUnavailable
from ..worker.state.execution.budget import ExecutionBudget
from .consumer.refusals import ELEMENT, refusals
from .lazy_client import LazyClient
from .names import ANSWER, CONTROL, DELETE, FORK, PREFIX, RETRY, STOP, SUBMIT
from .verb_tasks import read_time, register_verbs

# No longer, since a worker has few slots for these tasks; then the task comes again.
_DELETE_SECONDS: Final = 2.0
_NAME_CHARS: Final = 64
_PAYLOAD_CHARS: Final = 2_000

log = logging.getLogger(__name__)


def register_controls(app: Celery, settings: Settings, client: LazyClient) -> None:
    """Add the control tasks to an app."""
    options: dict[str, Any] = {
        "queue": settings.control_queue, "acks_late": True, "ignore_result": True, "bind": True,
        "autoretry_for": (StoreUnavailable, StoreFull), "retry_backoff": True, "retry_backoff_max": 30,
        "max_retries": 20,
        # Celery gives shared tasks to each app of the process, in any order: the settings are those of this app.
        "shared": False,
    }  # fmt: skip
    # First: of two tasks with one name, Celery keeps the first.
    _register_refusals(app, settings, client, options)
    _register_submit(app, settings, client, options)
    _register_retry(app, client, options)
    _register_stop(app, client, options)
    _register_delete(app, client, options)
    _register_fork(app, client, options)
    _register_answer(app, client, options)
    register_verbs(app, client, options)


def _register_refusals(app: Celery, settings: Settings, client: LazyClient, options: Mapping[str, Any]) -> None:
    """Put what the settings do not accept into quarantine: whoever may write to the queue may name any session."""
    for name in CONTROL:
        short = name.removeprefix(PREFIX)
        if settings.takes_control(short):
            continue

        @app.task(name=name, **options)  # pyright: ignore[reportUntypedFunctionDecorator]
        def refuse(self: Task[Any, Any], *args: Any, **kwargs: Any) -> None:  # pyright: ignore[reportUnusedFunction]
            """Refuse a control task that CELERY_AGENTS_CONTROL_TASKS does not name."""
            task = str(self.name)
            _quarantine(client, task, {"args": args, **kwargs} if args else kwargs, task.removeprefix(PREFIX))


def _quarantine(client: LazyClient, task: str, kwargs: Mapping[str, Any], missing: str) -> NoReturn:
    """Keep a control task that is not accepted where doctor shows it.

    Raises:
        Ignore: It is kept.
    """
    reason = f"{task} is not accepted: CELERY_AGENTS_CONTROL_TASKS does not name {missing}"
    refusals.record(ELEMENT, reason)
    client().store.housekeeping.quarantine(repr({"task": task, **kwargs})[:_PAYLOAD_CHARS], reason)
    raise Ignore


def _register_submit(app: Celery, settings: Settings, client: LazyClient, options: Mapping[str, Any]) -> None:
    continues = settings.takes_control("send_message")

    @app.task(name=SUBMIT, **options)  # pyright: ignore[reportUntypedFunctionDecorator]
    def submit(  # pyright: ignore[reportUnusedFunction]
        self: Task[Any, Any],
        agent: str,
        message: str,
        session_id: str | None = None,
        idempotency_key: str | None = None,
        budget: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        on_complete: Any = None,
        webhook: str | None = None,
        on_request: Any = None,
        request_webhook: str | None = None,
        start_at: str | None = None,
    ) -> str:
        """Hand a job to an agent; see `AgentClient.submit`."""
        try:
            key = _key_of_submit(self.request, session_id, idempotency_key)
            job = client().submit(
                agent, message, session_id=session_id, idempotency_key=key, budget=_read_budget(budget),
                metadata=metadata, on_complete=on_complete, webhook=webhook, on_request=on_request,
                request_webhook=request_webhook, start_at=read_time("start_at", start_at), new_only=not continues,
            )  # fmt: skip
        except (InvalidInput, ActionRefused, IdempotencyMismatch) as error:
            if isinstance(error, IdempotencyMismatch) and session_id is not None and not continues:
                _quarantine(client, SUBMIT, {"session_id": session_id, "agent": agent}, "send_message")
            if _is_from_beat(self.request):  # nobody waits for the result of an entry
                reason = f"an entry of beat for agent {str(agent)[:_NAME_CHARS]!r}: {error}"
                client().store.housekeeping.quarantine(f"{SUBMIT} {self.request.id}", reason)
            raise
        return f"session {job.session_id}"


def _is_from_beat(request: Any) -> bool:
    """Whether Celery beat has sent the task, by the header that it writes."""
    return bool(getattr(request, "celery_beat_task", False))


def _key_of_submit(request: Any, session_id: str | None, idempotency_key: str | None) -> str:
    """The idempotency key of a submit by name: a message that comes twice must not be said twice.

    Raises:
        InvalidInput: An entry of beat has a key, which is the same each time; or nobody could find the session.
    """
    if _is_from_beat(request):
        if idempotency_key is not None:
            advice = "an entry of beat with a key runs once and never again; leave it out: each message makes one job."
            raise InvalidInput("idempotency_key", idempotency_key, advice)
    elif session_id is None and idempotency_key is None:
        raise InvalidInput("idempotency_key", None, "give it, or session_id: there is no result to read an id from.")
    return idempotency_key or f"task:{request.id}"


def _register_retry(app: Celery, client: LazyClient, options: Mapping[str, Any]) -> None:
    @app.task(name=RETRY, **options)  # pyright: ignore[reportUntypedFunctionDecorator]
    def retry(  # pyright: ignore[reportUnusedFunction]
        self: Task[Any, Any], session_id: str, budget: dict[str, Any] | None = None, by: str | None = None
    ) -> str:
        """Retry a failed or stopped execution; see `AgentClient.retry`."""
        try:
            job = client().retry(session_id, budget=_read_budget(budget), by=by)
        except ActionRefused as error:
            if self.request.delivery_info and self.request.delivery_info.get("redelivered"):
                raise Ignore from error  # the first delivery did it
            raise
        return f"session {job.session_id}"


def _register_stop(app: Celery, client: LazyClient, options: Mapping[str, Any]) -> None:
    @app.task(name=STOP, **options)  # pyright: ignore[reportUntypedFunctionDecorator]
    def stop(  # pyright: ignore[reportUnusedFunction]
        self: Task[Any, Any], session_id: str, execution_id: str | None = None, by: str | None = None
    ) -> str:
        """Stop a session's execution; see `AgentClient.stop`."""
        del self
        client().stop(session_id, execution_id=execution_id, timeout=0, by=by)
        return f"session {session_id}"


def _register_delete(app: Celery, client: LazyClient, options: Mapping[str, Any]) -> None:
    patient: dict[str, Any] = {**options, "autoretry_for": (StoreUnavailable, StoreFull, TimeoutError)}

    @app.task(name=DELETE, **patient)  # pyright: ignore[reportUntypedFunctionDecorator]
    def delete(  # pyright: ignore[reportUnusedFunction]
        self: Task[Any, Any], session_id: str, expected_version: int | None = None, by: str | None = None
    ) -> str:
        """Delete a session; see `AgentClient.delete`. Tried again while what is stopped has not ended."""
        del self
        client().delete(session_id, expected_version=expected_version, timeout=_DELETE_SECONDS, by=by)
        return f"session {session_id}"


def _register_fork(app: Celery, client: LazyClient, options: Mapping[str, Any]) -> None:
    @app.task(name=FORK, **options)  # pyright: ignore[reportUntypedFunctionDecorator]
    def fork(  # pyright: ignore[reportUnusedFunction]
        self: Task[Any, Any], session_id: str, idempotency_key: str | None = None, expected_version: int | None = None
    ) -> str:
        """Copy a session; see `AgentClient.fork`. The result names the fork, which follows from the key."""
        key = idempotency_key or f"task:{self.request.id}"
        return f"session {client().fork(session_id, idempotency_key=key, expected_version=expected_version)}"


def _register_answer(app: Celery, client: LazyClient, options: Mapping[str, Any]) -> None:
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
        """Answer requests of a session, such as `{"<id>": {"approve": true}}`; see `AgentClient.answer`.

        An answer that comes twice is the same action: its key follows from the id of the Celery task.
        """
        result = client().answer(
            session_id, answers, by=by, note=note, expect=expect, remember=remember,
            idempotency_key=f"task:{self.request.id}",
        )  # fmt: skip
        return f"session {session_id} {result.outcome}"


def _read_budget(values: Mapping[str, Any] | None) -> ExecutionBudget | None:
    if values is None:
        return None
    try:
        return ExecutionBudget(**values)
    except (TypeError, ValueError) as error:
        raise InvalidInput("budget", dict(values), f"it cannot be used: {error}.") from error
