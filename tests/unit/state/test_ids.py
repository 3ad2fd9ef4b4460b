"""Ids: what users may choose, and what the product makes of it."""

from __future__ import annotations

import pytest

from celery_agents.tasks.step_message import MalformedStep, read_step
from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.state import ChildSessionId, SessionId, read_session_id

CHILD = "job-1." + "0a" * 16


@pytest.mark.parametrize("text", ["", "-a", "a.b", "a" * 65, "a b", "a:b", CHILD])
def test_users_choose_plain_ids_only(text: str) -> None:
    with pytest.raises(InvalidInput):
        SessionId(text)


def test_a_child_knows_its_root_and_a_child_of_a_child_has_the_same() -> None:
    child = ChildSessionId.under(SessionId("job-1"))
    assert child.root == "job-1"
    assert ChildSessionId.under(child.root).root == "job-1"
    assert len(ChildSessionId.under(SessionId("a" * 64))) <= ChildSessionId.max_length


@pytest.mark.parametrize("text", ["job-1", "job-1.abc", CHILD.upper(), CHILD + "." + "0a" * 16, "." + "0a" * 16])
def test_what_is_no_child_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="session_id: use 1 to 64 letters"):
        ChildSessionId(text)


def test_stored_sessions_of_both_kinds_are_read() -> None:
    assert isinstance(read_session_id("job-1"), SessionId)
    assert isinstance(read_session_id(CHILD), ChildSessionId)
    step = read_step((), {"session_id": CHILD, "execution_id": "e", "step": 1})
    assert step.session_id == CHILD
    for wrong in ("a.b", "", 3, None):
        with pytest.raises(MalformedStep, match="session_id"):
            read_step((), {"session_id": wrong, "execution_id": "e", "step": 1})
