"""Traces of real workers: files, posts and spans, with workers and receivers that are killed, and receivers that hang."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_service
from typer.testing import CliRunner

from celery_agents.tasks.cli.program import program
from celery_agents.worker.spans import derive_root_span_id, derive_trace_id

from support.agents import call, plan
from support.lab import Lab
from support.post_receiver import PostReceiver
from support.traced_agents import COLLECTOR, DIRECTORY, LOGS_DATA, MODE, POSTED_TO
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore:no worker has registered")]


class Receiver(PostReceiver):
    """Takes traces as JSON, or spans; answers with a status, and holds each post while it is told to."""

    def __init__(self) -> None:
        self.posts: list[dict[str, Any]] = []
        self.raw: list[bytes] = []
        self.answers: list[int] = []
        self.free = threading.Event()
        self.free.set()
        super().__init__(self._answer)

    def _answer(self, headers: dict[str, str], body: bytes) -> int:
        self.free.wait(30)
        status = self.answers.pop(0) if self.answers else 200
        if status == 200:
            self.raw.append(body)
            if headers.get("Content-Type") == "application/json":
                assert headers["Authorization"] == "Bearer of-the-sink"
                self.posts.append(json.loads(body))
        return status

    def whole(self, session: str) -> dict[str, Any] | None:
        """The last whole trace of a session."""
        found = [each["trace"] for each in list(self.posts) if each["type"] == "trace"]
        return next((each for each in reversed(found) if each["session_id"] == session), None)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    started = Receiver()
    yield started
    started.free.set()
    started.close()


def lab_with(tmp_path: Path, **env: str) -> Lab:
    return Lab(tmp_path / "lab", agents="support.traced_agents", env=env)


def steps(count: int, **first: Any) -> str:
    calls = [[call("keyed", work=f"work {number}", **(first if not number else {}))] for number in range(count)]
    return plan(*calls, answer="all done")


def test_a_trace_is_whole_at_each_sink_when_a_worker_is_killed_in_the_middle(
    tmp_path: Path, receiver: Receiver
) -> None:
    collector = Receiver()
    env = {DIRECTORY: str(tmp_path / "traces"), POSTED_TO: f"{receiver.url}/traces", COLLECTOR: collector.url}
    with lab_with(tmp_path, **env) as lab:
        doomed = lab.worker(wait=False, crash="c8:2:1")  # dies behind the commit of a step, before it is told
        job = lab.client.submit("traced", steps(3))
        doomed.wait(40)
        lab.worker()
        result = job.result(timeout=60)
        file = tmp_path / "traces" / f"{job.execution_id}.json"
        wait_until(lambda: receiver.whole(job.session_id) and file.exists(), "the trace has ended", 20)
        trace = json.loads(file.read_text())
        ids = [f"{job.execution_id}:{each}" for each in ("1:m", "1:t0", "2:m", "2:t0", "3:m", "3:t0", "4:m")]
        assert [each["id"] for each in trace["events"]] == ids
        assert (trace["status"], trace["steps"], trace["payload"]["output"]) == ("success", 4, result.final_response)
        assert receiver.whole(job.session_id) == trace
        posted = [event["id"] for each in receiver.posts if each["type"] == "events" for event in each["events"]]
        assert set(posted) == set(ids)
        lines = [json.loads(line) for line in file.with_suffix(".jsonl").read_text().splitlines()]
        assert {line["event"]["id"] for line in lines if "event" in line} == set(ids)
        assert lab.client.trace(job.session_id).to_dict() == trace
        shown = CliRunner().invoke(program, ["trace", job.session_id, "--redis-url", lab.store_url, "--no-data"])
        assert "payload" not in json.loads(shown.output)

        def spans() -> dict[bytes, Any]:
            found = [trace_service.ExportTraceServiceRequest.FromString(each) for each in list(collector.raw)]
            each = [
                span
                for one in found
                for group in one.resource_spans
                for scope in group.scope_spans
                for span in scope.spans
            ]
            return {span.span_id: span for span in each}

        root = derive_root_span_id(job.execution_id, 0).to_bytes(8, "big")
        wait_until(lambda: root in spans(), "the execution's span is there", 20)
        assert {span.trace_id for span in spans().values()} == {derive_trace_id(job.execution_id).to_bytes(16, "big")}
        assert {span.parent_span_id for name, span in spans().items() if name != root} == {root}
        assert sorted(span.name.split()[0] for span in spans().values()) == [
            *["chat"] * 4, *["execute_tool"] * 3, "invoke_agent"
        ]  # fmt: skip
    collector.close()


@pytest.mark.parametrize("mode", ["streaming", "batched"])
def test_a_receiver_that_goes_away_makes_the_trace_partial_and_the_job_is_done(
    tmp_path: Path, receiver: Receiver, mode: str
) -> None:
    env = {DIRECTORY: str(tmp_path / "traces"), POSTED_TO: receiver.url, LOGS_DATA: "no", MODE: mode}
    with lab_with(tmp_path, **env) as lab:
        lab.worker()
        job = lab.client.submit("traced", steps(3, gate="held"))
        wait_until(lambda: lab.ledger.entries(), "the first tool is called", 20)
        receiver.close()
        lab.ledger.open("held")
        assert job.result(timeout=30).status == "completed"
        file = tmp_path / "traces" / f"{job.execution_id}.json"

        def is_partial() -> bool:
            return file.exists() and json.loads(file.read_text())["status"] == "partial"

        wait_until(is_partial, "the other sink knows", 60)
        trace = json.loads(file.read_text())
        assert list(trace["failed_sinks"]) == ["http 127.0.0.1"]
        wait_until(lambda: lab.client.trace(job.session_id).status == "partial", "a reader of the session knows", 20)
        assert list(lab.client.trace(job.session_id).failed_sinks) == ["http 127.0.0.1"]
        assert not [text for text in ("work 0", "all done") if text in file.read_text()]
        streamed = file.with_suffix(".jsonl").read_text() if mode == "streaming" else ""
        assert not [text for text in ("work 0", "all done") if text in streamed]


def test_a_receiver_that_is_busy_is_asked_again(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answers = [503, 429]
    with lab_with(tmp_path, **{POSTED_TO: receiver.url}) as lab:
        lab.worker()
        job = lab.client.submit("traced", steps(1))
        job.result(timeout=30)
        wait_until(lambda: receiver.whole(job.session_id), "it is taken", 30)
        assert [each["type"] for each in receiver.posts] == ["begin", "events", "events", "trace"]
        found = receiver.whole(job.session_id)
        assert found is not None
        assert (found["status"], found["failed_sinks"]) == ("success", {})


def test_a_receiver_that_hangs_delays_no_step(tmp_path: Path, receiver: Receiver) -> None:
    with lab_with(tmp_path, **{POSTED_TO: receiver.url}) as lab:
        worker = lab.worker()
        receiver.free.clear()
        jobs = [
            lab.client.submit("traced", plan(*[[call("pure", work=str(number))] for number in range(10)]))
            for _ in range(5)
        ]
        began = time.monotonic()
        for job in jobs:
            assert job.result(timeout=7).status == "completed", "no step waits for a post, which may take 8 s"
        assert worker.stop(timeout=40) == 0
        assert time.monotonic() - began < 40
