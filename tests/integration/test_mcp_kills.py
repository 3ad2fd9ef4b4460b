"""MCP tools when workers die: no keyed effect doubles, no unsafe call runs again, a task is begun once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.state import Answer, Deny, ToolOutcome

from support.agents import call, plan
from support.lab import Lab
from support.mcp_process import MCPServerProcess, outcomes, reason, submit, wait_for_lines, wait_for_question
from support.wait import wait_until
from support.worker_process import WorkerProcess

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MCPServerProcess]:
    started = MCPServerProcess(tmp_path / "mcp")
    started.begin()
    yield started
    started.end()


@pytest.fixture
def lab(tmp_path: Path, server: MCPServerProcess) -> Iterator[Lab]:
    with Lab(tmp_path / "lab", agents="support.mcp_agents", env=server.worker_env()) as started:
        yield started


def test_worker_and_servers_are_killed_and_no_keyed_effect_doubles_and_no_unsafe_call_runs_again(
    lab: Lab, server: MCPServerProcess
) -> None:
    works = [f"{name}2-{tool}" for name in "sh" for tool in ("put_keyed", "fire")]
    calls = [call(f"{w[0]}_{w[3:]}", work=w, gate=True) for w in works]
    doomed = lab.worker()
    with server.closed_gate():
        job = submit(lab, calls)
        wait_for_lines(server, works, doomed)
        (stdio_server,) = {each["pid"] for each in server.lines() if each["work"] == "s2-fire"}
        doomed.kill_alone()
        wait_until(lambda: not psutil.pid_exists(stdio_server), "the worker's own server ends with it", 20)
    lab.worker()
    assert job.result(timeout=60).status == "completed"
    assert [each[0] for each in outcomes(lab, job)] == [ToolOutcome.OK, ToolOutcome.UNKNOWN] * 2
    assert server.effects(*works) == dict.fromkeys(works, 1)
    assert server.deliveries(*works) == {"s2-put_keyed": 2, "h2-put_keyed": 2, "s2-fire": 1, "h2-fire": 1}


@pytest.mark.parametrize("dies", ["server", "server and worker"])
def test_a_keyed_call_whose_server_dies_after_its_effect_and_stays_away_is_unknown(
    lab: Lab, server: MCPServerProcess, dies: str
) -> None:
    doomed = lab.worker()
    work = f"{dies} dies"
    with server.closed_gate():
        job = submit(lab, [call("i_put_keyed", work=work, gate=True)], agent="impatient")
        wait_for_lines(server, [work], doomed)
        if dies == "server and worker":
            doomed.kill_alone()
        server.kill()
    if dies == "server and worker":
        lab.worker()
    assert job.result(timeout=60).status == "completed"
    ((outcome, text),) = outcomes(lab, job)
    assert outcome is ToolOutcome.UNKNOWN
    assert "the MCP server 'i' is away" in text
    assert "an earlier try may have been carried out" in text
    assert server.effects(work) == {work: 1}


@pytest.mark.parametrize("dies", ["server", "server and worker"])
def test_a_keyed_call_that_is_stopped_while_its_server_is_away_is_unknown(
    lab: Lab, server: MCPServerProcess, dies: str
) -> None:
    doomed = lab.worker()
    work = f"{dies} dies, and the job is stopped"
    with server.closed_gate():
        job = submit(lab, [call("h_put_keyed", work=work, gate=True)])
        wait_for_lines(server, [work], doomed)
        if dies == "server and worker":
            doomed.kill_alone()
        server.kill()
    worker = lab.worker() if dies == "server and worker" else doomed
    wait_until(lambda: "is away" in reason(lab, job), "it says why it waits", 30, details=worker.tail)
    lab.client.stop(job.session_id)
    assert job.result(timeout=60).status == "stopped"
    assert outcomes(lab, job)[0][0] is ToolOutcome.UNKNOWN
    assert server.effects(work) == {work: 1}


def servers_of(worker: WorkerProcess) -> list[int]:
    """Processes of servers that the worker has started."""
    found: list[int] = []
    for child in psutil.Process(worker.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ends at this moment
            if "support.mcp_legacy_server" in child.cmdline():
                found.append(child.pid)
    return found


@pytest.mark.parametrize(
    "pool", ["greenlets", *(pytest.param(name, marks=pytest.mark.long) for name in ("threads", "prefork"))]
)
def test_a_server_over_standard_streams_ends_when_it_is_idle_and_with_its_worker(lab: Lab, pool: str) -> None:
    worker = lab.worker(CELERY_AGENTS_POOL=pool, CELERY_AGENTS_CONCURRENCY="1")
    for _ in range(2):
        assert submit(lab, [call("brief_grow")], agent="brief").result(timeout=60).status == "completed"
        wait_until(lambda: not servers_of(worker), "the idle server has ended", 20)
    assert submit(lab, [call("old_grow")], agent="legacy").result(timeout=60).status == "completed"
    (left,) = servers_of(worker)
    worker.terminate()
    wait_until(lambda: not worker.alive, "the worker has ended", 20, details=worker.tail)
    wait_until(lambda: not psutil.pid_exists(left), "its server has ended", 5)


def test_a_task_is_begun_once_followed_by_another_worker_and_cancelled_by_a_stop(
    lab: Lab, server: MCPServerProcess
) -> None:
    doomed = lab.worker()
    job = submit(lab, [call("h_render", work="film", seconds=4)])
    wait_until(lambda: lab.client.header(job.session_id).status == "waiting", "it waits", 40, details=doomed.tail)
    doomed.kill()
    lab.worker()
    stopped = submit(lab, [call("h_render", work="long film", seconds=600)])
    assert job.result(timeout=60).status == "completed"
    assert outcomes(lab, job) == [(ToolOutcome.OK, "rendered")]
    wait_until(lambda: server.deliveries("long film") == {"long film": 1}, "the other has begun", 30)
    wait_until(lambda: lab.client.header(stopped.session_id).status == "waiting", "the other waits", 30)
    lab.client.stop(stopped.session_id)
    assert stopped.result(timeout=60).status == "stopped"
    assert outcomes(lab, stopped)[0][0] is ToolOutcome.UNKNOWN
    assert [each["work"].partition(".")[1] for each in server.lines() if each["kind"] == "cancel"] == ["."]
    assert server.deliveries("film", "long film") == {"film": 1, "long film": 1}


def test_a_task_that_asks_waits_for_a_person_and_goes_on_with_another_worker(
    lab: Lab, server: MCPServerProcess
) -> None:
    doomed = lab.worker()
    job = submit(lab, [call("h_render", work="poster", asks=True)])
    declined, stopped = (submit(lab, [call("h_render", work=work, asks=True)]) for work in ("leaflet", "banner"))
    asked = {each: wait_for_question(lab, each, "Which size?") for each in (job, declined, stopped)}
    doomed.kill()
    with pytest.raises(InvalidInput, match=r"values.size: it must be a string"):
        lab.client.answer(job.session_id, {asked[job].id: Answer({"size": 5})}, by="reviewer")
    lab.client.answer(job.session_id, {asked[job].id: Answer({"size": "A0"})}, by="reviewer")
    lab.client.answer(declined.session_id, {asked[declined].id: Deny("too dear")}, by="reviewer")
    lab.worker()
    lab.client.stop(stopped.session_id)
    assert [each.result(timeout=60).status for each in (job, declined, stopped)] == ["completed"] * 2 + ["stopped"]
    assert outcomes(lab, job) == [(ToolOutcome.OK, "rendered A0")]
    assert outcomes(lab, declined) == [(ToolOutcome.OK, "rendered decline")]
    assert outcomes(lab, stopped)[0][0] is ToolOutcome.UNKNOWN
    assert server.deliveries("poster", "leaflet", "banner") == {"poster": 1, "leaflet": 1, "banner": 1}
    assert [each["kind"] for each in server.lines()].count("cancel") == 1


def test_a_task_that_asks_gets_its_answer_although_a_message_interrupts_the_step(
    lab: Lab, server: MCPServerProcess
) -> None:
    lab.worker()
    job = submit(lab, [call("h_render", work="poster", asks=True)])
    asked = wait_for_question(lab, job, "Which size?")
    assert lab.client.send_message(job.session_id, plan(answer="seen"), when="interrupt").placed == "joins"
    wait_for_question(lab, job, "Which size?")
    lab.client.answer(job.session_id, {asked.id: Answer({"size": "A0"})}, by="reviewer")
    assert job.result(timeout=60).final_response == "seen"
    assert outcomes(lab, job) == [(ToolOutcome.OK, "rendered A0")]
    assert server.deliveries("poster") == {"poster": 1}


def test_a_task_that_was_answered_and_is_stopped_before_it_goes_on_is_unknown(
    lab: Lab, server: MCPServerProcess
) -> None:
    doomed = lab.worker()
    job = submit(lab, [call("h_render", work="poster", asks=True)])
    asked = wait_for_question(lab, job, "Which size?")
    doomed.kill()
    lab.client.answer(job.session_id, {asked.id: Answer({"size": "A0"})}, by="reviewer")
    lab.client.stop(job.session_id, timeout=0)
    lab.worker()
    assert job.result(timeout=60).status == "stopped"
    assert [outcome for outcome, _ in outcomes(lab, job)] == [ToolOutcome.UNKNOWN]
    assert server.deliveries("poster") == {"poster": 1}


@pytest.mark.long
@pytest.mark.parametrize(("point", "outcome"), [("c5", "unknown"), ("w0", "ok"), ("w1", "ok"), ("w3", "ok")])
def test_a_worker_killed_at_any_point_begins_a_task_once(
    lab: Lab, server: MCPServerProcess, point: str, outcome: str
) -> None:
    doomed = lab.worker(wait=False, crash=f"{point}:1:1")
    job = submit(lab, [call("h_render", work="film", seconds=2)])
    doomed.wait(60)
    lab.worker()
    assert job.result(timeout=60).status == "completed"
    assert outcomes(lab, job)[0][0] == outcome
    assert server.deliveries("film") == {"film": 1}
