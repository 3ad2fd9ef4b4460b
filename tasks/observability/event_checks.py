"""Checks of Celery's events before Flower keeps them: everybody who may publish may forge one.

Flower keeps what an event says of a worker or task and shows it later. A value of another type would make its pages and
its API fail from then on.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import celery.events as celery_events

from ..names import CONTROL

log = logging.getLogger(__name__)

_IGNORED: Final = ("", {"type": ""})
_LARGEST_NUMBER: Final = 2**53
_LONGEST_NAME: Final = 255
_LONGEST_TEXT: Final = 20_000
_TYPE: Final = re.compile(r"[a-z]+-[a-z0-9-]{1,60}")
_WORKER: Final = re.compile(r"[\w.@%+-]{1,255}")


def check_events() -> None:
    """Let event receivers of this process drop malformed events. Call it before Flower is imported."""
    stock: Any = celery_events.EventReceiver
    events: Any = celery_events

    class CheckedEventReceiver(stock):
        def event_from_message(self, body: Any, *args: Any, **options: Any) -> Any:
            reason = examine_event(body)
            if reason is not None:
                log.warning("an event was dropped: %s", reason)
                return _IGNORED
            inherited: Any = super()
            return inherited.event_from_message(hide_arguments(body), *args, **options)

        def process(self, event_type: str, event: Any) -> None:
            inherited: Any = super()
            if event_type:
                inherited.process(event_type, event)

    events.EventReceiver = CheckedEventReceiver


def examine_event(event: Any) -> str | None:
    """Say what is wrong with an event; None when nothing is."""
    if not isinstance(event, dict):
        return f"it is a {type(event).__name__}, not an object"
    fields = cast("dict[str, Any]", event)
    if not _matches(_TYPE, fields.get("type")):
        return f"type={fields.get('type')!r:.100}"
    if not _matches(_WORKER, fields.get("hostname")):
        return f"hostname={fields.get('hostname')!r:.100}"
    if fields["type"].startswith("task-") and not _is_name(fields.get("uuid")):
        return f"uuid={fields.get('uuid')!r:.100}"
    for name, value in fields.items():
        if value is not None and not _FIELDS.get(name, _is_plain)(value):
            return f"{name!r:.50}={value!r:.100}"
    return None


def hide_arguments(event: dict[str, Any]) -> dict[str, Any]:
    """Replace the arguments of a control task that its sender tells: they hold the prompt and the webhook."""
    if event["type"] == "task-sent" and event.get("name") in CONTROL:
        return {**event, "args": "(hidden)", "kwargs": "(hidden)"}
    return event


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT and _is_encodable(value)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and _is_encodable(value)


def _is_encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _LARGEST_NUMBER


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST_NUMBER


def _is_load(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_number, cast("list[Any]", value)))


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool) or _is_number(value) or _is_text(value)


_FIELDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("timestamp", "utcoffset", "runtime", "freq"), _is_number),
    **dict.fromkeys(("clock", "pid", "active", "processed", "retries", "signum"), _is_count),
    **dict.fromkeys(("uuid", "name", "root_id", "parent_id", "queue", "exchange", "routing_key"), _is_text),
    **dict.fromkeys(("args", "kwargs", "result", "exception", "traceback", "eta", "expires"), _is_text),
    **dict.fromkeys(("sw_ident", "sw_ver", "sw_sys", "hostname", "type"), _is_text),
    "loadavg": _is_load,
}
