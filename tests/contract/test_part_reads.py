"""Messages and the outline of a state are read without the rest of the session, at one version, on every store."""

from __future__ import annotations

import pytest

from celery_agents.worker.errors import SessionNotFound, StateUnreadable

from support.store import Bench

pytestmark = pytest.mark.leaves_keys("executions go on")


def test_messages_come_in_pages_and_are_those_of_the_whole_session(bench: Bench) -> None:
    for number in (1, 2, 3):
        bench.commit(bench.claim(number))
    every = bench.store.sessions.load(bench.session).state.messages
    assert len(every) > 3
    found = bench.store.sessions.messages(bench.session, 1, 2)
    assert (list(found.messages), found.total) == (list(every[1:3]), len(every))
    assert list(bench.store.sessions.messages(bench.session, 0, 1000).messages) == list(every)
    behind = bench.store.sessions.messages(bench.session, len(every), 10)
    assert (list(behind.messages), behind.total) == ([], len(every))


def test_an_outline_has_everything_but_messages_and_steps(bench: Bench) -> None:
    bench.commit(bench.claim())
    whole = bench.store.sessions.load(bench.session).state
    outline = bench.store.sessions.outline(bench.session)
    assert whole.execution is not None
    assert outline.execution is not None
    assert outline.execution.step_executions == ()
    assert not any(section.messages for section in outline.store.sections.values())
    assert outline.execution.usage == whole.execution.usage
    assert outline.execution.budget == whole.execution.budget
    assert outline.parts == whole.parts
    keys = bench.store.context.keys(bench.session)
    touched = {str(command[1]) for _, commands in bench.spy.sent[-2:] for command in commands}
    assert keys.steps(bench.execution) not in touched


def test_a_read_during_a_commit_is_made_again(bench: Bench) -> None:
    claimed = bench.claim()
    before = bench.store.sessions.messages(bench.session, 0, 100).total
    bench.spy.before("parts.lists", lambda: bench.commit(claimed))
    found = bench.store.sessions.messages(bench.session, 0, 100)
    assert len(found.messages) == found.total > before


def test_what_is_missing_or_damaged_is_said(bench: Bench) -> None:
    with pytest.raises(SessionNotFound):
        bench.store.sessions.messages("nothing", 0, 10)
    with pytest.raises(SessionNotFound):
        bench.store.sessions.outline("nothing")
    section = bench.store.context.keys(bench.session).section("messages", 0)
    bench.database("DEL", section)
    bench.database("RPUSH", section, b"no message")
    with pytest.raises(StateUnreadable, match="messages"):
        bench.store.sessions.messages(bench.session, 0, 10)
