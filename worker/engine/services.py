"""The services that the engine of one process works with, handed down as one value."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from ...config.settings import Settings
from ..concurrency import fibers
from ..concurrency.event_loop import EventLoopThread
from ..concurrency.tool_threads import Threads
from ..drivers.protocol import InferenceRequest
from ..errors import NotConfirmed, StoreFull, StoreUnavailable
from ..mcp.connections import ServerConnections
from ..state.execution.inference import InferenceResponse
from ..store.records import StepRef
from ..store.store import Store
from .concurrency_gate import ConcurrencyGate
from .leases import Interruption, LeaseKeeper
from .live_writer import LiveWriter
from .outcome import Outcome
from .provider_gate import ProviderGate
from .run import Run
from .spending_gate import SpendingGate

log = logging.getLogger(__name__)

R = TypeVar("R")
_REDIS_PAUSE_SECONDS: Final = 0.2


class StepObserver(Protocol):
    """Follows the steps of a worker, for metrics and traces.

    The engine calls these methods in the step's own thread, in this order. They must not raise, and must return
    quickly. Without an observer each point costs one comparison with None.
    """

    def step_begun(self, run: Run) -> None:
        """A step was claimed."""
        ...

    def driver_called(
        self, run: Run, request: InferenceRequest, seconds: float, response: InferenceResponse | None, error: str
    ) -> None:
        """A driver call has ended, with a response or with the kind of its error.

        An answer that cannot be used has both: the response holds its model, usage and price only. Auxiliary calls,
        whose requests have a purpose, are told of in the threads of the hooks and tools that make them.
        """
        ...

    def job_answered(self, run: Run, request: InferenceRequest, seconds: float, response: InferenceResponse) -> None:
        """The latest job of the step at a provider has answered, so many seconds after it was asked for."""
        ...

    def tools_called(self, run: Run) -> None:
        """The step's tool calls have ended. `new_records` tells which of them this attempt made."""
        ...

    def step_ended(self, run: Run, outcome: Outcome | None) -> None:
        """A step has ended that had begun as `run`; the outcome is None when an exception ended it."""
        ...


def new_records(run: Run) -> list[int]:
    """Indices of the calls that this attempt made."""
    return [index for index in sorted(run.obtained.records) if index not in run.loaded.journal.results]


@dataclass(frozen=True, kw_only=True)
class EngineServices:
    """The store, the leases, the event loop and the clocks that every part of the engine uses.

    Attributes:
        keeper: Keeps the leases; its maker starts it or calls its `tick`.
        threads: Runs the plain tools of a step side by side.
        monotonic: This machine's clock, in seconds.
        sleep: Waits a number of seconds.
        connections: The connections to MCP servers; its maker closes them.
        observer: Is told what steps do; None where neither metrics nor traces are wanted.
        live: Writes what steps emit while they run; its maker closes it.
        gate: Keeps what people and providers allow.
        concurrency: Keeps concurrency limits.
        spending: Keeps spend caps.
    """

    store: Store
    settings: Settings
    keeper: LeaseKeeper
    loop: EventLoopThread
    threads: Threads
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = fibers.sleep
    connections: ServerConnections = field(default_factory=ServerConnections)
    observer: StepObserver | None = None
    live: LiveWriter = field(init=False)
    gate: ProviderGate = field(init=False)
    concurrency: ConcurrencyGate = field(init=False)
    spending: SpendingGate = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "live", LiveWriter(self.store))
        object.__setattr__(self, "gate", ProviderGate(self))
        object.__setattr__(self, "concurrency", ConcurrencyGate(self))
        object.__setattr__(self, "spending", SpendingGate(self))
        self.keeper.keep_holders = self.concurrency.keep
        self.keeper.holders_kept_at = self.concurrency.kept_at

    def publish_all(self, steps: Iterable[StepRef]) -> None:
        """Publish steps that no transaction could publish."""
        for each in steps:
            self.keeper.publish(each)

    def redis_ms(self, run: Run) -> int:
        """Redis's time now, at the earliest: counted from after the reply to the run's claim."""
        return run.claim.now_ms + round((self.monotonic() - run.times.claimed_at) * 1000)

    def ask_store(self, run: Run, request: Callable[[], R], purpose: str, *, holds_something: bool = True) -> R:
        """Make a request that may be made again after a lost reply, for as long as the step may live.

        Args:
            purpose: What waits for it, for the log.
            holds_something: The step would lose what the request keeps. Else a full Redis and any interruption end the
                wait, and not the loss of the claim alone.
        Raises:
            NotConfirmed: Too few replicas have it, and nothing is lost.
            StoreFull, StoreUnavailable: There was no answer until the step's deadline, or an interruption ended the
                wait.
            ClaimLost: Another worker has the step; `StepRunner` decides the run.
        """
        while True:
            try:
                return request()
            except (StoreFull, StoreUnavailable) as error:
                why = run.lease.interruption
                is_over = why is not None or isinstance(error, (StoreFull, NotConfirmed))
                if why is Interruption.LOST or (not holds_something and is_over):
                    raise
                self.wait_for_redis(run, error, purpose)

    def wait_for_redis(self, run: Run, error: StoreFull | StoreUnavailable, purpose: str) -> None:
        """Pause before another attempt; after the step's deadline, raise the error instead."""
        log.warning("%s of step %s of session %s waits: %s", purpose, run.ref.step, run.ref.session_id, error)
        if self.keeper.remaining(run.lease) <= 0:
            raise error
        self.sleep(_REDIS_PAUSE_SECONDS)

    def try_to_journal_results(self, run: Run) -> Run:
        """Journal the results that the run holds; it keeps them for its commit where Redis is full or away."""
        if not run.obtained.unjournaled:
            return run
        try:
            self.store.steps.record_results(run.claim, run.obtained.unjournaled)
        except (StoreFull, StoreUnavailable):
            return run
        return run.without_unjournaled()
