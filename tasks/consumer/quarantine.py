"""The message that quarantines a malformed broker element."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from typing import Any, Final

from ..names import QUARANTINE

_PAYLOAD_CHARS: Final = 2000


def quarantine_message(queue: str, element: str, reason: str) -> dict[str, Any]:
    """Return a call of the quarantine task with an element and a reason, as kombu would have decoded it.

    Args:
        queue: The queue that the message seems to come from.
        element: Cut and escaped, so that it can be shown.
    """
    payload = ascii(element[:_PAYLOAD_CHARS])
    body = json.dumps([[], {"payload": payload, "reason": reason}, {}])
    task_id = uuid.uuid4().hex
    return {
        "body": base64.b64encode(body.encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py", "task": QUARANTINE, "id": task_id, "root_id": task_id, "parent_id": None, "group": None,
            "argsrepr": "()", "kwargsrepr": repr({"reason": reason}), "retries": 0, "timelimit": [None, None],
            "eta": None, "expires": None, "ignore_result": True, "origin": "celery-agents", "shadow": None,
        },
        "properties": {
            "correlation_id": task_id, "reply_to": "", "delivery_mode": 2, "priority": 0, "body_encoding": "base64",
            "delivery_info": {"exchange": queue, "routing_key": queue}, "delivery_tag": uuid.uuid4().hex,
        },
    }  # fmt: skip


class UnackedEntry(dict[str, Any]):
    """A decoded list of three: unpacked it gives its parts, read as a message it is one to be quarantined.

    kombu stores an unacknowledged message as such a list and unpacks it. The decoder is not told where an element comes
    from, and the same list in a queue is no message.
    """

    def __init__(self, parts: list[Any], message: dict[str, Any]) -> None:
        super().__init__(message)
        self._parts = parts

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts)
