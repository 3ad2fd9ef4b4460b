"""Tools of MCP servers with real workers and two real servers, over standard streams and over HTTP: all of them die."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.mcp import MCPServer, ServerConnections
from celery_agents.worker.state import Answer, Approve, Deny, ToolOutcome

from support.agents import call
from support.lab import Lab
from support.mcp_process import (
    MCPServerProcess,
    outcomes,
    reason,
    submit,
    wait_for_lines,
    wait_for_question,
)
from support.processes import TESTS
from support.wait import wait_until
from support.worker_process import WorkerProcess

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MCPServerProcess]:
    started = MCPServerProcess(tmp_path_factory.mktemp("mcp"))
    started.begin()
    yield started
    started.end()


@pytest.fixture(scope="module")
def stuck_url() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, server: MCPServerProcess, stuck_url: str) -> Iterator[Lab]:
    env = {**server.worker_env(), "TEST_STUCK_URL": stuck_url, "CELERY_AGENTS_RETRY_LATER_SECONDS": "0.5"}
    with Lab(tmp_path_factory.mktemp("mcp-lab") / "lab", agents="support.mcp_agents", env=env) as started:
        yield started


@pytest.fixture(scope="module")
def worker(lab: Lab) -> WorkerProcess:
    """The worker that the tests share."""
    return lab.worker()


def test_tools_of_both_servers_run_with_what_the_servers_say_of_them(
    lab: Lab, server: MCPServerProcess, worker: WorkerProcess
) -> None:
    job = submit(
        lab,
        [call(f"{name}_{tool}", work=f"{name}1-{tool}") for name in "sh" for tool in ("look", "put_keyed", "fire")],
        [call("h_refuse", work="r"), call("h_look", job="x"), call("h_gone"), call("u_look", work="x")],
    )
    assert job.result(timeout=60).status == "completed"
    assert [text for _, text in outcomes(lab, job)] == [
        "s1-look seen", "s1-put_keyed put", "s1-fire fired", "h1-look seen", "h1-put_keyed put", "h1-fire fired",
    ]  # fmt: skip
    keys = [each["key"] for each in server.lines() if each["work"] in ("s1-fire", "h1-fire")]
    assert len(set(keys)) == 2
    assert all(len(key) == 64 for key in keys), "each call carries its idempotency key"
    refused, misfit, gone, other = outcomes(lab, job, 2)
    assert "Error executing tool refuse" in refused[1]
    assert "needs work" in misfit[1]
    assert "There is no tool 'h_gone'. Tools: pure, keyed, s_book" in gone[1]
    assert other[0] is ToolOutcome.ERROR


def test_servers_are_killed_during_calls_and_come_back(
    lab: Lab, server: MCPServerProcess, worker: WorkerProcess
) -> None:
    works = [f"{name}3-{tool}" for name in "sh" for tool in ("put_keyed", "fire")]
    with contextlib.ExitStack() as restarted:
        with server.closed_gate():
            job = submit(lab, [call(f"{w[0]}_{w[3:]}", work=w, gate=True) for w in works])
            wait_for_lines(server, works, worker)
            (stdio_server,) = {each["pid"] for each in server.lines() if each["work"] == "s3-fire"}
            os.kill(stdio_server, signal.SIGKILL)
            restarted.enter_context(server.away())
        wait_until(lambda: "is away" in reason(lab, job), "it says why it waits", 30, details=worker.tail)
    assert job.result(timeout=60).status == "completed"
    assert [each[0] for each in outcomes(lab, job)] == [ToolOutcome.OK, ToolOutcome.UNKNOWN] * 2
    assert server.effects(*works) == dict.fromkeys(works, 1)
    assert server.deliveries("s3-fire", "h3-fire") == {"s3-fire": 1, "h3-fire": 1}


def test_an_unsafe_call_to_a_server_that_is_away_runs_once_when_it_is_back(
    lab: Lab, server: MCPServerProcess, worker: WorkerProcess
) -> None:
    with server.away():
        job = submit(lab, [call("h_fire", work="late")])
        hopeless = submit(lab, [call("i_fire", work="never")], agent="impatient")
        wait_until(lambda: "is away" in reason(lab, job), "it waits", 30, details=worker.tail)
        # Nobody has ever listed the tools of the second one's server: it waits before the model is asked.
        assert hopeless.result(timeout=60).status == "completed"
        assert "There is no tool 'i_fire'" in outcomes(lab, hopeless)[0][1]
    assert job.result(timeout=60).status == "completed"
    assert server.deliveries("late", "never") == {"late": 1}


def test_after_a_servers_patience_the_model_reads_an_error(
    lab: Lab, server: MCPServerProcess, worker: WorkerProcess
) -> None:
    def is_listed() -> bool:
        """Whether its tools are known; on a loaded machine it may answer later than this agent has patience."""
        job = submit(lab, [call("i_look", work="seen")], agent="impatient")
        assert job.result(timeout=60).status == "completed", job.result(timeout=1).errors
        return outcomes(lab, job)[0][0] is ToolOutcome.OK

    wait_until(is_listed, "the server has told its tools", 60)
    with server.away():
        job = submit(lab, [call("i_fire", work="never")], agent="impatient")
        assert job.result(timeout=60).status == "completed"
    ((outcome, text),) = outcomes(lab, job)
    assert outcome is ToolOutcome.ERROR
    assert "the MCP server 'i' is away: " in text
    assert " s failed)" in text


def test_a_servers_question_waits_for_a_person_and_the_call_happens_once(
    lab: Lab, server: MCPServerProcess, worker: WorkerProcess
) -> None:
    jobs = [submit(lab, [call(f"{name}_book", work=f"{name}-trip")]) for name in "sh"]
    declined = submit(lab, [call("h_book", work="no-trip")])
    for job in jobs:
        asked = wait_for_question(lab, job)
        assert asked.text.startswith("How many seats for")
        with pytest.raises(InvalidInput, match=r"values.seats: it must be an integer"):
            lab.client.answer(job.session_id, {asked.id: Answer({"seats": "two"})}, by="reviewer")
        lab.client.answer(job.session_id, {asked.id: Answer({"seats": 2})}, by="reviewer")
        assert job.result(timeout=60).status == "completed"
    asked = wait_for_question(lab, declined)
    lab.client.answer(declined.session_id, {asked.id: Deny("no money")}, by="reviewer")
    assert declined.result(timeout=60).status == "completed"
    assert [outcomes(lab, job)[0][1] for job in (*jobs, declined)] == [
        "s-trip booked for 2", "h-trip booked for 2", "no-trip not booked",
    ]  # fmt: skip
    assert server.deliveries("s-trip", "h-trip", "no-trip") == {"s-trip": 1, "h-trip": 1}


def test_a_server_of_the_older_protocol_asks_in_its_call_and_tells_that_its_list_has_changed(
    lab: Lab, server: MCPServerProcess, worker: WorkerProcess
) -> None:
    job = submit(lab, [call("old_reserve")], [call("old_grow")], [call("old_grown")], agent="legacy")
    asked = wait_for_question(lab, job)
    assert asked.text == "For whom?"
    lab.client.answer(job.session_id, {asked.id: Answer({"name": "Ada"})}, by="reviewer")
    assert job.result(timeout=60).status == "completed"
    assert [outcomes(lab, job, step)[0][1] for step in (1, 2, 3)] == ["reserved for Ada", "grown", "here"]
    assert server.deliveries("Ada") == {"Ada": 1}


def test_a_list_that_changes_under_a_running_step_is_said_and_the_next_step_has_the_new_one(
    lab: Lab, server: MCPServerProcess, worker: WorkerProcess
) -> None:
    job = submit(lab, [call("h_refuse", work="x")], [call("h_extra", work="x")], gate="changes")
    wait_until(lambda: any(each["kind"] == "driver" and each.get("gate") == "changes" for each in lab.ledger.entries()),
               "the model is asked", 30)  # fmt: skip
    extra = server.ledger.with_suffix(".extra")
    with server.away():
        extra.touch()
    try:
        lab.ledger.open("changes")
        assert job.result(timeout=60).status == "completed"
    finally:
        extra.unlink()
        with server.away():
            pass
    assert "the MCP server 'h' has no tool 'refuse' any more" in outcomes(lab, job)[0][1]
    assert "Error executing tool extra" in outcomes(lab, job, 2)[0][1]


def test_tools_of_an_untrusted_server_are_unsafe_and_destructive_ones_need_an_approval(
    lab: Lab, server: MCPServerProcess, worker: WorkerProcess
) -> None:
    job = submit(lab, [call("u_look", work="u"), call("u_fire", work="u")], agent="untrusted")
    asking = submit(
        lab, [call("c_look", work="c-look"), call("c_put_keyed", work="c-put"), call("c_fire", work="c-fire")],
        agent="careful",
    )  # fmt: skip
    assert job.result(timeout=60).status == "completed"
    assert "There is no tool 'u_fire'. Tools: u_look, u_put_keyed." in outcomes(lab, job)[1][1]
    asked = wait_for_question(lab, asking)
    assert asked.tool == "c_fire"
    assert server.deliveries("c-look", "c-put", "c-fire") == {"c-look": 1, "c-put": 1}
    lab.client.answer(asking.session_id, {asked.id: Approve()}, by="reviewer")
    assert asking.result(timeout=60).status == "completed"


def test_a_server_that_hangs_delays_no_other_session(lab: Lab, server: MCPServerProcess, worker: WorkerProcess) -> None:
    with server.closed_gate():
        hanging = [submit(lab, [call("h_look", work=f"hang{n}", gate=True)]) for n in range(3)]
        stuck = submit(lab, [call("stuck_look", work="x")], agent="stuck")
        wait_for_lines(server, ["hang0", "hang1", "hang2"], worker)
        wait_until(lambda: "MCP server 'stuck'" in reason(lab, stuck), "it says why", 30)
        began = time.monotonic()
        others = [submit(lab, [call("h_put_keyed", work=f"quick{n}")]) for n in range(5)]
        assert [job.result(timeout=30).status for job in others] == ["completed"] * 5
        assert time.monotonic() - began < 10
    assert [job.result(timeout=30).status for job in hanging] == ["completed"] * 3
    lab.client.stop(stuck.session_id)


IDLE_SECONDS = 3.0
# A hundredth of a processor.
MOST_IDLE_CPU = 0.01 * IDLE_SECONDS


def idle_cpu(process: psutil.Process) -> float:
    """Seconds of processor time that the process takes while nothing happens."""
    before = sum(process.cpu_times()[:2])
    time.sleep(IDLE_SECONDS)
    return sum(process.cpu_times()[:2]) - before


def test_twenty_idle_servers_cost_a_worker_no_cpu(lab: Lab, worker: WorkerProcess) -> None:
    process = psutil.Process(worker.pid)
    alone = min(idle_cpu(process) for _ in range(2))
    calls = [call(f"m{n}_look", work=f"many{n}") if n < 10 else call(f"m{n}_grow") for n in range(20)]
    job = submit(lab, calls, agent="many")
    assert job.result(timeout=60).status == "completed"
    assert {outcome for outcome, _ in outcomes(lab, job)} == {ToolOutcome.OK}
    time.sleep(1)
    assert len(process.children(recursive=True)) >= 10
    assert any(idle_cpu(process) < alone + MOST_IDLE_CPU for _ in range(3)), "whatever else runs at one time"


class CountingSelector(selectors.DefaultSelector):
    """Counts how often its loop wakes."""

    wakes = 0

    def select(self, timeout: float | None = None) -> Any:
        self.wakes += 1
        return super().select(timeout)


def test_idle_connections_do_not_wake_their_loop(server: MCPServerProcess) -> None:
    selector = CountingSelector()
    legacy = [sys.executable, "-S", "-m", "support.mcp_legacy_server", os.devnull]
    servers = [
        *(MCPServer(server.url, name=f"h{n}") for n in range(10)),
        *(MCPServer(command=legacy, name=f"s{n}", cwd=str(TESTS)) for n in range(10)),
    ]

    async def wakes_in(seconds: float) -> int:
        before = selector.wakes
        await asyncio.sleep(seconds)
        return selector.wakes - before

    async def measure() -> int:
        connections = ServerConnections()
        for each in servers:
            async with connections.to(each, each.fixed_credentials).use():
                pass
        assert connections.open_count == len(servers)
        await asyncio.sleep(1)
        found = await wakes_in(3)
        for each in servers:
            await connections.to(each, each.fixed_credentials).close()
        return found

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        assert runner.run(measure()) <= 3, "a connection that looks at anything once a second wakes the loop more often"
