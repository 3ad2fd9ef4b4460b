"""Prometheus metrics of one worker process, served over HTTP. Off unless `CELERY_AGENTS_METRICS_PORT` is set.

Steps are counted as they run; slots and backlog are read at each scrape. The prefork pool runs steps in child
processes, which cannot be scraped: count by the events of Flower there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ...config.brokers import takes_steps_itself
from ...config.settings import Settings
from ...worker.drivers.windows import WINDOWS
from ...worker.engine.outcome import Done, Moved, NothingToDo, Outcome, Parked, RetryLater, TakenOver, Waiting
from ...worker.engine.services import StepObserver, new_records
from ...worker.errors import CeleryAgentsError, ConfigurationError, MissingExtra
from ...worker.flow.values import AT_PROVIDER
from ...worker.state.execution.inference import InferenceResponse
from ...worker.state.execution.status import ExecutionStatus
from ..consumer.refusals import SOURCES, refusals
from .provider_jobs import JobTally, measure_jobs, tally_jobs
from .provider_metrics import count_waits, measure_buckets, measure_caps, measure_concurrency

if TYPE_CHECKING:
    from ...worker.drivers.protocol import InferenceRequest
    from ...worker.engine.run import Run
    from ..runtime import Runtime

T = TypeVar("T")
log = logging.getLogger(__name__)

# Model calls take seconds to minutes, tools milliseconds to minutes.
_BUCKETS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 900.0)
# People take minutes to days.
_ANSWER_BUCKETS: Final = (1.0, 10.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0)
_JOB_BUCKETS: Final = (60.0, 300.0, 900.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0, 28_800.0, 57_600.0, 86_400.0)
_JOBS_READ_SECONDS: Final = 60.0
"""Between two looks at the index of jobs, which may be long."""
_UNKNOWN_TOOL: Final = "(unknown)"  # a model may invent any name, and each would be a time series
_OTHER: Final = "(other)"
_MOST_NAMES: Final = 100
_MOST_SHARES: Final = 20
_MOST_TOOLS: Final = 1_000  # MCP servers have many
_NAME_CHARS: Final = 100


class _LabelValues:
    """The values of a label whose names come from outside: a provider, a driver or an MCP server.

    Each name is a time series for as long as the process lives, so names beyond the limit share one value.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        """The value for a name: itself, cut where it is long, or that of all others."""
        name = name[:_NAME_CHARS]
        if name not in self._known:
            if len(self._known) >= self._most:
                return _OTHER
            self._known.add(name)
        return name


class Metrics(StepObserver):
    """Counts steps, driver calls and tool calls. Labels are names of agents, tools and models: few, and no user's.

    The first 100 models, 100 kinds of errors and 1 000 tools have values of their own; all others are `(other)`.
    """

    def __init__(self, agents: Iterable[str] = ()) -> None:
        """
        Args:
            agents: Names of those that the worker has.
        Raises:
            MissingExtra: prometheus-client is not installed.
        """
        try:
            from prometheus_client import CollectorRegistry, Counter, Histogram
        except ImportError as error:
            raise MissingExtra("metrics", "CELERY_AGENTS_METRICS_PORT") from error

        self.registry = CollectorRegistry()

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"celery_agents_{name}", what, labels, registry=self.registry)

        def seconds(name: str, what: str, *labels: str, buckets: Sequence[float] = _BUCKETS) -> Histogram:
            return Histogram(f"celery_agents_{name}_seconds", what, labels, registry=self.registry, buckets=buckets)

        self._steps = counter("steps", "Steps that this worker claimed, by what came of them", "agent", "outcome")
        self._deliveries = counter("deliveries", "Step messages by what came of them", "outcome")
        self._executions = counter("executions", "Executions that ended in this worker", "agent", "status")
        self._deliveries.labels("parked")  # from 0 on: an alert sees no increase in a series that begins with 1
        for agent in agents:
            self._executions.labels(agent, ExecutionStatus.FAILED.value)
        self._step_seconds = seconds("step", "A step from its claim to its commit", "agent")
        self._driver_seconds = seconds("driver", "One driver call", "agent", "outcome")
        self._tool_seconds = seconds("tool", "One tool call", "agent", "tool")
        self._tool_calls = counter("tool_calls", "Tool calls", "agent", "tool", "outcome")
        self._errors = counter("driver_errors", "Driver calls that gave no answer", "agent", "kind")
        self._retries = counter("driver_retries", "Driver calls after a failed one with the same question", "agent")
        self._tokens = counter("tokens", "Tokens of the answers", "agent", "model", "kind")
        self._cost = counter("cost_usd", "Price of the answers in US dollars, where it is known", "agent", "model")
        self._recoveries = counter("recoveries", "Steps carried on after another claim had ended unfinished", "agent")
        what = "From a request to its answer, counted when the step that asked is committed"
        self._answer_seconds = seconds("request_answer", what, "agent", "kind", "status", buckets=_ANSWER_BUCKETS)
        what = "From a job at a provider to its answer, as the worker saw it that has collected it"
        self._job_seconds = seconds("provider_job", what, "model", "window", buckets=_JOB_BUCKETS)
        self._saved = counter("saved_dollars", "What windows have saved of the full price", "model", "window")
        self._models, self._kinds = _LabelValues(_MOST_NAMES), _LabelValues(_MOST_NAMES)
        self._tools = _LabelValues(_MOST_TOOLS)
        self._started: dict[str, float] = {}  # by claim, like the next
        self._asked: dict[str, set[str]] = {}

    def step_begun(self, run: Run) -> None:
        """See `StepObserver`."""
        self._started[run.claim.id] = time.monotonic()
        if run.loaded.carries_on:
            self._recoveries.labels(run.agent.name).inc()

    def driver_called(
        self, run: Run, request: InferenceRequest, seconds: float, response: InferenceResponse | None, error: str
    ) -> None:
        """See `StepObserver`."""
        agent = run.agent.name
        asked = self._asked.setdefault(run.claim.id, set())
        if request.purpose in asked:
            self._retries.labels(agent).inc()
        asked.add(request.purpose)
        self._driver_seconds.labels(agent, "error" if error else "answer").observe(seconds)
        if error:
            self._errors.labels(agent, self._kinds.of(error)).inc()
        if response is not None:
            self._count_usage(run, request, response)

    def _count_usage(self, run: Run, request: InferenceRequest, response: InferenceResponse) -> str:
        """Count tokens and price; the label of the model."""
        agent = run.agent.name
        named = response.model or request.own_model
        model = self._models.of(named or (run.model if run.agent.models else "own driver"))
        usage = response.usage
        for kind in ("input", "output", "cache_write", "cache_read", "reasoning"):
            if count := getattr(usage, kind):
                self._tokens.labels(agent, model, kind).inc(count)
        if response.cost:
            self._cost.labels(agent, model).inc(response.cost)
        return model

    def job_answered(self, run: Run, request: InferenceRequest, seconds: float, response: InferenceResponse) -> None:
        """See `StepObserver`."""
        model, name = self._count_usage(run, request, response), run.memory.jobs[-1].window
        window = WINDOWS.get(name)
        self._job_seconds.labels(model, name).observe(seconds)
        if response.cost and window is not None:
            self._saved.labels(model, name).inc(response.cost * window.discount / window.factor)

    def tools_called(self, run: Run) -> None:
        """See `StepObserver`."""
        agent = run.agent.name
        for index in new_records(run):
            execution = run.obtained.records[index].execution
            name = execution.tool_call.name
            tool = self._tools.of(name) if run.agent.toolset.get(name) is not None else _UNKNOWN_TOOL
            self._tool_calls.labels(agent, tool, execution.outcome.value).inc()
            took = (execution.completed_at - execution.started_at).total_seconds()
            self._tool_seconds.labels(agent, tool).observe(max(0.0, took))

    def step_ended(self, run: Run, outcome: Outcome | None) -> None:
        """See `StepObserver`."""
        agent = run.agent.name
        self._asked.pop(run.claim.id, None)
        self._steps.labels(agent, _NAMES[type(outcome)]).inc()
        started = self._started.pop(run.claim.id, None)
        if started is not None:
            self._step_seconds.labels(agent).observe(time.monotonic() - started)
        if isinstance(outcome, Done) and outcome.status.is_terminal():
            self._executions.labels(agent, outcome.status.value).inc()
        if isinstance(outcome, Done):
            self._observe_answers(run)

    def _observe_answers(self, run: Run) -> None:
        for request in run.journal.all_requests:
            record = run.journal.answer_to(request)
            if record is not None:
                took = max(0, record.at_ms - request.asked_at_ms) / 1000
                self._answer_seconds.labels(run.agent.name, request.kind.value, record.status.value).observe(took)

    def delivered(self, outcome: Outcome | None) -> None:
        """Count the outcome of a step message; None when Redis did not answer."""
        name = outcome.reason.value if isinstance(outcome, NothingToDo) else _NAMES[type(outcome)]
        self._deliveries.labels(name).inc()


_NAMES: Final[dict[type[Any], str]] = {
    Done: "committed",
    Waiting: "waiting",
    NothingToDo: "nothing_to_do",
    RetryLater: "put_off",
    Moved: "moved",
    TakenOver: "taken_over",
    Parked: "parked",
    type(None): "unavailable",
}


class _GaugeCollector:
    """Reads slots and backlog at each scrape."""

    def __init__(self, runtime: Callable[[], Runtime]) -> None:
        self._runtime = runtime
        self._jobs, self._jobs_read_at = JobTally(), -_JOBS_READ_SECONDS

    def collect(self) -> Iterator[Any]:
        """Give the gauges to prometheus_client."""
        from prometheus_client.core import GaugeMetricFamily

        runtime = self._runtime()
        yield from _count_losses(runtime)
        facts = {
            "slots": (
                "Steps that this worker can have wait for models and tools",
                runtime.settings.concurrency,
            ),
            "slots_busy": ("Steps that it runs", runtime.keeper.running),
            "problems": (
                "Problems of Redis that this worker has found: eviction, disk, role, keys of another type",
                len(runtime.problems),
            ),
            "redis_memory_share": ("The part of Redis's memory limit that is used", runtime.redis_memory_share),
            "archive_behind_seconds": (
                "For how long the oldest session should have been in the archive already, where this worker moves them",
                max(runtime.archive_progress.behind.values(), default=0.0),
            ),
            "slots_abandoned": ("Slots lost to plain functions that do not end", runtime.keeper.abandoned),
            **self._read_backlog(runtime),
        }
        for name, (what, value) in facts.items():
            yield GaugeMetricFamily(f"celery_agents_{name}", what, value=value)
        for name, (what, label, values) in self._read_queues(runtime).items():
            family = GaugeMetricFamily(f"celery_agents_{name}", what, labels=[label])
            for key, value in values.items():
                family.add_metric([key], value)
            yield family
        yield from count_waits(runtime.gate)
        flow, view = runtime.store.flow, runtime.gate.view
        yield from measure_buckets(() if view.is_empty else _read_or_none("buckets", flow.buckets))
        if view.concurrency:
            limits = _read_or_none("concurrency limits", flow.concurrency)
            yield from measure_concurrency(runtime.concurrency, limits)
        if view.caps:
            yield from measure_caps(runtime.spending, _read_or_none("spend caps", flow.caps))
        yield from measure_jobs(self._read_jobs(runtime))

    def _read_jobs(self, runtime: Runtime) -> JobTally:
        if time.monotonic() >= self._jobs_read_at + _JOBS_READ_SECONDS:
            housekeeping = runtime.store.housekeeping
            try:
                self._jobs = tally_jobs(housekeeping.provider_jobs(), housekeeping.now_ms())
            except CeleryAgentsError as error:
                log.debug("the jobs at providers cannot be read: %s", error)
            self._jobs_read_at = time.monotonic()
        return self._jobs

    def _read_backlog(self, runtime: Runtime) -> dict[str, tuple[str, float]]:
        try:
            total, late, oldest_ms = runtime.store.housekeeping.backlog()
            delayed = len(runtime.store.housekeeping.list_delayed(without=AT_PROVIDER))
            waiting = runtime.store.requests.count_open()
            now_ms = runtime.store.housekeeping.now_ms()
        except CeleryAgentsError as error:
            log.debug("the backlog cannot be read: %s", error)
            return {}
        age_ms = 0 if waiting.oldest_ms is None else max(0, now_ms - waiting.oldest_ms)
        return {
            "open_requests": ("Requests that wait for an answer (of all workers)", waiting.open),
            "open_request_age_seconds": ("How long the oldest of these has been open", age_ms / 1000),
            "due_sessions": ("Sessions with a step to run, now or later (of all workers)", total),
            "overdue_sessions": ("Of these, sessions whose time has passed", late),
            "due_age_seconds": ("How long the oldest of these has been overdue", oldest_ms / 1000),
            "delayed_steps": ("Delayed steps but those of jobs at providers (of all workers, to 1000)", delayed),
        }

    def _read_queues(self, runtime: Runtime) -> dict[str, tuple[str, str, dict[str, float]]]:
        """Labelled gauges: what they mean, the label, and the value of each label."""
        gauges: dict[str, tuple[str, str, dict[str, float]]] = {}
        for read in (_read_lengths, _read_unoffered):  # the queues may be elsewhere than the sessions
            try:
                gauges |= read(runtime)
            except CeleryAgentsError as error:
                log.debug("the queues cannot be read: %s", error)
        return gauges


def _read_lengths(runtime: Runtime) -> dict[str, tuple[str, str, dict[str, float]]]:
    """How many messages wait, and whose."""
    store, settings = runtime.store, runtime.settings
    keys = {settings.step_queue(queue): runtime.publisher.queue_key(queue) for queue in runtime.queues}
    lengths: dict[str, float] = {}
    if takes_steps_itself(settings):
        lengths = {name: float(store.housekeeping.queue_length(key)) for name, key in keys.items()}
    shares = store.flow.shares_waiting([*keys.values()]) if runtime.gate.view.shares else {}
    waiting = {share: float(sum(counts.values())) for share, counts in shares.items()}
    most = dict(sorted(waiting.items(), key=lambda each: -each[1])[:_MOST_SHARES])
    return {
        "share_waiting": ("Steps that wait in these queues, of the shares with most", "share", most),
        "queue_length": ("Messages in a queue that this worker takes", "queue", lengths),
    }


def _read_unoffered(runtime: Runtime) -> dict[str, tuple[str, str, dict[str, float]]]:
    counts: dict[str, float] = {**runtime.store.housekeeping.count_unoffered()}
    text = "Sessions whose agent no live worker offers (of all workers)"
    return {"unoffered_sessions": (text, "agent", counts)}


def _count_losses(runtime: Runtime) -> Iterator[Any]:
    """Count what was refused, dropped, or lost by Redis."""
    from prometheus_client.core import CounterMetricFamily

    families: tuple[tuple[str, str, str, Mapping[str, int]], ...] = (
        (
            "refused", "What came from the broker and was not taken", "source",
            {source: refusals.counts.get(source, 0) for source in SOURCES},
        ),
        (
            "archived", "Sessions that this worker has moved to the archive, or cannot read (failed)", "outcome",
            {"moved": runtime.archive_progress.moved, "failed": runtime.archive_progress.failed},
        ),
        ("schedule_slots", "Slots of schedules that this worker has dealt with", "outcome", runtime.schedules.counts),
        ("live_dropped", "Pieces of live text that were not written", "", {"": runtime.live.dropped}),
        (
            "histories_lost", "Sessions of which Redis has lost the end (behind), or all (gone)", "kind",
            runtime.histories_lost,
        ),
    )  # fmt: skip
    for name, what, label, counts in families:
        family = CounterMetricFamily(f"celery_agents_{name}", what, labels=[label] if label else None)
        for value, count in counts.items():
            family.add_metric([value] if label else [], count)
        yield family


def serve_metrics(metrics: Metrics, runtime: Callable[[], Runtime], settings: Settings) -> Callable[[], None]:
    """Answer scrapes in a thread.

    Returns:
        A function that stops the thread.
    Raises:
        ConfigurationError: The port is taken.
    """
    from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, start_http_server

    assert settings.metrics_port is not None
    if runtime().settings.pool == "prefork":
        log.warning(
            "the prefork pool runs steps in child processes, whose metrics are not served; use the threads pool"
        )
    try:
        server, thread = start_http_server(settings.metrics_port, settings.metrics_address, metrics.registry)
    except OSError as error:
        raise ConfigurationError(
            f"metrics cannot listen on {settings.metrics_address} port {settings.metrics_port}: {error.strerror}; "
            "choose another CELERY_AGENTS_METRICS_PORT, each worker of a machine its own"
        ) from error
    gauges: Any = _GaugeCollector(runtime)
    for collector in (gauges, GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR):
        metrics.registry.register(collector)

    def close() -> None:
        server.shutdown()
        thread.join(timeout=5)

    return close


def _read_or_none(what: str, read: Callable[[], Sequence[T]]) -> Sequence[T]:
    """Read a list for a gauge; none of it where Redis does not answer."""
    try:
        return read()
    except CeleryAgentsError as error:
        log.debug("the %s cannot be read: %s", what, error)
        return ()
