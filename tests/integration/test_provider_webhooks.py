"""Webhooks of a stand-in provider: a real server takes them, and the step of a real worker looks for its answer."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from celery_agents import Job

from fault.real.provider_jobs import Stage, stage
from support.processes import free_port
from support.scraping import scraped
from support.serve_process import ServeProcess
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore:no worker has registered")]

SECRET = "whsec_bm90IGEgc2VjcmV0LCBidXQgbG9uZw=="
POLL = ("CELERY_AGENTS_JOB_POLL_SECONDS", "CELERY_AGENTS_JOB_POLL_MAX_SECONDS")
PORT = free_port()
SOON = 5.0
"""Seconds; a webhook takes a tenth of one, on a machine that does nothing else."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A worker that looks for its answers once an hour, and a server that takes webhooks."""
    directory = tmp_path_factory.mktemp("webhooks")
    with stage(directory, **dict.fromkeys(POLL, "3600")) as made:
        made.lab.worker(CELERY_AGENTS_METRICS_PORT=str(PORT))
        env = {"CELERY_AGENTS_PROVIDER_WEBHOOK_SECRETS": f"openai={SECRET}"}
        served = ServeProcess(directory / "serve", made.lab.store_url, env)
        served.start()
        made.provider.control("webhooks", url=f"{served.url}/v1/provider-webhooks/openai", secret=SECRET)
        made.provider.control("plan", held=True)
        yield made
        served.end()


def is_put_off(played: Stage, job: Job) -> bool:
    ctl = played.lab.client.store.context.session(job.session_id).keys.ctl
    return played.lab.redis.hget(ctl, "put_off") == "job"


def at_provider(played: Stage, agent: str, text: str) -> tuple[Job, str]:
    """A job whose step is put off at its provider, and the provider's id."""
    job = played.lab.client.submit(agent, text)
    store = played.lab.client.store

    def find() -> str:
        entries = [each.id for each in store.housekeeping.provider_jobs() if each.session_id == job.session_id]
        return entries[0] if entries and is_put_off(played, job) else ""

    wait_until(find, "its step is at the provider", 20)
    return job, find()


def told(played: Stage, job_id: str, count: int) -> list[tuple[str, int]]:
    """How the provider has sent its webhooks about a job, and what was answered, when there are so many."""

    def deliveries() -> list[tuple[str, int]]:
        return [(line["how"], line["status"]) for line in played.provider.book.lines("webhook") if line["id"] == job_id]

    wait_until(lambda: len(deliveries()) >= count, "the webhooks are delivered", 20)
    return deliveries()


@pytest.mark.parametrize("agent", ["within_8h", "within_24h"])
def test_a_job_that_ends_wakes_its_step_at_once(played: Stage, agent: str) -> None:
    job, job_id = at_provider(played, agent, f"hello {agent}")
    began = time.monotonic()
    played.provider.control("release", id=job_id)
    assert job.result(timeout=SOON).final_response == f"hello {agent}"
    print(f"{time.monotonic() - began:.2f} s from the end of the job to that of the execution")
    assert told(played, job_id, 1) == [("sent", 204)]


def test_one_that_comes_twice_or_late_does_the_same(played: Stage) -> None:
    played.provider.control("fault", on="webhook", fault="double")
    played.provider.control("fault", on="webhook", fault="slow", seconds=1.0)
    for number, sent in ((1, [("double", 204)] * 2), (2, [("slow", 204)])):
        job, job_id = at_provider(played, "within_8h", f"hello {number}")
        played.provider.control("release", id=job_id)
        assert job.result(timeout=SOON).final_response == f"hello {number}"
        assert told(played, job_id, len(sent)) == sent
        assert len([line for line in played.provider.book.paid() if line["id"] == job_id]) == 1


def test_what_is_forged_or_old_wakes_nothing_and_one_that_says_too_much_costs_a_look(played: Stage) -> None:
    job, job_id = at_provider(played, "within_8h", "hello")
    assert scraped(PORT)["celery_agents_delayed_steps"] == 0
    looks = len(played.provider.book.polls(job_id))
    played.provider.control("fault", on="webhook", fault="forged")
    played.provider.control("fault", on="webhook", fault="old")
    for _ in range(2):
        played.provider.control("webhook", kind="response.completed", id=job_id)
    assert sorted(told(played, job_id, 2)) == [("forged", 401), ("old", 401)]
    time.sleep(0.5)
    assert len(played.provider.book.polls(job_id)) == looks
    played.provider.control("webhook", kind="response.completed", id=job_id)
    wait_until(lambda: len(played.provider.book.polls(job_id)) > looks, "the step looks", 10)
    wait_until(lambda: is_put_off(played, job), "it is put off again", 10)
    played.provider.control("release", id=job_id)
    assert job.result(timeout=SOON).final_response == "hello"


def test_the_metrics_of_the_worker_tell_of_what_has_answered(played: Stage) -> None:
    job, job_id = at_provider(played, "within_8h", "what was saved")
    played.provider.control("release", id=job_id)
    job.result(timeout=SOON)
    series, paid = scraped(PORT), played.provider.book.paid()
    dollars = sum(line["dollars"] for line in paid if line["window"] == "8h")
    (saved,) = (value for name, value in series.items() if "saved_dollars_total{" in name and 'window="8h"' in name)
    assert saved == pytest.approx(dollars * 0.4 / 0.6, rel=1e-6)
    counts = sum(value for name, value in series.items() if name.startswith("celery_agents_provider_job_seconds_count"))
    assert counts == len(paid)
    assert series["celery_agents_provider_job_late"] == 0


def test_without_one_the_step_looks_by_itself(tmp_path_factory: pytest.TempPathFactory) -> None:
    with stage(tmp_path_factory.mktemp("lost"), **dict.fromkeys(POLL, "2")) as played:
        played.lab.worker()
        played.provider.control("webhooks", url="http://127.0.0.1:1/v1/provider-webhooks/openai", secret=SECRET)
        played.provider.control("fault", on="webhook", fault="lost")
        played.provider.control("plan", seconds=0.1)
        job = played.lab.client.submit("within_8h", "hello")
        result = job.result(timeout=20)
        assert result.final_response == "hello", result
        ((job_id, how),) = [(line["id"], line["how"]) for line in played.provider.book.lines("webhook")]
        assert how == "lost"
        assert len(played.provider.book.polls(job_id)) >= 1
