"""Answers that come later, by real workers over a stand-in provider: stopped, interrupted, held, refused and forgotten."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from celery_agents import AsyncAgentClient, Job
from celery_agents.flow import SpendCap
from celery_agents.tasks.names import SUBMIT
from celery_agents.tasks.producer import create_producer_app
from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.state import ExecutionBudget

from fault.real.provider_jobs import Stage, stage
from support import fork_server
from support.processes import free_port
from support.scraping import scraped
from support.serve_process import ServeProcess
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore:no worker has registered")]

PORT = free_port()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("patience")) as made:
        made.lab.worker(CELERY_AGENTS_METRICS_PORT=str(PORT))
        yield made


def held(played: Stage, name: str, agent: str = "within_8h", **more: Any) -> Any:
    """A job whose first answer is held back at the provider, once it is there."""
    played.provider.control("plan", contains=name, held=True)
    job = played.lab.client.submit(agent, name, **more)
    listed = played.lab.client.store.housekeeping.provider_jobs
    wait_until(lambda: any(each.session_id == job.session_id for each in listed()), "the job is kept", 15)
    return job


def created(played: Stage, name: str) -> list[str]:
    """The ids of the jobs that were created for a question."""
    return [str(line["id"]) for line in played.provider.book.created() if str(line["text"]) == name]


def cancelled(played: Stage, name: str) -> bool:
    ids = {str(line["id"]) for line in played.provider.book.lines("cancel")}
    return set(created(played, name)) <= ids


def release(played: Stage, name: str, end: str | None = None) -> None:
    for each in created(played, name):
        played.provider.control("release", id=each, end=end)


@pytest.mark.parametrize(
    "agent",
    [
        "within_8h",
        "claude",
        "chat",
        *(pytest.param(agent, marks=pytest.mark.long) for agent in ("within_24h", "gemini", "teller")),
    ],
)
def test_a_loop_with_tools_costs_what_the_provider_charges(played: Stage, agent: str) -> None:
    job = played.submit(agent, 1)
    result = job.result(timeout=40)
    assert result.final_response == "done after 3: noted 3", result
    ids = {str(each["id"]) for each in played.provider.book.created() if f"{agent} 1:" in str(each["text"])}
    paid = [each for each in played.provider.book.paid() if each["id"] in ids]
    assert len(paid) == 4
    assert math.isclose(result.cost or 0.0, sum(each["dollars"] for each in paid), rel_tol=1e-6)


def test_a_stop_ends_it_at_once_and_cancels_the_job(played: Stage) -> None:
    job = held(played, "stop me")
    played.lab.client.stop(job.session_id)
    assert job.result(timeout=5).status == "stopped"
    wait_until(lambda: cancelled(played, "stop me"), "the job is cancelled", 10)


def test_a_stop_in_the_moment_of_its_creation_cancels_the_job(played: Stage) -> None:
    name = "stop me at once"
    played.provider.control("plan", contains=name, held=True)
    played.provider.control("fault", on="response.create", fault="slow", contains=name, seconds=2)
    job = played.lab.client.submit("within_8h", name)
    wait_until(lambda: created(played, name), "the job is created, and the reply under way", 10)
    played.lab.client.stop(job.session_id)
    assert job.result(timeout=10).status == "stopped"
    wait_until(lambda: cancelled(played, name), "the job is cancelled", 10)


@pytest.mark.parametrize("agent", ["within_24h", "gemini"])
def test_a_batch_of_a_deleted_session_is_cancelled(played: Stage, agent: str) -> None:
    name = f"delete me of {agent}"
    job = held(played, name, agent)
    played.lab.client.stop(job.session_id)
    job.result(timeout=5)
    played.lab.client.delete(job.session_id)
    wait_until(lambda: cancelled(played, name), "the batch is cancelled", 10)


@pytest.mark.parametrize("agent", ["within_24h", "claude", "gemini"])
def test_what_a_cancelled_batch_had_answered_is_charged_to_its_session(played: Stage, agent: str) -> None:
    name = f"too late for {agent}"
    played.provider.control("plan", contains=name, is_charged=True)
    job = held(played, name, agent)
    played.lab.client.stop(job.session_id)
    assert job.result(timeout=5).status == "stopped"
    wait_until(lambda: job.result(timeout=1).cost, "it is charged", 10)
    (paid,) = [line for line in played.provider.book.paid() if line["id"] in created(played, name)]
    assert math.isclose(job.result(timeout=1).cost or 0.0, paid["dollars"], rel_tol=1e-6)


def test_a_message_that_interrupts_is_answered_at_once_and_the_job_cancelled(played: Stage) -> None:
    job = held(played, "interrupt me")
    answer = played.lab.client.send_message(job.session_id, "now", when="interrupt")
    assert answer.result(timeout=15).final_response == "now"
    wait_until(lambda: cancelled(played, "interrupt me"), "the job is cancelled", 10)


def test_a_held_session_is_not_looked_at_and_has_its_answer_when_it_is_resumed(played: Stage) -> None:
    job = held(played, "hold me")
    played.lab.client.suspend(job.session_id, reason="wait")
    release(played, "hold me")
    (job_id,) = created(played, "hold me")
    polls = len(played.provider.book.polls(job_id))
    assert played.lab.client.submit("within_8h", "beside it").result(timeout=20).final_response == "beside it"
    assert len(played.provider.book.polls(job_id)) <= polls + 1
    played.lab.client.resume(job.session_id)
    assert job.result(timeout=10).final_response == "hold me"


def test_it_says_where_it_is_and_until_when(played: Stage) -> None:
    job = held(played, "show me")
    shown: list[str] = []

    def is_waiting() -> bool:  # not while it looks
        shown.append(_command(played, "show", job.session_id))
        return "is at the provider of openai-responses:gpt-5-mini since" in shown[-1]

    wait_until(is_waiting, "it is shown", 10)
    assert "40 % cheaper, at the latest" in shown[-1], shown[-1]
    release(played, "show me")
    assert job.result(timeout=10).final_response == "show me"


def _command(played: Stage, *arguments: str) -> str:
    env = {"CELERY_AGENTS_REDIS_URL": played.lab.store_url, "PATH": "/usr/bin:/bin"}
    done = fork_server.run([sys.executable, "-m", "celery_agents", *arguments], cwd=played.lab.directory, env=env)
    assert isinstance(done, subprocess.CompletedProcess)
    return " ".join((str(done.stdout) + str(done.stderr)).split())


def test_doctor_and_the_metric_of_the_alert_tell_of_a_job_that_is_later_than_its_window(played: Stage) -> None:
    job, store = held(played, "be late"), played.lab.client.store
    (entry,) = (each for each in store.housekeeping.provider_jobs() if each.session_id == job.session_id)
    late = entry.model_copy(update={"due_ms": entry.since_ms})  # as if eight hours had passed
    played.lab.redis.hset(store.context.keys(job.session_id).shard.jobs, entry.id, late.to_json())
    assert f"1 later than their window: {job.session_id}" in _command(played, "doctor")
    assert scraped(PORT)["celery_agents_provider_job_late"] == 1
    release(played, "be late")
    assert job.result(timeout=10).final_response == "be late"


def test_a_window_of_a_job_comes_from_the_command_line_and_goes_to_its_children(played: Stage) -> None:
    said = _command(played, "submit", "plain", "once, in a day", "--completion-window", "24h", "--wait")
    assert "once, in a day" in said
    (line,) = [each for each in played.provider.book.created() if str(each["text"]) == "once, in a day"]
    assert line["window"] == "24h"


@pytest.mark.parametrize("agent", ["within_8h", "gemini"])
@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_job_that_ends_without_an_answer_is_asked_again(played: Stage, agent: str, end: str) -> None:
    name = f"{agent} is {end}"
    job = held(played, name, agent)
    release(played, name, end)
    wait_until(lambda: len(created(played, name)) == 2, "it is asked again", 10)
    played.provider.control("release", id=created(played, name)[1], end=None)
    assert job.result(timeout=10).final_response == name


@pytest.mark.parametrize("agent", ["within_8h", "within_24h", "claude", "gemini", "chat", "teller"])
def test_a_job_that_the_provider_has_forgotten_is_asked_again(played: Stage, agent: str) -> None:
    name = f"forget me of {agent}"
    job = held(played, name, agent)
    played.provider.control("forget", id=created(played, name)[0])
    wait_until(lambda: len(created(played, name)) == 2, "it is asked again", 10)
    played.provider.control("release", id=created(played, name)[1], end=None)
    assert job.result(timeout=10).final_response == name


def test_three_jobs_without_an_answer_end_the_execution_with_the_reason(played: Stage) -> None:
    played.provider.control("plan", contains="never answered", end="failed")
    result = played.lab.client.submit("within_8h", "never answered").result(timeout=20)
    assert result.status == "failed"
    assert "the provider says that the answer is failed" in str(result.errors)
    assert len(created(played, "never answered")) == 3
    assert not [each for each in played.provider.book.paid() if each["id"] in created(played, "never answered")]


def test_a_window_that_is_refused_is_said_or_asked_at_once(played: Stage) -> None:
    played.provider.control("fault", on="response.create", fault="no_window", times=2)
    result = played.lab.client.submit("within_8h", "refused").result(timeout=20)
    assert result.status == "failed"
    assert "HTTP 400" in str(result.errors)
    assert played.lab.client.submit("patient_or_live", "refused").result(timeout=20).final_response == "refused"
    assert [each["window"] for each in played.provider.book.created() if str(each["text"]) == "refused"] == [None]


def test_an_answer_that_is_too_large_is_refused(played: Stage) -> None:
    result = played.lab.client.submit("within_8h", "say 6 MB").result(timeout=30)
    assert result.status == "failed"
    assert "bytes" in str(result.errors) or "large" in str(result.errors)


def test_an_answer_that_comes_in_pieces_is_one(played: Stage) -> None:
    played.provider.control("plan", contains="in pieces", pieces=8, piece_seconds=0.05)
    result = played.lab.client.submit("within_8h", "in pieces").result(timeout=20)
    assert result.final_response == "in pieces"
    assert len(created(played, "in pieces")) == 1


@pytest.mark.parametrize("agent", ["within_24h", "gemini"])
def test_a_batch_whose_request_has_failed_is_asked_again(played: Stage, agent: str) -> None:
    name = f"fail in part, {agent}"
    played.provider.control("plan", contains=name, end="errored")
    result = played.lab.client.submit(agent, name).result(timeout=30)
    assert result.status == "failed"
    assert len(created(played, name)) == 3


def test_a_batch_whose_result_cannot_be_read_is_asked_again(played: Stage) -> None:
    played.provider.control("plan", contains="garbled", garbled=True)
    result = played.lab.client.submit("within_24h", "garbled").result(timeout=30)
    assert result.status == "failed"
    assert "cannot be read" in str(result.errors)
    assert len(created(played, "garbled")) == 3


@pytest.fixture
def spent(played: Stage) -> Iterator[Callable[[str], float]]:
    """What a cap for each customer has counted for one of them; all workers know the cap."""
    caps = played.lab.client.caps

    def of(customer: str) -> float:
        (status,) = caps.list()
        return next((each.usd for each in status.spent if each.value == customer), 0.0)

    def is_known() -> bool:  # a worker hears of it in a moment, in which it counts nothing
        played.lab.client.submit("within_8h", "count me", labels={"customer": "first"}).result(timeout=30)
        return of("first") > 0

    caps.set(SpendCap("customers", usd=1, per="month", label="customer"))
    wait_until(is_known, "the worker knows the cap", 60)
    yield of
    caps.remove("customers")


def test_money_is_reserved_at_full_price_and_settled_at_what_was_charged(
    played: Stage, spent: Callable[[str], float]
) -> None:
    job = held(played, "reserve for me", labels={"customer": "acme"})
    reserved = spent("acme")
    release(played, "reserve for me")
    job.result(timeout=10)
    (line,) = [each for each in played.provider.book.paid() if each["id"] in created(played, "reserve for me")]
    wait_until(lambda: math.isclose(spent("acme"), line["dollars"], rel_tol=0.01), "it is settled", 5)
    assert reserved > line["dollars"]


def test_a_job_of_a_deleted_session_keeps_no_money_of_its_customer_reserved(
    played: Stage, spent: Callable[[str], float]
) -> None:
    client = played.lab.client
    job = held(played, "delete me", labels={"customer": "gone"})
    assert spent("gone") > 0
    client.stop(job.session_id)
    client.delete(job.session_id)
    wait_until(lambda: cancelled(played, "delete me") and not spent("gone"), "nothing is reserved", 20)


def test_a_cancelled_batch_whose_result_cannot_be_read_keeps_its_money_reserved_and_is_deleted(
    played: Stage, spent: Callable[[str], float]
) -> None:
    name = "cancelled and garbled"
    played.provider.control("plan", contains=name, is_charged=True, garbled=True)
    job = held(played, name, "within_24h", labels={"customer": "garbled"})
    reserved = spent("garbled")
    played.lab.client.stop(job.session_id)
    job.result(timeout=5)
    context = played.lab.client.store.context
    indexes = [key for each in context.shards for key in (each.jobs, each.old_jobs)]
    wait_until(lambda: cancelled(played, name) and not any(map(played.lab.redis.hlen, indexes)), "it is deleted", 30)
    assert spent("garbled") == reserved > 0


@pytest.mark.parametrize(("agent", "action"), [("within_24h", "batch.create"), ("gemini", "google_batch.create")])
def test_a_lost_reply_costs_a_batch_nothing(played: Stage, agent: str, action: str) -> None:
    name = f"lost, and found by {agent}"
    played.provider.control("fault", on=action, fault="lost", times=1)
    result = played.lab.client.submit(agent, name).result(timeout=40)
    assert result.final_response == name, result
    assert len(created(played, name)) == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"completion_window": "3h"}, "'2h'|2h"),
        ({"completion_window": ""}, "2h"),
        (
            {
                "completion_window": "8h",
                "budget": ExecutionBudget(deadline=datetime.now(UTC) + timedelta(hours=1)),
            },
            "deadline",
        ),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_submitted(played: Stage, more: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as refused:
        played.lab.client.submit("within_8h", "no", **more)
    assert "completion_window" in str(refused.value)


def test_the_same_job_is_found_again_when_its_deadline_has_come_closer_than_its_window(played: Stage) -> None:
    latest = datetime.now(UTC) + timedelta(hours=8, seconds=1)

    def submit(key: str) -> Job:
        budget = ExecutionBudget(deadline=latest)
        return played.lab.client.submit(
            "within_8h", "again", budget=budget, completion_window="8h", idempotency_key=key
        )

    first = submit("one")
    wait_until(lambda: datetime.now(UTC) > latest - timedelta(hours=8), "a new job would be late", 10)
    assert submit("one").session_id == first.session_id
    with pytest.raises(InvalidInput, match=r"the deadline .* comes before it ends"):
        submit("two")


def test_texts_whose_writer_is_killed_are_attached_to_and_paid_once(tmp_path: Path) -> None:
    text = "a text that somebody watches while it is written"
    shown: dict[str, list[str]] = {"chat": [], "teller": []}
    with stage(tmp_path) as played, ThreadPoolExecutor() as readers:
        played.provider.control("plan", held=True, held_after=7)
        jobs = {agent: played.lab.client.submit(agent, text) for agent in shown}

        def read(agent: str) -> None:
            for item in jobs[agent].stream(timeout=100):
                shown[agent].append(item.text if item.delta is None else item.delta.text)

        reading = [readers.submit(read, agent) for agent in shown]
        doomed = played.lab.worker()
        wait_until(lambda: all(map("".join, shown.values())), "both texts are watched", 20)
        doomed.kill()
        played.lab.worker()
        played.provider.control("release", id=None)
        assert [job.result(timeout=20).final_response for job in jobs.values()] == [text, text]
        assert len(played.provider.book.created()) == len(played.provider.book.paid()) == 2
        assert len(played.provider.book.lines("attach")) == 2
        for each in reading:
            each.result()
    assert all(text in each for each in shown.values()), shown


def windows(played: Stage, text: str) -> list[str | None]:
    return [line["window"] for line in played.provider.book.created() if str(line["text"]) == text]


def test_a_window_comes_over_http_by_a_task_and_from_the_async_client(played: Stage) -> None:
    lab, client = played.lab, played.lab.client
    token = "token-of-submit-0123456789"
    tokens = {"CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{token}:submit+read"}
    given = {"message": "over http", "completion_window": "24h"}
    with (
        ServeProcess(lab.directory / "serve", lab.store_url, tokens) as served,
        httpx.Client(base_url=served.url, trust_env=False, headers={"Authorization": f"Bearer {token}"}) as http,
    ):
        done = http.post("/v1/agents/plain/jobs?wait=20", json=given)
        assert done.json()["result"]["final_response"] == "over http", done.text
        refused = http.post("/v1/agents/plain/jobs", json={**given, "completion_window": "1h"})
        assert refused.status_code == 422
        assert "completion_window" in refused.text
    with create_producer_app(client.settings) as app:
        kwargs = {"agent": "plain", "message": "by a task", "session_id": "by-task", "completion_window": "2h"}
        app.send_task(SUBMIT, kwargs=kwargs, queue=client.settings.control_queue)
    wait_until(lambda: windows(played, "by a task"), "it is submitted", 20)

    async def play() -> str:
        job = await AsyncAgentClient.of(client).submit("plain", "from async", completion_window="8h")
        return (await job.result(timeout=20)).final_response

    assert asyncio.run(play()) == "from async"
    assert [windows(played, each) for each in ("over http", "by a task", "from async")] == [["24h"], ["2h"], ["8h"]]


def test_a_window_of_a_session_that_exists_is_refused(played: Stage) -> None:
    job = played.lab.client.submit("chat", "first")
    job.result(timeout=20)
    with pytest.raises(InvalidInput, match="only a new session"):
        played.lab.client.submit("chat", "second", session_id=job.session_id, completion_window="8h")


def test_nothing_is_left_at_the_provider(played: Stage, tmp_path: Path) -> None:
    """Behind all that this module has asked: copies are deleted, and nothing is in the indexes."""
    del tmp_path
    context = played.lab.client.store.context
    wait_until(
        lambda: not any(played.lab.redis.hlen(key) for each in context.shards for key in (each.jobs, each.old_jobs)),
        "all is cleaned up", 15,
    )  # fmt: skip
    book = played.provider.book
    kept = [each for each in book.files() if not each.startswith("batch-of-results-")]  # which Google refuses to delete
    assert len(kept) <= 3, "all but those of a batch of Google's that was found, and of two that were forgotten"
