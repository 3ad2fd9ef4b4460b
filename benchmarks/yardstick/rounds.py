"""Alternating rounds. Every engine is measured once in each round, so what the machine's neighbours do hits all alike;
ratios are taken within a round, and the median over the rounds is what counts. Short loads take turns (`side_by_side`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from .engine import Engine, NotMeasuredError
from .load import Load
from .running import Running, Sample

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Plan:
    """The work of one engine in each round; `rounds`: only in this many first ones (None: in all)."""

    engine: Engine
    loads: tuple[Load, ...]
    rounds: int | None = None


class Results:
    """The samples of all rounds, by engine, load and round."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, Load], dict[int, Sample]] = {}
        self.failures: dict[str, str] = {}
        self.engines: dict[str, Engine] = {}

    def add(self, engine: Engine, round_number: int, sample: Sample) -> None:
        self.engines[engine.name] = engine
        self._samples.setdefault((engine.name, sample.load), {})[round_number] = sample

    def samples(self, engine: str, load: Load) -> list[Sample]:
        return list(self._samples.get((engine, load), {}).values())

    def has(self, engine: str, load: Load) -> bool:
        return (engine, load) in self._samples

    def loads(self, engine: str) -> list[Load]:
        return [load for name, load in self._samples if name == engine]

    def median(self, engine: str, load: Load, of: Callable[[Sample], float | None]) -> float | None:
        """The median over the rounds; None when nothing was measured or the store does not count it."""
        values = [value for sample in self.samples(engine, load) if (value := of(sample)) is not None]
        return statistics.median(values) if values else None

    def ratio(
        self, of: Callable[[Sample], float | None], upper: tuple[str, Load], lower: tuple[str, Load]
    ) -> float | None:
        """The median over the rounds of `of(upper) / of(lower)`; None when no round has both."""
        ratios: list[float] = []
        for number, sample in self._samples.get(upper, {}).items():
            other = self._samples.get(lower, {}).get(number)
            above, below = of(sample), None if other is None else of(other)
            if above is not None and below:
                ratios.append(above / below)
        return statistics.median(ratios) if ratios else None

    def spread(self, engine: str, load: Load, of: Callable[[Sample], float]) -> float:
        """Largest over smallest value of the rounds."""
        values = [of(sample) for sample in self.samples(engine, load)]
        return max(values) / min(values) if values and min(values) else 1.0

    def as_json(self) -> list[dict[str, object]]:
        return [
            {"round": number, **dataclasses.asdict(sample)}
            for rounds in self._samples.values()
            for number, sample in rounds.items()
        ]


def alternate(plans: Sequence[Plan], rounds: int, results: Results, *, stop_after: float = float("inf")) -> Results:
    """Run the plans in alternating rounds.

    An engine that fails is left out from then on; the failure is kept and printed. `stop_after`: a monotonic time after
    which no further round begins, and in the first round no further engine.
    """
    for number in range(rounds):
        if number and time.monotonic() > stop_after:
            _say(f"time is up after {number} of {rounds} rounds")
            break
        for plan in _turned(plans, number):
            if plan.engine.name in results.failures or (plan.rounds is not None and number >= plan.rounds):
                continue
            if time.monotonic() > stop_after and not number:
                results.failures[plan.engine.name] = "the time of the run was over"
                continue
            try:
                with Running(plan.engine) as running:
                    for load in plan.loads:
                        sample = running.measure(load)
                        results.add(plan.engine, number, sample)
                        _say(
                            f"round {number + 1}: {plan.engine.title}: {load.title}: "
                            f"{sample.steps_per_second:.0f} steps/s, {sample.cpu_ms_per_step:.2f} ms CPU a step"
                        )
            except NotMeasuredError as failed:
                _failed(results, plan.engine, failed)
    return results


def side_by_side(engines: Sequence[Engine], load: Load, times: int, results: Results) -> Results:
    """A load of less than a second, of engines that run at the same time and take turns with it.

    For what neighbours on the machine change more within a minute than engines differ: each turn is a round by itself.
    An engine that fails is left out, with its failure kept and printed.
    """
    with contextlib.ExitStack() as stack:
        going: list[tuple[Engine, Running]] = []
        for engine in engines:
            try:
                going.append((engine, stack.enter_context(Running(engine))))
            except NotMeasuredError as failed:
                _failed(results, engine, failed)
        for number in range(times):
            for engine, running in _turned(going, number):
                if engine.name in results.failures:
                    continue
                try:
                    results.add(engine, number, running.measure(load))
                except NotMeasuredError as failed:
                    _failed(results, engine, failed)
        for engine, _ in going:
            times_a_step = [sample.ms_per_step for sample in results.samples(engine.name, load)]
            if times_a_step:
                _say(f"{times} turns: {engine.title}: {load.title}: {statistics.median(times_a_step):.2f} ms a step")
    return results


def _turned(order: Sequence[T], number: int) -> Sequence[T]:
    """Each round begins with another engine: none is always the one that runs on a rested machine."""
    turn = number % len(order) if order else 0
    return [*order[turn:], *order[:turn]]


def _failed(results: Results, engine: Engine, failed: NotMeasuredError) -> None:
    results.failures[engine.name] = str(failed)
    _say(f"FAILED {engine.title}: {failed}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
