"""`assert_survives`: an agent's job must end under faults as it ends without any."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from ..config.settings import Settings
from ..worker.agent import Agent, as_agent
from ..worker.concurrency.event_loop import EventLoopThread
from ..worker.drivers.protocol import Driver
from ..worker.errors import ConfigurationError
from ..worker.state.execution.answers import GivenAnswer
from ..worker.state.execution.requests import Request
from .databases import RedisOnVirtualTime
from .faults import CrashPlan, Fault
from .ledger import EffectLedger
from .simulation import Ending, Job, Simulation, SimulationSetup, with_driver

_EVENTS_KEPT: Final = 100_000
_SHOWN: Final = 60


class DidNotSurvive(AssertionError):
    """A run broke a promise.

    Attributes:
        seed: Seed of the run; None when the run without faults broke one.
        problems: Broken promises, in sentences.
        faults: Faults that had struck by then.
        trace: What happened, line by line, with virtual seconds.
    """

    def __init__(self, text: str, seed: int | None, problems: Sequence[str], ending: Ending) -> None:
        super().__init__(text)
        self.seed = seed
        self.problems = tuple(problems)
        self.faults = ending.fired
        self.trace = ending.trace


@dataclass(frozen=True)
class Survival:
    """Counts of the runs that an agent survived.

    Attributes:
        seeds: Number of runs with faults.
        faults: Number of faults by kind.
        points: Number of faults by the point at which they struck.
        interrupted: Runs in which the outcome of a call stayed unknown, as of an unsafe tool whose worker died. They
            need not end with the response of the undisturbed run.
        driver_calls: Driver calls in all runs with faults.
        least_driver_calls: Driver calls that these runs would have made without faults.
        response: Final response of the undisturbed run.
    """

    seeds: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    points: Counter[str] = field(default_factory=Counter[str])
    interrupted: int = 0
    driver_calls: int = 0
    least_driver_calls: int = 0
    response: str = ""


def assert_survives(
    agent: Agent | Any,
    message: str = "Begin.",
    *,
    others: Sequence[Agent | Any] = (),
    metadata: Mapping[str, Any] | None = None,
    answer: Callable[[Request], GivenAnswer | None] | None = None,
    seeds: Iterable[int] = range(50),
    driver: Driver | Callable[..., Any] | None = None,
    ledger: EffectLedger | None = None,
    reset: Callable[[], object] | None = None,
    observe: Callable[[], object] | None = None,
    deterministic: bool = True,
    expect: str = "completed",
    plan: Callable[[int], CrashPlan] = CrashPlan,
    steps_per_task: int = 1,
    redis_url: str | None = None,
) -> Survival:
    """Run a job of the agent once undisturbed, and once under the faults of each seed.

    Each run must end as the undisturbed one: every step is committed once, no effect of a call is repeated, no unsafe
    tool runs twice, and the driver is never asked again for a journaled answer. Time is virtual, so nobody waits for
    leases, and the time limits of the agent and of its budget do not apply. Plain tools of one step run in sequence.

    Args:
        agent: Its tools are wrapped to count their runs; they really run. A pydantic-ai agent has `CeleryDurability`,
            and a model that answers without a provider, such as pydantic-ai's `TestModel` or `FunctionModel`.
        message: Message of the user.
        others: Agents that it starts as children or hands the session over to. They answer by their own drivers.
        metadata: Metadata of the session.
        answer: Answers each request of the job, as a person or a service would: `lambda request: Approve()`. Where it
            gives None, and without it, a request stays open; then the job ends as its expiry says, or waits.
        seeds: The same seed gives the same faults. As many seeds as a run passes crash points kill a worker at each.
        driver: Answers instead of the agent's model, such as `script(…)`. None: the agent's own driver, as always for a
            pydantic-ai agent.
        ledger: Where the tools report effects; cleared before each run. None: only runs of tools are counted.
        reset: Called before each run: resets what tools change beside the ledger.
        observe: Called after each run; its value must be the same as after the undisturbed run.
        deterministic: Whether the final response and the number of steps must be the same each time.
        expect: Status in which the undisturbed run must end.
        plan: From a seed to its faults, such as `lambda seed: CrashPlan.of(Fault(FaultKind.KILL, "c5"))`.
        steps_per_task: As the setting of that name; above 1 a worker runs further steps under one claim.
        redis_url: An empty Redis database, instead of a store in memory; emptied after each run.
    Returns:
        Counts of the runs.
    Raises:
        DidNotSurvive: An AssertionError that names the first seed that fails, how to replay it, and what happened.
        ConfigurationError: The Redis database is not empty, or the agent cannot be used as it is.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    further = [_find_subject(each, None) for each in others]
    job = Job(agent=_find_subject(agent, driver), message=message, others=further, metadata=metadata, answer=answer)
    with _open_setup(job, ledger, steps_per_task=steps_per_task, redis_url=redis_url) as setup:
        trial = _Trial(setup=setup, reset=reset, observe=observe, expect=expect, deterministic=deterministic)
        return trial.run_seeds(tuple(seeds), plan)


def _find_subject(agent: object, driver: Driver | Callable[..., Any] | None) -> Agent:
    """The agent that is run, with the driver that answers in place of its own.

    Raises:
        ConfigurationError: It is none, or a pydantic-ai agent with a driver.
    """
    subject = as_agent(agent, "given to assert_survives")
    if subject is None:
        kind = cast("type[Any]", type(agent)).__name__
        raise ConfigurationError(
            f"assert_survives: give an Agent, or an agent of pydantic-ai with capabilities=[CeleryDurability()]; this "
            f"{kind} is neither"
        )
    if driver is None:
        return subject
    if subject is not agent:
        raise ConfigurationError(
            f"agent {subject.name!r}: driver= is for agents of ours; give an agent of pydantic-ai a model that answers "
            "without a provider, such as TestModel() or FunctionModel(…)"
        )
    return with_driver(subject, driver)


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """The runs of one call of `assert_survives`."""

    setup: SimulationSetup
    reset: Callable[[], object] | None
    observe: Callable[[], object] | None
    expect: str
    deterministic: bool

    def run_seeds(self, seeds: Sequence[int], plan: Callable[[int], CrashPlan]) -> Survival:
        """Run without faults, then under the faults of each seed.

        Raises:
            DidNotSurvive: At the first run that breaks a promise.
        """
        __tracebackhide__ = True
        calm, world = self._run(())
        self._check(None, [*_find_calm_problems(calm, self.expect), *self.setup.ledger.problems()], calm)
        survival = Survival(response=calm.response)
        for seed in seeds:
            ending, seen = self._run(plan(seed).faults(calm.passed))
            problems = [*ending.problems, *self.setup.ledger.problems()]
            problems += _find_differences(calm, ending, deterministic=self.deterministic)
            if seen != world and not ending.has_unknown:
                problems.append(f"the world is {seen!r:.200}, and undisturbed it is {world!r:.200}")
            self._check(seed, problems, ending)
            survival = _count(survival, ending, calm)
        return survival

    def _run(self, faults: Sequence[Fault]) -> tuple[Ending, object]:
        """Run once from a fresh start; returns how it ended and what `observe` gives afterwards."""
        self.setup.ledger.clear()
        if self.reset is not None:
            self.reset()
        ending = Simulation(self.setup, faults).run()
        return ending, self.observe() if self.observe is not None else None

    def _check(self, seed: int | None, problems: Sequence[str], ending: Ending) -> None:
        __tracebackhide__ = True
        if problems:
            text = _describe_failure(self.setup, seed, problems, ending)
            raise DidNotSurvive(text=text, seed=seed, problems=problems, ending=ending)


def _settings(steps_per_task: int) -> Settings:
    return Settings.build(
        steps_per_task=steps_per_task,
        events_kept=_EVENTS_KEPT,
        # Pauses between two driver calls are real time; longer ones become a "retry later", which is virtual.
        retry_delay_seconds=0.001,
        retry_delay_max_seconds=0.01,
    )


@contextmanager
def _open_setup(
    job: Job, ledger: EffectLedger | None, *, steps_per_task: int, redis_url: str | None
) -> Generator[SimulationSetup]:
    """Open what all runs share: the event loop, and the Redis database where there is one."""
    with _open_loop() as loop, _open_redis(redis_url) as redis:
        yield SimulationSetup(
            job=job,
            ledger=ledger or EffectLedger(),
            settings=_settings(steps_per_task),
            loop=loop,
            redis=redis,
            start_ms=time.time_ns() // 1_000_000,  # tools compare their deadline with this machine's clock
        )


@contextmanager
def _open_loop() -> Generator[EventLoopThread]:
    loop = EventLoopThread()
    try:
        yield loop
    finally:
        loop.close()


@contextmanager
def _open_redis(url: str | None) -> Generator[RedisOnVirtualTime | None]:
    redis = RedisOnVirtualTime.empty(url) if url else None
    try:
        yield redis
    finally:
        if redis is not None:
            redis.close()


def _find_calm_problems(calm: Ending, expect: str) -> list[str]:
    if calm.status == expect:
        return list(calm.problems)
    why = f": {'; '.join(calm.errors)}" if calm.errors else ""
    if calm.status == "waiting" and not calm.problems:
        return ["it asks, and nothing answers: give answer=, such as lambda request: Approve()"]
    return [*calm.problems, f"it ends {calm.status}, not {expect}{why}"]


def _find_differences(calm: Ending, ending: Ending, *, deterministic: bool) -> list[str]:
    """Compare a run with the undisturbed one. An agent that learns of an unknown outcome may decide otherwise."""
    found: list[str] = []
    if ending.status != calm.status:
        why = f" ({'; '.join(ending.errors)})" if ending.errors else ""
        found.append(f"it ended {ending.status}{why}, and undisturbed it is {calm.status}")
    elif deterministic and not ending.has_unknown:
        if ending.response != calm.response:
            found.append(f"it answered {ending.response!r:.200}, and undisturbed it is {calm.response!r:.200}")
        if ending.step_count != calm.step_count:
            found.append(f"it took {ending.step_count} steps, and undisturbed it is {calm.step_count}")
    return found


def _count(survival: Survival, ending: Ending, calm: Ending) -> Survival:
    return replace(
        survival,
        seeds=survival.seeds + 1,
        faults=survival.faults + Counter(fault.kind.value for fault in ending.fired),
        points=survival.points + Counter(fault.point for fault in ending.fired),
        interrupted=survival.interrupted + ending.has_unknown,
        driver_calls=survival.driver_calls + ending.driver_calls,
        least_driver_calls=survival.least_driver_calls + calm.driver_calls,
    )


def _describe_failure(setup: SimulationSetup, seed: int | None, problems: Sequence[str], ending: Ending) -> str:
    where = "without any fault" if seed is None else f"under seed {seed}"
    replay = f"assert_survives({setup.job.agent.name}, {setup.job.message!r}, seeds=[{seed}])"
    lines = [f"agent {setup.job.agent.name!r} goes wrong {where}:", *(f"  - {problem}" for problem in problems)]
    if seed is not None:
        lines += ["faults:", *(f"  - {fault}" for fault in ending.fired)]
        lines += [f"replay, with the other arguments as they are: {replay}"]
    left_out = max(0, len(ending.trace) - _SHOWN)
    shown = f"what happened (virtual seconds; {left_out} lines before these):" if left_out else "what happened:"
    return "\n".join([*lines, shown, *ending.trace[-_SHOWN:]])
