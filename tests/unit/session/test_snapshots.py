"""Snapshots of sessions: what is kept of the metadata."""

from __future__ import annotations

from typing import Any

import pytest

from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.session.snapshots import SessionSnapshot, read_snapshot
from celery_agents.worker.state import MAX_DEPTH, AgentState, InferenceUsage

ORDINARY = (
    "online", "only_eu", "once", "on_hold", "on_call", "signal", "signals", "Online", "ON_TIME", "ontology", "_on",
    "handler", "case_handler", "callback", "callback_url", "listener", "listeners", "one", "oN",
)  # fmt: skip
CALLBACKS = ("onEvent", "onStateChange", "_onDone", "doneCallback", "eventListeners", "errorHandler")


def taken(*keys: str) -> SessionSnapshot:
    state = AgentState.fresh(metadata=dict.fromkeys(keys, 1))
    return SessionSnapshot.of(state, session_id="s1", version=1, agent="a")


@pytest.mark.parametrize("key", ORDINARY)
def test_ordinary_metadata_is_kept_there_and_back(key: str) -> None:
    snapshot = taken(key)
    assert snapshot.stripped == ()
    assert dict(snapshot.restored({key: 2}, merge=True).context.metadata) == {key: 2}


@pytest.mark.parametrize("key", CALLBACKS)
def test_a_callback_of_a_javascript_program_is_left_out_and_named(key: str) -> None:
    snapshot = taken(key, "kept")
    assert snapshot.stripped == (key,)
    assert dict(snapshot.restored({key: 2}, merge=True).context.metadata) == {"kept": 1}


def test_a_call_beside_a_step_that_is_paid_again_is_charged_again() -> None:
    """A snapshot has no journal: what the step that failed has asked for is asked for once more."""
    usage = InferenceUsage(input=7)
    state = AgentState.fresh().with_execution()
    assert state.execution is not None
    failed = state.execution.with_auxiliary_charge(1, "sum", usage, 0.5)
    assert failed.with_auxiliary_charge(1, "sum", usage, 0.5).cost == 0.5
    state = state.with_context_and_execution(state.context, failed)
    restored = SessionSnapshot.of(state, session_id="s1", version=1, agent="a").restored(None, merge=True).execution
    assert restored is not None
    assert restored.with_auxiliary_charge(1, "sum", usage, 0.5).cost == 1.0


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def test_a_state_whose_values_nest_as_deep_as_they_may_comes_back() -> None:
    state = AgentState.fresh(metadata=nested(MAX_DEPTH))
    snapshot = SessionSnapshot.of(state, session_id="s1", version=1, agent="a")
    for form in (snapshot, snapshot.to_json(), snapshot.to_dict()):
        assert read_snapshot(form).restored(None, merge=True) == state


def test_a_context_whose_keys_are_no_text_is_refused() -> None:
    wrong: Any = {1: 2}
    with pytest.raises(InvalidInput, match="must be text"):
        taken("a").restored(wrong, merge=True)


@pytest.mark.parametrize("wrong", [[1], 7, None, {"state": 7}, {**taken().to_dict(), "state": [1]}])
def test_what_is_no_snapshot_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^snapshot: give what"):
        read_snapshot(wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (taken().to_json()[:60], "Invalid JSON: EOF"),
        ({}, "Got 'format: Field required'"),
        ({**taken().to_dict(), "version": "x"}, "Got 'version: "),
    ],
)
def test_a_damaged_snapshot_names_its_first_problem(wrong: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_snapshot(wrong)
    assert said in str(refused.value)
