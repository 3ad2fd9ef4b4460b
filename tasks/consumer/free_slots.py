"""Noticing free slots of a pool of threads or fibers at once.

A worker that takes no more than its slots can hold looks at its queue again when its event loop turns. A thread that
ends does not turn it, so a full worker would notice a free slot at the next timer, up to a second later.
"""

from __future__ import annotations

from typing import Any

from .celery_internals import future_of, reserved_count
from .features import FREE_SLOTS


def wake_for_free_slots(pool: Any, hub: Any) -> None:
    """Turn the worker's loop when a task ends in a full pool of threads or fibers; other pools do so by themselves.

    Args:
        hub: That loop; None where the worker has none. kombu forgets which one it is when a connection was lost.
    """
    if hub is None or not hasattr(pool, "executor") or not FREE_SLOTS.is_available():
        return
    apply = pool.on_apply

    def on_apply(*args: Any, **kwargs: Any) -> Any:
        result = apply(*args, **kwargs)
        if (future := future_of(result)) is not None:
            future.add_done_callback(on_done)
        return result

    def on_done(future: Any) -> None:
        del future
        if reserved_count() >= pool.limit - 1:
            hub.call_soon(_do_nothing)

    pool.on_apply = on_apply


def _do_nothing() -> None:
    """The loop has turned."""
