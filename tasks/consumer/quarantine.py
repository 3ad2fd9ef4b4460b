"""Putting aside what a worker refuses from its broker, with the reason, where `celery-agents doctor` shows it."""

from __future__ import annotations

import json
import logging
from typing import Final

from ...worker.redaction import describe_exception
from ..runtime import LazyRuntime
from .refusals import ELEMENT, refusals

log = logging.getLogger(__name__)

_PAYLOAD_CHARS: Final = 2000


class Quarantine:
    """Counts and stores refused elements."""

    def __init__(self, runtime: LazyRuntime) -> None:
        self._runtime = runtime

    def put(self, element: object, reason: str, source: str = ELEMENT) -> bool:
        """Store the beginning of an element, and tell whether the store has taken it.

        Args:
            element: Its bytes, or what was decoded of it.
            source: As `refusals` names it.
        """
        refusals.record(source, reason)
        try:
            self._runtime().store.housekeeping.quarantine(ascii(_show(element)[:_PAYLOAD_CHARS]), reason)
        except Exception as error:  # noqa: BLE001 - what a store raises must not end Celery's loop, which calls this
            log.warning("a refused element is not stored: %s", describe_exception(error).message)
            return False
        return True


def _show(element: object) -> str:
    try:
        if isinstance(element, bytes):  # to show each wrong byte of a long text takes seconds
            return element[:_PAYLOAD_CHARS].decode("utf-8", "backslashreplace")
        return json.dumps(element, default=repr)
    except Exception as error:  # noqa: BLE001 - a text of it is the less important part
        return f"cannot be shown: {type(error).__name__}"
