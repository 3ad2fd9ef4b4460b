"""The rules for elements of our queues: what a message may hold, by the task that it calls.

Everybody who may write to the broker may write anything there. This module alone decides what is taken: our own tasks,
in JSON, without what makes Celery do more than run that task (callbacks, expiry, limits, compression), and a step only
under the id that follows from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from celery.app.task import Context

from ..names import CONTROL, STEP
from ..step_message import MalformedStep, read_step
from .message_checks import LARGEST_LATER_BYTES, InvalidMessage, check_form, decode_body, shown

Body = tuple[list[Any], dict[str, Any], dict[str, Any] | None]
"""The decoded body of a task's message: arguments, keywords and callbacks."""

LATEST_ETA: Final = timedelta(seconds=60)
"""How far ahead the time of a control task may lie. A worker keeps such a message in its memory until then."""

_LONGEST_ID: Final = 255
# The id of a step ends in its number, and then in the number of the retry and of the wake-up, if there were any.
_STEP_SUFFIX: Final = re.compile(r"(\.r\d{1,9})?(\.w\d{1,9})?")
_LIKE_A_STEP: Final = re.compile(r".+\.\d+(\.[rw]\d+)*", re.DOTALL)
# What Celery itself writes into the headers of a task. All other names of its `Context` would change the request.
_WRITTEN_BY_CELERY: Final = frozenset(
    ("id", "shadow", "eta", "expires", "group", "group_index", "ignore_result", "retries", "timelimit", "root_id",
     "parent_id", "origin", "replaced_task_nesting", "stamped_headers", "stamps")
)  # fmt: skip
# Some tracing libraries repeat their own headers under the name "headers".
_FORBIDDEN_HEADERS: Final = (frozenset(dir(Context)) | {"compression"}) - _WRITTEN_BY_CELERY - {"headers"}
_NOT_ON_STEPS: Final = ("eta", "expires", "shadow", "group", "stamped_headers", "stamps")
_SHOWN_ARGUMENTS: Final = frozenset(("agent", "session_id", "execution_id", "idempotency_key"))


def admit(message: dict[str, Any]) -> Body:
    """Check a decoded element of one of our queues, and remove what only its sender says about it.

    Args:
        message: It has passed `message_checks.check_message`.
    Returns:
        Its body: arguments, keywords and callbacks, as plain JSON.
    Raises:
        InvalidMessage: It is not taken; the text names the field and the value.
    """
    headers: dict[str, Any] = message["headers"]
    task = headers.get("task")
    rule = _RULES.get(task) if isinstance(task, str) else None
    if rule is None:
        raise InvalidMessage(f"unknown task {shown(task)}")
    check_form(message)
    _check_headers(headers)
    args, kwargs, embed = _read_body(message)
    for name, value in (embed or {}).items():
        if value is not None:
            raise InvalidMessage(f"{name}={shown(value)} in the body; our tasks take no callbacks, chains or chords")
    rule(message, args, kwargs)
    return args, kwargs, embed


def _check_headers(headers: Mapping[str, Any]) -> None:
    if not 0 < len(headers["id"]) <= _LONGEST_ID:
        raise InvalidMessage(f"id={shown(headers['id'])} has not 1 to {_LONGEST_ID} characters")
    for name in headers.keys() & _FORBIDDEN_HEADERS:
        if headers[name] is not None:
            raise InvalidMessage(f"{name}={shown(headers[name])} in the headers; our tasks take none")
    if any(headers.get("timelimit") or ()):
        raise InvalidMessage(f"timelimit={shown(headers['timelimit'])}; our tasks have limits of their own")


def _check_step(message: dict[str, Any], args: list[Any], kwargs: dict[str, Any]) -> None:
    headers = message["headers"]
    try:
        ref = read_step(args, kwargs)
    except MalformedStep as error:
        raise InvalidMessage(str(error)) from None
    for name in _NOT_ON_STEPS:
        if headers.get(name):
            raise InvalidMessage(f"{name}={shown(headers[name])} in the headers; a step takes none")
    expected = f"{ref.execution_id}.{ref.step}"
    task_id: str = headers["id"]
    if not task_id.startswith(expected) or not _STEP_SUFFIX.fullmatch(task_id, len(expected)):
        raise InvalidMessage(f"id={shown(task_id)} is not that of its step, {expected}")
    # A result would go to the sender's address. `send_task` writes both without being asked to.
    message["properties"]["reply_to"], headers["ignore_result"] = "", True
    headers["argsrepr"], headers["kwargsrepr"] = "()", repr(kwargs)


def _check_control(message: dict[str, Any], args: list[Any], kwargs: dict[str, Any]) -> None:
    headers = message["headers"]
    if _LIKE_A_STEP.fullmatch(headers["id"]):
        raise InvalidMessage(f"id={shown(headers['id'])} has the form of a step's id; choose another one")
    if headers.get("eta") is not None:
        _check_eta(headers, len(message["body"]))
    # Flower shows these texts to everybody who may look at it. The sender's own would hold prompt and webhook.
    headers["argsrepr"] = f"({len(args)} hidden)" if args else "()"
    headers["kwargsrepr"] = repr({name: _hide_argument(name, value) for name, value in kwargs.items()})


def _check_eta(headers: dict[str, Any], size: int) -> None:
    eta, advice = headers["eta"], "send the message at that time"
    if headers.get("retries"):  # a worker has sent it, by its own clock: what was accepted once is not refused
        headers["eta"] = eta if _is_soon(eta) else (datetime.now(UTC) + LATEST_ETA).isoformat()
        return
    if not _is_soon(eta):
        raise InvalidMessage(f"eta={shown(eta)} is more than {LATEST_ETA.total_seconds():.0f} s ahead; {advice}")
    if size > LARGEST_LATER_BYTES:
        raise InvalidMessage(f"eta={shown(eta)} of a message larger than {LARGEST_LATER_BYTES} bytes; {advice}")


_RULES: Final[Mapping[str, Callable[[dict[str, Any], list[Any], dict[str, Any]], None]]] = {
    STEP: _check_step,
    **dict.fromkeys(CONTROL, _check_control),
}


def _read_body(message: Mapping[str, Any]) -> Body:
    try:
        args, kwargs, embed = decode_body(message)
    except (TypeError, ValueError):
        raise InvalidMessage("a body that is no list of arguments, keywords and callbacks") from None
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise InvalidMessage("a body without arguments")
    if not isinstance(embed, (dict, type(None))):
        raise InvalidMessage(f"{shown(embed)} in the place of callbacks in the body")
    return cast("list[Any]", args), cast("dict[str, Any]", kwargs), cast("dict[str, Any] | None", embed)


def _is_soon(eta: str) -> bool:
    moment = datetime.fromisoformat(eta)
    at = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return at <= datetime.now(UTC) + LATEST_ETA


def _hide_argument(name: str, value: object) -> object:
    is_shown = name in _SHOWN_ARGUMENTS and isinstance(value, (str, type(None)))
    return value if is_shown else "(hidden)"
