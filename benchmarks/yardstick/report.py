"""docs/benchmarks.md and its plot, from the samples."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import plans

from celery_agents.tasks.local.embedded_redis import redis_binary

from .figures import Floors, cpu, step_time, throughput
from .load import Load
from .plot import Curve, plot_curves
from .rounds import Results
from .running import Sample
from .sections import DOCUMENT, kept_sections

PLOT = DOCUMENT.with_suffix(".svg")

# The figure, its key in BENCH or a note, the target, and whether more is better.
TARGETS = (
    ("throughput, 100 sessions, K = 50, keyed tool, over the floor", "ratio_100", 0.7, True),
    ("the same, pure tool", "ratio_100_pure", 0.85, True),
    ("two workers over two processes of bare Celery, keyed tool", "ratio_100_two", 0.7, True),
    ("the same, pure tool", "ratio_100_pure_two", 0.85, True),
    ("a worker for each of the two cores, over the floor, keyed tool", "ratio_100_cores", 0.7, True),
    ("the same, pure tool", "ratio_100_pure_cores", 0.85, True),
    ("the same, burst mode", "ratio_burst_cores", 2.2, True),
    ("ms a step of one session, over the floor", "ratio_1", 1.5, False),
    ("burst mode, 100 sessions, over the floor", "ratio_burst", 2.2, True),
    ("over naive Celery, K = 200", "over_naive", 2.5, True),
    ("over DBOS on PostgreSQL, 100 sessions, K = 50", "over_dbos", 1.5, True),
    ("over LangGraph's best checkpointer, 100 sessions, K = 50", "over_langgraph", 1.5, True),
    ("over Pydantic AI made durable by DBOS, K = 50", "over_dbos_agent", 8.0, True),
    ("bytes written a step, K = 1 000 over K = 10", "bytes_growth", 1.1, False),
    ("CPU a step, K = 1 000 over K = 10", "cpu_growth", 1.3, False),
    ("1 000 sessions of a model that takes 1 s, 500 slots: share of the ideal", "slow_share", 0.85, True),
    ("… peak memory of that worker, MB", "slow_memory_mb", 250.0, False),
    ("the same on 1 000 slots, over the ideal time of 500", "slow_share_more", 0.93, True),
    ("… peak memory of that worker, MB", "slow_memory_more_mb", 250.0, False),
    ("100 000 sessions stored, 1 000 due at once: a sweep pass, ms", "sweep_ms", 50.0, False),
    ("… listing a page of 50, ms", "list_page_ms", 50.0, False),
    ("… memory of an idle session beyond its bytes", "memory_overhead", 2048.0, False),
    ("10 000 schedules stored: what a sweep pass takes more, ms", "schedules_pass_ms", 1.0, False),
    ("submit to the worker's first event, idle worker, ms (median)", "submit_to_started_ms", 30.0, False),
    ("event written to event seen, ms (median)", "event_to_watcher_ms", 10.0, False),
)


def further_figures(often: Results, once: Results, figures: dict[str, object]) -> dict[str, object]:
    """The figures that only the full run has."""
    rate = often.median("product_keyed", plans.MANY, throughput)

    def over(results: Results, engine: str, load: Load) -> float | None:
        other = results.median(engine, load, throughput)
        return round(rate / other, 2) if rate and other else None

    slow = once.samples("product_keyed", plans.SLOW_MODEL)
    more = once.samples(plans.with_more_slots().name, plans.SLOW_MODEL)
    idle, payload = figures.get("memory_per_idle_session"), figures.get("payload_per_idle_session")
    overhead = idle - payload if isinstance(idle, int) and isinstance(payload, int) else None
    return {
        **figures,
        "memory_overhead": overhead,
        "over_naive": _two(often.ratio(throughput, ("product_keyed", plans.DEEP), ("naive", plans.DEEP))),
        "over_dbos": _two(often.ratio(throughput, ("product_keyed", plans.MANY), ("dbos_pg_1", plans.MANY))),
        "over_langgraph": _two(
            often.ratio(throughput, ("product_keyed", plans.MANY), ("langgraph_sqlite_1", plans.MANY))
        ),
        "over_dbos_agent": over(once, "dbos_pg_agent", plans.FEW),
        "slow_share": round(_ideal_seconds(plans.SLOW_SLOTS) / slow[0].seconds, 3) if slow else None,
        "slow_memory_mb": round(slow[0].peak_memory / 1e6) if slow else None,
        "slow_share_more": round(_ideal_seconds(plans.SLOW_SLOTS) / more[0].seconds, 3) if more else None,
        "slow_memory_more_mb": round(more[0].peak_memory / 1e6) if more else None,
    }


def _ideal_seconds(slots: int) -> float:
    """How long the sessions of the slow model take when no slot ever waits."""
    load = plans.SLOW_MODEL
    return load.total_steps * load.latency / min(slots, load.sessions)


def write_report(
    often: Results, once: Results, floors: Floors, figures: dict[str, object], seconds: float
) -> dict[str, object]:
    """Write the document and the plot; gives all figures back."""
    complete = further_figures(often, once, figures)
    parts = [
        _head(often, floors, seconds),
        _figures_table(complete),
        "## Many sessions\n\n100 sessions of 50 steps at once, unless the first column says otherwise.\n",
        _table(often, once, [plans.MANY, plans.FEW, plans.THOUSAND, plans.DEEP], floors),
        _events(often),
        "## One session\n\nMilliseconds a step, one session at a time; the plot shows the same.\n",
        _curve_table(once),
        f"![cost of a step over the length of the session]({PLOT.name})\n",
        "## Models that take their time\n",
        _waiting_table(once),
        _failures(often, once),
        *(section.rstrip("\n") + "\n" for section in kept_sections(DOCUMENT.read_text(encoding="utf-8")).values()),
        _reading(),
    ]
    DOCUMENT.write_text("\n".join(part for part in parts if part))
    plot_curves(_curves(once), PLOT)
    return complete


def _two(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _head(often: Results, floors: Floors, seconds: float) -> str:
    packages = ("celery", "kombu", "redis", "pydantic")
    load = ", ".join(f"{part:.1f}" for part in os.getloadavg())
    rounds = len(often.samples("product_keyed", plans.MANY))
    floor = often.engines[floors.many].title if floors.many in often.engines else floors.many
    return f"""# Benchmarks

This page compares the cost of a durable step with a bare Celery task and with other engines. `make bench` measures
everything and writes this page; each section on waiting, children, pydantic-ai, live text, streams and late steps has a
target of its own, too. `make bench-quick` measures the figures with targets.

Every engine does the same work: K steps. Each step has a scripted model's answer of about 1 KB with one tool call, and
a tool result of about 1 KB. The work is durable after every step. Each engine gets its own processes and its own
store, which start and end with it. Rounds alternate between the engines. A ratio compares values of one round, and the
page shows the median of {rounds} rounds. The steps of one session end so soon that the compared engines run side by
side and alternate {plans.TURNS} times; the page shows that median. Rows without a target come from one round.

**The floor** is a bare Celery task that puts itself into the queue again. It has no state, and task events are off on
both sides. It runs in threads, as the product's pool runs ordinary tasks, and in prefork. It runs on a stock queue and
on a queue declared like the product's (`no_ack`, prefetch disabled). The fastest of the four is the floor. Here it was:
{floor}.

Prefork has two children and this product has one process, so the page also compares two workers of this product with
two processes of bare Celery. Driver and tool are async functions, like the clients of models; one row has plain ones.

Measured {datetime.now(UTC):%Y-%m-%d} on {os.cpu_count()} cores ({_processor()}), Python {platform.python_version()}, \
{", ".join(f"{name} {version(name)}" for name in packages)}, {_redis_version()}, append-only file with an fsync every \
second; load average at the end {load}; {seconds / 60:.0f} minutes.
"""


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _redis_version() -> str:
    said = subprocess.run([redis_binary(), "--version"], capture_output=True, text=True).stdout.split()
    return next((f"Redis {word[2:]}" for word in said if word.startswith("v=")), "Redis")


def _figures_table(figures: dict[str, object]) -> str:
    lines = ["## Against the targets\n", "| figure | target | measured |", "|---|---|---|"]
    for title, key, target, more in TARGETS:
        value = figures.get(key)
        sign = "≥" if more else "≤"
        met = isinstance(value, int | float) and (value >= target if more else value <= target)
        shown = "not measured" if value is None else f"{value:g}{'' if met else ' (missed)'}"
        lines.append(f"| {title} | {sign} {target:g} | {shown} |")
    pool, cpu_only = ("_threads", "cpu_")
    same = f"""
Ratios to bare Celery in threads, one process against one: {figures["ratio_100" + pool]}
(keyed), {figures["ratio_100_pure" + pool]} (pure), {figures["ratio_burst" + pool]} (burst), and
{figures["ratio_1" + pool]} times the floor's time for one session. By CPU alone, which other programs on
the machine disturb less: {figures[cpu_only + "ratio_100"]} (keyed), {figures[cpu_only + "ratio_100_pure"]} (pure),
{figures[cpu_only + "ratio_burst"]} (burst).
"""
    return "\n".join(lines) + "\n" + same


def _table(often: Results, once: Results, loads: Sequence[Load], floors: Floors) -> str:
    base = often.median(floors.many, plans.MANY, throughput)
    head = "steps/s | of the floor | CPU ms | of it store | to store B | from store B | stored B | peak MB"
    rows = [f"| engine | {head} |", "|---|" + "---:|" * (head.count("|") + 1)]
    for load in loads:
        seen: set[str] = set()
        for results in (often, once):
            for name, engine in results.engines.items():
                if name in seen or name.endswith("_events") or not results.has(name, load):
                    continue
                seen.add(name)
                rows.append(_row(results, name, _titled(engine.title, load), load, base))
    return "\n".join(rows) + "\n"


def _titled(title: str, load: Load) -> str:
    return title if load == plans.MANY else f"{title} ({load.sessions} sessions, K = {load.steps})"


def _row(results: Results, name: str, title: str, load: Load, base: float | None) -> str:
    def median(of: Callable[[Sample], float | None]) -> float | None:
        return results.median(name, load, of)

    rate = median(throughput)
    share = rate / base if rate and base else None
    cells = [
        _shown(rate, 0),
        _shown(share, 2),
        _shown(median(cpu), 2),
        _shown(median(lambda sample: sample.store_ms_per_step), 2),
        _shown(median(lambda sample: sample.per_step(sample.bytes_in)), 0),
        _shown(median(lambda sample: sample.per_step(sample.bytes_out)), 0),
        _shown(median(lambda sample: sample.per_step(sample.stored)), 0),
        _shown(median(lambda sample: sample.peak_memory / 1e6), 0),
    ]
    return f"| {title} | " + " | ".join(cells) + " |"


def _shown(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _events(often: Results) -> str:
    rows = ["With task events, as they are by default:\n", "| engine | steps/s | CPU ms | ms a step, one session |"]
    rows.append("|---|---:|---:|---:|")
    found = [name for name in often.engines if name.endswith("_events")]
    for name in found:
        values = (
            _shown(often.median(name, plans.MANY, throughput), 0),
            _shown(often.median(name, plans.MANY, cpu), 2),
            _shown(often.median(name, plans.ONE, step_time), 2),
        )
        rows.append(f"| {often.engines[name].title} | " + " | ".join(values) + " |")
    return "\n".join(rows) + "\n" if found else ""


def _curves(once: Results) -> dict[str, Curve]:
    curves: dict[str, Curve] = {}
    for name, engine in once.engines.items():
        points = [
            (load.steps, value) for load in plans.CURVE if (value := once.median(name, load, step_time)) is not None
        ]
        if len(points) > 1:
            curves[engine.title] = points
    return curves


def _curve_table(once: Results) -> str:
    steps = [load.steps for load in plans.CURVE]
    rows = ["| engine | " + " | ".join(f"K = {k}" for k in steps) + " |", "|---|" + "---:|" * len(steps)]
    for title, curve in _curves(once).items():
        values = dict(curve)
        rows.append(f"| {title} | " + " | ".join(_shown(values.get(k), 2) for k in steps) + " |")
    return "\n".join(rows) + "\n"


def _waiting_table(once: Results) -> str:
    rows = ["| engine | load | steps/s | of the ideal | CPU ms a step | peak MB |", "|---|---|---:|---:|---:|---:|"]
    for name, engine in once.engines.items():
        for load in (plans.QUICK_MODEL, plans.SLOW_MODEL):
            slow = plans.MORE_SLOTS if name == plans.with_more_slots().name else plans.SLOW_SLOTS
            slots = slow if load == plans.SLOW_MODEL else plans.SLOTS
            for sample in once.samples(name, load):
                ideal = load.total_steps * load.latency / min(slots, load.sessions)
                cells = (
                    f"{sample.steps_per_second:.0f}",
                    f"{ideal / sample.seconds:.2f}",
                    f"{sample.cpu_ms_per_step:.2f}",
                    f"{sample.peak_memory / 1e6:.0f}",
                )
                rows.append(f"| {engine.title} | {load.title} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _failures(*results: Results) -> str:
    failed: Iterable[tuple[str, str]] = [item for result in results for item in result.failures.items()]
    lines = [f"- {name}: {reason.splitlines()[0]}" for name, reason in failed]
    return "## Not measured\n\n" + "\n".join(lines) + "\n" if lines else ""


def _reading() -> str:
    return """## How to read this

- *CPU* covers all worker processes and the store's server, but not the client that submits. The measured time includes
  submitting.
- *to store*, *from store*: bytes over the network by Redis's own count; for PostgreSQL the bytes of its write-ahead
  log. *stored*: growth of Redis's memory, of the database, or of the files. SQLite and Restate keep their own counts.
- Durability is relaxed in the same way: Redis syncs its append-only file every second, PostgreSQL runs with
  `synchronous_commit` off, Restate without an fsync for each entry. SQLite under DBOS and LangGraph keeps its defaults.
- Other engines do less for a step where they can. *One record a step* means that model and tool share one entry, so a
  crash between them repeats both. Taskiq, Dramatiq and naive Celery neither claim nor journal, so a crash loses or
  repeats work. They show what a queue and a plain save cost.
- Each engine has one worker process, unless a row says otherwise; prefork has two children.
"""
