"""Celery tasks that follow from methods of `AgentClient` with the decorator `@verb`; see `controls`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from celery import Celery

from ..worker.errors import InvalidInput
from ..worker.store.requests.records import AnswerResult
from .client.verbs import VERBS, Verb
from .lazy_client import LazyClient
from .names import CONTROL, PREFIX


def register_verbs(app: Celery, client: LazyClient, options: Mapping[str, Any]) -> None:
    """Add a task for each verb that names parameters of one.

    Raises:
        TypeError: A parameter has a type that is not in `WIRE`, or `names.CONTROL` lacks the task, so that the setting
            `control_tasks` would not keep it away.
    """
    for verb in VERBS:
        if verb.task:
            name = f"{PREFIX}{verb.name}"
            if name not in CONTROL:
                raise TypeError(f"{name} is a task of @verb; add it to names.CONTROL")
            app.task(name=name, **options)(make_task(verb, client))


def make_task(verb: Verb, client: Callable[[], Any]) -> Callable[..., str]:
    """Make the function of a verb's task: the named parameters, in their order, positional or by name."""
    parameters = [verb.parameter(name) for name in verb.task]
    readers = {each.name: _reader_of(verb, each) for each in parameters}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter("self", kind), *(each.replace(kind=kind) for each in parameters)])

    def run(*args: Any, **kwargs: Any) -> str:
        given = signature.bind(*args, **kwargs).arguments
        values = {name: read(name, given[name]) for name, read in readers.items() if name in given}
        result = getattr(client(), verb.name)(**values)
        return result.outcome if isinstance(result, AnswerResult) else f"session {given['session_id']}"

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
    **dict.fromkeys(("Any", "str", "str | None", "int | None", "GivenAnswer | Mapping[str, Any]"), _read_as_it_is),
    "datetime | None": read_time,
}
"""How a task reads a JSON value, by the annotation of its parameter."""
