"""The request of a step: how Celery sees a received step message."""

from __future__ import annotations

from typing import Any

from celery.worker.request import Request

from .kombu_internals import has_no_ack_mark


class StepRequest(Request):
    """A received step message, without what Celery does for each message and a step has no use for.

    - Celery turns its whole loop once more for each acknowledgement, even where kombu then sends none. For a step of a
      millisecond or two that is a twentieth of its time.
    - Celery decodes the body when it receives a message, and again when its task runs.
    - Unless a message says which headers are its sender's own, Celery looks through all of them for these.
    """

    def __init__(self, message: Any, **options: Any) -> None:
        if not options.get("decoded"):
            options.update(body=message.payload, decoded=True)
        super().__init__(message, **options)
        request: dict[str, Any] = self.request_dict
        request.setdefault("headers", {})

    def acknowledge(self) -> None:
        """Acknowledge the message, unless kombu would ignore it."""
        message: Any = self.message
        if has_no_ack_mark(message):
            self.acknowledged = True
        else:
            super().acknowledge()
