"""Free slots of a threads pool, noticed at once.

A worker that takes no more than its slots can hold looks at its queue again when its event loop turns. A thread that
ends does not turn it, so a full worker would notice a free slot at the next timer, up to a second later.
"""

from __future__ import annotations

from typing import Any

from celery.worker import state


def wake_for_free_slots(pool: Any, hub: Any) -> None:
    """Turn the worker's loop when a task ends in a full pool of threads or fibers; other pools do so by themselves.

    Args:
        hub: That loop; None where the worker has none. kombu forgets which one it is when a connection was lost.
    """
    if hub is None or not hasattr(pool, "executor"):
        return
    apply = pool.on_apply

    def on_apply(*args: Any, **kwargs: Any) -> Any:
        result = apply(*args, **kwargs)
        result.f.add_done_callback(on_done)
        return result

    def on_done(future: Any) -> None:
        del future
        if len(state.reserved_requests) >= pool.limit - 1:
            hub.call_soon(_turn)

    pool.on_apply = on_apply


def _turn() -> None:
    """Nothing: the loop has turned."""
