"""A limit of threads for async code, in whatever event loop it runs."""

from __future__ import annotations

import asyncio

from anyio import CapacityLimiter


class ThreadLimit:
    """Lets at most `most` calls of one event loop run in threads at the same time.

    Args:
        most: Threads of each loop; anyio's own limit is 40 for all callers together.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limiters: dict[int, CapacityLimiter] = {}

    def of_this_loop(self) -> CapacityLimiter:
        """Get the limiter of the running event loop, which cannot be used in another."""
        loop = id(asyncio.get_running_loop())
        if loop not in self._limiters:
            self._limiters[loop] = CapacityLimiter(self._most)
        return self._limiters[loop]
