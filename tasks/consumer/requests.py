"""What Celery does with a step's message besides running it."""

from __future__ import annotations

from typing import Any

from celery.worker.request import Request


class StepRequest(Request):
    """A delivered step.

    Celery turns its whole loop once more for each acknowledgement, even where kombu then sends none. For a step of a
    millisecond or two that is a twentieth of its time.
    """

    def acknowledge(self) -> None:
        """See `Request`; nothing happens where the message bears kombu's mark of a consumer without acknowledgement."""
        message: Any = self.message
        if message.delivery_info.get("consumer_tag") in (message.channel.no_ack_consumers or ()):
            self.acknowledged = True
        else:
            super().acknowledge()
