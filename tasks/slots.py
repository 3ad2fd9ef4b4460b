"""Free slots of a threads pool, noticed at once.

A worker that takes no more than its slots can hold looks at its queue again when its event loop turns. A thread that
ends does not turn it, so a full worker would notice a free slot at the next timer, up to a second later.
"""

from __future__ import annotations

from typing import Any

from celery.worker import state
from kombu.asynchronous import get_event_loop


def wake_for_free_slots(pool: Any) -> None:
    """Let every task that ends in a full threads pool turn the worker's loop; other pools do so by themselves."""
    if not hasattr(pool, "executor"):
        return
    apply, slots = pool.on_apply, pool.limit

    def on_apply(*args: Any, **kwargs: Any) -> Any:
        result = apply(*args, **kwargs)
        result.f.add_done_callback(on_done)
        return result

    def on_done(future: Any) -> None:
        del future
        loop: Any = get_event_loop()
        if loop is not None and len(state.reserved_requests) >= slots - 1:
            loop.call_soon(_turn)

    pool.on_apply = on_apply


def _turn() -> None:
    """Nothing: the loop has turned."""
