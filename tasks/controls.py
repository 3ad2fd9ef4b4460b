"""Submit, retry, stop and other actions as Celery tasks, for services without this package and for Flower's HTTP API.

Their queue is acknowledged late: until the wish is in the session, the message is all there is of it. They need a
`session_id` or an `idempotency_key`: there is no result to read an id from, and the message may come twice.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NoReturn

from celery import Celery, Task
from celery.exceptions import Ignore

from ..config.settings import Settings
from ..worker.errors import ActionRefused, IdempotencyMismatch, InvalidInput, StoreFull, StoreUnavailable
from ..worker.state.execution.budget import ExecutionBudget
from ..worker.state.values.ids import ChildSessionId
from ..worker.store.requests.records import AnswerResult
from .client.client import AgentClient
from .client.verbs import LONGEST_SECONDS, VERBS, Verb
from .consumer.refusals import ELEMENT, refusals
from .names import CONTROL, PREFIX, RETRY, SUBMIT, sent_to

_NAME_CHARS: Final = 64
_PAYLOAD_CHARS: Final = 2_000
# A task that tries again sends its message to a broker that may fail over with the store at this moment. A message that
# is not taken comes again after the visibility timeout only.
_PUBLISH_RETRIES: Final = {"max_retries": 40, "interval_start": 0.1, "interval_step": 0.3, "interval_max": 1}
# Half a day: a pause between two is 15 s on average. What is not in the store by then is nowhere any more.
_MOST_RETRIES: Final = 2_880
_AS_THEY_ARE: Final = (
    "Any",
    "str",
    "str | None",
    "int | None",
    "str | int | None",
    "str | int",
    "bool",
    "Sequence[Edit | Mapping[str, Any]]",
    "GivenAnswer | Mapping[str, Any]",
    "Mapping[str, GivenAnswer | Mapping[str, Any]]",
    "str | Mapping[str, str] | None",
    "Remember | str",
)

log = logging.getLogger(__name__)


class LazyClient:
    """The client of control tasks, made on first use in the process that needs it."""

    def __init__(self, app: Celery, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._lock = threading.Lock()
        self._client: AgentClient | None = None

    def __call__(self) -> AgentClient:
        """Return the client of this process."""
        with self._lock:
            if self._client is None:
                self._client = AgentClient(settings=self._settings, app=self._app)
            return self._client

    def stop(self, session_id: str, execution_id: str) -> None:
        """Ask for the stop of an execution whose step was revoked, and do not wait for it."""
        self().stop(session_id, execution_id=execution_id, timeout=0, by="revoke (Flower or Celery)")


def register_controls(app: Celery, settings: Settings, client: LazyClient) -> None:
    """Add the control tasks to an app."""
    options: dict[str, Any] = {
        "on_bound": sent_to(settings.control_queue), "acks_late": True, "reject_on_worker_lost": True,
        "ignore_result": True, "bind": True,
        "autoretry_for": (StoreUnavailable, StoreFull), "retry_backoff": True, "retry_backoff_max": 30,
        "max_retries": _MOST_RETRIES,
        "retry_kwargs": {"retry_policy": _PUBLISH_RETRIES},
        # Celery gives shared tasks to each app of the process, in any order: the settings are those of this app.
        "shared": False,
    }  # fmt: skip
    refused = _register_refusals(app, settings, client, options)
    if SUBMIT not in refused:
        _register_submit(app, settings, client, options)
    if RETRY not in refused:
        _register_retry(app, client, options)
    register_verbs(app, client, options, refused)


def _register_refusals(
    app: Celery, settings: Settings, client: LazyClient, options: Mapping[str, Any]
) -> Collection[str]:
    """Put what the settings do not accept into quarantine: each writer to the queue may name any session.

    Returns:
        The names of these tasks.
    """
    refused = [name for name in CONTROL if not settings.takes_control(name.removeprefix(PREFIX))]
    for name in refused:

        @app.task(name=name, **options)  # pyright: ignore[reportUntypedFunctionDecorator]
        def refuse(self: Task[Any, Any], *args: Any, **kwargs: Any) -> None:  # pyright: ignore[reportUnusedFunction]
            """Refuse a control task that CELERY_AGENTS_CONTROL_TASKS does not name."""
            task = str(self.name)
            _quarantine(client, task, {"args": args, **kwargs} if args else kwargs, task.removeprefix(PREFIX))

    return refused


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
        expires_in_seconds: float | None = None,
        completion_window: str | None = None,
    ) -> str:
        """Hand a job to an agent; see `AgentClient.submit`."""
        try:
            key = _key_of_submit(self.request, session_id, idempotency_key)
            job = client().submit(
                agent, message, session_id=session_id, idempotency_key=key, budget=_read_budget(budget),
                metadata=metadata, on_complete=on_complete, webhook=webhook, on_request=on_request,
                request_webhook=request_webhook, start_at=read_time("start_at", start_at), new_only=not continues,
                expires_in=_read_seconds("expires_in_seconds", expires_in_seconds),
                completion_window=completion_window,
            )  # fmt: skip
        except (InvalidInput, ActionRefused, IdempotencyMismatch) as error:
            if isinstance(error, IdempotencyMismatch) and session_id is not None and not continues:
                _quarantine(client, SUBMIT, {"session_id": session_id, "agent": agent}, "send_message")
            if _is_from_beat(self.request):  # no caller waits for the result of an entry
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
        InvalidInput: An entry of beat has a key, which is the same each time; or no caller could find the session.
    """
    if _is_from_beat(request):
        if idempotency_key is not None:
            advice = (
                "an entry of beat with a key runs once and never again; leave it out: each message makes one job. "
                "Or set a schedule by client.schedules, which needs no beat."
            )
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


def register_verbs(
    app: Celery, client: Callable[[], Any], options: Mapping[str, Any], refused: Collection[str] = ()
) -> None:
    """Add a task for each verb that names parameters of one.

    Args:
        refused: Names of tasks that the settings do not accept; they are there already.
    Raises:
        TypeError: A parameter has a type that is not in `WIRE`, or `names.CONTROL` lacks the task, so that the setting
            `control_tasks` would not keep it away.
    """
    # TimeoutError: what `delete` stops has not ended yet.
    patient: dict[str, Any] = {**options, "autoretry_for": (StoreUnavailable, StoreFull, TimeoutError)}
    for verb in VERBS:
        if verb.task:
            name = f"{PREFIX}{verb.name}"
            if name not in CONTROL:
                raise TypeError(f"{name} is a task of @verb; add it to CONTROL_TASKS of config/settings.py")
            if name not in refused:
                app.task(name=name, **patient)(make_task(verb, client))


def make_task(verb: Verb, client: Callable[[], Any]) -> Callable[..., str]:
    """Make the function of a verb's task: the named parameters, in their order, positional or by name.

    A task that comes twice is the same action: where a verb takes an idempotency key and none is given, it follows from
    the id of the Celery task.
    """
    parameters = [verb.parameter(name) for name in verb.task]
    readers = {each.name: _reader_of(verb, each) for each in parameters}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter("self", kind), *(each.replace(kind=kind) for each in parameters)])
    has_key = "idempotency_key" in inspect.signature(verb.call).parameters

    def run(*args: Any, **kwargs: Any) -> str:
        given = signature.bind(*args, **kwargs).arguments
        values = {name: read(name, given[name]) for name, read in readers.items() if name in given}
        if has_key:
            values["idempotency_key"] = values.get("idempotency_key") or f"task:{given['self'].request.id}"
        result = getattr(client(), verb.name)(**values, **verb.task_gives)
        named = [f"session {given['session_id']}"] if "session_id" in given else []
        if isinstance(result, ChildSessionId):
            return f"session {result}"
        return " ".join([*named, result.outcome]) if isinstance(result, AnswerResult) else named[0]

    run.__name__, run.__doc__ = verb.name, verb.call.__doc__
    run.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    return run


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


def _read_as_it_is(field: str, value: Any) -> Any:
    del field
    return value


def _reader_of(verb: Verb, parameter: inspect.Parameter) -> Callable[[str, Any], Any]:
    if parameter.annotation not in WIRE:
        raise TypeError(f"@verb of {verb.name}: {parameter.name} is {parameter.annotation!r}, which no task carries")
    return WIRE[parameter.annotation]


WIRE: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    **dict.fromkeys(_AS_THEY_ARE, _read_as_it_is),
    "datetime | None": read_time,
    "ExecutionBudget": lambda field, values: _read_budget(values),
}
"""How a task reads a JSON value, by the annotation of its parameter."""


def _read_seconds(field: str, seconds: object) -> timedelta | None:
    if seconds is None:
        return None
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds <= LONGEST_SECONDS:
        return timedelta(seconds=seconds)
    raise InvalidInput(field, seconds, "give seconds, more than 0.")


def _read_budget(values: Mapping[str, Any] | None) -> ExecutionBudget | None:
    if values is None:
        return None
    try:
        return ExecutionBudget(**values)
    except (TypeError, ValueError) as error:
        raise InvalidInput("budget", dict(values), f"it cannot be used: {error}.") from error
