"""A provider that is away, refuses, or gives answers that do not fit: what every reader sees, and what is paid."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from celery_agents.tasks.app import create_app
from celery_agents.tasks.cli.program import program
from celery_agents.tasks.observability.doctor.checks import examine
from celery_agents.tasks.observability.listed_sessions import listed_sessions
from celery_agents.worker.store import EventType

from support import fork_server
from support.lab import Lab
from support.model_agents import KEY_NAME, PROVIDER_URL
from support.processes import Process, free_port
from support.provider import Provider, calls, tool_call
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore:no worker has registered")]

# A second attempt after a moment, then the step is delayed for twelve seconds.
OUTAGE = {
    "CELERY_AGENTS_DRIVER_ATTEMPTS": "2",
    "CELERY_AGENTS_RETRY_DELAY_SECONDS": "0.2",
    "CELERY_AGENTS_RETRY_LATER_SECONDS": "12",
    "CELERY_AGENTS_TASK_EVENTS": "true",
}


@pytest.fixture
def lab(tmp_path: Path, provider: Provider) -> Iterator[Lab]:
    """A Redis, a client, and workers whose agents ask `provider`."""
    known = {PROVIDER_URL: provider.base_url, KEY_NAME: "sk-not-a-key", **OUTAGE}
    with Lab(tmp_path / "lab", agents="support.model_agents", env=known) as made:
        yield made


def _command(lab: Lab, *arguments: str) -> subprocess.CompletedProcess[str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith("CELERY_AGENTS_")}
    environment = {**mine, "CELERY_AGENTS_REDIS_URL": lab.store_url}
    return fork_server.run([sys.executable, "-m", "celery_agents", *arguments], cwd=lab.directory, env=environment)


class TaskEvents:
    """The events of Celery that Flower would show, by type."""

    def __init__(self, lab: Lab) -> None:
        self.seen: list[dict[str, Any]] = []
        self._app = create_app(lab.client.settings)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._app.connection() as connection:
            receiver = self._app.events.Receiver(connection, handlers={"*": self.seen.append})
            while not self._ended.is_set():
                try:
                    for _ in receiver.itercapture(limit=None, timeout=0.5, wakeup=False):
                        pass
                except (TimeoutError, OSError):
                    continue

    def of(self, task_id: str) -> list[str]:
        return [str(event["type"]) for event in list(self.seen) if event.get("uuid") == task_id]

    def close(self) -> None:
        self._ended.set()
        self._thread.join(timeout=5)


@pytest.fixture
def events(lab: Lab) -> Iterator[TaskEvents]:
    """Listens from before the first worker on."""
    listening = TaskEvents(lab)
    yield listening
    listening.close()


def test_every_reader_knows_what_is_waited_for_and_until_when_and_nothing_is_paid_twice(
    lab: Lab, provider: Provider, events: TaskEvents
) -> None:
    away = [{"fault": "status", "code": 500, "turn": 1, "times": 3}]
    provider.plan(calls(tool_call("note", {"text": "one"})), "back again", faults=away)
    lab.worker(CELERY_AGENTS_TASK_EVENTS="true")
    job = lab.client.submit("model", "hello")
    began = time.monotonic()
    delayed: list[Any] = []
    for event in job.events(timeout=30):
        if event.type == EventType.STEP_DELAYED:
            delayed.append(event)
            break
    assert time.monotonic() - began < 20
    (event,) = delayed
    assert "HTTP 500" in event.data["reason"]
    assert event.step == 2
    left_ms = event.data["next_try_ms"] - lab.client.store.housekeeping.now_ms()
    assert 9_000 < left_ms <= 12_000

    findings = [each for each in examine(lab.client.settings) if each.name == "steps put off"]
    assert [(each.level.value, "HTTP 500" in each.what) for each in findings] == [("warn", True)]
    wait_until(lambda: "task-retried" in events.of(f"{job.execution_id}.2"), "Celery tells of a retry", 2)
    shown = _command(lab, "show", job.session_id[:10]).stdout
    waits = next(line for line in shown.splitlines() if line.startswith("now:"))
    assert "step 2 was delayed" in waits
    assert "HTTP 500" in waits
    assert "next try in " in waits
    store = lab.client.store
    (listed,) = listed_sessions(store, lab.client.list().items)
    assert "step 2 was delayed" in listed.reason

    result = job.result(timeout=30)
    assert (result.status, result.final_response) == ("completed", "back again")
    assert [entry["turn"] for entry in provider.paid()] == [0, 1], "each answer is paid once"
    assert len(provider.ledger()) == 5, "and asked for no more often than it failed"
    wait_until(lambda: events.of(f"{job.execution_id}.2")[-1] == "task-succeeded", "the step ends in Flower", 5)
    types = [event.type for event in store.sessions.events(job.session_id)]
    assert types[-7:] == [
        "step_committed", "model_call_failed", "step_delayed", "step_resumed", "model_call_failed", "step_committed",
        "execution_completed",
    ]  # fmt: skip
    watched = _command(lab, "watch", job.session_id).stdout
    assert "step 2: delayed; next try in 12 s" in watched
    assert "step 2: the model call failed; next try" in watched


def _seconds_since(at_ms: int, lab: Lab) -> float:
    return (lab.client.store.housekeeping.now_ms() - at_ms) / 1000


def test_every_reader_knows_within_two_seconds_that_a_step_was_delay(lab: Lab, provider: Provider) -> None:
    """The readers run in this process, so that the time of starting an interpreter does not count."""
    provider.plan("never", faults=[{"fault": "status", "code": 500}])
    metrics, redis = free_port(), ["--redis-url", lab.store_url]
    lab.worker(CELERY_AGENTS_METRICS_PORT=str(metrics))
    job = lab.client.submit("model", "hello")
    watch = Process(
        "watch", [sys.executable, "-m", "celery_agents", "watch", job.session_id, *redis], lab.directory,
        {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    watch.start()
    try:
        delay = next(event for event in job.events(timeout=30) if event.type == EventType.STEP_DELAYED)
        scrape = f"http://127.0.0.1:{metrics}/metrics"
        readers: dict[str, tuple[Callable[[], str], str]] = {
            "show": (lambda: CliRunner().invoke(program, ["show", job.session_id, *redis]).output, "was delayed"),
            "list": (lambda: CliRunner().invoke(program, ["list", "--json", *redis]).output, "was delayed"),
            "doctor": (lambda: CliRunner().invoke(program, ["doctor", *redis]).output, "steps put off"),
            "metrics": (lambda: urlopen(scrape, timeout=5).read().decode(), "celery_agents_delayed_steps 1.0"),
        }
        late: dict[str, float] = {}
        for name, (read, sign) in readers.items():
            began, text = _seconds_since(delay.at_ms, lab), read()
            assert sign in text, f"{name} knows nothing after {began:.2f} s: {text}"
            late[name] = began
        assert max(late.values()) < 2.0, late
        watch.wait_for_text("step 1: delayed; next try in 12 s", 20)
        assert delay.data["next_try_ms"] - delay.at_ms > 10_000, "the next try is still to come"
    finally:
        watch.end(patience=5.0)


def test_a_rate_limit_with_a_time_is_known_at_once_and_kept_with_the_settings_as_they_come(
    tmp_path: Path, provider: Provider
) -> None:
    """A worker without settings of its own gives the slot back when the provider asks for fifteen seconds."""
    provider.plan("after the pause", faults=[{"fault": "status", "code": 429, "retry_after": 15, "times": 1}])
    with Lab(
        tmp_path / "lab", agents="support.model_agents", env={PROVIDER_URL: provider.base_url, KEY_NAME: "sk-not-a-key"}
    ) as lab:
        lab.worker()
        job = lab.client.submit("model", "hello")
        wait_until(lambda: len(provider.ledger()) == 1, "the first request", 20)
        wait_until(lambda: _command_text(lab, "list", "--json").count("asked to wait until") == 1, "a reader knows", 4)
        findings = [each for each in examine(lab.client.settings) if each.name == "steps put off"]
        assert [each.level.value for each in findings] == ["warn"]
        delay = next(event for event in job.events(timeout=30) if event.type == EventType.STEP_DELAYED)
        assert 14_000 < delay.data["next_try_ms"] - delay.at_ms <= 15_000, "the provider's own time is kept"
        assert job.result(timeout=40).final_response == "after the pause"
        assert len(provider.ledger()) == 2
        assert len(provider.paid()) == 1


def _command_text(lab: Lab, *arguments: str) -> str:
    return CliRunner().invoke(program, [*arguments, "--redis-url", lab.store_url]).output


def test_a_refused_request_shows_the_providers_code_and_request_id_and_not_its_body(
    lab: Lab, provider: Provider
) -> None:
    provider.plan("never", faults=[{"fault": "status", "code": 400, "echo_key": True}])
    lab.worker()
    result = lab.client.submit("model", "hello").result(timeout=30)
    assert result.status == "failed"
    (error,) = result.errors
    assert "HTTP 400" in error
    assert "sk-not-a-key" not in error
    assert len(provider.ledger()) == 1


def test_a_rejected_output_is_asked_again_with_what_was_wrong_and_its_tokens_count(
    lab: Lab, provider: Provider, new_lab_plan: Callable[..., None]
) -> None:
    new_lab_plan()
    lab.worker()
    result = lab.client.submit("structured", "where?").result(timeout=60)
    assert (result.status, result.output) == ("completed", {"city": "Paris", "people": 2_100_000})
    first, second = provider.ledger()
    *_, rejected, correction = second["request"]["messages"]
    assert (
        rejected == {"role": "assistant", "content": '{"city": "Paris"}'} or rejected["content"] == '{"city": "Paris"}'
    )
    assert correction["role"] == "user"
    assert "does not fit" in correction["content"]
    assert "people" in correction["content"]
    paid = [entry["answer"]["usage"]["prompt_tokens"] for entry in (first, second)]
    assert result.usage["input"] == sum(paid)
    assert result.usage["requests"] == 2


@pytest.fixture
def new_lab_plan(provider: Provider) -> Callable[..., None]:
    """The first answer lacks a field; the one after the correction has it."""

    def plan() -> None:
        good = '{"city": "Paris", "people": 2100000}'
        rules = [{"contains": "does not fit", "role": "user", "answer": good}]
        provider.plan('{"city": "Paris"}', rules=rules)

    return plan


def test_a_cut_off_answer_says_so_everywhere(lab: Lab, provider: Provider) -> None:
    provider.plan({"content": "half an ans", "finish_reason": "length"})
    lab.worker()
    job = lab.client.submit("model", "hello")
    result = job.result(timeout=30)
    assert (result.status, result.finish_reason) == ("completed", "length")
    assert "cut off" in _command(lab, "show", job.session_id).stdout
    assert "the answer was cut short: length" in _command(lab, "watch", job.session_id).stdout


def test_clients_are_closed_and_may_be_used_again(lab: Lab) -> None:
    with lab.new_client() as client:
        assert client.list().items == ()
    assert client.list().items == ()
    client.close()
