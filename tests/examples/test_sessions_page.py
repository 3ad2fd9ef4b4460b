"""docs/sessions.md: its code runs against each store, the workers' Redis with a worker among them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from celery_agents import AgentClient
from celery_agents.worker.session import (
    AgentDefinition,
    FileSessionStore,
    InMemorySessionStore,
    SessionRepository,
    SessionRuntime,
    SessionStatus,
    SessionStore,
    UpdateTask,
)

from support.agents import plan
from support.documents import read_document
from support.lab import Lab

PAGE = read_document("docs/sessions.md")


@pytest.fixture(params=["memory", "file", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SessionStore]:
    if request.param == "redis":
        with AgentClient(request.getfixturevalue("redis_url")) as client:
            yield client.session_store()
    else:
        yield InMemorySessionStore() if request.param == "memory" else FileSessionStore(tmp_path / "sessions")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`page("actions")`: a module of the page."""
    package = tmp_path / "sessions_page"
    package.mkdir()
    PAGE.write(package)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda name: import_module(f"sessions_page.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "sessions_page"]:
        del sys.modules[name]


def test_the_quick_start_answers(page: Any, store: SessionStore) -> None:
    assert page("first_session").first_session(store) == PAGE.outputs[0].strip()
    first = store.list_headers().first
    assert first is not None
    assert (first.agent_name, first.version, first.status) == ("assistant", 2, SessionStatus.ACTIVE)


def test_the_quick_start_prints_what_the_page_says(tmp_path: Path) -> None:
    PAGE.write(tmp_path)
    done = subprocess.run(
        [sys.executable, "first_session.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == PAGE.outputs[0]


def test_the_actions_change_the_session_and_the_fork_keeps_its_state(page: Any, store: SessionStore) -> None:
    repository = SessionRepository(store)
    runtime = SessionRuntime(repository)
    session = runtime.create(AgentDefinition(name="assistant"))
    forked = page("actions").change_session(runtime, repository, session.session_id)
    state = runtime.get_session(forked.session_id).state
    assert state.system_prompt == "You are concise and direct. Respond in bullet points."
    assert (state.metadata["ticket_id"], state.metadata["task"]) == ("OPS-142", "Refactor the authentication module")
    assert state.llm_config is not None
    assert state.llm_config.model == "openai:gpt-5-mini"
    assert (forked.version, forked.status) == (1, SessionStatus.ACTIVE)
    archived = runtime.get_session(session.session_id)
    assert (archived.status, archived.version) == (SessionStatus.COMPLETED, 9)
    assert archived.state.metadata["archive_reason"] == "Ticket resolved"


def test_the_controller_suspends_and_the_listener_notes(page: Any, store: SessionStore) -> None:
    audit: list[str] = []
    repository = SessionRepository(store)
    session = SessionRuntime(repository).create(AgentDefinition(name="assistant"))
    runtime = page("controllers").auditing_runtime(repository, audit)
    assert runtime.execute(session.session_id, UpdateTask("x")).status is SessionStatus.SUSPENDED
    assert audit == ["UpdateTask: active to suspended"]


def test_workers_answer_a_session_of_the_runtime(page: Any, tmp_path: Path) -> None:
    with Lab(tmp_path / "lab") as lab:
        lab.worker()
        assert page("with_workers").ask(lab.client, "planned", plan(answer="by a worker")) == "by a worker"
        session = lab.client.session_store().list_headers().first
        assert session is not None
        assert lab.client.show(session.session_id).state.context.metadata["channel"] == "chat"


def test_a_session_moves_to_another_redis(page: Any, tmp_path: Path) -> None:
    with Lab(tmp_path / "old") as old, Lab(tmp_path / "new") as new:
        held = old.client.submit("planned", plan(answer="moved"))
        old.client.suspend(held.session_id, reason="it moves")
        job = page("moving").move(held.session_id, old.client, new.client, tmp_path)
        new.client.resume(held.session_id)
        new.worker()
        assert job.result(timeout=30).final_response == "moved"
        assert new.client.show(held.session_id).state.context.metadata["moved"] is True
        assert (tmp_path / f"{held.session_id}.json").exists()


def test_a_budget_is_changed_while_its_execution_waits_for_a_worker(page: Any, redis_url: str) -> None:
    with AgentClient(redis_url) as client:
        with pytest.warns(UserWarning, match="no worker has registered"):
            job = client.submit("planned", plan(answer="done"))
        assert page("limits").give_more(client, job.session_id) is True
        assert page("limits").give_more(client, job.session_id) is False
