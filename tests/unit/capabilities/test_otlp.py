"""Traces as spans of OpenTelemetry: names, ids, times and what is said of tokens, costs and errors."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import StatusCode

from celery_agents.tasks.observability.tracing import _make_provider  # pyright: ignore[reportPrivateUsage]
from celery_agents.worker.capabilities import OtlpSink, Trace, TraceEvent, TraceStatus
from celery_agents.worker.spans import NAME_CHARS, derive_root_span_id, derive_span_id
from celery_agents.worker.state import FrozenDict

from support.local_server import LocalServer, QuietHandler
from support.states import NOON, at

NANOSECONDS = round(NOON.timestamp() * 1e9)
MODEL = TraceEvent(
    id="e:1:m", type="model_call", step=1, name="openai:gpt-5", status="ok", started_at=at(0), ended_at=at(2),
    attributes=FrozenDict({"usage": {"input": 7, "output": 3, "cache_read": 90, "cache_write": 3, "reasoning": 2}}), payload=FrozenDict({"text": "é", "tool_calls": ["é"]}),
)  # fmt: skip
TOOL = TraceEvent(
    id="e:1:t0", type="tool_call", step=1, name="look", status="error", started_at=at(2), ended_at=at(3),
    attributes=FrozenDict({}),
)  # fmt: skip
TRACE = Trace(
    trace_id=f"{5:032x}", thread_id="thread", session_id="s", execution_id="e", agent="seeker", retries=1, steps=2,
    status=TraceStatus.ERROR, started_at=at(0), ended_at=at(4), usage=FrozenDict({"input": 9, "output": 4}), cost=0.5,
    parent_span_id=f"{6:016x}", stop_reason="error_forbade", events=(MODEL, TOOL),
)  # fmt: skip


class Exporter:
    """Takes spans in place of the library's exporter."""

    def __init__(self, result: SpanExportResult = SpanExportResult.SUCCESS) -> None:
        self.result = result
        self.spans: list[Any] = []

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        self.spans += spans
        return self.result


def sent(trace: Trace, *events: TraceEvent) -> list[Any]:
    """The spans of a whole trace, or of events of it."""
    sink, exporter = OtlpSink("http://localhost:1"), Exporter()
    vars(sink)["_exporter"] = exporter
    sink.append(trace, events) if events else sink.write(trace)
    return exporter.spans


def test_a_trace_is_a_span_for_each_event_and_one_for_the_execution() -> None:
    model, tool, root = sent(TRACE)
    assert [each.name for each in (model, tool, root)] == [
        "chat openai:gpt-5",
        "execute_tool look",
        "invoke_agent seeker",
    ]
    root_id = derive_root_span_id("e", 1)
    assert [each.context.span_id for each in (model, tool, root)] == [
        derive_span_id("e:1:m"), derive_span_id("e:1:t0"), root_id,
    ]  # fmt: skip
    assert [each.parent.span_id for each in (model, tool, root)] == [root_id, root_id, 6]
    assert {each.context.trace_id for each in (model, tool, root)} == {5}
    assert [(each.context.is_remote, each.parent.is_remote) for each in (model, root)] == [(False, True)] * 2
    assert [each.start_time - NANOSECONDS for each in (model, tool, root)] == [0, 2 * 10**9, 0]
    assert [each.end_time - NANOSECONDS for each in (model, tool, root)] == [2 * 10**9, 3 * 10**9, 4 * 10**9]
    assert [each.status.status_code for each in (model, tool, root)] == [
        StatusCode.UNSET, StatusCode.ERROR, StatusCode.ERROR,
    ]  # fmt: skip


def test_what_the_spans_say() -> None:
    model, tool, root = sent(TRACE)
    common = {"gen_ai.agent.name": "seeker", "gen_ai.conversation.id": "thread", "celery_agents.execution_id": "e"}
    assert dict(model.attributes) == {
        **common, "gen_ai.operation.name": "chat", "gen_ai.request.model": "openai:gpt-5", "celery_agents.step": 1,
        "celery_agents.outcome": "ok", "gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 90, "gen_ai.usage.cache_creation.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 2,
        "celery_agents.text": "é", "celery_agents.tool_calls": '["é"]',
    }  # fmt: skip
    assert dict(tool.attributes) == {
        **common, "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look", "celery_agents.step": 1,
        "celery_agents.outcome": "error",
    }  # fmt: skip
    assert dict(root.attributes) == {
        **common, "gen_ai.operation.name": "invoke_agent", "celery_agents.status": "error",
        "celery_agents.stop_reason": "error_forbade", "celery_agents.steps": 2, "celery_agents.cost_usd": 0.5,
        "gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 4,
    }  # fmt: skip


def test_a_name_that_a_model_made_up_is_cut() -> None:
    """A span larger than its receiver takes is dropped with all that is sent beside it."""
    tool, model = sent(
        TRACE, TOOL.model_copy(update={"name": "t" * 2**20}), MODEL.model_copy(update={"name": "m" * 2**20})
    )
    assert max(len(str(each)) for span in (tool, model) for each in (span.name, *span.attributes.values())) < 500
    assert tool.attributes["gen_ai.tool.name"] == "t" * NAME_CHARS


def test_what_is_not_known_is_left_out_or_0() -> None:
    plain = TRACE.model_copy(
        update={
            "status": TraceStatus.SUCCESS,
            "cost": None,
            "parent_span_id": "",
            "usage": FrozenDict({}),
            "events": (),
        }
    )
    (root,) = sent(plain)
    assert (root.parent, root.status.status_code) == (None, StatusCode.UNSET)
    assert "celery_agents.cost_usd" not in root.attributes
    assert [root.attributes[f"gen_ai.usage.{each}_tokens"] for each in ("input", "output")] == [0, 0]
    (model,) = sent(TRACE, MODEL.model_copy(update={"name": "", "attributes": FrozenDict({})}))
    assert model.name == "chat"
    assert [model.attributes[f"gen_ai.usage.{each}_tokens"] for each in ("input", "output")] == [0, 0]


def test_an_execution_that_goes_on_has_no_span_yet() -> None:
    assert [each.name for each in sent(TRACE.model_copy(update={"ended_at": None}))] == [
        "chat openai:gpt-5",
        "execute_tool look",
    ]
    assert sent(TRACE.model_copy(update={"ended_at": None, "events": ()})) == []


def test_spans_that_are_not_taken_are_an_error() -> None:
    sink = OtlpSink("http://localhost:1")
    vars(sink)["_exporter"] = Exporter(SpanExportResult.FAILURE)
    with pytest.raises(ConnectionError, match="not taken"):
        sink.write(TRACE)


def test_a_sink_says_nothing_of_its_headers() -> None:
    assert "secret" not in repr(OtlpSink(headers={"Authorization": "secret"}))
    assert OtlpSink().timeout == 10


def test_the_environment_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {each.resource.attributes["service.name"] for each in sent(TRACE)} == {"celery-agents"}
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    assert {each.resource.attributes["service.name"] for each in sent(TRACE)} == {"shop"}


@contextlib.contextmanager
def collector(status: int, *headers: str) -> Iterator[str]:
    """The URL of a collector whose answers have these headers, and a body of a byte each tenth of a second."""

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            for header in headers:
                self.send_header(*header.split(": "))
            self.end_headers()
            ends, is_chunked = time.monotonic() + 10, "Transfer-Encoding: chunked" in headers
            with contextlib.suppress(OSError):
                while time.monotonic() < ends:
                    self.wfile.write(b"1\r\nx\r\n" if is_chunked else b"x")
                    time.sleep(0.1)

    server = LocalServer(Handler)
    yield server.url
    server.close()


@pytest.mark.parametrize("header", ["X: y", "Transfer-Encoding: chunked", "Content-Length: 1000000"])
@pytest.mark.parametrize("is_sink", [True, False])
def test_a_collector_whose_answer_has_no_end_holds_nobody_up(
    header: str, is_sink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector(200, header, "Content-Encoding: gzip") as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url)
        began = time.monotonic()
        if is_sink:
            OtlpSink(timeout=2).write(TRACE)
        else:
            provider = _make_provider()
            provider.get_tracer("t").start_span("s").end()
            assert provider.force_flush(3_000)
        assert time.monotonic() - began < 3


@pytest.mark.parametrize("status", [301, 413])
def test_spans_that_a_collector_refuses_are_an_error_that_says_how(status: int) -> None:
    with collector(status, "Location: /elsewhere") as url, pytest.raises(ConnectionError, match=f"answered {status}"):
        OtlpSink(url, timeout=2).write(TRACE)
