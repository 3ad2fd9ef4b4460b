"""Metrics, traces and JSON logs of real worker processes."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_agents import AgentClient
from celery_agents.flow import ConcurrencyLimit, SpendCap
from celery_agents.tasks.observability.tracing import derive_root_span_id, derive_trace_id

from support.deployed import DEPLOY
from support.local_server import LocalServer, QuietHandler
from support.post_receiver import PostReceiver
from support.processes import free_port
from support.product import ROOT
from support.scraping import described, families, scraped
from support.task_events import task_events
from support.wait import wait_until
from support.worker_process import WorkerProcess

trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
pytest.importorskip("prometheus_client")

AGENTS = """\
import logging

from celery_agents import Agent, tool
from celery_agents.worker.state import InferenceResponse, InferenceUsage, ToolCall
from celery_agents.worker.tools import ToolContext

log = logging.getLogger("somebodys.service")


@tool(effect="pure")
def weigh(thing: str) -> int:
    log.warning("weighing %s", thing)
    return len(thing)


@tool(effect="pure")
async def measure(thing: str) -> int:
    log.warning("measuring %s", thing)
    return len(thing)


@tool(effect="pure")
def breaking() -> None:
    raise ValueError("broken")


@tool(effect="pure")
async def estimate(context: ToolContext) -> str:
    return (await context.ask_model("estimate", "How heavy?")).content


async def think(state):
    log.warning("thinking")
    if state.messages[-1].content == "fail":
        raise RuntimeError("no idea")
    usage = InferenceUsage(input=100, output=20)
    if state.execution.step_count:
        return InferenceResponse(content="done", usage=usage, model="tiny-1", cost=0.25, request_id="req-2")
    calls = (("weigh", {"thing": "gold"}), ("measure", {"thing": "gold"}), ("breaking", {}), ("invented", {}), ("estimate", {}))
    made = tuple(ToolCall(id=f"c{i}", name=name, args=args) for i, (name, args) in enumerate(calls))
    return InferenceResponse(tool_calls=made, usage=usage, model="tiny-1", cost=0.5)


thinker = Agent("thinker", driver=think, tools=[weigh, measure, breaking, estimate])
"""


TREE_AGENTS = """
from celery_agents import Agent
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.tools import AgentTool

def above(name):
    def driver(state):
        return "done" if state.step_count else [CallTool(name, prompt="go"), CallTool(name, prompt="go")]
    return driver

leaf = Agent("leaf", driver=lambda state: "leaf")
middle = Agent("middle", driver=above("leaf"), tools=[AgentTool("leaf", name="leaf")])
top = Agent("top", driver=above("middle"), tools=[AgentTool("middle", name="middle")])
"""


class Collector(PostReceiver):
    """Takes spans over OTLP, as a collector does."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        super().__init__(self._answer)

    def _answer(self, headers: dict[str, str], body: bytes) -> int:
        del headers
        request = trace_service.ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(names["service.name"], span) for span in scope.spans]
        return 200

    def of(self, execution_id: str) -> dict[str, Any]:
        """Spans of an execution's trace by name."""
        trace_id = derive_trace_id(execution_id).to_bytes(16, "big")
        return {span.name: span for _, span in self.spans if span.trace_id == trace_id}


@pytest.fixture
def collector() -> Iterator[Collector]:
    started = Collector()
    yield started
    started.close()


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def test_steps_are_counted_traced_and_logged(
    new_worker: Callable[..., WorkerProcess], tmp_path: Path, redis_url: str, collector: Collector
) -> None:
    (tmp_path / "thinking.py").write_text(AGENTS, encoding="utf-8")
    ports = [free_port(), free_port()]
    workers = [
        new_worker(
            agents="thinking",
            env={
                "PYTHONPATH": str(tmp_path), "CELERY_AGENTS_LOG_FORMAT": "json", "CELERY_AGENTS_TRACES": "true",
                "CELERY_AGENTS_METRICS_PORT": str(port), "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
                "OTEL_BSP_SCHEDULE_DELAY": "200", "OTEL_SERVICE_NAME": f"worker-{number}",
            },
            arguments=("-c", "3"), wait=False,
        )
        for number, port in enumerate(ports)
    ]  # fmt: skip
    client = AgentClient(redis_url)
    wait_until(lambda: len(client.store.registry.workers()) == 2, "both workers live", 30)
    jobs = [client.submit("thinker", "go") for _ in range(6)]
    failing = client.submit("thinker", "fail")
    results = [job.result(timeout=30) for job in jobs]
    assert [result.status for result in results] == ["completed"] * 6
    assert failing.result(timeout=30).status == "failed"

    # --- metrics: a step is counted when it ends, which is a little after its job's result is there
    def summed() -> dict[str, float]:
        one, other = (scraped(port) for port in ports)
        return {name: one.get(name, 0) + other.get(name, 0) for name in {*one, *other}}

    wait_until(lambda: summed()["celery_agents_slots_busy"] == 0, "the last steps have ended", 10)
    metrics = summed()
    assert metrics['celery_agents_steps_total{agent="thinker",outcome="committed"}'] == 13
    assert metrics['celery_agents_executions_total{agent="thinker",status="completed"}'] == 6
    assert metrics['celery_agents_executions_total{agent="thinker",status="failed"}'] == 1
    assert metrics['celery_agents_driver_seconds_count{agent="thinker",outcome="answer"}'] == 18
    assert metrics['celery_agents_driver_errors_total{agent="thinker",kind="RuntimeError"}'] == 1
    assert metrics['celery_agents_tool_calls_total{agent="thinker",outcome="ok",tool="weigh"}'] == 6
    assert metrics['celery_agents_tool_calls_total{agent="thinker",outcome="error",tool="breaking"}'] == 6
    assert metrics['celery_agents_tool_calls_total{agent="thinker",outcome="error",tool="(unknown)"}'] == 6
    assert metrics['celery_agents_tokens_total{agent="thinker",kind="input",model="tiny-1"}'] == 1800
    assert metrics['celery_agents_cost_usd_total{agent="thinker",model="tiny-1"}'] == pytest.approx(7.5)
    assert metrics["celery_agents_slots"] == 6
    assert metrics["celery_agents_slots_busy"] == metrics["celery_agents_due_sessions"] == 0
    assert {"celery_agents_due_age_seconds", "celery_agents_overdue_sessions"} < set(metrics)

    rules = (DEPLOY / "prometheus" / "alerts.yaml").read_text(encoding="utf-8")
    asked = set(re.findall(r"\b(celery_agents_\w+|process_\w+)", rules))
    assert asked
    assert asked - families(ports[0]) == set(), "an alert asks for what no worker tells"

    # --- traces
    job = jobs[0]
    names = ("invoke_agent thinker", "step 1", "step 2", "chat", "execute_tool weigh", "execute_tool measure")
    wait_until(lambda: set(names) <= set(collector.of(job.execution_id)), "its spans have arrived", 10)
    spans = collector.of(job.execution_id)
    root, first, tool_span = spans["invoke_agent thinker"], spans["step 1"], spans["execute_tool weigh"]
    assert root.span_id == derive_root_span_id(job.execution_id, 0).to_bytes(8, "big")
    assert not root.parent_span_id
    assert first.parent_span_id == spans["step 2"].parent_span_id == root.span_id
    assert tool_span.parent_span_id == first.span_id
    assert root.start_time_unix_nano <= first.start_time_unix_nano + 50_000_000
    assert first.start_time_unix_nano <= tool_span.start_time_unix_nano + 5_000_000
    assert attributes(first)["gen_ai.conversation.id"] == job.session_id
    assert attributes(tool_span)["gen_ai.tool.name"] == "weigh"
    assert attributes(spans["chat"])["gen_ai.operation.name"] == "chat"
    assert attributes(spans["chat"])["gen_ai.usage.output_tokens"] == 20
    trace_id = derive_trace_id(job.execution_id).to_bytes(16, "big")
    chats = [span for _, span in collector.spans if span.trace_id == trace_id and span.name == "chat"]
    assert [span.parent_span_id == first.span_id for span in chats].count(True) == 2, "one by a tool"
    assert attributes(spans["execute_tool breaking"])["error.type"]

    def of_failing(name: str) -> dict[str, Any]:
        trace_id = derive_trace_id(failing.execution_id).to_bytes(16, "big")
        return {by: span for by, span in collector.spans if span.trace_id == trace_id and span.name == name}

    (first_worker,) = wait_until(lambda: of_failing("step 1"), "the failed step has arrived", 10)
    workers[int(first_worker[-1])].stop()
    client.retry(failing.session_id).result(timeout=30)
    twice = wait_until(
        lambda: len(found := of_failing("invoke_agent thinker")) == 2 and found,
        "the retry by the other worker stands in the same trace", 10,
    ).values()  # fmt: skip
    assert all(span.status.code == 2 for span in twice)
    assert "no idea" not in json.dumps([attributes(span) for _, span in collector.spans], default=repr)

    # --- logs
    texts = [worker.text().splitlines() for worker in workers]
    lines = [json.loads(line) for text in texts for line in text if line.startswith("{")]
    mine = [
        line for line in lines if line["logger"] == "somebodys.service" and line.get("session_id") == job.session_id
    ]
    assert sorted((line["message"], line["step"]) for line in mine) == [
        ("measuring gold", 1), ("thinking", 1), ("thinking", 1), ("thinking", 2), ("weighing gold", 1),
    ]  # fmt: skip
    assert {line["execution_id"] for line in mine} == {job.execution_id}
    assert all("session_id" in line for line in lines if line["logger"] == "somebodys.service")
    assert [line for line in lines if "failed" in line["message"] and line.get("session_id") == failing.session_id]
    assert not [line for text in texts for line in text if "weighing" in line and not line.startswith("{")]
    assert [line for line in lines if line["logger"].startswith("celery") and "session_id" not in line]


def test_the_documentation_has_each_metric(
    new_worker: Callable[..., WorkerProcess], tmp_path: Path, redis_url: str
) -> None:
    (tmp_path / "thinking.py").write_text(AGENTS, encoding="utf-8")
    port = free_port()
    client = AgentClient(redis_url)
    client.caps.set(SpendCap("all", usd=100, per="month"))
    client.concurrency.set(ConcurrencyLimit("few", total=10))
    new_worker(agents="thinking", env={"PYTHONPATH": str(tmp_path), "CELERY_AGENTS_METRICS_PORT": str(port)})
    assert client.submit("thinker", "go").result(timeout=30).status == "completed"
    assert client.submit("thinker", "fail").result(timeout=30).status == "failed"
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, –]+) \| (.+) \|$", page, re.MULTILINE)
    assert {name: (kind, meaning) for name, kind, _, meaning in rows} == described(port)
    labels = {name: set(given.replace("–", "").replace(",", " ").split()) for name, _, given, _ in rows}
    told = wait_until(lambda: "celery_agents_steps_total" in "".join(found := scraped(port)) and found, "steps", 10)
    for series in told:
        if match := re.match(r"celery_agents_(\w+?)(?:_bucket|_sum|_count|_created)?(?:\{(.*)\})?$", series):
            name, given = match.groups()
            name = name if name in labels else f"{name}_total"
            assert set(re.findall(r"(\w+)=", given or "")) - {"le"} == labels[name], series


def test_a_metrics_port_that_is_taken_is_said(new_worker: Callable[..., WorkerProcess], collector: Collector) -> None:
    port = collector.url.rpartition(":")[2]
    worker = new_worker(env={"CELERY_AGENTS_METRICS_PORT": port}, wait=False)
    assert worker.wait(30) != 0
    assert "choose another CELERY_AGENTS_METRICS_PORT" in worker.text()
    assert "Traceback" not in worker.text()


class Dripping(QuietHandler):
    """Begins an answer to each POST, and never comes to its end."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(1000):
                self.wfile.write(b" ")
                time.sleep(0.5)


def test_a_receiver_of_traces_that_drips_does_not_keep_an_idle_worker_from_ending(
    new_worker: Callable[..., WorkerProcess], tmp_path: Path, redis_url: str
) -> None:
    receiver = LocalServer(Dripping)
    (tmp_path / "tree.py").write_text(TREE_AGENTS, encoding="utf-8")
    env = {
        "PYTHONPATH": str(tmp_path), "CELERY_AGENTS_TRACES": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "CELERY_AGENTS_DRAIN_SECONDS": "60",
    }  # fmt: skip
    worker = new_worker(agents="tree", env=env)
    AgentClient(redis_url).submit("leaf", "go").result(timeout=30)
    worker.terminate()
    assert worker.wait(30) == 0
    receiver.close()


def test_a_trace_and_the_ids_of_tasks_span_a_tree_of_agents(
    new_worker: Callable[..., WorkerProcess], tmp_path: Path, redis_url: str, collector: Collector
) -> None:
    (tmp_path / "tree.py").write_text(TREE_AGENTS, encoding="utf-8")
    env = {
        "PYTHONPATH": str(tmp_path), "CELERY_AGENTS_TRACES": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "200", "CELERY_AGENTS_STICKY_SECONDS": "0",
    }  # fmt: skip
    for _ in range(2):
        new_worker(agents="tree", env=env, arguments=("-c", "2"))
    client = AgentClient(redis_url)
    with task_events(redis_url, "task-received") as found:
        job = client.submit("top", "go")
        assert job.result(timeout=30).status == "completed"
        nodes = list(client.tree(job.session_id).walk())
        wanted = {f"{node.header.execution_id}.1" for node in nodes}
        wait_until(lambda: wanted <= set(found), "each first task was received", 15)
    assert len(nodes) == 7

    # --- Celery's task events, which Flower links by
    first = f"{job.execution_id}.1"
    firsts = {node.header.agent: f"{node.header.execution_id}.1" for node in nodes}
    assert {event["root_id"] for event in found.values()} == {first}
    assert found[first]["parent_id"] is None
    assert found[firsts["middle"]]["parent_id"] == first
    middles = [f"{node.header.execution_id}.1" for node in nodes if node.header.agent == "middle"]
    leaves = [f"{node.header.execution_id}.1" for node in nodes if node.header.agent == "leaf"]
    assert all(found[leaf]["parent_id"] in middles for leaf in leaves)

    # --- spans
    trace_id = derive_trace_id(job.execution_id).to_bytes(16, "big")

    def roots() -> dict[bytes, Any]:
        return {
            span.span_id: span
            for _, span in collector.spans
            if span.trace_id == trace_id and span.name.startswith("invoke_agent")
        }

    wait_until(lambda: len(roots()) == 7, "the spans of all executions have arrived in one trace", 15)
    spans = roots()
    above = {span.name.removeprefix("invoke_agent "): spans.get(span.parent_span_id) for span in spans.values()}
    assert above["top"] is None
    assert above["middle"].name == "invoke_agent top"
    assert above["leaf"].name == "invoke_agent middle"
