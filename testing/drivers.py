"""The agent's own driver, watched: how often it is asked, and whether it had to be."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable

from ..worker.drivers import Driver, InferenceRequest
from ..worker.state import InferenceResponse, LLMConfig


class WatchedDriver:
    """Passes everything on, and notes each question.

    Attributes:
        calls: Questions asked.
        needless: Questions whose answer was journaled already, in words.
    """

    def __init__(self, driver: Driver, is_journaled: Callable[[InferenceRequest], bool]) -> None:
        self._driver = driver
        self._is_journaled = is_journaled
        self._lock = threading.Lock()
        self.calls = 0
        self.needless: list[str] = []

    @property
    def name(self) -> str:
        """The driver's."""
        return self._driver.name

    @property
    def is_async(self) -> bool:
        """As the driver."""
        return self._driver.is_async

    def infer(self, request: InferenceRequest) -> bytes | Awaitable[bytes]:
        """Ask the driver."""
        needless = self._is_journaled(request)
        with self._lock:
            self.calls += 1
            if needless:
                self.needless.append(f"the driver was asked for step {request.step} after its answer was journaled")
        return self._driver.infer(request)

    def parse(self, raw: bytes) -> InferenceResponse:
        """Let the driver read its answer."""
        return self._driver.parse(raw)

    def check(self) -> None:
        """As the driver."""
        self._driver.check()

    def knows_price(self, settings: LLMConfig | None = None) -> bool:
        """As the driver."""
        return self._driver.knows_price(settings)

    async def aclose(self) -> None:
        """Close the driver."""
        await self._driver.aclose()
