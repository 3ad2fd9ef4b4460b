"""Snapshots of sessions: what is kept of the metadata."""

from __future__ import annotations

import pytest

from celery_agents.worker.session.snapshots import SessionSnapshot
from celery_agents.worker.state import AgentState, InferenceUsage

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
