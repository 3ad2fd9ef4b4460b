"""Traces: what is in them, and how they come to sinks that are slow, fail or hang."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from celery_agents import Tracing
from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import (
    CallbackSink,
    FileSink,
    HttpSink,
    Reasoning,
    Trace,
    TraceEvent,
    TraceStatus,
)
from celery_agents.worker.capabilities.tracing import delivery, sinks
from celery_agents.worker.capabilities.tracing.sinks import PostRefused
from celery_agents.worker.capabilities.tracing.trace import make_trace
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.state import AgentState, ToolCall
from celery_agents.worker.store.records import StepRef
from celery_agents.worker.tools import tool

from support.engine import Bench
from support.wait import wait_until


class Memory:
    """A sink that remembers what it gets, and fails at the verbs it is told to."""

    def __init__(self, name: str = "memory", *, fails: Sequence[str] = ()) -> None:
        self.name = name
        self.fails = set(fails)
        self.told: list[tuple[str, Trace, tuple[str, ...]]] = []

    def begin(self, trace: Trace) -> None:
        self._take("begin", trace)

    def append(self, trace: Trace, events: Sequence[TraceEvent]) -> None:
        self._take("append", trace, tuple(event.id.partition(":")[2] for event in events))

    def write(self, trace: Trace) -> None:
        self._take("write", trace, tuple(event.id.partition(":")[2] for event in trace.events))

    def verbs(self) -> list[str]:
        return [verb for verb, _, _ in self.told]

    def _take(self, verb: str, trace: Trace, events: tuple[str, ...] = ()) -> None:
        if verb in self.fails:
            raise ConnectionError(f"{verb} is away")
        self.told.append((verb, trace, events))


@tool(effect="pure")
def look(what: str) -> str:
    """Look something up."""
    if what == "bad":
        raise ValueError("bad is not there")
    return f"found {what}"


def an_agent(tracing: Tracing, *looks: str) -> Agent:
    def driver(state: AgentState) -> Any:
        done = state.step_count
        return [CallTool("look", what=looks[done])] if done < len(looks) else "all is found"

    return Agent("seeker", driver=driver, tools=[look], capabilities=[tracing])


def run(tracing: Tracing, *looks: str) -> tuple[Bench, str]:
    bench = Bench(an_agent(tracing, *looks))
    session = bench.submit("find it")
    while bench.due(session) is not None:
        bench.step(session)
    assert tracing.delivery.flush(10)
    return bench, session


def test_a_batched_trace_comes_once_with_everything_in_order() -> None:
    sink = Memory()
    bench, session = run(Tracing([sink]), "a", "b")
    ((verb, trace, events),) = sink.told
    assert (verb, trace.status, trace.stop_reason, trace.steps) == ("write", "success", "completed", 3)
    assert events == ("1:m", "1:t0", "2:m", "2:t0", "3:m")
    assert (trace.session_id, trace.thread_id, trace.agent) == (session, session, "seeker")
    assert trace.payload == {"input": "find it", "output": "all is found"}
    assert [dict(each.payload or {})["value"] for each in trace.events if each.type == "tool_call"] == [
        "found a",
        "found b",
    ]
    assert trace.ended_at is not None
    assert Trace.from_json(trace.to_json()) == trace
    bench.close()


def test_a_stream_has_a_beginning_the_events_of_each_step_and_the_whole_at_the_end() -> None:
    sink = Memory()
    bench, _ = run(Tracing([sink], mode="streaming", thread_id="ticket-17"), "a")
    assert [(verb, trace.status.value, events) for verb, trace, events in sink.told] == [
        ("begin", "in_progress", ()),
        ("append", "in_progress", ("1:m", "1:t0")),
        ("append", "success", ("2:m",)),
        ("write", "success", ("1:m", "1:t0", "2:m")),
    ]
    assert {trace.thread_id for _, trace, _ in sink.told} == {"ticket-17"}
    bench.close()


def test_without_data_nothing_that_was_said_is_in_a_trace() -> None:
    sink = Memory()
    bench, _ = run(Tracing([sink], log_data=False), "a", "bad")
    written = sink.told[-1][1].to_json().decode()
    assert not [text for text in ("find it", "found a", "all is found", "not there") if text in written]
    assert sink.told[-1][1].events[3].attributes["error"] == "ValueError"
    bench.close()


def test_known_secrets_never_reach_a_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "c0ffee-c0ffee-c0ffee")
    from celery_agents.worker.known_secrets import current_matcher

    current_matcher(fresh=True)
    seen: list[Trace] = []
    bench, _ = run(Tracing([CallbackSink(seen.append)]), "c0ffee-c0ffee-c0ffee")
    assert seen
    assert "c0ffee-c0ffee" not in seen[-1].to_json().decode()
    bench.close()


@pytest.mark.parametrize("mode", ["batched", "streaming"])
def test_a_sink_that_fails_makes_the_trace_of_the_others_partial(mode: Any) -> None:
    good, bad = Memory("good"), Memory("bad", fails=["begin", "append", "write"])
    bench, session = run(Tracing([good, bad], mode=mode), "a")
    last = [trace for verb, trace, _ in good.told if verb == "write"][-1]
    assert (last.status, set(last.failed_sinks)) == (TraceStatus.PARTIAL, {"bad"})
    assert "away" in str(last.failed_sinks["bad"])
    assert bench.state(session).status == "completed"
    bench.close()


def test_an_execution_that_failed_stays_an_error_whatever_becomes_of_the_sinks() -> None:
    def driver(_: AgentState) -> str:
        raise ValueError("no idea")

    good = Memory("good")
    tracing = Tracing([good, Memory("bad", fails=["write"])])
    bench = Bench(Agent("broken", driver=driver, capabilities=[tracing]))
    session = bench.submit("go")
    bench.step(session)
    assert tracing.delivery.flush(10)
    assert {trace.status for _, trace, _ in good.told} == {TraceStatus.ERROR}
    assert good.told[-1][1].failed_sinks
    bench.close()


def test_a_stream_that_cannot_begin_brings_the_whole_at_the_end() -> None:
    sink = Memory(fails=["begin"])
    bench, _ = run(Tracing([sink], mode="streaming"), "a", "b")
    assert sink.verbs() == ["write"]
    assert sink.told[0][2] == ("1:m", "1:t0", "2:m", "2:t0", "3:m")
    bench.close()


def test_another_worker_knows_from_the_state_that_a_sink_has_failed() -> None:
    first = Tracing([Memory("good"), Memory("bad", fails=["begin"])], mode="streaming")
    bench = Bench(an_agent(first, "a", "b"))
    session = bench.submit("find it")
    for _ in range(2):
        bench.step(session)
        assert first.delivery.flush(10)
    good = Memory("good")
    second = Tracing([good, Memory("bad")], mode="streaming")
    other = bench.another_worker(an_agent(second, "a", "b"))
    execution = bench.execution(session)
    other.run_step(StepRef(session, execution.execution_id, execution.step_count + 1))
    assert second.delivery.flush(10)
    verb, trace, events = good.told[-1]
    assert (verb, trace.status, len(events)) == ("write", TraceStatus.PARTIAL, 5)
    bench.close()


def test_a_sink_that_hangs_delays_no_step_and_what_waits_for_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "MOST_WAITING", 2)
    hangs, good = threading.Event(), Memory("good")
    slow = CallbackSink(lambda _: hangs.wait(30), lambda *_: None, name="slow")
    tracing = Tracing([slow, good], mode="streaming")
    bench = Bench(an_agent(tracing, *"abcdef"))
    session = bench.submit("find it")
    steps = 0
    while bench.due(session) is not None:
        bench.step(session)
        steps += 1
        # The other sink keeps up: what waits for it has the same limit.
        wait_until(lambda count=steps: good.verbs().count("append") == count, "the other sink has the step", 10)
    wait_until(lambda: "write" in good.verbs(), "the other sink has the whole", 10)
    assert not tracing.delivery.flush(0.1)
    hangs.set()
    assert tracing.delivery.flush(10)
    assert "jobs waited already" in str(good.told[-1][1].failed_sinks["slow"])
    bench.close()


def test_what_waits_for_a_sink_is_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "MOST_WAITING_BYTES", 300_000)
    hangs, seen = threading.Event(), list[Trace]()

    def take(trace: Trace) -> None:
        hangs.wait(30)
        seen.append(trace)

    tracing = Tracing([CallbackSink(take)])
    bench = Bench(Agent("large", driver=lambda _state: "x" * 100_000, capabilities=[tracing]))
    sessions = [bench.submit("y" * 50_000) for _ in range(8)]
    for session in sessions:
        bench.step(session)
    failed = [tracing.delivery.failures.of(bench.execution(session).execution_id) for session in sessions]
    assert 5 <= sum(map(bool, failed)) < 8
    assert "bytes waited already" in str(failed[-1])
    hangs.set()
    assert tracing.delivery.flush(10)
    assert len(seen) == 8 - sum(map(bool, failed))
    later = bench.submit("y" * 50_000)
    bench.step(later)
    assert tracing.delivery.flush(10)
    assert seen[-1].session_id == later, "there is room again"
    bench.close()


def test_files_hold_the_lines_of_a_stream_and_the_whole_trace(tmp_path: Path) -> None:
    bench, _ = run(Tracing([FileSink(tmp_path / "traces")], mode="streaming"), "a")
    (whole,) = (tmp_path / "traces").glob("*.json")
    lines = [json.loads(line) for line in whole.with_suffix(".jsonl").read_text().splitlines()]
    assert [next(iter(line)) for line in lines] == ["trace", "event", "event", "event"]
    trace = Trace.from_json(whole.read_bytes())
    assert [line["event"]["id"] for line in lines[1:]] == [event.id for event in trace.events]
    assert not [each for each in (tmp_path / "traces").iterdir() if each.name.startswith(".")]
    bench.close()


def test_files_of_traces_have_the_rights_that_the_process_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        bench, _ = run(Tracing([FileSink(tmp_path)], mode="streaming"), "a")
    finally:
        os.umask(before)
    assert {f"{each.stat().st_mode & 0o777:o}" for each in tmp_path.iterdir()} == {"640"}
    bench.close()


def test_a_line_that_a_killed_worker_has_not_ended_costs_no_other_line(tmp_path: Path) -> None:
    (tmp_path / "e1.jsonl").write_text('{"trace": {"tr')
    bench, _ = run(Tracing([FileSink(tmp_path)], mode="streaming"), "a")
    _, *lines = (tmp_path / "e1.jsonl").read_text().splitlines()
    assert [next(iter(json.loads(line))) for line in lines] == ["trace", "event", "event", "event"]
    bench.close()


@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\n"])
def test_a_receiver_that_sends_a_byte_at_a_time_holds_its_sink_for_a_limited_time(
    beginning: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "SECONDS_PER_ATTEMPT", 1.5)
    monkeypatch.setattr(sinks, "ATTEMPTS", 1)
    server, done = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def drip() -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(65_536)
            connection.sendall(beginning)
            while not done.wait(0.1):
                connection.sendall(b"X")

    dripping = threading.Thread(target=drip)
    dripping.start()
    tracing = Tracing([HttpSink(f"http://127.0.0.1:{server.getsockname()[1]}")])
    bench, _ = run(tracing)
    assert tracing.delivery.flush(20), "the sink is free again"
    assert bool(tracing.delivery.failures.of("e1")) is not bool(beginning), "what has the status 200 was taken"
    done.set()
    dripping.join()
    server.close()
    bench.close()


def test_a_directory_of_traces_is_made_once_with_those_above_it(tmp_path: Path) -> None:
    directory = tmp_path / "traces" / "of today"
    tracing = Tracing([FileSink(directory)])
    bench, _ = run(tracing)
    bench.step(bench.submit("find more"))
    assert tracing.delivery.flush(10)
    assert sorted(each.name for each in directory.iterdir()) == ["e1.json", "e2.json"]
    bench.close()


def test_one_job_may_wait_whatever_it_takes_and_a_full_sink_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "MOST_WAITING_BYTES", 100)
    hangs = threading.Event()
    sink_queue = delivery._SinkQueue(Memory(), delivery.Failures())  # pyright: ignore[reportPrivateUsage]
    assert sink_queue.put("e1", lambda: hangs.wait(30), 1_000)
    assert not sink_queue.put("e2", lambda: None, 1)
    hangs.set()
    assert sink_queue.flush(time.monotonic() + 10)
    hangs.clear()
    assert sink_queue.put("e3", lambda: hangs.wait(30), 60)
    assert sink_queue.put("e4", lambda: None, 40)
    assert not sink_queue.put("e5", lambda: None, 1)
    assert not sink_queue.flush(time.monotonic())
    hangs.set()
    assert sink_queue.flush(time.monotonic() + 10)


def test_executions_whose_sinks_have_failed_are_remembered_up_to_a_number() -> None:
    failures = delivery.Failures()
    for number in range(10_001):
        failures.note(f"e{number}", "file", "full")
    failures.note("e1", "file", "another reason")
    assert (failures.of("e0"), failures.of("e1"), failures.of("e10000")) == ({}, {"file": "full"}, {"file": "full"})


@pytest.mark.parametrize(("said", "pause"), [("", 0), ("7", 7), (" 7 ", 7), ("1234567", 0), ("soon", 0), ("-1", 0)])
def test_a_receiver_says_for_how_long_it_wishes_to_be_left_alone(said: str, pause: float) -> None:
    assert (PostRefused(429, said).pause, PostRefused(429, said).status) == (pause, 429)


def test_sinks_keep_their_headers_to_themselves() -> None:
    sink = HttpSink("https://example.com/x", {"Authorization": "secret"})
    assert "secret" not in repr(sink)
    assert (sink.name, FileSink("a").name, CallbackSink(print).name) == ("http example.com", "file", "callback")


def test_a_trace_of_an_execution_says_how_each_part_ended() -> None:
    bench, session = run(Tracing([Memory()]), "a", "bad")
    state = bench.state(session)
    trace = make_trace(state, session, "seeker")
    assert [(each.type, each.status) for each in trace.events] == [
        ("model_call", "ok"), ("tool_call", "ok"), ("model_call", "ok"), ("tool_call", "error"), ("model_call", "ok"),
    ]  # fmt: skip
    assert (trace.steps, trace.status, trace.parent_execution_id, trace.error) == (3, TraceStatus.SUCCESS, "", "")
    assert [each.step for each in make_trace(state, session, "seeker", first_step=2).events] == [2, 2, 3]
    assert trace.payload is not None
    assert dict(trace.payload) == {"input": "find it", "output": "all is found"}
    assert [each.payload for each in make_trace(state, session, "seeker", log_data=False).events] == [None] * 5
    with pytest.raises(ValueError, match="has had no execution"):
        make_trace(AgentState.fresh(), "s", "seeker")
    bench.close()


def test_switched_off_it_sends_nothing() -> None:
    sink = Memory()
    bench, _ = run(Tracing([sink], mode="streaming", enabled=False), "a")
    assert sink.told == []
    bench.close()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Tracing([FileSink("t")], mode="sometimes"), "Tracing(mode)='sometimes'"),  # pyright: ignore
        (lambda: Tracing([print]), "CallbackSink"),  # pyright: ignore
        (lambda: Tracing([FileSink("a"), FileSink("b")]), "one name"),
        (lambda: HttpSink("ftp://somewhere"), "HttpSink(url)='ftp://somewhere'"),
        (lambda: HttpSink("https://"), "http(s)://"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_defined(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert words in str(refused.value)


def test_arguments_as_deep_as_a_model_may_nest_them_are_in_the_trace() -> None:
    deep = '{"what": ' + "[" * 99 + "1" + "]" * 99 + "}"
    sink = Memory()

    def driver(state: AgentState) -> Any:
        return "done" if state.step_count else ToolCall.from_text("c1", "look", deep)

    agent = Agent("deep", driver=driver, tools=[look], capabilities=[Reasoning(), tracing := Tracing([sink])])
    bench = Bench(agent)
    try:
        assert bench.ran().status == "completed"
        tracing.close(5)
        assert [len(trace.events) for _, trace, _ in sink.told] == [3]
        assert len(bench.state("s1").run.reasoning_steps) == 2
    finally:
        bench.close()
