"""`OtlpSink`: traces as OpenTelemetry spans with the names of the GenAI conventions, sent by OTLP over HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from importlib import import_module
from typing import Any

from ...errors import MissingExtra
from ...spans import NAME_CHARS, derive_root_span_id, derive_span_id, usage_attributes
from ...state.execution.usage import InferenceUsage
from ...state.values.frozen import FrozenDict, thaw
from .trace import MODEL_CALL, Trace, TraceEvent, TraceStatus


@dataclass(frozen=True)
class OtlpSink:
    """Sends a span for each execution, model call and tool call. Needs the extra `tracing`.

    The ids follow from the execution, so a span that comes again replaces itself where the receiver does that. They are
    those of `CELERY_AGENTS_TRACES`, too: have one of both.

    Attributes:
        endpoint: Where spans are posted, such as `http://localhost:4318/v1/traces`. None: as the environment's
            `OTEL_EXPORTER_OTLP_*` say.
        headers: Such as `Authorization`.
        timeout: Seconds for one post with its repetitions.
    """

    endpoint: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    timeout: float = 10.0

    def __post_init__(self) -> None:
        try:
            import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        except ImportError as error:
            raise MissingExtra("tracing", "OtlpSink") from error

    @property
    def name(self) -> str:
        """See `TraceSink`."""
        return "otlp"

    def begin(self, trace: Trace) -> None:
        """Send nothing: a span is sent when it has ended."""

    def append(self, trace: Trace, events: Sequence[TraceEvent]) -> None:
        """Send the spans of a step."""
        self._export([self._span_of(trace, event) for event in events])

    def write(self, trace: Trace) -> None:
        """Send all spans; that of the execution once it has ended."""
        root = [self._root_of(trace)] if trace.ended_at is not None else []
        self._export([*(self._span_of(trace, event) for event in trace.events), *root])

    @cached_property
    def _exporter(self) -> Any:
        options = {"headers": dict(self.headers) or None, "timeout": self.timeout}
        return make_exporter(self._answers.append, endpoint=self.endpoint, **options)

    @cached_property
    def _answers(self) -> list[int]:
        return []

    def _export(self, spans: Sequence[Any]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._answers.clear()
        if spans and self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            said = f": the collector answered {self._answers[-1]}" if self._answers else ""
            raise ConnectionError(f"the spans were not taken{said}")

    def _span_of(self, trace: Trace, event: TraceEvent) -> Any:
        is_model, said = event.type == MODEL_CALL, event.name[:NAME_CHARS]
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat" if is_model else "execute_tool",
            "gen_ai.request.model" if is_model else "gen_ai.tool.name": said,
            "celery_agents.step": event.step,
            "celery_agents.outcome": event.status,
        }
        if is_model:
            usage: Any = event.attributes.get("usage") or {}
            attributes |= usage_attributes(InferenceUsage.from_dict(dict(usage)))
        attributes |= _payload_attributes(event.payload)
        ids = (derive_span_id(event.id), derive_root_span_id(trace.execution_id, trace.retries))
        name = f"{attributes['gen_ai.operation.name']} {said}".strip()
        return _span(trace, name, ids, attributes, (event.started_at, event.ended_at), event.status == "error")

    def _root_of(self, trace: Trace) -> Any:
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "invoke_agent",
            "celery_agents.status": trace.status.value,
            "celery_agents.stop_reason": trace.stop_reason,
            "celery_agents.steps": trace.steps,
            **usage_attributes(InferenceUsage.from_dict(dict(trace.usage))),
        }
        attributes |= {} if trace.cost is None else {"celery_agents.cost_usd": trace.cost}
        attributes |= _payload_attributes(trace.payload)
        parent = int(trace.parent_span_id, 16) if trace.parent_span_id else None
        assert trace.ended_at is not None
        times = (trace.started_at, trace.ended_at)
        ids = (derive_root_span_id(trace.execution_id, trace.retries), parent)
        return _span(trace, f"invoke_agent {trace.agent}", ids, attributes, times, trace.status is TraceStatus.ERROR)


def make_exporter(note: Callable[[int], object] = lambda _: None, **options: Any) -> Any:
    """Make an exporter as the environment's `OTEL_*` say, which reads no body of an answer: it may have no end.

    Args:
        note: Gets the status of each answer.
        options: Of `OTLPSpanExporter`.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from requests import Response, Session

    def end(response: Response, *_: Any, **__: Any) -> None:
        note(response.status_code)
        if response.raw.length_remaining != 0:  # else the connection is used again
            response.close()
        if response.is_redirect:  # the exporter would take it for success
            raise ValueError(f"the collector redirects to {response.headers['Location']:.200}")

    session = Session()
    session.hooks["response"].append(end)
    # Whoever has a session of their own there gives each request its credentials.
    has_own = any(name.endswith("_CREDENTIAL_PROVIDER") for name in os.environ if name.startswith("OTEL_PYTHON_EXP"))
    return OTLPSpanExporter(session=None if has_own else session, **options)


def _payload_attributes(payload: FrozenDict | None) -> dict[str, str]:
    given: dict[str, Any] = {} if payload is None else thaw(payload)
    return {
        f"celery_agents.{name}": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in given.items()
    }


def _span(
    trace: Trace,
    name: str,
    ids: tuple[int, int | None],
    attributes: Mapping[str, Any],
    times: tuple[datetime, datetime],
    has_failed: bool,
) -> Any:
    """Make a span.

    Args:
        ids: Of the span, and of its parent; None: it has none.
    """
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    trace_id, flags = int(trace.trace_id, 16), TraceFlags(TraceFlags.SAMPLED)
    parent = None if ids[1] is None else SpanContext(trace_id, ids[1], is_remote=True, trace_flags=flags)
    common = {
        "gen_ai.agent.name": trace.agent,
        "gen_ai.conversation.id": trace.thread_id,
        "celery_agents.execution_id": trace.execution_id,
    }
    return ReadableSpan(
        name=name,
        context=SpanContext(trace_id, ids[0], is_remote=False, trace_flags=flags),
        parent=parent,
        resource=Resource.create({"service.name": "celery-agents"}).merge(OTELResourceDetector().detect()),
        attributes={**common, **attributes},
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR if has_failed else StatusCode.UNSET),
        start_time=round(times[0].timestamp() * 1e9),
        end_time=round(times[1].timestamp() * 1e9),
    )
