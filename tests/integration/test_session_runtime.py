"""The session runtime on the workers' Redis: actions on idle and on running sessions, forks, and races of processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from celery_agents import AsyncAgentClient, LLMConfig
from celery_agents.tasks.app import create_app
from celery_agents.tasks.cli.program import program
from celery_agents.worker.errors import ActionRefused, SessionConflict, SessionNotFound
from celery_agents.worker.session import (
    AgentDefinition,
    AgentSession,
    ChangeModel,
    ChangeSystemPrompt,
    ClearSession,
    EventDispatcher,
    ForkSession,
    ResumeSession,
    SendMessage,
    SessionActionExecuted,
    SessionFactory,
    SessionRepository,
    SessionRuntime,
    SessionSaved,
    SessionSaveFailed,
    SessionStatus,
    SuspendSession,
    UpdateTask,
    WorkerRunner,
    WriteMetadata,
)
from celery_agents.worker.state import Role

from support.agents import call, plan
from support.lab import Lab
from support.session_races import race_processes
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("runtime") / "lab") as started:
        started.worker(CELERY_AGENTS_CONTROL_TASKS="all")
        yield started


@pytest.fixture
def repository(lab: Lab) -> SessionRepository:
    return SessionRepository(lab.client.session_store())


@pytest.fixture
def runtime(repository: SessionRepository) -> SessionRuntime:
    return SessionRuntime(repository)


def new_session(repository: SessionRepository) -> AgentSession:
    return repository.create(SessionFactory().create(AgentDefinition(name="planned", description="follows plans")))


def running(lab: Lab, runtime: SessionRuntime, session: AgentSession, gate: str) -> AgentSession:
    """The session while a tool of its first step waits at a gate."""
    message = plan([call("keyed", work=gate, gate=gate)], answer="first")
    pending = runtime.execute(session.session_id, SendMessage(message, WorkerRunner()))
    wait_until(lambda: any(entry.get("work") == gate for entry in lab.ledger.entries()), "the tool works", 30)
    return pending


def wait_for_end(lab: Lab, session_id: str) -> Any:
    return lab.client.job(session_id).result(timeout=30)


def users(session: AgentSession) -> list[str]:
    return [each.content for each in session.state.messages if each.role is Role.USER]


def test_a_message_is_worked_on_by_a_worker_and_its_answer_comes_back(
    lab: Lab, repository: SessionRepository, runtime: SessionRuntime
) -> None:
    session = new_session(repository)
    message = plan([call("keyed", work="runtime")], answer="it is done")
    answered = runtime.execute(session.session_id, SendMessage(message, WorkerRunner(lab.client.store, timeout=30)))
    assert (answered.state.final_response, answered.status) == ("it is done", SessionStatus.ACTIVE)
    assert answered.definition == session.definition
    assert repository.load(session.session_id) == answered
    assert [entry["work"] for entry in lab.ledger.entries() if entry.get("effect") and entry["kind"] != "driver"] == [
        "runtime"
    ]
    assert lab.client.show(session.session_id).state == answered.state, "nothing is stored twice"


def test_a_message_that_is_only_submitted_returns_at_once(
    lab: Lab, repository: SessionRepository, runtime: SessionRuntime
) -> None:
    session = new_session(repository)
    pending = runtime.execute(session.session_id, SendMessage(plan(answer="later"), WorkerRunner()))
    assert pending.state.status == "pending"
    assert wait_for_end(lab, session.session_id).final_response == "later"
    with pytest.raises(SessionConflict):
        repository.save(pending)


def test_actions_on_a_running_session_wait_for_its_step_and_apply_once(
    lab: Lab, repository: SessionRepository, runtime: SessionRuntime
) -> None:
    session = new_session(repository)
    running(lab, runtime, session, "busy")
    for action in (
        WriteMetadata("ticket", {"id": 7}),
        UpdateTask("refund the order"),
        ChangeSystemPrompt("Be brief."),
        ChangeModel(LLMConfig(model="openai:gpt-5-mini")),
        SendMessage(plan(answer="second"), WorkerRunner()),
    ):
        runtime.execute(session.session_id, action)
    lab.ledger.open("busy")
    wait_until(lambda: lab.client.header(session.session_id).status == "completed", "it has ended", 30)
    wait_until(lambda: len(users(repository.load(session.session_id))) == 2, "the message has joined", 30)
    ended = repository.load(session.session_id)
    context = ended.state.context
    assert dict(context.metadata) == {"ticket": {"id": 7}, "task": "refund the order"}
    assert (context.system_prompt, ended.state.llm_config) == ("Be brief.", LLMConfig(model="openai:gpt-5-mini"))


def test_what_cannot_wait_is_refused_while_a_step_runs_and_changes_nothing(
    lab: Lab, repository: SessionRepository, runtime: SessionRuntime
) -> None:
    session = new_session(repository)
    running(lab, runtime, session, "strict")
    before = repository.load(session.session_id)

    class Complete:
        def execute_on(self, session: AgentSession) -> AgentSession:
            return session.completed()

    for action, is_strict in ((ClearSession(), False), (Complete(), False), (WriteMetadata("a", 1), True)):
        with pytest.raises(ActionRefused, match="runs or waits"):
            runtime.execute(session.session_id, action, strict=is_strict)
    with pytest.raises(ActionRefused, match="stop"):
        repository.delete(session.session_id)
    assert repository.load(session.session_id) == before
    lab.ledger.open("strict")
    assert wait_for_end(lab, session.session_id).final_response == "first"


def test_a_suspended_session_works_on_nothing_until_it_is_resumed(
    lab: Lab, repository: SessionRepository, runtime: SessionRuntime
) -> None:
    session = new_session(repository)
    running(lab, runtime, session, "held")
    runtime.execute(session.session_id, SuspendSession())
    assert repository.load(session.session_id).status is SessionStatus.SUSPENDED
    lab.ledger.open("held")
    wait_until(lambda: repository.load(session.session_id).state.step_count == 1, "its step has ended", 30)
    assert repository.load(session.session_id).state.status == "in_progress"
    runtime.execute(session.session_id, ResumeSession())
    assert wait_for_end(lab, session.session_id).status == "completed"
    assert repository.load(session.session_id).status is SessionStatus.ACTIVE


def test_a_message_to_a_suspended_idle_session_is_stored_and_starts_at_the_resume(
    lab: Lab, repository: SessionRepository, runtime: SessionRuntime
) -> None:
    session = new_session(repository)
    assert lab.client.suspend(session.session_id, reason="a look") is True
    assert lab.client.suspend(session.session_id, reason="a look") is False
    assert lab.client.header(session.session_id).session_status == "suspended"
    with pytest.raises(ActionRefused, match="ResumeSession"):
        runtime.execute(session.session_id, SendMessage("hello", WorkerRunner()))
    job = lab.client.send_message(session.session_id, plan(answer="after the resume"))
    with pytest.raises(TimeoutError):
        job.result(timeout=1)
    assert lab.client.header(session.session_id).status == "pending"
    assert lab.client.resume(session.session_id) is True
    assert job.result(timeout=30).final_response == "after the resume"
    assert lab.client.header(session.session_id).session_status == "active"


def test_a_completed_session_takes_a_message_after_a_resume_only(
    lab: Lab, repository: SessionRepository, runtime: SessionRuntime
) -> None:
    session = repository.save(new_session(repository).completed())
    with pytest.raises(ActionRefused, match="completed"):
        lab.client.send_message(session.session_id, plan(answer="never"))
    assert lab.client.resume(session.session_id) is True
    assert lab.client.resume(session.session_id) is False
    job = lab.client.send_message(session.session_id, plan(answer="again"))
    assert job.result(timeout=30).final_response == "again"


def test_events_of_the_runtime_come_with_a_save_and_a_failure_with_a_conflict(
    lab: Lab, repository: SessionRepository
) -> None:
    del lab
    seen: list[str] = []
    events = EventDispatcher("redis")
    for kind in (SessionActionExecuted, SessionSaved, SessionSaveFailed):
        events.add_listener(kind, lambda event: seen.append(type(event).__name__))
    runtime, session = SessionRuntime(repository, events), new_session(repository)

    class Interfere:
        def execute_on(self, session: AgentSession) -> AgentSession:
            repository.save(session)
            return session.completed()

    runtime.execute(session.session_id, WriteMetadata("a", 1))
    with pytest.raises(SessionConflict) as conflict:
        runtime.execute(session.session_id, Interfere())
    assert (conflict.value.expected, conflict.value.stored) == (2, 3)
    assert seen == ["SessionActionExecuted", "SessionSaved", "SessionActionExecuted", "SessionSaveFailed"]


def test_a_fork_goes_its_own_way(lab: Lab, repository: SessionRepository, runtime: SessionRuntime) -> None:
    session = new_session(repository)
    running(lab, runtime, session, "forked")
    lab.ledger.open("forked")
    wait_for_end(lab, session.session_id)
    fork = lab.client.fork(session.session_id)
    copied = repository.load(fork)
    assert (copied.version, copied.info.parent_id, copied.status) == (1, session.session_id, SessionStatus.ACTIVE)
    assert copied.state.store == repository.load(session.session_id).state.store
    assert copied.state.execution is None
    job = lab.client.send_message(fork, plan([call("keyed", work="of the fork")], answer="another way"))
    assert job.result(timeout=30).final_response == "another way"
    assert "another way" not in str(repository.load(session.session_id).state.store)
    again = repository.create(ForkSession().execute_on(repository.load(fork)))
    assert again.session_id.startswith(f"{session.session_id}.")
    lab.client.delete(session.session_id)
    assert repository.load(fork).info.parent_id == session.session_id, "a fork outlives its source"
    with pytest.raises(SessionNotFound):
        lab.client.fork(session.session_id)


def test_one_key_makes_one_fork_and_another_version_none(lab: Lab, repository: SessionRepository) -> None:
    session = new_session(repository)
    forks = {lab.client.fork(session.session_id, idempotency_key="what-if") for _ in range(2)}
    assert len(forks) == 1
    with pytest.raises(SessionConflict, match="version 9"):
        lab.client.fork(session.session_id, expected_version=9)


def test_clear_removes_the_conversation_and_a_worker_goes_on_with_an_empty_one(
    lab: Lab, repository: SessionRepository
) -> None:
    session = new_session(repository)
    lab.client.write_metadata(session.session_id, "ticket", 7)
    for answer in ("one", "two"):
        lab.client.send_message(session.session_id, plan(answer=answer)).result(timeout=30)
    version = lab.client.clear(session.session_id)
    cleared = repository.load(session.session_id)
    assert (cleared.version, len(cleared.state.messages), dict(cleared.state.context.metadata)) == (
        version, 0, {"ticket": 7},
    )  # fmt: skip
    with pytest.raises(SessionConflict):
        lab.client.clear(session.session_id, expected_version=version - 1)
    job = lab.client.send_message(session.session_id, plan(answer="three"))
    assert job.result(timeout=30).final_response == "three"
    assert len(repository.load(session.session_id).state.messages) == 2


def test_fork_and_clear_by_command_by_task_and_by_the_async_client(
    lab: Lab, repository: SessionRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = new_session(repository).session_id
    monkeypatch.setenv("CELERY_AGENTS_REDIS_URL", lab.store_url)
    made = CliRunner().invoke(program, ["fork", session, "--json"])
    assert repository.exists(json.loads(made.output)["session_id"])
    assert CliRunner().invoke(program, ["clear", session]).output == "cleared\n"
    shown = CliRunner().invoke(program, ["list", "--json"]).output
    assert f'"forked_from": "{session}"' in shown
    lab.client.suspend(session, reason="a look")
    assert "suspended" in CliRunner().invoke(program, ["list"]).output
    assert "suspended" in CliRunner().invoke(program, ["show", session]).output
    lab.client.resume(session)
    app, queue = create_app(lab.client.settings), lab.client.settings.control_queue
    key = {"session_id": session, "idempotency_key": "by task"}
    app.send_task("celery_agents.fork", kwargs=key, queue=queue)
    before = repository.load(session).version
    app.send_task("celery_agents.clear", kwargs={"session_id": session}, queue=queue)
    wait_until(lambda: repository.load(session).version > before, "it is cleared", 30)
    wait_until(
        lambda: sum(info.parent_id == session for info in repository.list_headers()) == 2, "the fork is there", 30
    )
    forked = asyncio.run(AsyncAgentClient.of(lab.client).fork(session, idempotency_key="by task"))
    assert sum(info.parent_id == session for info in repository.list_headers()) == 2
    assert repository.exists(forked)
    assert asyncio.run(AsyncAgentClient.of(lab.client).clear(session)) > before


def test_a_session_that_a_client_submitted_can_be_acted_on(lab: Lab, runtime: SessionRuntime) -> None:
    job = lab.client.submit("planned", plan(answer="done"))
    job.result(timeout=30)
    changed = runtime.execute(job.session_id, WriteMetadata("color", "red"))
    assert (changed.definition.name, changed.state.final_response) == ("planned", "done")
    assert lab.client.show(job.session_id).state.context.metadata["color"] == "red"


def test_of_two_processes_exactly_one_wins_each_try(lab: Lab, repository: SessionRepository) -> None:
    session = new_session(repository).session_id
    assert race_processes(lab.store_url, session, tries=40) == [40, 40]
    assert repository.load(session).version == 41
