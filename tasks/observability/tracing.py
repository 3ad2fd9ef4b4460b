"""OpenTelemetry traces with the names of the GenAI conventions. Off unless `CELERY_AGENTS_TRACES` is set.

An execution is one trace, whichever workers run its steps: the ids of the trace and of its root span are derived from
the execution's id. The root span is written when the execution ends; until then its children have no parent, like those
of any unfinished request. Prompts, answers, arguments and results are never in the spans.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Final, assert_never

from ...worker.engine.outcome import Done, Moved, NothingToDo, Outcome, Parked, RetryLater, TakenOver, Waiting
from ...worker.engine.services import StepObserver, new_records
from ...worker.errors import MissingExtra
from ...worker.spans import NAME_CHARS, derive_root_span_id, derive_trace_id, usage_attributes
from ...worker.state.execution.execution import ExecutionState
from ...worker.state.execution.inference import InferenceResponse

if TYPE_CHECKING:
    from ...worker.drivers.protocol import InferenceRequest
    from ...worker.engine.run import Run

_NAME: Final = "celery-agents"
_LAST_SECONDS: Final = 5.0
_fixed_ids: Final[ContextVar[tuple[int, int] | None]] = ContextVar("celery_agents_trace_ids", default=None)


class Tracing(StepObserver):
    """Writes a span for each step, driver call and tool call.

    Spans go to the tracer provider that the program has set, such as with `opentelemetry-instrument`; without one they
    are exported by OTLP as the environment's `OTEL_*` say.
    """

    def __init__(self, provider: Any = None) -> None:
        """
        Args:
            provider: A tracer provider of the SDK. None: the program's, or one that exports by OTLP.
        Raises:
            MissingExtra: The SDK is not installed.
        """
        try:
            from opentelemetry import context, trace
            from opentelemetry.sdk.trace import TracerProvider
        except ImportError as error:
            raise MissingExtra("tracing", "CELERY_AGENTS_TRACES") from error
        self._trace = trace
        self._context = context
        current = provider or trace.get_tracer_provider()
        self._provider: Any = current if isinstance(current, TracerProvider) else _make_provider()
        # A tracer keeps the generator that its provider has when it is made, so other tracers keep their own.
        original = self._provider.id_generator
        self._provider.id_generator = _IdGenerator(original)
        self._tracer = self._provider.get_tracer(_NAME)
        self._provider.id_generator = original
        self._open: dict[str, _OpenStep] = {}

    def close(self) -> None:
        """Send the spans that are not sent yet, for a few seconds: the SDK waits for a receiver as long as it drips."""
        sending = threading.Thread(target=self._provider.force_flush, name="celery-agents-traces", daemon=True)
        sending.start()
        sending.join(_LAST_SECONDS)

    def step_begun(self, run: Run) -> None:
        """See `StepObserver`. The span is current until the step ends: spans of drivers and tools are its children."""
        attributes = _common_attributes(run) | {"celery_agents.attempt": run.loaded.attempts}
        span = self._tracer.start_span(
            f"step {run.ref.step}", self._root_context(run), self._trace.SpanKind.CONSUMER, attributes
        )
        token = self._context.attach(self._trace.set_span_in_context(span))
        self._open[run.claim.id] = _OpenStep(span, token, time.time_ns() - run.claim.now_ms * 1_000_000)

    def driver_called(
        self, run: Run, request: InferenceRequest, seconds: float, response: InferenceResponse | None, error: str
    ) -> None:
        """See `StepObserver`."""
        ended = time.time_ns()
        provider, model = _read_model(run, request)
        attributes = _common_attributes(run) | {"gen_ai.operation.name": "chat", "gen_ai.provider.name": provider}
        attributes |= {"gen_ai.request.model": model} if model else {}
        attributes |= _response_attributes(response) if response is not None else {}
        attributes |= {"error.type": error} if error else {}
        name = f"chat {model}" if model else "chat"
        span = self._start_child(run, name, self._trace.SpanKind.CLIENT, ended - round(seconds * 1e9), attributes)
        self._end(span, ended, error)

    def job_answered(self, run: Run, request: InferenceRequest, seconds: float, response: InferenceResponse) -> None:
        """See `StepObserver`. Its span may begin long before that of the step."""
        self.driver_called(run, request, seconds, response, "")

    def tools_called(self, run: Run) -> None:
        """See `StepObserver`."""
        opened = self._open.get(run.claim.id)
        skew_ns = opened.skew_ns if opened is not None else 0
        for index in new_records(run):
            execution = run.obtained.records[index].execution
            call = execution.tool_call
            attributes = _common_attributes(run) | {
                "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": call.name, "gen_ai.tool.call.id": call.id,
                "gen_ai.tool.type": "function", "celery_agents.tool.outcome": execution.outcome.value,
            }  # fmt: skip
            error = execution.error.kind if execution.error is not None else ""
            attributes |= {"error.type": error} if error else {}
            started_ns, ended_ns = (
                round(at.timestamp() * 1e9) for at in (execution.started_at, execution.completed_at)
            )
            kind = self._trace.SpanKind.INTERNAL
            span = self._start_child(run, f"execute_tool {call.name}", kind, started_ns + skew_ns, attributes)
            self._end(span, ended_ns + skew_ns, error)

    def step_ended(self, run: Run, outcome: Outcome | None) -> None:
        """See `StepObserver`."""
        opened = self._open.pop(run.claim.id, None)
        if opened is None:
            return
        with contextlib.suppress(ValueError):
            self._context.detach(opened.token)
        opened.span.set_attribute("celery_agents.outcome", _outcome_name(outcome))
        error = outcome.error if isinstance(outcome, Done) else ""
        if error:
            opened.span.set_attribute("error.type", "execution_failed")
        self._end(opened.span, time.time_ns(), error)
        if isinstance(outcome, Done) and outcome.status.is_terminal():
            self._write_root(run, outcome)

    def _write_root(self, run: Run, outcome: Done) -> None:
        execution = run.execution
        attributes = _common_attributes(run) | {
            "gen_ai.operation.name": "invoke_agent",
            "celery_agents.status": outcome.status.value,
        }
        attributes |= _total_attributes(outcome)
        ids = (_trace_id_of(run), derive_root_span_id(run.ref.execution_id, execution.retries))
        token = _fixed_ids.set(ids)
        try:
            span = self._tracer.start_span(
                f"invoke_agent {run.agent.name}", self._parent_context(run), self._trace.SpanKind.INTERNAL, attributes,
                start_time=round((execution.started_at or execution.created_at).timestamp() * 1e9),
            )  # fmt: skip
        finally:
            _fixed_ids.reset(token)
        self._end(span, time.time_ns(), outcome.error)

    def _root_context(self, run: Run) -> Any:
        """The context of the execution's root span."""
        return self._remote_context(run, derive_root_span_id(run.ref.execution_id, run.execution.retries))

    def _parent_context(self, run: Run) -> Any:
        """The context of the span above the execution's root span: of a child its parent's, otherwise none."""
        link = run.parent
        if link is None:
            return self._context.Context()
        return self._remote_context(run, derive_root_span_id(link.execution_id, link.retries))

    def _remote_context(self, run: Run, span_id: int) -> Any:
        trace, trace_id = self._trace, _trace_id_of(run)
        parent = trace.SpanContext(
            trace_id, span_id, is_remote=True, trace_flags=trace.TraceFlags(self._is_sampled(trace_id))
        )
        return trace.set_span_in_context(trace.NonRecordingSpan(parent), self._context.Context())

    def _is_sampled(self, trace_id: int) -> int:
        """Ask the sampler as for the root span; samplers by ratio use the trace id, so all workers agree."""
        decision = self._provider.sampler.should_sample(None, trace_id, "invoke_agent").decision
        return int(decision.is_sampled())

    def _start_child(self, run: Run, name: str, kind: Any, started_ns: int, attributes: Mapping[str, Any]) -> Any:
        opened = self._open.get(run.claim.id)
        parent = self._trace.set_span_in_context(opened.span) if opened is not None else self._root_context(run)
        cut = {key: value[:NAME_CHARS] if isinstance(value, str) else value for key, value in attributes.items()}
        return self._tracer.start_span(name[:NAME_CHARS], parent, kind, cut, start_time=started_ns)

    def _end(self, span: Any, at_ns: int, error: str) -> None:
        if error:
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error))
        span.end(at_ns)


def _trace_id_of(run: Run) -> int:
    """The trace of an execution; that of a child is its root's."""
    link = run.parent
    return derive_trace_id(run.ref.execution_id if link is None else link.root_execution_id)


class _OpenStep:
    """A running step: its span, and how far this machine's clock is ahead of Redis's."""

    __slots__ = ("skew_ns", "span", "token")

    def __init__(self, span: Any, token: Token[Any], skew_ns: int) -> None:
        self.span = span
        self.token = token
        self.skew_ns = skew_ns


class _IdGenerator:
    """Gives the fixed ids of an execution while they are set, else those of another generator."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def generate_span_id(self) -> int:
        """See the SDK's `IdGenerator`."""
        ids = _fixed_ids.get()
        return ids[1] if ids is not None else self._original.generate_span_id()

    def generate_trace_id(self) -> int:
        """See the SDK's `IdGenerator`."""
        ids = _fixed_ids.get()
        return ids[0] if ids is not None else self._original.generate_trace_id()

    def is_trace_id_random(self) -> bool:
        """Tell samplers by ratio that the id's last bits are random."""
        return True


def _make_provider() -> Any:
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from ...worker.capabilities.tracing.otlp import make_exporter

    resource = Resource.create({"service.name": _NAME}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # it would wait once more; see `Tracing.close`
    provider.add_span_processor(BatchSpanProcessor(make_exporter()))
    return provider


def _common_attributes(run: Run) -> dict[str, Any]:
    return {
        "gen_ai.agent.name": run.agent.name,
        "gen_ai.conversation.id": run.ref.session_id,
        "celery_agents.execution_id": run.ref.execution_id,
        "celery_agents.step": run.ref.step,
    }


def _read_model(run: Run, request: InferenceRequest) -> tuple[str, str]:
    """Read provider and model from `provider:model`; a driver of the user's own is its own provider."""
    provider, colon, model = (request.own_model or "".join(run.agent.models[:1])).partition(":")
    return (provider, model) if colon else (run.agent.answering.name, provider)


def _response_attributes(response: InferenceResponse) -> dict[str, Any]:
    found = {
        "gen_ai.response.finish_reasons": (response.finish_reason.value,),
        **usage_attributes(response.usage),
        "gen_ai.response.model": response.model,
        "gen_ai.response.id": response.request_id,
        "celery_agents.cost_usd": response.cost,
    }
    return {name: value for name, value in found.items() if value is not None}


def _total_attributes(outcome: Done) -> dict[str, Any]:
    execution: ExecutionState | None = outcome.state.execution if outcome.state is not None else None
    if execution is None or execution.execution_id != outcome.ref.execution_id:
        return {}
    return {
        **usage_attributes(execution.usage),
        "celery_agents.steps": execution.step_count,
    }


def _outcome_name(outcome: Outcome | None) -> str:
    match outcome:
        case None:
            return "unavailable"
        case Done():
            return outcome.status.value
        case Waiting():
            return "waiting"
        case RetryLater():
            return "put_off"
        case TakenOver():
            return "taken_over"
        case NothingToDo() | Moved() | Parked():
            return "other"
        case _ as never:
            assert_never(never)
