"""Copies of a session that go on at a step: the state of that step under another execution, on every store."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from celery_agents.worker.errors import NotKept, StateUnreadable
from celery_agents.worker.state import AgentState, ExecutionStatus, Message
from celery_agents.worker.state.codec.join import StateParts
from celery_agents.worker.state.past.edits import ReplaceMessage
from celery_agents.worker.state.values.field_types import utcnow
from celery_agents.worker.state.values.ids import ExecutionId
from celery_agents.worker.store.session_records import StoredSession
from celery_agents.worker.store.sessions.copying import edit_entries, go_on
from celery_agents.worker.store.sessions.past_reads import StepAddress
from celery_agents.worker.store.sessions.whole_sessions import Copy

from support.random_past import Past
from support.store import Bench

pytestmark = pytest.mark.leaves_keys("executions go on")

NEW = ExecutionId("b" * 32)


def goes_on(source: StoredSession, parts: StateParts) -> tuple[StoredSession, StateParts]:
    return source, go_on(parts, NEW, utcnow())


def fork(bench: Bench, address: str, change: Callable[..., Any] = goes_on) -> str:
    """A fork of a step, or of the last commit; the name of the fork."""
    execution, _, number = address.partition(":")
    name, past = f"{bench.session}.{uuid.uuid4().hex}", None
    if number:
        past = bench.store.sessions.parts_at(bench.session, StepAddress(int(number), execution))
    bench.store.sessions.fork(bench.session, name, Copy(change=change, past=past))
    return name


def forked(state: AgentState) -> dict[str, Any]:
    """The state as JSON, with the new execution's id."""
    found = plain(state)
    old = found["execution"]["execution_id"]
    found["execution"] |= {"execution_id": NEW, "operation_id": None, "tags": old}
    return found


def plain(state: AgentState) -> dict[str, Any]:
    found = state.to_dict()
    found["execution"]["waited_seconds"] = 0.0
    return found


@pytest.mark.parametrize("seed", range(3))
def test_a_fork_is_the_state_of_its_step_under_another_execution_and_goes_on(bench: Bench, seed: int) -> None:
    bench.submit()
    past, long = Past(bench, seed), Message.user("long " * seed * 300)
    for number in range(1, 4):
        past.step(number, lambda state: state.with_messages_added([long]))
    for number in range(4, 7):
        past.random_step(number)
    for address, state in past.saved.items():
        copied = Bench(bench.spy.inner)
        copied.session, copied.execution = fork(bench, address), NEW
        assert plain(copied.store.sessions.load(copied.session).state) == forked(state)
        at = StepAddress(int(address.split(":")[1]))
        assert plain(copied.store.sessions.state_at(copied.session, at)) == forked(state)
        copied.commit(copied.claim(at.number + 1), final=True)
        assert copied.store.sessions.load(copied.session).state.status is ExecutionStatus.COMPLETED
    past.check()


@pytest.mark.parametrize("kind", ["a fork of a step", "a fork as it stands", "restored"])
def test_what_a_copy_was_before_its_step_is_refused_and_never_guessed(bench: Bench, kind: str) -> None:
    """Its source alone has kept the old values: the present ones were told for them."""
    bench.submit()
    past = Past(bench, 0)
    for number in range(1, 4):
        past.step(number, lambda state: state.with_metadata("step", state.step_count))
    sessions = bench.store.sessions
    if kind == "restored":
        copy = f"{bench.session}.{'c' * 32}"
        sessions.create(copy, replace(sessions.load(bench.session), version=0))
    else:
        copy = fork(bench, f"{bench.execution}:3" if kind == "a fork of a step" else "")
    for session, number in ((bench.session, 1), (bench.session, 2), (bench.session, 3), (copy, 3)):
        assert sessions.state_at(session, StepAddress(number)).metadata["step"] == number - 1
    for number in (1, 2):
        with pytest.raises(NotKept, match="that it is a copy of"):
            sessions.state_at(copy, StepAddress(number))


@pytest.mark.parametrize("words", ["short", "long " * 500])
def test_edits_are_in_the_conversation_and_in_the_records(bench: Bench, words: str) -> None:
    bench.submit()
    past = Past(bench, 0)
    past.step(1, text=words)
    state = past.step(2, text=words)

    def change(source: StoredSession, parts: StateParts) -> tuple[StoredSession, StateParts]:
        return goes_on(
            source, edit_entries(parts, [ReplaceMessage(2, "another"), ReplaceMessage(2, "the last counts")])
        )

    copied = bench.store.sessions.load(fork(bench, f"{bench.execution}:2", change)).state
    said = [each.content for each in copied.messages]
    assert said == [state.messages[0].content, "the last counts", f"answer 2{words}"]
    assert [each.output_text for each in copied.steps] == said[1:]


@pytest.mark.parametrize("number", ["", "2"])
def test_a_message_that_is_missing_is_told_and_nothing_is_copied(bench: Bench, number: str) -> None:
    bench.submit()
    for step in (1, 2):
        bench.commit(bench.claim(step))
    bench.database("DEL", bench.store.context.keys(bench.session).section("messages", 0))
    before = bench.snapshot()
    with pytest.raises(StateUnreadable, match="the head says"):
        fork(bench, f"{bench.execution}:{number}" if number else "")
    assert bench.snapshot() == before
