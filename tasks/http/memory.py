"""`MemoryBudget`: bytes that the requests of a process hold together, and what each kind of caller may take of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator
from typing import Final

from .access import Access
from .problems import HttpProblem

SMALL_BYTES: Final = 16_000
"""What is smaller is not counted while it is sent."""

_MOST_RESPONSE_BYTES: Final = 32_000_000
_AT_A_TIME: Final = 2
_LINE_SECONDS: Final = 30.0
_RETRY_AFTER_SECONDS: Final = "2"


class Held:
    """The bytes that one request holds of a budget."""

    def __init__(self, budget: MemoryBudget, share: float) -> None:
        self._budget = budget
        self._share = share
        self.size = 0

    def fits(self, size: int) -> bool:
        """Whether so many bytes instead of the present ones are within the caller's share; alone they always are."""
        others = self._budget.held - self.size
        return others == 0 or others + size <= self._budget.most * self._share

    def resize(self, size: int) -> None:
        """Hold so many bytes instead of the present ones, whether they fit or not."""
        self._budget.held += size - self.size
        self.size = size


class MemoryBudget:
    """Counts bytes that requests hold. A caller is refused when all callers together hold more than its share.

    So callers with a smaller share never take the room of those with a larger one.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    @contextlib.contextmanager
    def hold(self, access: Access, size: int = 0) -> Generator[Held]:
        """Hold bytes until the context ends."""
        held = Held(self, access.memory_share)
        held.resize(size)
        try:
            yield held
        finally:
            held.resize(0)


class SessionReading:
    """Lets few whole sessions be read at a time, since one takes many times the memory of its stored form.

    Most actions read the whole session, too.

    Session tokens wait in a line of their own: they never keep a service waiting.
    """

    def __init__(self) -> None:
        self._lines = {is_visitor: asyncio.Semaphore(_AT_A_TIME) for is_visitor in (True, False)}
        self.responses = MemoryBudget(_MOST_RESPONSE_BYTES)

    @contextlib.asynccontextmanager
    async def wait_in_line(self, access: Access) -> AsyncGenerator[None]:
        """Wait until a session may be read.

        Raises:
            HttpProblem: Too much is being sent to slow readers, or too many callers wait.
        """
        line = self._lines[access.is_visitor]
        try:
            await asyncio.wait_for(line.acquire(), _LINE_SECONDS)
        except TimeoutError:
            raise _busy() from None
        try:
            with self.responses.hold(access) as held:
                self.check_room(held, 1)
            yield
        finally:
            line.release()

    def check_room(self, held: Held, size: int) -> None:
        """Hold bytes of what is being sent.

        Raises:
            HttpProblem: Too much is being sent to slow readers.
        """
        if not held.fits(size):
            raise _busy()
        held.resize(size)


def _busy() -> HttpProblem:
    detail = "This process sends as many whole sessions as it can. Try again, or start another process."
    return HttpProblem(503, "too-many-responses", detail, headers={"Retry-After": _RETRY_AFTER_SECONDS})
