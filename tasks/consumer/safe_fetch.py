"""Reading fetched messages so that a queue key of another type cannot end the worker."""

from __future__ import annotations

import time
from queue import Empty
from typing import Any, Final

from . import kombu_internals as kombu
from .features import SAFE_FETCH
from .refusals import FETCH, refusals

# Redis refuses at once, and kombu would ask again as fast as it can.
_PAUSE_SECONDS: Final = 0.05


def install_safe_fetch() -> None:
    """Let this process go on when Redis refuses to pop a message."""
    if SAFE_FETCH.is_available():
        kombu.replace_reading(read_guarded)


def read_guarded(channel: Any, **options: Any) -> Any:
    """Read the answer to a BRPOP; an error of the keys counts as an empty queue, after a short pause."""
    try:
        return kombu.read_brpop(channel, **options)
    except channel.ResponseError as error:
        refusals.record(FETCH, f"Redis refuses to pop messages: {error}")
        time.sleep(_PAUSE_SECONDS)
        raise Empty from error
