"""How examples are run: each is judged, none ends the run, and one that hangs is ended."""

from __future__ import annotations

import _thread
import contextlib
import logging
import threading
import time
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

import celery_agents
from celery_agents.config.settings import Settings
from celery_agents.worker.agent import Agent, AgentRegistry
from celery_agents.worker.concurrency.event_loop import EventLoopThread
from celery_agents.worker.concurrency.tool_threads import ToolThreads
from celery_agents.worker.engine import (
    Done,
    EngineServices,
    FirstExecution,
    LeaseKeeper,
    Outcome,
    StepRunner,
    first_state,
)
from celery_agents.worker.moments import moment
from celery_agents.worker.state import (
    AgentState,
    FrozenDict,
    Message,
)
from celery_agents.worker.store import (
    NextState,
    StepRef,
    Store,
)

from .extremes import short
from support.verdict import Verdict

_AT_ONCE: Final = 2_000
_SLOW_SECONDS: Final = 20.0
_HANG_SECONDS: Final = 60.0
_PACKAGE: Final = Path(celery_agents.__file__).parent


class Broken(AssertionError):
    """An example did what must not happen."""


def expect(holds: bool, text: str) -> None:
    """Refuse an example."""
    if not holds:
        raise Broken(text)


class Watchdog:
    """Ends an example that hangs, in the main thread of this process."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @contextlib.contextmanager
    def example(self) -> Generator[None]:
        """One example; it may take a while, and no longer."""
        began = self._began = time.monotonic()
        try:
            yield
        except KeyboardInterrupt:
            if time.monotonic() - began < _HANG_SECONDS:
                raise
            raise Broken(f"it hung for {_HANG_SECONDS:g} s") from None
        finally:
            self._began = None
        took = time.monotonic() - began
        expect(took < _SLOW_SECONDS, f"it took {took:.1f} s")

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            began = self._began
            if began is not None and time.monotonic() - began > _HANG_SECONDS:
                self._began = None
                _thread.interrupt_main()


def run_examples(
    verdict: Verdict,
    border: str,
    examples: int,
    seed: int,
    strategy: st.SearchStrategy[Any],
    judge: Callable[[Any], None],
) -> None:
    """Judge examples. What is found twice at the same place is told once, and counted."""
    seen: set[str] = set()

    def one(example: Any) -> None:
        verdict.counts[f"examples_{border}"] += 1
        try:
            with watchdog.example():
                judge(example)
        except Exception as error:
            place, said = _place(error), short(str(error))
            verdict.counts[f"broken_{border}"] += 1
            if place not in seen:
                seen.add(place)
                verdict.expect(False, border, f"{said}, {place}; example {short(example)}; seed {seed}")

    with _quiet(), Watchdog() as watchdog:
        for number, start in enumerate(range(0, examples, _AT_ONCE)):
            count = min(_AT_ONCE, examples - start)
            settings = hypothesis.settings(
                max_examples=count, database=None, deadline=None, phases=(Phase.generate,), derandomize=False,
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            hypothesis.seed(f"{seed}.{border}.{number}")(settings(hypothesis.given(strategy)(one)))()


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Without the log, in which each example would have its line."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _place(error: Exception) -> str:
    """What was raised, and where in the package; or what was not as it should be."""
    if isinstance(error, Broken):
        return str(error)
    frames = [each for each in traceback.extract_tb(error.__traceback__) if _is_product(Path(each.filename))]
    at = " < ".join(f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in reversed(frames[-3:]))
    return f"{type(error).__name__} at {at}"


def _is_product(file: Path) -> bool:
    return file.is_relative_to(_PACKAGE) and not file.is_relative_to(_PACKAGE / "tests")


class Worker:
    """One engine on a store, in this process."""

    def __init__(self, store: Store, settings: Settings, *agents: Agent) -> None:
        self.store = store
        self._settings = settings
        self._loop = EventLoopThread()
        self._keeper = LeaseKeeper(store, settings)
        threads = ToolThreads()
        services = EngineServices(store=store, settings=settings, keeper=self._keeper, loop=self._loop, threads=threads)
        self.runner = StepRunner(services, AgentRegistry(agents), worker="worker")

    def close(self) -> None:
        self._keeper.close()
        self._loop.close()

    def submit(self, session_id: str, agent: str) -> StepRef:
        """A new session, and its first step."""

        def transition(now_ms: int) -> NextState:
            now = moment(now_ms)
            state = AgentState.fresh(metadata=FrozenDict(a=1), now=now)
            return first_state(state, Message.user("hello"), FirstExecution(f"{session_id}-e", f"{session_id}-o"), now)

        self.store.sessions.submit(session_id, agent, session_id, transition)
        return StepRef(session_id, f"{session_id}-e", 1)

    def run(self, ref: StepRef, limit: int = 8) -> list[Outcome]:
        """Run a step and those that follow, as long as they are committed."""
        outcomes: list[Outcome] = []
        following: StepRef | None = ref
        while following is not None and len(outcomes) < limit:
            outcomes.append(self.runner.run_step(following))
            last = outcomes[-1]
            following = last.next if isinstance(last, Done) else None
        return outcomes


def quick_settings(**more: Any) -> Settings:
    """Leases that end soon, and no pause between attempts."""
    quick = {"retry_delay_seconds": 0.001, "retry_delay_max_seconds": 0.002, "driver_attempts": 2}
    return Settings.build(**{**quick, "lease_seconds": 1.0, "lease_renew_seconds": 0.25, "steps_per_task": 1, **more})
