"""`RunState`: what it is of an `AgentState`. The document's own code runs in `examples/test_document_state_of_locus.py`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from celery_agents.worker.capabilities import CustomCondition, MaxIterations
from celery_agents.worker.errors import InvalidInput, StateTooNew
from celery_agents.worker.run_state import RunState
from celery_agents.worker.state import AgentState as StoredState
from celery_agents.worker.state import Message

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_builder_leaves_the_run_as_it_was() -> None:
    before = RunState(agent_id="a")
    after = before.with_confidence(0.5)
    assert (before.confidence, after.confidence) == (0.0, 0.5)
    assert before != after


def test_a_run_begins_with_a_transcript() -> None:
    run = RunState(messages=(Message.user("first"), Message.assistant("second")), metadata={"lang": "en"})
    assert [message.content for message in run.messages] == ["first", "second"]
    assert run.metadata == {"lang": "en"}


def test_the_ids_are_those_that_were_given() -> None:
    run = RunState(agent_id="a", run_id="run-1")
    assert (run.agent_id, run.run_id) == ("a", "run-1")
    assert RunState().run_id != RunState().run_id


def test_no_limit_is_none_and_the_default_is_that_of_the_document() -> None:
    assert (RunState().max_iterations, RunState().token_budget) == (20, None)
    assert (RunState(max_iterations=None).max_iterations, RunState(token_budget=9).token_budget) == (None, 9)


def test_a_limit_that_cannot_be_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidInput, match="max_steps"):
        RunState(max_iterations=-1)


def test_it_is_a_state_of_the_workers_and_back() -> None:
    run = RunState(agent_id="a").with_confidence(0.3)
    assert isinstance(run.agent_state, StoredState)
    assert RunState.of(run.agent_state) == run
    assert run.agent_state.run.with_confidence(0.3).run.confidence == 0.3


def test_a_checkpoint_of_a_newer_version_is_refused() -> None:
    with pytest.raises(StateTooNew):
        RunState.from_checkpoint({**RunState().to_checkpoint(), "schema_version": 99})


def test_a_name_of_the_stored_state_is_read_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="read agent_state.step_count"):
        assert RunState().step_count == 0
    with pytest.raises(AttributeError, match="agent_state is the whole state"):
        _ = RunState().nonsense


def test_a_condition_of_the_document_reads_the_run() -> None:
    run = RunState(agent_id="a").with_iteration(4)
    assert CustomCondition(lambda s: s.iteration > 3).check(run.agent_state).stop
    assert not CustomCondition(lambda s: s.iteration > 4).check(run.agent_state).stop
    assert (MaxIterations(9) | CustomCondition(lambda s: s.confidence >= 0)).check(run.agent_state).stop


def test_a_condition_that_reads_the_stored_state_still_works() -> None:
    with pytest.warns(DeprecationWarning, match="read agent_state.step_count"):
        assert CustomCondition(lambda s: s.step_count == 0).check(RunState().agent_state).stop
