"""Forks of a step: they go on with real workers, with another result or another text, and their source stays as it is."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from celery_agents import AgentClient
from celery_agents.tasks.cli.program import program
from celery_agents.tasks.client.forking import Fork
from celery_agents.tasks.client.job import Job
from celery_agents.worker.errors import (
    ActionRefused,
    IdempotencyMismatch,
    InvalidInput,
    SessionConflict,
    SessionDeleted,
    SessionNotFound,
)
from celery_agents.worker.state import ReplaceMessage, SetResult
from celery_agents.worker.state.conversation.messages import DEFAULT
from celery_agents.worker.state.past.seen_requests import ModelRequest
from celery_agents.worker.store.store import SessionActions

from support.agents import call, plan
from support.lab import Lab
from support.serve_process import ServeProcess
from support.store import SpyDatabase
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore:no worker has registered")]

STEPS = ["keyed", "pure", "unsafe", "keyed"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("forks") / "lab", agents="support.agents") as started:
        started.worker()
        yield started


def ended(lab: Lab, name: str) -> Job:
    """A job of five steps: four with an effect each, named after it, and the answer."""
    job = lab.client.submit("planned", plan(*[[call(tool, work=f"{name} {n}")] for n, tool in enumerate(STEPS, 1)]))
    assert job.result(timeout=60).status == "completed"
    return job


def effects(lab: Lab, name: str) -> Counter[str]:
    """How often each effect of these names has happened."""
    return Counter(
        entry["work"]
        for entry in lab.ledger.entries()
        if entry["kind"] == "effect" and entry["effect"] and entry["work"].startswith(name)
    )


def said(client: AgentClient, session: str) -> list[str]:
    return [each.content for each in client.show(session).state.messages]


def seen(client: AgentClient, session: str, step: int) -> ModelRequest:
    """The whole of what a model saw, without whose it was."""
    return replace(client.model_request(session, step=step), session_id="", execution_id="")


def test_a_fork_of_each_step_goes_on_as_its_source_did_and_makes_its_own_effects(lab: Lab) -> None:
    job, client = ended(lab, "each"), lab.client
    before = client.show(job.session_id)
    for step in range(1, 5):
        fork = client.fork(job.session_id, at=step, go_on=True)
        result = client.job(fork).result(timeout=60)
        assert (result.status, result.final_response, result.step_count) == ("completed", "done", 5)
        assert result.execution_id != job.execution_id
        assert said(client, fork) == said(client, job.session_id)
        assert seen(client, fork, step + 1) == seen(client, job.session_id, step + 1)
        left = [each.tool for each in fork.effects_after]
        assert left == [tool for tool in STEPS[step:] if tool != "pure"]
    assert (fork.effects_after, fork.notice) == ((), "")
    # Each fork repeats what comes behind its step, under keys of its own, and nothing before it.
    assert effects(lab, "each") == {"each 1": 1, "each 3": 3, "each 4": 4}
    assert client.show(job.session_id) == before


def test_an_effect_that_is_left_is_named_with_its_place(lab: Lab) -> None:
    job = ended(lab, "left")
    lab.client.submit("planned", plan([call("keyed", work="left later")]), session_id=job.session_id).result(timeout=60)
    (unsafe, keyed, later) = lab.client.fork(job.session_id, at=f"{job.execution_id}:2").effects_after
    assert (unsafe.tool, unsafe.effect, unsafe.step, unsafe.outcome) == ("unsafe", "unsafe", 3, "ok")
    assert (keyed.effect, keyed.step, keyed.execution_id) == ("keyed", 4, job.execution_id)
    assert (later.effect, later.step, later.execution_id == job.execution_id) == ("keyed", 1, False)


def test_an_effect_is_named_although_the_source_goes_when_it_was_copied(lab: Lab) -> None:
    job, client = ended(lab, "going"), lab.new_client()
    spy = SpyDatabase(client.store.context.database)
    client.store.sessions = SessionActions(replace(client.store.context, database=spy))
    spy.before("create.exec", lambda: lab.client.delete(job.session_id))
    fork = client.fork(job.session_id, at=3)
    assert [each.tool for each in fork.effects_after] == ["keyed"]
    with pytest.raises(SessionDeleted):
        client.show(job.session_id)


def test_a_fork_for_an_agent_that_nobody_offers_says_that_it_waits(lab: Lab) -> None:
    job = ended(lab, "misspelt")
    with pytest.warns(UserWarning, match=r"'planed' \(registered: .*planned"):
        fork = lab.client.fork(job.session_id, at=2, go_on=True, agent="planed")
    assert "the job waits until one does" in fork.notice
    assert fork.to_dict()["notice"] == fork.notice
    lab.client.stop(fork)


def test_another_result_and_another_text_are_what_the_model_reads(lab: Lab) -> None:
    job, client = ended(lab, "edited"), lab.client
    state = client.show(job.session_id).state
    called = state.steps[1].tool_executions[0].tool_call.id
    edits = [SetResult(called, {"lost": True}), {"number": 2, "content": "I look."}]
    fork = client.fork(job.session_id, at=2, edit=edits, go_on=True)
    assert client.job(fork).result(timeout=60).status == "completed"
    read = client.model_request(fork, step=3).messages or ()
    assert [(each.role.value, each.content) for each in read[1:5]] == [
        ("assistant", "I look."), ("tool", state.messages[2].content), ("assistant", ""), ("tool", '{"lost":true}'),
    ]  # fmt: skip
    made = client.show(fork).state
    assert (made.steps[1].tool_executions[0].value, made.steps[1].output_messages[1].content) == (
        {"lost": True}, '{"lost":true}',
    )  # fmt: skip
    assert made.steps[0].output_messages[0].content == "I look."
    assert client.state(fork, at=2).messages[4].content == '{"lost":true}'
    assert client.show(job.session_id).state == state


def test_a_fork_without_its_execution_waits_for_a_message(lab: Lab) -> None:
    job, client = ended(lab, "idle"), lab.client
    fork = client.fork(job.session_id, at=1, system_prompt="Be brief.", labels={"what": "if"})
    header = client.header(fork)
    assert (header.execution_id, header.labels, header.forked_from) == ("", {"what": "if"}, job.session_id)
    stored = client.show(fork).state.context.store.section().messages
    assert [each.content for each in stored] == said(client, job.session_id)[:3]
    answer = client.send_message(fork, plan(answer="otherwise")).result(timeout=60)
    assert answer.final_response == "otherwise"
    assert client.model_request(fork, step=1).system_prompt == "Be brief."
    assert effects(lab, "idle") == {"idle 1": 1, "idle 3": 1, "idle 4": 1}


def test_forks_whose_worker_is_killed_make_each_effect_once(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", agents="support.agents") as lab:
        first = lab.worker()
        steps = [[call("pure", work="x")], [call("keyed", work="killed", after=0.3)], [call("keyed", work="killed")]]
        job = lab.client.submit("planned", plan(*steps))
        job.result(timeout=60)
        forks = [lab.client.fork(job.session_id, at=1, go_on=True) for _ in range(10)]
        wait_until(lambda: effects(lab, "killed")["killed"] > 4, "some are made", 30)
        first.kill()
        lab.worker()
        assert [lab.client.job(fork).result(timeout=90).status for fork in forks] == ["completed"] * 10
        assert effects(lab, "killed") == {"killed": 2 * 11}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"at": 9}, "at: "),
        ({"at": "later"}, "at: give the number of a step"),
        ({"at": "0" * 32 + ":1"}, "at: "),
        ({"edit": [ReplaceMessage(99, "x")]}, r"edit\[0\].number: the conversation has the messages 1 to 10"),
        ({"edit": [ReplaceMessage(3, "x")]}, r"edit\[0\].number: it is the result of a call: use SetResult"),
        ({"edit": [ReplaceMessage(1, " ")]}, r"edit\[0\].content: say something"),
        ({"edit": [SetResult("nothing", 1)]}, r"edit\[0\].call_id: no call of this id has a result there"),
        ({"edit": [{"number": 1}]}, r"edit\[0\]: give ReplaceMessage"),
        ({"edit": [{"number": True, "content": "x"}]}, r"edit\[0\]: give ReplaceMessage"),
        ({"edit": [{"call_id": "x", "value": {1}}]}, "edit"),
        ({"edit": "x"}, "edit: give a list of edits"),
        ({"edit": [ReplaceMessage(1, "x" * 1_000_001)]}, r"edit\[0\]: at most 1000000 bytes"),
        ({"edit": [SetResult("x", ["x" * 1_000_001])]}, r"edit\[0\]: at most 1000000 bytes"),
        ({"agent": "no agent"}, "agent"),
        ({"system_prompt": 3}, "system_prompt: give a text"),
        ({"labels": {"": "x"}}, "labels"),
        ({"idempotency_key": ""}, "idempotency_key: use a text of 1 to"),
        ({"idempotency_key": 7}, "idempotency_key: use a text of 1 to .* 7"),
    ],
)
def test_what_cannot_be_forked_is_named_and_nothing_is_written(
    lab: Lab, source: Job, given: dict[str, Any], sentence: str
) -> None:
    before = lab.redis.dbsize()
    with pytest.raises(InvalidInput, match=sentence):
        lab.client.fork(source.session_id, **given)
    assert lab.redis.dbsize() == before


def test_a_result_that_nests_as_deep_as_it_may_is_set_with_and_without_a_key(lab: Lab, source: Job) -> None:
    value = functools.reduce(lambda inner, _: [inner], range(100), cast("Any", 1))
    call_id = next(each.tool_call_id for each in lab.client.show(source.session_id).state.messages if each.tool_call_id)
    for key in (None, "deep", "deep"):
        fork = lab.client.fork(source.session_id, edit=[SetResult(call_id, value)], idempotency_key=key)
        assert "[" * 100 in str(lab.client.show(fork).state.store.section(DEFAULT).messages)


@pytest.fixture(scope="module")
def source(lab: Lab) -> Job:
    return ended(lab, "source")


def test_what_has_ended_does_not_go_on(lab: Lab, source: Job) -> None:
    for at in (None, 5):
        with pytest.raises(ActionRefused, match="fork it without go_on, and send the fork a message"):
            lab.client.fork(source.session_id, at=at, go_on=True)
    with pytest.raises(SessionConflict, match="version 99"):
        lab.client.fork(source.session_id, at=1, expected_version=99)
    with pytest.raises(SessionNotFound):
        lab.client.fork("0" * 32, at=1)


def test_one_key_makes_one_fork_and_refuses_another(lab: Lab, source: Job) -> None:
    forks = {lab.client.fork(source.session_id, at=2, go_on=True, idempotency_key="once") for _ in range(3)}
    (fork,) = forks
    lab.client.job(fork).result(timeout=60)
    assert lab.client.fork(source.session_id, at=2, go_on=True, idempotency_key="once") == fork
    with pytest.raises(IdempotencyMismatch, match="'once' was used for another fork"):
        lab.client.fork(source.session_id, at=3, go_on=True, idempotency_key="once")


def test_the_same_request_finds_its_fork_when_the_source_has_gone_on_or_away(lab: Lab) -> None:
    client = lab.client
    source = client.submit("planned", plan([call("keyed", work="first", gate="first")]))
    wait_until(lambda: client.header(source.session_id).status == "in_progress", "it runs", 30)
    version = client.header(source.session_id).version
    as_it_is: dict[str, Any] = {"go_on": True, "idempotency_key": "as it is", "expected_version": version}
    fork = client.fork(source.session_id, **as_it_is)
    lab.ledger.open("first")
    source.result(timeout=60)
    at_two: dict[str, Any] = {"at": 2, "idempotency_key": "at two"}
    other = client.fork(source.session_id, **at_two)
    client.submit("planned", plan(), session_id=source.session_id).result(timeout=60)
    assert client.fork(source.session_id, **as_it_is) == fork
    assert client.fork(source.session_id, **at_two) == other
    with pytest.raises(IdempotencyMismatch, match="'at two' was used for another fork"):
        client.fork(source.session_id, **{**at_two, "at": 9})
    with pytest.raises(SessionConflict, match="names version"):
        client.fork(source.session_id, go_on=True, expected_version=version)
    client.job(fork).result(timeout=60)
    client.delete(source.session_id)
    assert client.fork(source.session_id, **as_it_is) == fork
    assert client.fork(source.session_id, **at_two) == other


def test_command_and_http_do_the_same(lab: Lab, source: Job, tmp_path: Path) -> None:
    called = lab.client.show(source.session_id).state.steps[0].tool_executions[0].tool_call.id
    arguments = ["fork", source.session_id, "--at", "1", "--go-on", "--redis-url", lab.store_url, "--json"]
    edits = ["--result", f'{called}={{"by": "command"}}', "--message", "2=I look."]
    made = json.loads(CliRunner().invoke(program, [*arguments, *edits], catch_exceptions=False).stdout)
    assert [each["step"] for each in made["effects_after"]] == [3, 4]
    lab.client.job(made["session_id"]).result(timeout=60)
    assert said(lab.client, made["session_id"])[1:3] == ["I look.", '{"by":"command"}']
    process = ServeProcess(tmp_path / "serve", lab.store_url)
    process.start()
    try:
        with process.http() as http:
            body = {"at": 1, "edit": [{"call_id": called, "value": "by HTTP"}], "go_on": True}
            reply = http.post(f"/v1/sessions/{source.session_id}/fork", json=body)
            assert (reply.status_code, reply.json()["effects_after"]) == (201, made["effects_after"])
            fork = Fork(reply.json()["session_id"])
            lab.client.job(fork).result(timeout=60)
            assert said(lab.client, fork)[2] == "by HTTP"
            refused = http.post(f"/v1/sessions/{source.session_id}/fork", json={"at": 9})
            assert (refused.status_code, "at" in refused.text) == (422, True)
    finally:
        process.end()
