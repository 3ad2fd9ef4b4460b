"""A message that interrupts, against real workers: what can be left off is, and the same execution goes on with it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from celery_agents import Job
from celery_agents.tasks.app import create_app
from celery_agents.tasks.cli.program import program
from celery_agents.worker.state import FinishReason, Role, ToolOutcome

from support.agents import call, driver_key, plan
from support.interrupted_agents import WORDS
from support.lab import Lab
from support.serve_process import ServeProcess
from support.wait import wait_until
from support.waiting_agents import TOKEN_SECRET
from support.worker_process import WorkerProcess

pytestmark = pytest.mark.timeout(180)

POINTS = ("c1", "c3", "c7")
ALL_POINTS = ("c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9", "w0", "w1", "w3")
STOP_THAT = "stop that"
SUBMIT, STOP = "token-of-submit-0123456789", "token-of-stop-0123456789012"
PATIENT = {
    "CELERY_AGENTS_CONCURRENCY": "32",
    "CELERY_AGENTS_ATTEMPTS_LIMIT": "100",
    "CELERY_AGENTS_SUSPECT_ATTEMPTS": "90",
}
_TOKENS = {"CELERY_AGENTS_TOKEN_SECRET": TOKEN_SECRET}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("interrupted") / "lab", agents="support.interrupted_agents", env=_TOKENS) as lab:
        lab.worker(CELERY_AGENTS_CONCURRENCY="8")
        yield lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path / "lab", agents="support.interrupted_agents") as started:
        yield started


def entries(lab: Lab, **wanted: Any) -> list[dict[str, Any]]:
    return [each for each in lab.ledger.entries() if wanted.items() <= each.items()]


def asked(lab: Lab, job: Job, step: int) -> list[dict[str, Any]]:
    """The requests to the model of a step."""
    return entries(lab, key=driver_key(job.execution_id, step))


def write(lab: Lab, *steps: list[dict[str, Any]], gate: str, **options: Any) -> Job:
    """An execution whose model waits at a gate in its first step."""
    job = lab.client.submit("writer", plan(*steps, gate=gate, **options))
    wait_until(lambda: asked(lab, job, 1), "the model is asked", 30)
    return job


def interrupt(lab: Lab, job: Job, text: str = STOP_THAT) -> Job:
    sent = lab.client.send_message(job.session_id, text, when="interrupt")
    assert sent.placed == "joins"
    return sent


def steps_of(lab: Lab, job: Job) -> list[Any]:
    execution = lab.client.show(job.session_id).state.execution
    assert execution is not None
    return [each.step for each in execution.step_executions]


# --- what is left off -------------------------------------------------------------------------------------------------


def test_a_model_call_is_left_off_and_the_same_execution_asks_again_with_the_message(shared: Lab) -> None:
    job = write(shared, gate="never")
    sent = interrupt(shared, job)
    assert job.result(timeout=30).final_response == "done"
    (second,) = asked(shared, job, 2)
    assert second["said"][-1] == STOP_THAT
    assert second["texts"] == []
    assert sent.result(timeout=5).execution_id == job.execution_id
    first, last = steps_of(shared, job)
    assert first.inference_response.finish_reason is FinishReason.INTERRUPTED
    assert last.inference_response.finish_reason is FinishReason.STOP
    assert len(asked(shared, job, 1)) == 1


def test_the_words_that_somebody_has_seen_are_the_answer(shared: Lab) -> None:
    client = shared.client
    job = client.submit("writer", plan())
    job.result(timeout=30)
    assert client.store.live.keep_followed(job.session_id)
    job = client.send_message(job.session_id, plan(gate="never"))
    wait_until(lambda: asked(shared, job, 1), "the model is asked", 30)
    interrupt(shared, job)
    job.result(timeout=30)
    assert steps_of(shared, job)[0].inference_response.content == "".join(WORDS)
    assert asked(shared, job, 2)[0]["texts"] == ["done", "".join(WORDS)]


def test_pure_calls_end_at_once_and_one_that_has_begun_an_effect_is_awaited(shared: Lab) -> None:
    job = shared.client.submit(
        "writer", plan([call("look_up", work="a", gate="never"), call("keyed", work="b", gate="effect")])
    )
    wait_until(lambda: entries(shared, work="a") and entries(shared, work="b"), "both calls run", 30)
    interrupt(shared, job)
    time.sleep(1)
    assert not asked(shared, job, 2), "the effect is awaited"
    shared.ledger.open("effect")
    assert job.result(timeout=30).final_response == "done"
    outcomes = [each.outcome for each in steps_of(shared, job)[0].tool_executions]
    assert outcomes == [ToolOutcome.NOT_RUN, ToolOutcome.OK]
    assert len(entries(shared, work="a")) == 1
    assert asked(shared, job, 2)[0]["said"][-1] == STOP_THAT


def test_an_approval_that_nobody_has_given_is_withdrawn(shared: Lab) -> None:
    client = shared.client
    job = client.submit("writer", plan([call("refund", work="r"), call("keyed", work="k")]))
    wait_until(lambda: client.header(job.session_id).status == "waiting", "it waits", 30)
    interrupt(shared, job)
    assert job.result(timeout=30).final_response == "done"
    refund, keyed = steps_of(shared, job)[0].tool_executions
    assert (refund.outcome, keyed.outcome) == (ToolOutcome.NOT_RUN, ToolOutcome.OK)
    assert "message came first" in refund.error.message
    assert not entries(shared, work="r")
    assert not list(client.requests(job.session_id))


def test_a_call_whose_result_comes_later_is_awaited(shared: Lab) -> None:
    client = shared.client
    job = client.submit("writer", plan([call("render", work="v"), call("refund", work="w")]))
    wait_until(lambda: client.header(job.session_id).status == "waiting", "it waits", 30)
    for text in (STOP_THAT, "really"):
        interrupt(shared, job, text)
        wait_until(lambda: len(list(client.requests(job.session_id))) == 1, "the approval is withdrawn", 30)
    wait_until(
        lambda: client.header(job.session_id).status == "waiting",
        "it waits on",
        5,
        details=lambda: str(
            [client.header(job.session_id), *client.requests(job.session_id)]
            + [(e.type, dict(e.data)) for e in client.store.sessions.events(job.session_id)]
        ),
    )
    (token,) = [each["token"] for each in entries(shared, kind="start", work="v")]
    client.complete(token, "rendered")
    assert job.result(timeout=30).final_response == "done"
    assert [each.outcome for each in steps_of(shared, job)[0].tool_executions] == [ToolOutcome.OK, ToolOutcome.NOT_RUN]
    assert asked(shared, job, 2)[0]["said"][-2:] == [STOP_THAT, "really"]


def test_children_are_stopped(shared: Lab) -> None:
    client = shared.client
    job = client.submit("writer", plan([call("delegate", prompt=plan(gate="never child"))]))
    wait_until(lambda: client.header(job.session_id).status == "waiting", "it waits for its child", 30)
    (request,) = list(client.requests(job.session_id))
    wait_until(lambda: len(entries(shared, kind="driver", gate="never child")) == 1, "the child asks its model", 30)
    interrupt(shared, job)
    assert job.result(timeout=30).final_response == "done"
    assert client.header(request.request.child.session_id).status == "stopped"


def test_a_call_that_has_begun_may_go_on_asking_the_model(shared: Lab) -> None:
    job = shared.client.submit("writer", plan([call("consult")]))
    wait_until(lambda: entries(shared, kind="consulted", number=1), "it is asked once", 30)
    interrupt(shared, job)
    assert job.result(timeout=30).final_response == "done"
    (consulted,) = steps_of(shared, job)[0].tool_executions
    assert (consulted.outcome, consulted.value) == (ToolOutcome.OK, "yes")


def test_what_comes_behind_the_message_that_was_taken_back_is_asked_again(shared: Lab) -> None:
    job = shared.client.submit("writer", plan([call("keyed", work="t", gate="slow-effect")]))
    wait_until(lambda: entries(shared, work="t"), "the effect is under way", 30)
    sent = interrupt(shared, job)
    assert shared.client.withdraw_message(job.session_id, sent.operation_id)
    shared.ledger.open("slow-effect")
    assert job.result(timeout=30).final_response == "done"
    assert STOP_THAT not in asked(shared, job, 2)[0]["said"]


def test_a_plain_function_in_the_place_of_a_model_is_awaited_and_its_calls_do_not_begin(shared: Lab) -> None:
    job = shared.client.submit("plain", plan([call("keyed", work="p")], gate="plain"))
    wait_until(lambda: asked(shared, job, 1), "the function runs", 30)
    interrupt(shared, job)
    shared.ledger.open("plain")
    assert job.result(timeout=30).final_response == "done"
    assert [each.outcome for each in steps_of(shared, job)[0].tool_executions] == [ToolOutcome.NOT_RUN]
    assert not entries(shared, work="p")


def test_behind_a_final_answer_of_a_plain_function_it_starts_the_next_execution(shared: Lab) -> None:
    job = shared.client.submit("plain", plan(gate="final"))
    wait_until(lambda: asked(shared, job, 1), "the function runs", 30)
    sent = interrupt(shared, job, plan(answer="next"))
    shared.ledger.open("final")
    assert job.result(timeout=30).final_response == "done"
    assert sent.result(timeout=30).final_response == "next"


def test_http_tasks_and_the_command_line_interrupt_as_the_client_does(lab: Lab) -> None:
    client = lab.client
    lab.worker(CELERY_AGENTS_CONTROL_TASKS="all")
    secrets = {"CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{SUBMIT}:submit,{STOP}:submit+stop"}
    runner, env = CliRunner(), {"CELERY_AGENTS_REDIS_URL": lab.store_url}
    job = write(lab, gate="never-http")
    with ServeProcess(lab.directory / "serve", lab.store_url, secrets) as server:
        path, wanted = f"/v1/sessions/{job.session_id}", {"message": STOP_THAT, "when": "interrupt"}
        with server.http(SUBMIT) as serve:
            refused = serve.post(f"{path}/messages", json=wanted)
            assert (refused.status_code, "'stop'" in refused.json()["detail"]) == (403, True)
            steering = serve.post(f"{path}/messages", json={"message": "by the way"}).json()
            mode = f"{path}/messages/{steering['operation_id']}/mode"
            assert serve.put(mode, json={"when": "interrupt"}).status_code == 403
        assert not asked(lab, job, 2)
        with server.http(STOP) as serve:
            assert serve.put(mode, json={"when": "interrupt"}).json() == {"placed": "joins"}
        assert job.result(timeout=30).final_response == "done"
        assert asked(lab, job, 2)[0]["said"][-1] == "by the way"
        job = write(lab, gate="never-http-2")
        with server.http(STOP) as serve:
            assert serve.post(f"/v1/sessions/{job.session_id}/messages", json=wanted).json()["placed"] == "joins"
        assert job.result(timeout=30).final_response == "done"
    job = write(lab, gate="never-cli")
    done = runner.invoke(program, ["send", job.session_id, STOP_THAT, "--when", "interrupt"], env=env)
    assert done.exit_code == 0, done.output
    assert job.result(timeout=30).final_response == "done"
    job = write(lab, gate="never-mode")
    sent = client.send_message(job.session_id, STOP_THAT)
    assert client.queued(job.session_id).messages[0].when == "steer"
    assert runner.invoke(program, ["mode", job.session_id, sent.operation_id, "interrupt"], env=env).stdout == "joins\n"
    assert job.result(timeout=30).final_response == "done"
    job = write(lab, gate="never-task")
    sent = client.send_message(job.session_id, STOP_THAT)
    task = {"session_id": job.session_id, "operation_id": sent.operation_id, "when": "interrupt"}
    create_app(client.settings).send_task("celery_agents.set_message_mode", kwargs=task, queue="celery_agents.control")
    assert job.result(timeout=30).final_response == "done"


@pytest.mark.parametrize("is_followed", [False, True])
def test_an_agent_of_pydantic_ai_is_asked_again_with_all_that_was_said(shared: Lab, is_followed: bool) -> None:
    client = shared.client
    job = client.submit("drafting", f"hello {is_followed}")
    assert job.result(timeout=30).final_response.endswith("done")
    if is_followed:
        client.store.live.keep_followed(job.session_id)
    job = client.send_message(job.session_id, "wait")
    wait_until(lambda: any(is_about(each, is_followed) for each in entries(shared, gate="never")), "it is asked", 30)
    interrupt(shared, job)
    assert job.result(timeout=30).final_response.endswith("done")
    first = steps_of(shared, job)[0].inference_response
    assert (first.finish_reason, first.content) == (FinishReason.INTERRUPTED, "".join(WORDS) if is_followed else "")
    client.send_message(job.session_id, "and then").result(timeout=30)
    last = [each for each in entries(shared, kind="pydantic") if is_about(each, is_followed)][-1]["parts"]
    said = [text for kind, text in last if kind == "user-prompt"]
    assert said[0] == f"hello {is_followed}"
    assert str(said[1:]).count("wait") == str(said[1:]).count(STOP_THAT) == 1
    assert [kind for kind, _ in last].count("system-prompt") == 1


def is_about(entry: dict[str, Any], is_followed: bool) -> bool:
    return ["user-prompt", f"hello {is_followed}"] in entry.get("parts", [])


# --- workers that die -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("points", [POINTS, pytest.param(ALL_POINTS, marks=pytest.mark.long, id="all")])
def test_workers_that_die_deliver_it_once_and_in_the_same_execution(lab: Lab, points: Sequence[str]) -> None:
    client = lab.client
    jobs = [
        client.submit("writer", plan([call("keyed", work=f"{n}.a"), call("look_up", work=f"{n}.l")], gate="never"))
        for n in range(3 * len(points))
    ]
    sent: dict[int, Job] = {}
    deaths = 0
    for seed, point in enumerate(points):
        worker = lab.worker(wait=False, crash=f"{point}:0.4:{seed}", **PATIENT)
        for number in range(3 * seed, 3 * seed + 3):
            may_be_asked(lab, jobs[number], worker)
            text = plan(answer=f"{number} done")
            sent[number] = client.send_message(jobs[number].session_id, text, when="interrupt")
        sleep_until(lambda worker=worker: not worker.alive, 2)
        deaths += not worker.alive
        worker.kill()
    assert deaths
    lab.worker(**PATIENT)
    for number, job in enumerate(jobs):
        assert sent[number].result(timeout=60).final_response == f"{number} done"
        assert sent[number].result(timeout=5).execution_id == job.execution_id
        state = client.show(job.session_id).state
        assert len([each for each in state.messages if each.role is Role.USER]) == 2
        assert not client.store.sessions.read_waiting(job.session_id).inbox
        control = lab.redis.hmget(client.store.context.keys(job.session_id).ctl, "interrupt", "cancel")
        assert [value or "" for value in control] == ["", ""]
    assert not entries(lab, kind="effect"), "no call of an answer that was left off begins"


def may_be_asked(lab: Lab, job: Job, worker: WorkerProcess) -> None:
    sleep_until(lambda: asked(lab, job, 1) or not worker.alive, 10)


def sleep_until(is_over: Callable[[], object], seconds: float) -> None:
    """Sleep for so many seconds, or until something has happened."""
    end = time.monotonic() + seconds
    while not is_over() and time.monotonic() < end:
        time.sleep(0.02)


# --- how soon ---------------------------------------------------------------------------------------------------------


def test_the_next_request_follows_within_a_second(shared: Lab) -> None:
    waits: list[float] = []
    for number in range(10):
        job = write(shared, gate=f"never {number}")
        began = time.monotonic()
        interrupt(shared, job)
        wait_until(lambda job=job: asked(shared, job, 2), "the model is asked again", 10, interval=0.005)
        waits.append(time.monotonic() - began)
        job.result(timeout=30)
    assert statistics.median(waits) < 1, waits
