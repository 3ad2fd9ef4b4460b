"""Edits of a fork: a result is changed in the record of its call, too."""

from __future__ import annotations

from typing import Any

import pytest

from celery_agents.config.settings import Settings
from celery_agents.worker.state.past.edits import SetResult
from celery_agents.worker.store import memory_store
from celery_agents.worker.store.session_records import StoredSession
from celery_agents.worker.store.sessions.copying import edit_entries
from celery_agents.worker.store.sessions.joining import join_whole

from support.states import executed, final_step, running, tool_step


@pytest.mark.parametrize(("value", "other"), [(1, True), (True, 1), (0, False), (1, 1.0)])
def test_a_result_that_python_takes_for_equal_is_another_one_in_the_record_too(value: Any, other: Any) -> None:
    store, done = memory_store(Settings.build()), executed(value=value)
    state = running().with_current_step(tool_step(done)).with_current_step_completed()
    state = state.with_current_step(final_step(number=2)).with_execution_completed()
    store.sessions.create("s1", StoredSession(agent="a", state=state))
    _, parts = store.sessions.load_parts("s1")
    edited, _ = join_whole(edit_entries(parts, [SetResult(done.tool_call.id, other)]))
    assert repr(edited.steps[0].tool_executions[0].value) == repr(other)
