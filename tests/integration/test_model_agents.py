"""Agents that ask a model over HTTP, run by real workers: killed, in turn, stopped, retried, and without a secret."""

from __future__ import annotations

import re
import threading
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_agents.worker.agent import Agent
from celery_agents.worker.errors import ExecutionFailed
from celery_agents.worker.state import ExecutionBudget

from support.engine import Bench
from support.http_service import ServiceProcess
from support.lab import Lab
from support.model_agents import KEY_NAME, MODEL, PROVIDER_URL, Place, leak, note
from support.provider import Provider, calls, tool_call
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore:no worker has registered")]

# Celery's messages and events carry their body in base64.
_BODY = re.compile(r'body\\*": *\\*"([A-Za-z0-9+/=]+)')
KEY = "sk-proj-verysecret0123456789abcdefghij"


@pytest.fixture
def new_lab(tmp_path: Path, provider: Provider) -> Iterator[Callable[..., Lab]]:
    """A Redis, a client, and workers whose agents ask `provider`."""
    labs: list[Lab] = []

    def start(**env: str) -> Lab:
        known = {PROVIDER_URL: provider.base_url, KEY_NAME: KEY, **env}
        lab = Lab(tmp_path / f"lab-{len(labs)}", agents="support.model_agents", env=known)
        labs.append(lab)
        return lab.__enter__()

    yield start
    for lab in reversed(labs):
        lab.__exit__()


def _noting(number: int) -> dict[str, Any]:
    return calls(tool_call("note", {"text": f"n{number}"}))


def _requests(provider: Provider) -> list[dict[str, Any]]:
    return [entry["request"] for entry in provider.ledger()]


def _texts(entry: dict[str, Any]) -> list[Any]:
    return [message.get("content") for message in entry["request"]["messages"]]


def test_a_conversation_goes_on_after_its_worker_is_killed_between_any_two_requests(
    new_lab: Callable[..., Lab], provider: Provider
) -> None:
    provider.plan(_noting(1), _noting(2), "the answer")
    lab = new_lab()
    job = lab.client.submit("model", "hello", idempotency_key="k")
    # Each dies as soon as an answer is journaled: between this request and the next.
    for paid in (1, 2, 3):
        doomed = lab.worker(wait=False, crash="c3:1:1")
        doomed.wait(60)
        assert len(provider.ledger()) == paid
    # And one that dies before it could publish: nothing is due but the message of the next execution.
    lab.worker()
    result = job.result(timeout=60)
    assert (result.status, result.final_response, result.step_count) == ("completed", "the answer", 3)
    assert len(provider.ledger()) == 3, "a journaled answer was asked for again"
    assert set(lab.ledger.effects().values()) == {1}
    assert len(lab.ledger.effects()) == 2

    provider.plan(rules=[{"contains": "and now?", "role": "user", "answer": "the second answer"}])
    again = lab.client.send_message(job.session_id, "and now?")
    assert again.result(timeout=60).final_response == "the second answer"
    seen = _texts(provider.ledger()[-1])
    assert seen[:2] == ["Be brief.", "hello"]
    assert seen[-2:] == ["the answer", "and now?"]


@pytest.mark.long
def test_sixty_steps_through_two_workers_in_turn_show_the_provider_what_one_process_would(
    new_lab: Callable[..., Lab],
    provider: Provider,
    provider_process: ServiceProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [_noting(number) for number in range(59)]
    answers[7] = {**answers[7], "content": "I note the seventh.", "reasoning": "it matters"}
    provider.plan(*answers, "done")
    alone = Provider(provider_process, "one-process")
    alone.plan(*answers, "done")

    monkeypatch.setenv(KEY_NAME, KEY)
    bench = Bench(Agent("model", model=MODEL, base_url=alone.base_url, system_prompt="Be brief.", tools=[note, leak]))
    assert bench.ran("count to sixty").final_response == "done"
    bench.close()

    lab = new_lab(CELERY_AGENTS_CONCURRENCY="1", CELERY_AGENTS_STICKY_SECONDS="0")
    workers = [lab.worker(), lab.worker()]
    result = lab.client.submit("model", "count to sixty").result(timeout=120)
    assert (result.status, result.step_count) == ("completed", 60)
    expected = [entry["request"] for entry in alone.ledger()]
    for number, (seen, wanted) in enumerate(zip(_requests(provider), expected, strict=True), 1):
        assert seen == wanted, f"request {number}"
    assert len(expected) == 60
    assert len(expected[-1]["messages"]) == 2 + 59 * 2
    turns = Counter(entry["pid"] for entry in lab.ledger.entries())
    assert set(turns) <= {worker.pid for worker in workers}
    assert min(turns.values()) >= 10
    assert len(turns) == 2


def test_a_stop_ends_a_job_within_a_second_while_the_model_hangs_and_keeps_its_steps(
    new_lab: Callable[..., Lab], provider: Provider
) -> None:
    provider.plan(_noting(1), "never", faults=[{"fault": "hang", "turn": 1}])
    lab = new_lab()
    lab.worker()
    job = lab.client.submit("model", "hello")
    wait_until(lambda: len(provider.ledger()) == 2, "the second request hangs", 30)
    began = time.monotonic()
    result = lab.client.stop(job.session_id, timeout=10)
    took = time.monotonic() - began
    assert result is not None
    assert (result.status, result.stop_reason, result.step_count) == ("stopped", "user_requested", 1)
    assert took <= 1.0, f"{took:.2f} s"
    assert [message.content for message in lab.client.show(job.session_id).state.store.section().messages][
        -1
    ] == "noted n1"
    # And it can go on from there.
    provider.plan(_noting(1), "late, but here")
    assert lab.client.retry(job.session_id).result(timeout=30).final_response == "late, but here"
    assert len(lab.ledger.effects()) == 1


def test_failed_executions_are_retried_in_bulk_from_the_step_that_failed(
    new_lab: Callable[..., Lab], provider: Provider
) -> None:
    provider.plan(_noting(1), "no", faults=[{"fault": "status", "code": 401, "turn": 1}])
    lab = new_lab()
    lab.worker()
    jobs = [lab.client.submit("model", f"job {number}") for number in range(6)]
    assert {job.result(timeout=60).status for job in jobs} == {"failed"}
    stopped = lab.client.submit("model", "not this one", budget=ExecutionBudget(max_steps=1)).result(timeout=30)
    assert stopped.status == "stopped"
    provider.plan(_noting(1), "now it works")
    assert len(list(lab.client.retry_failed(dry_run=True))) == 6
    retried = list(lab.client.retry_failed(agent="model"))
    assert sorted(job.session_id for job in retried) == sorted(job.session_id for job in jobs)
    assert {job.result(timeout=60).final_response for job in retried} == {"now it works"}
    assert len(lab.ledger.effects()) == 7, "the completed step was kept"
    assert list(lab.client.retry_failed()) == []


def test_no_secret_reaches_redis_the_broker_logs_events_or_errors(
    new_lab: Callable[..., Lab], provider: Provider
) -> None:
    echo = {"fault": "status", "code": 401, "echo_key": True, "turn": 1}
    provider.plan(calls(tool_call("leak")), "never", faults=[echo])
    lab = new_lab(CELERY_AGENTS_LOG_LEVEL="DEBUG", CELERY_AGENTS_COMPRESSION="false")
    everything: list[str] = []
    listening, ended = threading.Event(), list[str]()
    # Nothing may be written for longer than the default time limit while the worker starts.
    patient = redis.Redis.from_url(lab.store_url, decode_responses=False, socket_timeout=None)
    with patient as watcher, watcher.monitor() as monitor:

        def listen() -> None:
            listening.set()
            try:
                for command in monitor.listen():  # every write there ever is: keys, queue, task events, publications
                    text = str(command["command"])
                    everything.append(text)
                    everything.extend(_decoded(body) for body in _BODY.findall(text))
            except (redis.RedisError, OSError, ValueError, AttributeError) as error:
                ended.append(repr(error))  # the connection was closed

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        assert listening.wait(10)
        worker = lab.worker(CELERY_AGENTS_TASK_EVENTS="true")
        job = lab.client.submit("model", "hello")
        events = [f"{event.type} {dict(event.data)}" for event in job.events(timeout=60)]
        result = job.result(timeout=10)
        wait_until(
            lambda: any("task-failed" in command for command in everything), "the failure is told", 20,
            details=lambda: f"{ended} {[text[:300] for text in everything if 'celeryev' in text or 'task-' in text][-8:]}",
        )  # fmt: skip
    assert result.status == "failed"
    assert "401" in " ".join(map(str, lab.client.show(job.session_id).state.errors)) + " ".join(result.errors)
    shown = [str(message) for message in lab.client.show(job.session_id).state.store.section().messages]
    assert any("[redacted]" in text for text in shown), "the tool's exception reached the model"
    texts = [
        *everything,
        *events,
        repr(result),
        str(ExecutionFailed(job.execution_id, result.errors)),
        worker.text(),
        lab.client.show(job.session_id).state.to_json().decode(),
        *_stored(lab),
    ]
    assert len(everything) > 50
    assert all(KEY in entry["key"] for entry in provider.ledger()), "it was sent to the provider"
    for text in texts:
        assert KEY not in text
        assert KEY[8:] not in text


def _decoded(body: str) -> str:
    return b64decode(body + "=" * (-len(body) % 4)).decode(errors="replace")


def _stored(lab: Lab) -> list[str]:
    with redis.Redis.from_url(lab.store_url, decode_responses=False) as client:
        readers: dict[str, Callable[[bytes], Any]] = {
            "string": client.get,
            "hash": client.hgetall,
            "list": lambda name: client.lrange(name, 0, -1),
            "zset": lambda name: client.zrange(name, 0, -1),
            "set": client.smembers,
            "stream": client.xrange,
        }
        return [str(readers[client.type(name).decode()](name)) for name in client.scan_iter("*")]


def test_a_structured_answer_arrives_as_json_and_one_that_does_not_fit_is_asked_for_again(
    new_lab: Callable[..., Lab], provider: Provider
) -> None:
    lab = new_lab()
    lab.worker()
    provider.plan(_noting(1), '{"city": "Paris", "people": 2100000}')
    result = lab.client.submit("structured", "where?").result(timeout=60)
    assert (result.status, result.output) == ("completed", {"city": "Paris", "people": 2100000})
    assert Place.model_validate_json(result.final_response).city == "Paris"

    before = len(provider.ledger())
    provider.plan('{"city": "Paris"}')
    failed = lab.client.submit("structured", "where?").result(timeout=90)
    assert (failed.status, failed.stop_reason) == ("failed", "retry_limit")
    assert len(provider.ledger()) - before == lab.client.settings.driver_attempts


def test_a_cost_limit_needs_a_price_and_is_kept_with_one(new_lab: Callable[..., Lab], provider: Provider) -> None:
    from celery_agents.worker.state import LLMConfig

    provider.plan(*[_noting(number) for number in range(20)])
    lab = new_lab()
    lab.worker()
    budget = ExecutionBudget(max_cost=0.0004)
    limited = lab.client.submit("model", "hello", budget=budget).result(timeout=60)
    assert (limited.status, limited.stop_reason) == ("stopped", "cost_limit")
    assert limited.cost is not None
    assert limited.cost >= 0.0004
    asked = len(provider.ledger())
    job = lab.client.submit("model", "hello", budget=ExecutionBudget(max_steps=1))
    job.result(timeout=60)
    lab.client.change_model(job.session_id, LLMConfig(model="openai:nobody-knows-me"))
    refused = lab.client.send_message(job.session_id, "more", budget=budget).result(timeout=60)
    assert refused.status == "failed"
    assert "nobody-knows-me" in refused.errors[0]
    assert len(provider.ledger()) == asked + 1
