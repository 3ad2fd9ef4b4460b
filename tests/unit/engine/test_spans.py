"""Spans of steps whose model writes what no receiver of spans takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_agents.tasks.observability.tracing import Tracing
from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import ScriptedDriver
from celery_agents.worker.spans import NAME_CHARS
from celery_agents.worker.state import InferenceResponse, ToolCall

from support.engine import Bench

HUGE = 100_000


def test_names_and_ids_that_a_model_made_up_are_cut(new_bench: Callable[..., Bench]) -> None:
    """A span larger than its receiver takes is dropped with all that is sent beside it."""
    sdk, export = pytest.importorskip("opentelemetry.sdk.trace"), "opentelemetry.sdk.trace.export"
    spans = pytest.importorskip(f"{export}.in_memory_span_exporter").InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(pytest.importorskip(export).SimpleSpanProcessor(spans))
    call = ToolCall(id="i" * HUGE, name="n" * HUGE)
    asking = InferenceResponse(tool_calls=(call,), model="m" * HUGE, request_id="r" * HUGE)
    agent = Agent("guesser", driver=ScriptedDriver([asking, "done"]))
    bench = new_bench(agent)
    bench.step(bench.submit(), bench.another_worker(agent, observer=Tracing(provider)))
    found = {each.name: each for each in spans.get_finished_spans()}
    assert found[f"execute_tool {'n' * HUGE}"[:NAME_CHARS]].attributes["gen_ai.tool.call.id"] == "i" * NAME_CHARS
    assert found["chat"].attributes["gen_ai.response.model"] == "m" * NAME_CHARS
    written = [text for each in found.values() for text in (each.name, *each.attributes.values())]
    assert max(len(str(text)) for text in written) < 500
