"""The receivers of a callback, as a caller names them: a Celery task, a webhook, or both.

A worker sends the task with its own rights, and a caller may have fewer. So only options that are about the task itself
are taken, and no queue that this package or kombu keeps something else in. The signature is checked where a caller
names it, and once more where a worker sends it: stored data are not signed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast
from urllib.parse import SplitResult, urlsplit

from ...config.celery import is_our_queue
from ...config.settings import Settings
from ...worker.errors import InvalidInput
from ...worker.state.values.frozen import check_text, freeze, thaw
from ...worker.store.session_records import REQUEST_TASK, REQUEST_WEBHOOK

_FIELDS: Final = ("task", "args", "kwargs", "options")
_SIGNATURE_BYTES: Final = 16_000
_NAME_CHARS: Final = 255
_NAME_SHOWN: Final = 40
_HIGHEST_PRIORITY: Final = 255
_LONGEST_SECONDS: Final = 366 * 86_400
# Keys of our store, of kombu and of Celery's remote control, events and results. LPUSH gives such a key another type.
_RESERVED: Final = re.compile(
    r"ca:.*|_kombu\..*|(.*\.)?unacked.*|.*pidbox.*|celeryev.*|celery-(agents|task).*|amq\..*",
    re.DOTALL | re.IGNORECASE,
)
# No blank, and no separator of kombu's sub-queues.
_QUEUE: Final = re.compile(r"[^\s\x00-\x1f\x7f-\x9f]+")


def read_task(task: object, field: str, settings: Settings) -> dict[str, Any]:
    """Give the task as it is stored, of its name or its signature.

    Args:
        task: A task's name, or a mapping with `task`, and with `args`, `kwargs` and `options` where they are needed.
        field: The argument that an error names.
        settings: They name our queues, which a callback is not sent to.
    Raises:
        InvalidInput: It cannot be used; the text names the part and the value.
    """
    if isinstance(task, str):
        return {"task": _read_name(task, field)}
    if not isinstance(task, Mapping):
        raise InvalidInput(field, task, "give the name of a Celery task, or a signature.")
    signature = cast("Mapping[str, Any]", task)
    chosen: dict[str, Any] = thaw(freeze({name: signature[name] for name in _FIELDS if name in signature}, field))
    _read_name(chosen.get("task"), f"{field}.task")
    for name, kind in (("args", list), ("kwargs", dict), ("options", dict)):
        if not isinstance(chosen.get(name), (kind, type(None))):
            raise InvalidInput(f"{field}.{name}", chosen[name], f"give a {kind.__name__}, or leave it out.")
    options: dict[str, object] = chosen.get("options") or {}
    for name, value in options.items():
        _check_option(name, value, f"{field}.options.{name[:_NAME_SHOWN]}", settings)
    size = len(json.dumps(chosen))
    if size > _SIGNATURE_BYTES:
        raise InvalidInput(field, f"{size} bytes", f"a signature may have {_SIGNATURE_BYTES} bytes as JSON.")
    return chosen


def _read_name(name: object, field: str) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_CHARS:
        raise InvalidInput(field, name, f"give the name of a Celery task, of 1 to {_NAME_CHARS} characters.")
    return check_text(name, field)


def _check_option(name: str, value: object, field: str, settings: Settings) -> None:
    if name == "queue":
        _check_queue(value, field, settings)
        return
    check = _CHECKS.get(name)
    if check is None:
        allowed = ", ".join(("queue", *_CHECKS))
        raise InvalidInput(field, value, f"leave it out: a callback takes the options {allowed}.")
    is_usable, advice = check
    if value is not None and not is_usable(value):
        raise InvalidInput(field, value, advice)


def _check_queue(queue: object, field: str, settings: Settings) -> None:
    if queue is None:
        return
    if not isinstance(queue, str) or len(queue) > _NAME_CHARS or not _QUEUE.fullmatch(queue):
        raise InvalidInput(field, queue, f"give a queue's name of 1 to {_NAME_CHARS} characters, without blanks.")
    check_text(queue, field)
    if _RESERVED.fullmatch(queue) or is_our_queue(settings, queue) or queue.startswith("celery_agents."):
        advice = "this name is kept for sessions, steps or Celery itself; name a queue that your own workers take."
        raise InvalidInput(field, queue, advice)


def _is_priority(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _HIGHEST_PRIORITY


def _are_seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _LONGEST_SECONDS


_SECONDS: Final = (_are_seconds, f"give seconds, from 0 to {_LONGEST_SECONDS}.")
_CHECKS: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "priority": (_is_priority, f"give an integer from 0 to {_HIGHEST_PRIORITY}."),
    "countdown": _SECONDS,
    "expires": _SECONDS,
    "time_limit": _SECONDS,
    "soft_time_limit": _SECONDS,
    "ignore_result": (lambda value: isinstance(value, bool), "give true or false."),
}


_URL_CHARS: Final = 2_048
# Visible ASCII only: no line break gets into a header, and no look-alike digit into an address.
_URL: Final = re.compile(r"[!-~]+")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")


def read_receivers(
    settings: Settings,
    *,
    on_complete: object = None,
    webhook: str | None = None,
    on_request: object = None,
    request_webhook: str | None = None,
) -> dict[str, Any] | None:
    """Check the receivers of a callback and give them as they are stored; None when there is none.

    Args:
        settings: They name our own queues, which no callback is sent to.
        on_complete: Name of a Celery task, or a signature; it is called with the result as keyword `result`.
        webhook: An http or https URL; the result is posted to it.
        on_request: As `on_complete`, for each request that opens, with the keyword `request`.
        request_webhook: As `webhook`, for each request that opens.
    Raises:
        InvalidInput: One of them cannot be used.
    """
    target: dict[str, Any] = {}
    for kind, field, task in (("task", "on_complete", on_complete), (REQUEST_TASK, "on_request", on_request)):
        if task is not None:
            target[kind] = read_task(task, field, settings)
    for kind, field, url in (("webhook", "webhook", webhook), (REQUEST_WEBHOOK, "request_webhook", request_webhook)):
        if url is not None:
            split_webhook(url, field)
            target[kind] = url
    return target or None


def split_webhook(webhook: object, field: str = "webhook") -> SplitResult:
    """The parts of a webhook's URL.

    Raises:
        InvalidInput: It is no http or https URL, or holds what a URL must not.
    """
    advice = "give an http or https URL in ASCII, such as https://example.com/hooks/7."
    if not isinstance(webhook, str):
        raise InvalidInput(field, type(webhook), advice)
    if len(webhook) > _URL_CHARS or not _URL.fullmatch(webhook):
        raise InvalidInput(field, webhook, f"{advice} It may have {_URL_CHARS} characters, and no blanks.")
    try:
        parts = urlsplit(webhook)
        is_usable = parts.scheme in ("http", "https") and _HOST.fullmatch(parts.hostname or "") and parts.port != 0
    except ValueError as error:
        raise InvalidInput(field, webhook, f"{error}; {advice}") from None
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(field, parts.hostname, "leave credentials out of it: it is stored; the signature proves us.")
    if not is_usable:
        raise InvalidInput(field, webhook, advice)
    return parts
