"""Every way in which people and services answer, hold and are told: one worker serves all of these tests.

The ways: Celery tasks by name, a form in a terminal, commands, and what shows how many wait.
"""

from __future__ import annotations

import base64
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from celery_agents import Answer, Approve
from celery_agents.tasks.client.job import Job
from celery_agents.worker.state import RequestStatus
from celery_agents.worker.store import FoundRequest

from support import fork_server
from support.agents import call, driver_key, plan
from support.lab import Lab
from support.processes import free_port
from support.redis_keys import count_entries, shard_of_session
from support.scraping import scraped
from support.wait import wait_until

pytestmark = pytest.mark.timeout(240)

SECRET = "not-a-secret-but-long-enough"
QUESTION = call("ask_user_question", questions=[{"question": "Which?", "options": [{"label": "A"}, {"label": "B"}]}])
BULK = 500


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Lab]:
    env = {"CELERY_AGENTS_TOKEN_SECRET": SECRET}
    with Lab(tmp_path_factory.mktemp("ways") / "lab", agents="support.asking_agents", env=env) as started:
        started.worker(CELERY_AGENTS_METRICS_PORT=str(port), CELERY_AGENTS_CONTROL_TASKS="all")
        yield started


def ask(lab: Lab, *calls: dict[str, Any], **options: Any) -> tuple[Job, list[FoundRequest]]:
    """A job whose first step makes these calls and waits for them."""
    job = lab.client.submit("asking", plan(list(calls)), **options)
    wait_until(lambda: lab.client.header(job.session_id).status == "waiting", "it waits", 30)
    found = lab.client.requests(job.session_id).requests
    return job, sorted(found, key=lambda each: each.request.place if each.request else ())


def effects(lab: Lab, work: str) -> int:
    """How many effects this piece of work had."""
    return sum(
        entry["kind"] == "effect" and entry["effect"] and entry["work"] == work for entry in lab.ledger.entries()
    )


def end(job: Job) -> None:
    assert job.result(timeout=60).status == "completed"


def environment(lab: Lab) -> dict[str, str]:
    return {**os.environ, "CELERY_AGENTS_REDIS_URL": lab.client.settings.redis_url, "COLUMNS": "200"}


def run(lab: Lab, *words: str, code: int = 0) -> str:
    """A command's output."""
    command = [sys.executable, "-m", "celery_agents", *words]
    done = fork_server.run(command, env=environment(lab))
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


# --- Celery tasks -----------------------------------------------------------------------------------------------------


def send(lab: Lab, name: str, **arguments: Any) -> None:
    """Send a Celery task by its name, as a service in any language does."""
    app = lab.client._own_app
    assert app is not None
    app.send_task(f"celery_agents.{name}", kwargs=arguments)


def started_token(lab: Lab, work: str) -> str:
    (entry,) = [each for each in lab.ledger.entries() if each["kind"] == "start" and each["work"] == work]
    return str(entry["token"])


def test_every_celery_task_of_people_does_by_name_what_the_client_does(lab: Lab) -> None:
    client = lab.client
    job, (by_id, by_link, done, broken) = ask(
        lab,
        call("refund", work="task-id"),
        call("refund", work="task-link"),
        call("render", work="task-done"),
        call("render", work="task-broken"),
    )
    send(lab, "suspend", session_id=job.session_id, reason="audit", by="ops")
    wait_until(lambda: client.header(job.session_id).hold is not None, "it is suspended", 15)
    send(lab, "resume", session_id=job.session_id, by="ops")
    wait_until(lambda: client.header(job.session_id).hold is None, "it is resumed", 15)
    send(lab, "answer", session_id=job.session_id, answers={by_id.summary.id: {"approve": True}}, by="clerk")
    send(lab, "answer_by_token", token=client.token(by_link), answer={"deny": "no"}, by="mail", note="by phone")
    send(lab, "complete", token=started_token(lab, "task-done"), value={"file": "f"}, by="renderer")
    send(lab, "fail", token=started_token(lab, "task-broken"), error="no film in it", by="renderer")
    end(job)
    made = client.show(job.session_id).state.steps[0].tool_executions
    assert [(each.outcome.value, each.resolutions[0].by) for each in made] == [
        ("ok", "clerk"), ("blocked", "mail"), ("ok", "renderer"), ("error", "renderer"),
    ]  # fmt: skip
    assert made[2].value == {"file": "f"}
    assert "no film in it" in made[3].as_message()
    assert (effects(lab, "task-id"), effects(lab, "task-link")) == (1, 0)
    ids = {each.summary.id for each in (by_id, by_link, done, broken)}
    assert {each.summary.id for each in client.requests(job.session_id, status=None).requests} == ids


def test_a_celery_task_of_another_service_is_called_for_each_request_that_is_open(lab: Lab) -> None:
    told = {"task": "their.ask", "kwargs": {"ticket": 7}, "options": {"queue": "theirs"}}
    job, (first, second) = ask(lab, call("refund", work="told-1"), call("measured", work="told-2"), on_request=told)
    wait_until(lambda: lab.redis.llen("theirs") >= 2, "both requests are in the other service's queue", 15)
    lab.client.answer(job.session_id, {first.summary.id: Approve(), second.summary.id: Answer({"size": "L"})})
    end(job)
    wait_until(lambda: count_entries(lab.redis, "callbacks") == [0], "nothing is left to be told", 15)
    messages = [json.loads(each) for each in lab.redis.lrange("theirs", 0, -1)]  # type: ignore[union-attr]
    lab.redis.delete("theirs")
    assert len(messages) == 2
    requests: dict[str, Any] = {}
    for message in messages:
        _, kwargs, _ = json.loads(base64.b64decode(message["body"]))
        assert (message["headers"]["task"], kwargs["ticket"]) == ("their.ask", 7)
        assert message["headers"]["id"].startswith(kwargs["request"]["id"])
        requests[kwargs["request"]["id"]] = kwargs["request"]
    assert requests[first.summary.id]["args"] == {"work": "told-1"}
    assert requests[second.summary.id]["answer_schema"]["required"] == ["size"]
    assert requests[second.summary.id]["digest"] == second.request.digest  # type: ignore[union-attr]


# --- terminal and commands --------------------------------------------------------------------------------------------


class Terminal:
    """A command that runs in a terminal, and the person before it."""

    def __init__(self, lab: Lab, *words: str) -> None:
        self._primary, secondary = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "celery_agents", *words], env={**environment(lab), "TERM": "dumb"},
            stdin=secondary, stdout=secondary, stderr=secondary, start_new_session=True,
        )  # fmt: skip
        os.close(secondary)
        os.set_blocking(self._primary, False)
        self.shown = ""

    def type(self, after: str, line: str) -> None:
        """Type a line once the command has shown this text behind what it had shown before."""
        seen = len(self.shown)
        wait_until(
            lambda: after in self._read()[seen:], f"the terminal shows {after!r}", 30, details=lambda: self.shown
        )
        os.write(self._primary, f"{line}\n".encode())

    def end(self) -> str:
        """What was shown, when the command has ended well."""
        assert self._process.wait(30) == 0, self._read()
        self._read()
        os.close(self._primary)
        return self.shown

    def _read(self) -> str:
        try:
            while chunk := os.read(self._primary, 65_536):
                self.shown += chunk.decode(errors="replace")
        except OSError:  # nothing more for now, or the command has ended
            pass
        return self.shown


def test_a_person_answers_by_the_form_in_a_terminal(lab: Lab) -> None:
    job, (refund, measured, question) = ask(
        lab, call("refund", work="form-1"), call("measured", work="form-2"), QUESTION
    )
    asked = Terminal(lab, "answer", job.session_id, question.summary.id, "--by", "reviewer")
    asked.type("a number or a text of your own", "1,2")
    asked.type("a number or a text of your own", "2")
    shown = asked.end()
    assert "1  A" in shown
    assert "that does not fit; try again" in shown
    assert "answered; the session goes on" in shown
    wait_until(lambda: lab.client.header(job.session_id).status == "waiting", "it waits again", 30)
    sized = Terminal(lab, "answer", job.session_id, measured.summary.id)
    sized.type("size (string)", "L")
    assert "Which size?" in sized.end()
    wait_until(lambda: lab.client.header(job.session_id).status == "waiting", "it waits again", 30)
    edited = Terminal(lab, "answer", job.session_id)  # the only one that is open
    edited.type("approve it? (yes, no, edit)", "perhaps")
    edited.type("approve it? (yes, no, edit)", "edit")
    edited.type("work (string)", "form-3")
    edited.type("gate", "")
    assert 'work = "form-1"' in edited.end()
    end(job)
    assert [effects(lab, work) for work in ("form-1", "form-2 L", "form-3")] == [0, 1, 1]
    (step,) = lab.client.show(job.session_id).state.steps[:1]
    assert '"values":["B"]' in step.tool_executions[2].as_message()
    assert lab.client.request(job.session_id, refund.summary.id).status is RequestStatus.USED


def test_commands_hold_and_resume_many_sessions_and_say_which(lab: Lab) -> None:
    jobs = [ask(lab, call("refund", work=f"held-{number}"))[0] for number in range(3)]
    ids = {job.session_id for job in jobs}

    def listed(*words: str) -> set[str]:
        return {json.loads(line)["session_id"] for line in run(lab, *words, "--json").splitlines()}

    chosen = ("--all", "--agent", "asking", "--status", "waiting")
    assert listed("suspend", *chosen, "--dry-run") == ids
    assert all(lab.client.header(session).hold is None for session in ids)
    assert listed("suspend", *chosen, "--reason", "audit", "--by", "ops") == ids
    assert {lab.client.header(session).hold.reason for session in ids} == {"audit"}  # type: ignore[union-attr]
    assert "or --all" in run(lab, "suspend", code=2)
    assert "--for goes with one SESSION" in run(lab, "suspend", *chosen, "--for", "1h", code=2)
    assert listed("resume", "--all", "--agent", "nobody") == set()
    assert listed("resume", "--all", "--by", "ops") == ids
    assert all(lab.client.header(session).hold is None for session in ids)
    for job in jobs:
        lab.client.stop(job.session_id)


def test_an_answer_after_the_expiry_is_refused_on_the_command_line_with_the_time(lab: Lab) -> None:
    job, (request,) = ask(lab, call("dangerous", work="late"))
    end(job)
    assert effects(lab, "late") == 1, "the clock has approved it"
    said = run(lab, "deny", job.session_id, request.summary.id, "--reason", "too late", code=1)
    assert "expired" in said or "approved" in said
    assert " at 20" in said
    (shown,) = [json.loads(line) for line in run(lab, "requests", job.session_id, "--all", "--json").splitlines()]
    assert shown["status"] == "used"
    assert effects(lab, "late") == 1


# --- what shows how many wait -----------------------------------------------------------------------------------------


def test_metrics_and_doctor_tell_how_many_wait_and_how_long(lab: Lab, port: int) -> None:
    counted = 'celery_agents_request_answer_seconds_count{agent="asking",kind="approval",status="answered"}'
    before = scraped(port).get(counted, 0.0)
    job, (request,) = ask(lab, call("refund", work="seen", gate=None))
    wait_until(lambda: scraped(port)["celery_agents_open_requests"] == 1, "the metric counts it", 15)
    first = scraped(port)["celery_agents_open_request_age_seconds"]
    wait_until(lambda: scraped(port)["celery_agents_open_request_age_seconds"] > first, "its age grows", 15)
    assert findings(lab)["open requests"]["level"] == "ok"
    make_old(lab, request, hours=25)
    found = findings(lab)["open requests"]
    assert found["level"] == "warn"
    assert found["what"].startswith(f'1; session {job.session_id} waits for an approval of refund(work="seen"')
    assert "asked 1 d ago" in found["what"]
    assert "celery-agents requests" in found["advice"]
    make_old(lab, request, hours=0)
    lab.client.answer(job.session_id, {request.summary.id: Approve()})
    end(job)
    wait_until(lambda: scraped(port)["celery_agents_open_requests"] == 0, "nothing is open", 15)
    assert scraped(port)["celery_agents_open_request_age_seconds"] == 0
    wait_until(lambda: scraped(port).get(counted, 0.0) == before + 1, "the answer is counted", 15)


def findings(lab: Lab) -> dict[str, dict[str, str]]:
    """Findings of doctor by name; its exit code is that of the whole installation."""
    command = [sys.executable, "-m", "celery_agents", "doctor", "--json"]
    done = fork_server.run(command, env=environment(lab))
    return {found["name"]: found for found in map(json.loads, done.stdout.splitlines())}


def make_old(lab: Lab, request: FoundRequest, *, hours: int) -> None:
    """Put the entry of an open request to an earlier time, as if it had been asked so long ago."""
    index = shard_of_session(request.summary.session_id).requests
    (entry,) = [each for each in lab.redis.zrange(index, 0, -1) if request.summary.id in each]  # type: ignore[union-attr]
    value = json.loads(entry)
    value["asked_at_ms"] = request.summary.asked_at_ms - hours * 3_600_000
    lab.redis.zrem(index, entry)
    lab.redis.zadd(index, {json.dumps(value, separators=(",", ":")): value["asked_at_ms"]})


@pytest.mark.long
def test_five_hundred_waiting_sessions_are_answered_page_by_page_and_each_runs_once(lab: Lab) -> None:
    client = lab.client
    jobs = {client.submit("asking", plan([call("refund", work=f"bulk-{number}")])) for number in range(BULK)}
    wait_until(lambda: client.store.requests.count_open().open == BULK, "all wait", 90)
    assert lab.redis.llen("celery_agents.steps") == 0, "no message is held"
    assert not list(lab.redis.scan_iter("ca:{*}:lease:*", count=10_000)), "no lease is held"
    began, cursor, answered = time.monotonic(), None, 0
    while True:
        page = client.requests(kind="approval", limit=100, cursor=cursor)
        for found in page.requests:
            client.answer(found.summary.session_id, {found.summary.id: Approve()}, by="reviewer")
            answered += 1
        cursor = page.cursor
        if cursor is None:
            break
    assert answered == BULK
    wait_until(lambda: count_entries(lab.redis, "due") == [0], f"all end, after {time.monotonic() - began:.0f} s", 120)
    assert {client.header(job.session_id).status.value for job in jobs} == {"completed"}
    done = [entry["work"] for entry in lab.ledger.entries() if entry["kind"] == "effect" and entry["effect"]]
    assert sorted(work for work in done if work.startswith("bulk-")) == sorted(f"bulk-{n}" for n in range(BULK))
    asked = lab.ledger.deliveries()
    assert {asked[driver_key(job.execution_id, step)] for job in jobs for step in (1, 2)} == {1}
    assert not client.requests().requests
