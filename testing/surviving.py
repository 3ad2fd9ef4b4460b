"""`assert_survives`: an agent's job under many seeds of faults must end as it does without any."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..config.settings import Settings
from ..worker.agent import Agent
from ..worker.drivers import Driver
from ..worker.engine import EventLoopThread
from .databases import RedisOnVirtualTime
from .faults import CrashPlan, Fault
from .ledger import EffectLedger
from .simulation import Ending, Simulation

_EVENTS_KEPT: Final = 100_000
_SHOWN: Final = 60


class DidNotSurvive(AssertionError):
    """A run ended wrongly.

    Attributes:
        seed: Of the run; None when it went wrong without any fault.
        problems: What is wrong, in words.
        faults: What had gone wrong by then.
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
    """What was tried, and survived.

    Attributes:
        seeds: Runs with faults.
        faults: Kind of fault to how often it struck.
        points: Place to how often a fault struck there.
        interrupted: Runs in which the outcome of a call stayed unknown, as of an unsafe tool whose worker died. They
            need not end with the response of the undisturbed run.
        driver_calls: Questions to the driver in all runs with faults.
        least_driver_calls: What these runs would have asked without any fault.
        response: Of the undisturbed run.
    """

    seeds: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    points: Counter[str] = field(default_factory=Counter[str])
    interrupted: int = 0
    driver_calls: int = 0
    least_driver_calls: int = 0
    response: str = ""


def assert_survives(
    agent: Agent,
    message: str = "Begin.",
    *,
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

    It must end each time as it did undisturbed, with every step committed once, no effect of a call doubled, no unsafe
    tool run twice and no question to the driver whose answer was journaled already. Time is virtual: nobody waits for
    leases. Limits of time, the agent's and its budget's, are left out for that reason. Plain tools of one step run one
    after another.

    Args:
        agent: Its tools are wrapped, so that their runs are counted; they really run.
        message: What the user says.
        seeds: The same seed gives the same faults. As many seeds as a run passes crash points kill a worker at each.
        driver: Answers in the place of the agent's model, such as `script(…)`. None: the agent's own.
        ledger: Where the tools tell their effects. Cleared before each run. None: only runs of tools are counted.
        reset: Called before each run: makes the world new that tools change beside the ledger.
        observe: Called after each run: what the world looks like. It must be the same as after the undisturbed run.
        deterministic: Whether the final response and the number of steps must be the same each time.
        expect: Status in which the undisturbed run must end.
        plan: From a seed to its faults, such as `lambda seed: CrashPlan.of(Fault(FaultKind.KILL, "c5"))`.
        steps_per_task: As the setting of that name; above 1 a worker carries on with further steps under one claim.
        redis_url: A Redis database of its own, empty, instead of a store in memory; emptied after each run.
    Returns:
        What was tried.
    Raises:
        DidNotSurvive: An AssertionError that names the first seed that fails, how to replay it, and what happened.
        ConfigurationError: The Redis database is not empty, or the agent cannot be used as it is.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    seeds = tuple(seeds)
    trial = _Trial(agent, message, driver, ledger or EffectLedger(), reset, observe, steps_per_task, redis_url)
    try:
        calm, world = trial.run(())
        problems = [*_calm_problems(calm, expect), *trial.ledger.problems()]
        if problems:
            raise DidNotSurvive(_text(trial, None, problems, calm), None, problems, calm)
        survival = Survival(response=calm.response)
        for seed in seeds:
            ending, seen = trial.run(plan(seed).faults(calm.passed))
            problems = [*ending.problems, *trial.ledger.problems()]
            problems += _differences(calm, ending, deterministic=deterministic)
            if seen != world and not ending.has_unknown:
                problems.append(f"the world is {seen!r:.200}, and undisturbed it is {world!r:.200}")
            if problems:
                raise DidNotSurvive(_text(trial, seed, problems, ending), seed, problems, ending)
            survival = _with(survival, ending, calm)
        return survival
    finally:
        trial.close()


class _Trial:
    """What all runs have in common."""

    def __init__(
        self, agent: Agent, message: str, driver: Driver | Callable[..., Any] | None, ledger: EffectLedger,
        reset: Callable[[], object] | None, observe: Callable[[], object] | None, steps_per_task: int,
        redis_url: str | None,
    ) -> None:  # fmt: skip
        self.agent = agent if driver is None else replace(agent, model=None, base_url=None, driver=driver)
        self.message = message
        self.ledger = ledger
        self._reset = reset
        self._observe = observe
        self._settings = Settings.build(
            steps_per_task=steps_per_task,
            events_kept=_EVENTS_KEPT,
            # Pauses between two questions are real time; longer ones become a "retry later", which is virtual.
            retry_delay_seconds=0.001,
            retry_delay_max_seconds=0.01,
        )
        self._start_ms = time.time_ns() // 1_000_000  # tools compare their deadline with this machine's clock
        self._redis = RedisOnVirtualTime.empty(redis_url) if redis_url else None
        self._loop = EventLoopThread()

    def run(self, faults: Sequence[Fault]) -> tuple[Ending, object]:
        """One run in a new world, and what the world looks like afterwards."""
        self.ledger.clear()
        if self._reset is not None:
            self._reset()
        ending = Simulation(
            self.agent, self.message, faults, self.ledger, self._settings, self._loop, self._redis, self._start_ms
        ).run()
        return ending, self._observe() if self._observe is not None else None

    def close(self) -> None:
        self._loop.close()
        if self._redis is not None:
            self._redis.close()


def _calm_problems(calm: Ending, expect: str) -> list[str]:
    if calm.status == expect:
        return list(calm.problems)
    why = f": {'; '.join(calm.errors)}" if calm.errors else ""
    return [*calm.problems, f"it ends {calm.status}, not {expect}{why}"]


def _differences(calm: Ending, ending: Ending, *, deterministic: bool) -> list[str]:
    """Where a run ended otherwise than the undisturbed one. Who learns that an outcome is unknown may decide anew."""
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


def _with(survival: Survival, ending: Ending, calm: Ending) -> Survival:
    return replace(
        survival,
        seeds=survival.seeds + 1,
        faults=survival.faults + Counter(fault.kind.value for fault in ending.fired),
        points=survival.points + Counter(fault.point for fault in ending.fired),
        interrupted=survival.interrupted + ending.has_unknown,
        driver_calls=survival.driver_calls + ending.driver_calls,
        least_driver_calls=survival.least_driver_calls + calm.driver_calls,
    )


def _text(trial: _Trial, seed: int | None, problems: Sequence[str], ending: Ending) -> str:
    where = "without any fault" if seed is None else f"under seed {seed}"
    replay = f"assert_survives({trial.agent.name}, {trial.message!r}, seeds=[{seed}])"
    lines = [f"agent {trial.agent.name!r} goes wrong {where}:", *(f"  - {problem}" for problem in problems)]
    if seed is not None:
        lines += ["faults:", *(f"  - {fault}" for fault in ending.fired)]
        lines += [f"replay, with the other arguments as they are: {replay}"]
    left_out = max(0, len(ending.trace) - _SHOWN)
    shown = f"what happened (virtual seconds; {left_out} lines before these):" if left_out else "what happened:"
    return "\n".join([*lines, shown, *ending.trace[-_SHOWN:]])
