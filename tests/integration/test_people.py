"""People in the loop, with real workers: what callers see, answer, hold and are told."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_agents import Answer, Approve, AsyncAgentClient, Deny
from celery_agents.tasks.client.job import Job
from celery_agents.tasks.client.pending import (
    ToolApprovalResolution,
    UserQuestionResolution,
    pending_approvals,
    pending_user_questions,
    resolve_user_question,
    user_question_event,
)
from celery_agents.worker.errors import ConfigurationError, InvalidInput, RequestNotFound, RequestNotOpen
from celery_agents.worker.requests import InvalidToken, UserQuestionAnswer
from celery_agents.worker.state import RequestStatus
from celery_agents.worker.store import FoundRequest

from support import fork_server
from support.agents import call, driver_key, plan
from support.lab import Lab
from support.post_receiver import PostReceiver
from support.wait import wait_until

pytestmark = pytest.mark.timeout(240)

SECRET = "not-a-secret-but-long-enough"
QUESTION = call("ask_user_question", questions=[{"question": "Which?", "options": [{"label": "A"}, {"label": "B"}]}])


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    env = {
        "CELERY_AGENTS_TOKEN_SECRET": SECRET,
        "CELERY_AGENTS_CONTROL_TASKS": "all",
        "CELERY_AGENTS_WEBHOOK_SECRET": "another-secret",
        "CELERY_AGENTS_WEBHOOK_ALLOW": "127.0.0.1",
    }
    with Lab(tmp_path / "lab", agents="support.asking_agents", env=env) as started:
        yield started


def ask(lab: Lab, *calls: dict[str, Any], count: int | None = None, **options: Any) -> tuple[Job, list[FoundRequest]]:
    """A job whose first step makes these calls and waits for them."""
    job = lab.client.submit("asking", plan(list(calls)), **options)
    wait_until(lambda: lab.client.header(job.session_id).status == "waiting", "it waits", 30)
    found = sorted(
        lab.client.requests(job.session_id).requests, key=lambda each: each.request.place if each.request else ()
    )
    assert len(found) == (len(calls) if count is None else count)
    return job, found


def effects(lab: Lab) -> Counter[str]:
    return Counter(entry["work"] for entry in lab.ledger.entries() if entry["kind"] == "effect" and entry["effect"])


def end(job: Job) -> None:
    assert job.result(timeout=60).status == "completed"


def test_a_question_of_a_dead_worker_is_answered_after_all_workers_were_started_anew(lab: Lab) -> None:
    first, second = lab.worker(), lab.worker()
    job, _ = ask(lab, call("refund", work="a"), QUESTION)
    first.kill()
    second.kill()
    lab.worker()
    refund, question = sorted(lab.client.requests().requests, key=lambda each: each.summary.kind)  # the inbox of all
    result = lab.client.answer(
        job.session_id,
        {refund.summary.id: Approve({"work": "b"}), question.summary.id: Answer({"Which?": "B"})},
        by="reviewer",
        expect={refund.summary.id: lab.client.request(job.session_id, refund.summary.id).request.digest},  # type: ignore[union-attr]
    )
    assert result.outcome == "woken"
    end(job)
    assert effects(lab) == {"b": 1}
    asked = lab.ledger.deliveries()
    assert [asked[driver_key(job.execution_id, step)] for step in (1, 2)] == [1, 1], "no model is asked again"
    used = lab.client.requests(job.session_id, status=None).requests
    assert [(each.status, each.resolution.by) for each in used if each.resolution] == [
        (RequestStatus.USED, "reviewer")
    ] * 2


def test_answers_that_do_not_fit_name_the_field_and_write_nothing(lab: Lab) -> None:
    lab.worker()
    job, (refund, question) = ask(lab, call("refund", work="a"), QUESTION)
    one, two = refund.summary.id, question.summary.id
    client, session = lab.client, job.session_id
    for answers, field in (
        ({one: Approve({"work": 7})}, f"answers.{one}.args.work"),
        ({one: Answer({})}, f"answers.{one}"),
        ({two: Answer({"Who?": "B"})}, f"answers.{two}.values"),
        ({two: Answer({})}, f"answers.{two}.values"),
        ({two: {"answer": {"Which?": "x" * 20_000}}}, f"answers.{two}.values"),
        ({two: {"shrug": 1}}, f"answers.{two}"),
        ({}, "answers"),
    ):
        with pytest.raises(InvalidInput) as raised:
            client.answer(session, {**answers, **({two: Answer({"Which?": "A"})} if one in answers else {})})
        assert raised.value.field.startswith(field)
    with pytest.raises(InvalidInput, match="other arguments"):
        client.answer(session, {one: Approve()}, expect="0" * 64)
    with pytest.raises(InvalidInput, match="remember"):
        client.answer(session, {one: Deny()}, remember="session")
    with pytest.raises(RequestNotFound):
        client.answer(session, {"f" * 32: Approve()})
    assert [each.status for each in client.requests(session).requests] == [RequestStatus.OPEN] * 2
    client.answer(session, {one: Deny("no"), two: Answer({"Which?": "A"})}, by="reviewer", idempotency_key="k")
    assert (
        client.answer(session, {one: Deny("no"), two: Answer({"Which?": "A"})}, idempotency_key="k").outcome == "again"
    )
    with pytest.raises(RequestNotOpen, match=r"denied by reviewer at 20"):
        client.answer(session, {one: Approve()})
    end(job)


def test_a_token_answers_one_request_and_a_forged_or_expired_one_answers_none(lab: Lab) -> None:
    lab.worker()
    job, (refund, measured) = ask(lab, call("refund", work="a"), call("measured", work="m"))
    client = lab.client
    settings = client.settings
    client.settings = settings.model_copy(update={"token_secret": None})
    with pytest.raises(ConfigurationError, match="CELERY_AGENTS_TOKEN_SECRET"):
        client.token(refund)
    client.settings = settings
    token = client.token(refund, timedelta(hours=1))
    short = client.token(measured, timedelta(seconds=1))
    assert client.request_of_token(token).summary.id == refund.summary.id
    for bad in (token[:-2] + ("AA" if token[-2:] != "AA" else "BB"), "ca1.x.y", "", token.replace("ca1", "ca2")):
        with pytest.raises(InvalidToken):
            client.answer_by_token(bad, Approve())
    with pytest.raises(InvalidToken, match=r"client\.complete"):
        client.complete(token, 1)
    expiry = client.store.housekeeping.now_ms() + 1000
    wait_until(lambda: client.store.housekeeping.now_ms() > expiry, "the token's time is over", 5)
    with pytest.raises(InvalidToken, match="its time is over"):
        client.answer_by_token(short, Answer({"size": "L"}))
    assert client.answer_by_token(token, Approve(), by="link").outcome == "woken"
    assert client.answer_by_token(token, Approve(), by="link").outcome == "again"
    with pytest.raises(RequestNotOpen, match="approved by link"):
        client.answer_by_token(token, Deny())
    client.answer_by_token(client.token(measured), {"answer": {"size": "L"}})
    end(job)
    assert effects(lab) == {"a": 1, "m L": 1}


def test_a_service_completes_by_its_token_and_a_celery_task_answers_by_name(lab: Lab) -> None:
    lab.worker()
    client = lab.client
    job, (render, refund) = ask(lab, call("render", work="film"), call("refund", work="a"))
    (started,) = [entry for entry in lab.ledger.entries() if entry["kind"] == "start"]
    assert client.complete(started["token"], {"file": "f"}, by="renderer").requests == (render.summary.id,)
    assert client.complete(started["token"], {"file": "f"}).outcome == "again"
    with pytest.raises(RequestNotOpen, match="completed by renderer"):
        client.fail(started["token"], "broken")
    app = client._own_app
    assert app is not None
    app.send_task(
        "celery_agents.answer",
        kwargs={"session_id": job.session_id, "answers": {refund.summary.id: {"approve": True}}, "by": "flower"},
    )
    end(job)
    assert client.request(job.session_id, refund.summary.id).resolution.by == "flower"  # type: ignore[union-attr]


def test_a_remembered_approval_is_listed_counts_and_can_be_revoked(lab: Lab) -> None:
    lab.worker()
    client = lab.client
    job = client.submit(
        "asking", plan([call("refund", work="a")], [call("refund", work="b")], [call("refund", work="c")])
    )
    wait_until(lambda: client.header(job.session_id).status == "waiting", "it waits", 30)
    (request,) = client.requests(job.session_id).requests
    client.answer(job.session_id, {request.summary.id: Approve()}, by="reviewer", note="small", remember="session")
    end(job)
    assert effects(lab) == {"a": 1, "b": 1, "c": 1}
    (grant,) = client.grants(job.session_id)
    assert (grant.tool, grant.by, grant.note, grant.id) == ("refund", "reviewer", "small", request.summary.id)
    with pytest.raises(InvalidInput, match="grant_id"):
        client.revoke_grant(job.session_id, "nobody")
    client.revoke_grant(job.session_id, grant.id)
    assert client.grants(job.session_id) == ()
    client.send_message(job.session_id, plan([call("refund", work="d")]))
    wait_until(lambda: client.header(job.session_id).status == "waiting", "it asks again", 30)
    client.stop(job.session_id)


def test_a_held_session_keeps_answers_and_goes_on_when_it_is_resumed(lab: Lab) -> None:
    lab.worker()
    client = lab.client
    job, (refund,) = ask(lab, call("refund", work="a"))
    assert list(client.suspend_all(reason="audit", agent="asking", by="ops")) == [job.session_id]
    assert not client.suspend(job.session_id, reason="again")
    assert client.answer(job.session_id, {refund.summary.id: Approve()}).outcome == "recorded"
    hold = client.header(job.session_id).hold
    assert hold is not None
    assert (hold.reason, hold.by) == ("audit", "ops")
    assert effects(lab) == {}
    assert list(client.resume_all(by="ops")) == [job.session_id]
    end(job)
    assert effects(lab) == {"a": 1}


def test_a_job_that_starts_later_begins_then_and_not_before(lab: Lab) -> None:
    lab.worker()
    client = lab.client
    began = client.store.housekeeping.now_ms()
    job = client.submit("asking", plan([call("keyed", work="a")]), delay=timedelta(seconds=2), idempotency_key="late")
    assert (
        client.submit(
            "asking", plan([call("keyed", work="a")]), delay=timedelta(seconds=2), idempotency_key="late"
        ).execution_id
        == job.execution_id
    )
    with pytest.raises(InvalidInput, match="start_at or delay"):
        client.submit("asking", "x", start_at=datetime.now(UTC), delay=timedelta(seconds=2))
    with pytest.raises(InvalidInput, match="only a new session"):
        client.submit("asking", "x", session_id=job.session_id, delay=timedelta(seconds=2))
    end(job)
    started = next(each for each in client.store.sessions.events(job.session_id) if each.type == "execution_started")
    assert started.at_ms >= began + 2000


def test_receivers_are_told_of_each_request_once_and_of_the_end(lab: Lab) -> None:
    posts: list[tuple[str, dict[str, Any]]] = []

    def receive(headers: dict[str, str], body: bytes) -> int:
        posts.append((headers["X-Celery-Agents-Id"], json.loads(body)))
        return 204

    receiver = PostReceiver(receive)
    try:
        lab.worker()
        url = f"{receiver.url}/hook"
        job, found = ask(lab, call("refund", work="a"), call("measured", work="m"), webhook=url, request_webhook=url)
        ids = {each.summary.id for each in found}
        wait_until(lambda: {name for name, _ in posts} >= ids, "both requests are told", 15)
        told = dict(posts)
        assert told[found[0].summary.id]["args"] == {"work": "a"}
        assert told[found[1].summary.id]["answer_schema"]["required"] == ["size"]
        lab.client.answer(job.session_id, {found[0].summary.id: Approve()})
        wait_until(lambda: effects(lab) == {"a": 1}, "the first leg has run", 15)
        lab.client.answer(job.session_id, {found[1].summary.id: Answer({"size": "L"})})
        end(job)
        wait_until(lambda: job.execution_id in {name for name, _ in posts}, "the end is told", 15)
        assert Counter(name for name, _ in posts) == Counter([*ids, job.execution_id])
    finally:
        receiver.close()


def test_the_asynchronous_client_has_the_same_verbs(lab: Lab) -> None:
    lab.worker()
    job, (refund,) = ask(lab, call("refund", work="a"))

    async def act() -> None:
        client = AsyncAgentClient.of(lab.client)
        assert (await client.requests(to=None)).requests[0].summary == refund.summary
        assert [each async for each in client.suspend_all(reason="audit")] == [job.session_id]
        assert [each async for each in client.resume_all()] == [job.session_id]
        wait_until(lambda: lab.client.header(job.session_id).status == "waiting", "it waits again", 30)
        await client.answer(job.session_id, {refund.summary.id: Approve()})

    asyncio.run(act())
    end(job)


def test_the_views_in_the_names_of_the_agent_sdk_follow_a_question_to_its_use(lab: Lab) -> None:
    lab.worker()
    client = lab.client
    job, _ = ask(lab, call("refund", work="a"), QUESTION)
    (approval,) = pending_approvals(client, job.session_id)
    (question,) = pending_user_questions(client, job.session_id)
    assert (approval.status, approval.tool_name, approval.args) == ("pending", "refund", {"work": "a"})
    assert (question.status, question.questions[0].question, question.allow_free_text) == ("pending", "Which?", True)
    resolution = ToolApprovalResolution(id=approval.tool_call_id, approved=True, decided_by="reviewer", comment="fine")
    client.resolve_tool_approval(job.session_id, resolution)
    answers = {"Which?": {"values": ["B"], "notes": "surely"}}
    client.suspend(job.session_id, reason="to look at the statuses")
    client.resolve_user_question(
        job.session_id, UserQuestionResolution(id=question.id, answers=answers, answered_by="reviewer")
    )
    (question,) = pending_user_questions(client, job.session_id)
    assert (question.status, question.answered_by) == ("answered", "reviewer")
    client.resume(job.session_id)
    end(job)
    (approval,) = pending_approvals(client, job.session_id)
    (question,) = pending_user_questions(client, job.session_id)
    assert (approval.status, approval.decided_by, approval.comment) == ("executed", "reviewer", "fine")
    assert question.status == "executed"
    assert question.answers == {"Which?": UserQuestionAnswer(values=("B",), notes="surely")}
    events = [user_question_event(client, each) for each in job.events()]
    assert [each.status for each in events if each is not None] == ["pending", "answered"]
    with pytest.raises(RequestNotOpen, match="by reviewer"):
        resolve_user_question(client, job.session_id, UserQuestionResolution(id=question.id, cancelled=True))


def test_the_command_line_lists_explains_and_answers(lab: Lab) -> None:
    lab.worker()
    job, (refund, question) = ask(lab, call("refund", work="a"), QUESTION)

    def run(*words: str, code: int = 0, typed: str | None = None) -> str:
        env = {**os.environ, "CELERY_AGENTS_REDIS_URL": lab.client.settings.redis_url, "COLUMNS": "200"}
        command = [sys.executable, "-m", "celery_agents", *words]
        done = fork_server.run(command, env=env, text=typed or "")
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    listed = [json.loads(line) for line in run("requests", "--json").splitlines()]
    assert {each["id"] for each in listed} == {refund.summary.id, question.summary.id}
    assert 'refund(work="a")' in run("requests", job.session_id[:8], "--kind", "approval")
    assert "waits for an approval of refund" in run("show", job.session_id) + run("list")
    assert "only one option may be chosen" in run(
        "answer", job.session_id, question.summary.id, "--value", '{"Which?": ["A", "B"]}', code=2
    )
    assert "give --value" in run("answer", job.session_id, question.summary.id, code=2, typed="")
    run("suspend", job.session_id, "--reason", "audit", "--by", "ops")
    assert "suspended by ops" in run("show", job.session_id)
    run("answer", job.session_id, question.summary.id[:9], "--value", "-", "--by", "reviewer", typed='{"Which?": "A"}')
    assert "answered by reviewer at" in run("deny", job.session_id, question.summary.id, code=1)
    run("resume", job.session_id)
    wait_until(lambda: lab.client.header(job.session_id).status == "waiting", "it waits again", 30)
    assert json.loads(run("approve", job.session_id, "--args", '{"work": "b"}', "--json"))["outcome"] == "woken"
    end(job)
    assert effects(lab) == {"b": 1}
    watched = run("watch", job.session_id)
    for line in (
        "asks for an approval: refund",
        "waiting for 2 answers",
        "suspended by ops: audit",
        "refund was approved",
    ):
        assert line in watched
