"""The figures that have targets, from the samples of alternating rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .engine import Engine
from .load import Load
from .rounds import Results
from .running import Sample


def throughput(sample: Sample) -> float:
    return sample.steps_per_second


def step_time(sample: Sample) -> float:
    return sample.ms_per_step


def written(sample: Sample) -> float | None:
    return sample.per_step(sample.bytes_in)


def cpu(sample: Sample) -> float:
    return sample.cpu_ms_per_step


@dataclasses.dataclass(frozen=True)
class Floors:
    """Which bare Celery is the fastest, for many sessions and for one, and the fastest of those in threads.

    Attributes:
        two: The fastest that has two processes for its tasks, as two workers of the product have.
    """

    many: str
    one: str
    threads_many: str
    threads_one: str
    two: str

    @classmethod
    def of(cls, results: Results, engines: Sequence[Engine], many: Load, one: Load) -> Floors:
        """The fastest by their medians."""

        def fastest(load: Load, pool: str, *, two: bool = False) -> str:
            compared = [
                engine.name
                for engine in engines
                if pool in engine.name and (engine.processes == 1 or two) and (not two or _has_two(engine))
            ]
            rates = {name: results.median(name, load, throughput) or 0.0 for name in compared}
            return max(rates, key=lambda name: rates[name])

        return cls(
            fastest(many, ""), fastest(one, ""), fastest(many, "threads"), fastest(one, "threads"),
            fastest(many, "", two=True),
        )  # fmt: skip


def _has_two(engine: Engine) -> bool:
    return engine.processes == 2 or "prefork" in engine.name


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def quick_figures(
    results: Results, floors: Floors, many: Load, one: Load, short: Load, long: Load
) -> dict[str, object]:
    """What `BENCH` prints. Ratios of throughput are product over floor, of time per step too; None: not measured."""

    def many_ratio(product: str, floor: str) -> float | None:
        return rounded(results.ratio(throughput, (product, many), (floor, many)))

    def one_ratio(product: str, floor: str) -> float | None:
        return rounded(results.ratio(step_time, (product, one), (floor, one)))

    return {
        "floor_steps_per_s": rounded(results.median(floors.many, many, throughput)),
        "floor_is": floors.many,
        "ratio_100": many_ratio("product_keyed", floors.many),
        "ratio_100_pure": many_ratio("product_pure", floors.many),
        "ratio_1": one_ratio("product_keyed", floors.one),
        "ratio_1_pure": one_ratio("product_pure", floors.one),
        "ratio_burst": many_ratio("product_burst", floors.many),
        "floor_threads_steps_per_s": rounded(results.median(floors.threads_many, many, throughput)),
        "ratio_100_threads": many_ratio("product_keyed", floors.threads_many),
        "ratio_100_pure_threads": many_ratio("product_pure", floors.threads_many),
        "ratio_1_threads": one_ratio("product_keyed", floors.threads_one),
        "ratio_burst_threads": many_ratio("product_burst", floors.threads_many),
        # Two workers of the product over two processes of bare Celery.
        "floor_two_steps_per_s": rounded(results.median(floors.two, many, throughput)),
        "floor_two_is": floors.two,
        "ratio_100_two": many_ratio("product_keyed2", floors.two),
        "ratio_100_pure_two": many_ratio("product_pure2", floors.two),
        # The same two workers over the floor, whose prefork computes on both cores too.
        "ratio_100_cores": many_ratio("product_keyed2", floors.many),
        "ratio_100_pure_cores": many_ratio("product_pure2", floors.many),
        "ratio_burst_cores": many_ratio("product_burst2", floors.many),
        # What neighbours on the machine do changes times more than it changes CPU.
        "cpu_ratio_100": rounded(results.ratio(cpu, (floors.many, many), ("product_keyed", many))),
        "cpu_ratio_100_pure": rounded(results.ratio(cpu, (floors.many, many), ("product_pure", many))),
        "cpu_ratio_burst": rounded(results.ratio(cpu, (floors.many, many), ("product_burst", many))),
        "bytes_growth": rounded(results.ratio(written, ("product_keyed", long), ("product_keyed", short))),
        "cpu_growth": rounded(results.ratio(cpu, ("product_keyed", long), ("product_keyed", short))),
        "rounds": len(results.samples("product_keyed", many)),
        "failed": sorted(results.failures),
    }
