"""Debounced jobs, and jobs that expire, as people use them: client, HTTP, commands, Celery tasks."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from integration.test_providers import command

from celery_agents import AgentClient, AsyncAgentClient, ExecutionBudget
from celery_agents.flow import Debounce
from celery_agents.tasks.names import SUBMIT
from celery_agents.tasks.producer import create_producer_app
from celery_agents.worker.errors import InvalidInput, SessionDeleted

from support.lab import Lab
from support.serve_process import ServeProcess
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]

SENDER = "token-of-submit-0123456789"
TOKENS = {"CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{SENDER}:submit+read"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("debounce") / "lab", agents="support.debounced_agents") as started:
        started.worker(TEST_PUSH_SECONDS="0.5")
        started.client.wait_for_agent("push")
        yield started


@pytest.fixture(scope="module")
def served(lab: Lab) -> Iterator[ServeProcess]:
    with ServeProcess(lab.directory / "serve", lab.store_url, TOKENS) as process:
        yield process


def quiet(key: str, seconds: float = 0.5, at_most: float = 3.0) -> Debounce:
    return Debounce(key, quiet=timedelta(seconds=seconds), at_most=timedelta(seconds=at_most))


def test_messages_that_come_close_together_are_one_execution(lab: Lab) -> None:
    client, debounce = lab.client, quiet("repo")
    jobs = [client.submit("push", f"commit {n}", debounce=debounce, labels={"repo": "1"}) for n in range(4)]
    assert [job.placed for job in jobs] == ["starts", "joins", "joins", "joins"]
    assert len({(job.session_id, job.execution_id) for job in jobs}) == 1
    assert jobs[0].result(timeout=30).final_response == "read: commit 0 | commit 1 | commit 2 | commit 3"
    # What comes next is another burst.
    again = client.submit("push", "commit 4", debounce=debounce)
    assert (again.placed, again.session_id == jobs[0].session_id) == ("starts", False)
    assert again.result(timeout=30).final_response == "read: commit 4"


def test_a_message_that_comes_when_it_has_begun_is_queued_behind_it(lab: Lab) -> None:
    client, debounce = lab.client, quiet("busy", 0.1)
    first = client.submit("push", "one", debounce=debounce)
    wait_until(lambda: client.header(first.session_id).status == "in_progress", "it has begun", 30)
    second = client.submit("push", "two", debounce=debounce)
    assert (second.placed, second.session_id) == ("queued", first.session_id)
    assert first.result(timeout=30).final_response == "read: one"
    assert second.result(timeout=30).final_response == "read: one | two"


def test_messages_that_never_stop_do_not_put_it_off_for_ever(lab: Lab) -> None:
    client, debounce = lab.client, quiet("restless", 0.7, 1.5)
    began, first = time.monotonic(), client.submit("push", "0", debounce=debounce)
    placed: list[str | None] = []
    while time.monotonic() - began < 6 and "queued" not in placed:
        time.sleep(0.2)
        placed.append(client.submit("push", "more", debounce=debounce).placed)
    assert placed[:4] == ["joins"] * 4
    assert placed[-1] == "queued"
    assert first.result(timeout=30).status == "completed"


def test_a_resend_is_told_of_the_same_job_also_when_its_burst_has_ended(lab: Lab) -> None:
    client, debounce = lab.client, quiet("resent", 0.1)
    first = client.submit("push", "one", debounce=debounce)
    second = client.submit("push", "two", debounce=debounce, idempotency_key="delivery-2")
    first.result(timeout=30)
    third = client.submit("push", "three", debounce=debounce)
    again = client.submit("push", "two", debounce=debounce, idempotency_key="delivery-2")
    assert (again.session_id, again.operation_id) == (second.session_id, second.operation_id)
    assert third.result(timeout=30).final_response == "read: three"


def test_a_resend_begins_nothing_where_its_session_was_deleted(lab: Lab) -> None:
    client, debounce = lab.client, Debounce("deleted", quiet=timedelta(seconds=60), at_most=timedelta(seconds=60))
    first = client.submit("push", "one", debounce=debounce, idempotency_key="of-deleted-1")
    client.submit("push", "two", debounce=debounce)
    client.delete(first.session_id)
    with pytest.raises(SessionDeleted):
        client.submit("push", "one", debounce=debounce, idempotency_key="of-deleted-1")
    following = client.submit("push", "three", debounce=debounce, idempotency_key="of-deleted-3")
    assert following.placed == "starts"
    with pytest.raises(SessionDeleted):
        client.submit("push", "one", debounce=debounce, idempotency_key="of-deleted-1")
    client.delete(following.session_id)


def test_many_callers_at_once_make_one_job_and_lose_nothing(lab: Lab) -> None:
    debounce, jobs = quiet("crowd", 1.0), list[Any]()

    def send(number: int) -> None:
        with lab.new_client() as client:
            jobs.append(client.submit("push", f"m{number}", debounce=debounce))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({job.session_id for job in jobs}) == 1
    assert sorted(job.placed for job in jobs) == ["joins"] * 7 + ["starts"]
    answer = jobs[0].result(timeout=30).final_response
    assert sorted(answer.removeprefix("read: ").split(" | ")) == [f"m{n}" for n in range(8)]


def test_a_job_that_no_worker_takes_in_time_ends_without_a_model_call(tmp_path: Any) -> None:
    with Lab(tmp_path / "lab", agents="support.debounced_agents") as lab:
        job = lab.client.submit("push", "old news", expires_in=timedelta(seconds=0.3))
        kept = lab.client.submit("push", "news", expires_in=timedelta(seconds=60))
        time.sleep(0.4)
        lab.worker()
        result = job.result(timeout=30)
        assert (result.status, result.stop_reason, result.step_count) == ("stopped", "time_limit", 0)
        told = command(lab, "show", job.session_id).stdout
        assert "it had not begun by" in told
        assert kept.result(timeout=30).final_response == "read: news"
        # Who wants it all the same retries it.
        assert lab.client.retry(job.session_id).result(timeout=30).final_response == "read: old news"


@pytest.mark.parametrize(
    ("given", "field", "advice"),
    [
        ({"debounce": "repo"}, "debounce", "give a Debounce"),
        ({"debounce": quiet("a"), "session_id": "s"}, "session_id", "leave it out"),
        ({"debounce": quiet("a"), "delay": timedelta(seconds=1)}, "delay", "leave it out"),
        ({"debounce": quiet("a"), "when": "queue"}, "when", "leave it out"),
        ({"expires_in": timedelta()}, "expires_in", "give a timedelta"),
        ({"expires_in": 5}, "expires_in", "give a timedelta"),
        ({"expires_in": timedelta(days=400)}, "expires_in", "up to 366 days"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_refused(lab: Lab, given: dict[str, Any], field: str, advice: str) -> None:
    before = len(list(lab.client.list(agent="push")))
    with pytest.raises(InvalidInput, match=advice) as refused:
        lab.client.submit("push", "x", **given)
    assert refused.value.field == field
    assert len(list(lab.client.list(agent="push"))) == before


def test_only_a_new_session_expires(lab: Lab) -> None:
    job = lab.client.submit("push", "x")
    job.result(timeout=30)
    with pytest.raises(InvalidInput, match="only a new session can expire"):
        lab.client.submit("push", "y", session_id=job.session_id, expires_in=timedelta(seconds=5))


def test_it_expires_behind_its_later_start(lab: Lab) -> None:
    client = lab.client
    later = client.submit("push", "x", delay=timedelta(seconds=1.0), expires_in=timedelta(seconds=5))
    assert later.result(timeout=30).status == "completed"
    held = client.submit("push", "x", debounce=quiet("held", 0.3, 0.5), expires_in=timedelta(seconds=0.5))
    client.suspend(held.session_id, reason="a freeze")
    time.sleep(1.2)
    client.resume(held.session_id)
    assert held.result(timeout=30).stop_reason == "time_limit"


def test_over_http(served: ServeProcess) -> None:
    headers = {"Authorization": f"Bearer {SENDER}"}
    with httpx.Client(base_url=served.url, trust_env=False, headers=headers) as http:
        debounce = {"key": "web", "quiet_seconds": 0.5, "at_most_seconds": 5}
        given = {"message": "one", "debounce": debounce, "expires_in_seconds": 60}
        first = http.post("/v1/agents/push/jobs", json=given)
        assert (first.status_code, first.json()["placed"]) == (202, "starts"), first.text
        second = http.post("/v1/agents/push/jobs?wait=20", json={**given, "message": "two"})
        assert second.json()["session_id"] == first.json()["session_id"]
        assert second.json()["result"]["final_response"] == "read: one | two", second.text
        for wrong, told in (
            ({"debounce": {**debounce, "at_most_seconds": 0.1}}, "Debounce.at_most"),
            ({"debounce": {"key": "web"}}, "quiet_seconds"),
            ({"debounce": {**debounce, "quiet_seconds": 1e308}}, "quiet_seconds"),
            ({"expires_in_seconds": 0}, "expires_in_seconds"),
        ):
            refused = http.post("/v1/agents/push/jobs", json={"message": "x", **wrong})
            assert refused.status_code == 422, refused.text
            assert told in refused.text


def test_by_commands(lab: Lab) -> None:
    given = ("submit", "push", "by hand", "--debounce", "shell", "--quiet", "1s", "--at-most", "5s", "--json")
    first, second = (json.loads(command(lab, *given, "--expires-in", "1m").stdout) for _ in range(2))
    assert first["session_id"] == second["session_id"]
    assert lab.client.job(first["session_id"]).result(timeout=30).final_response == "read: by hand | by hand"
    done = command(lab, "submit", "push", "x", "--debounce", "shell")
    assert done.returncode == 2
    assert "together" in done.stderr


def test_by_a_celery_task_and_in_the_async_client(lab: Lab) -> None:
    client = lab.client
    with create_producer_app(client.settings) as app:
        kwargs = {"agent": "push", "message": "x", "session_id": "by-task", "expires_in_seconds": 30}
        app.send_task(SUBMIT, kwargs=kwargs, queue=client.settings.control_queue)
    wait_until(lambda: any(each.session_id == "by-task" for each in client.list(agent="push")), "it is submitted", 30)
    assert client.job("by-task").result(timeout=30).final_response == "read: x"

    async def play(sync: AgentClient) -> list[str | None]:
        own = AsyncAgentClient.of(sync)
        options: dict[str, Any] = {"debounce": quiet("async"), "budget": ExecutionBudget(max_steps=2)}
        jobs = [await own.submit("push", text, **options) for text in ("a", "b")]
        assert (await jobs[0].result(timeout=30)).final_response == "read: a | b"
        return [job.placed for job in jobs]

    assert asyncio.run(play(client)) == ["starts", "joins"]
