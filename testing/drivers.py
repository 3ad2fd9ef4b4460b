"""`CountingDriver`: counts the calls of the agent's own driver, and those that were needless."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable

from ..worker.drivers.protocol import Driver, InferenceRequest
from ..worker.state.conversation.context import LLMConfig
from ..worker.state.execution.inference import InferenceResponse


class CountingDriver:
    """Passes every call on to a driver, and counts it.

    Attributes:
        calls: Number of calls.
        needless: A sentence for each call whose answer was journaled already.
    """

    def __init__(self, driver: Driver, is_journaled: Callable[[InferenceRequest], bool]) -> None:
        self._driver = driver
        self._is_journaled = is_journaled
        self._lock = threading.Lock()
        self.calls = 0
        self.needless: list[str] = []

    @property
    def name(self) -> str:
        """Name of the driver."""
        return self._driver.name

    @property
    def is_async(self) -> bool:
        """Whether the driver is async."""
        return self._driver.is_async

    def infer(self, request: InferenceRequest) -> bytes | Awaitable[bytes]:
        """Count the call and ask the driver."""
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
        """Let the driver check its configuration."""
        self._driver.check()

    def knows_price(self, settings: LLMConfig | None = None) -> bool:
        """Whether the driver knows the price of a model."""
        return self._driver.knows_price(settings)

    async def aclose(self) -> None:
        """Close the driver."""
        await self._driver.aclose()
