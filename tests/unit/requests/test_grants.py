"""Remembered approvals: which grant covers a call, how many are kept, and how one is taken back."""

from __future__ import annotations

from typing import Any

import pytest

from celery_agents.worker.requests.grants import (
    ExecutionGrants,
    Grant,
    SessionGrants,
    find_grant,
    grants_of,
    with_grant,
    without_grant,
)
from celery_agents.worker.state import AgentState, Remember

from support.states import at, running

LASTS = pytest.mark.parametrize("lasts", [Remember.SESSION, Remember.EXECUTION])


def granted(*grants: Grant) -> AgentState:
    state = running()
    for grant in grants:
        state = with_grant(state, grant, at(1))
    return state


def grant(number: int, tool: str = "refund", **fields: Any) -> Grant:
    return Grant(id=f"g{number}", tool=tool, **fields)


@LASTS
def test_a_grant_covers_its_tool_and_its_addressee_only(lasts: Remember) -> None:
    first, second = grant(1, to="desk", lasts=lasts), grant(2, "ship", lasts=lasts)
    state = granted(first, second)
    assert (find_grant(state, "refund", "desk"), find_grant(state, "ship", None)) == (first, second)
    assert find_grant(state, "refund", None) is None
    assert find_grant(state, "ship", "desk") is None
    assert find_grant(running(), "ship", None) is None
    assert (first.by, first.note, first.at_ms) == ("", "", 0)


@LASTS
def test_the_last_100_grants_are_kept_and_each_once(lasts: Remember) -> None:
    grants = [grant(number, lasts=lasts) for number in range(101)]
    state = granted(*grants[:100])
    assert grants_of(state) == tuple(grants[:100])
    assert with_grant(state, grants[7], at(2)) is state
    assert grants_of(with_grant(state, grants[100], at(2))) == tuple(grants[1:])


def test_a_grant_is_taken_back_wherever_it_is() -> None:
    ours = [grant(1), grant(2), grant(3, lasts=Remember.EXECUTION)]
    state = granted(*ours)
    assert (state.part(SessionGrants).grants, state.part(ExecutionGrants).grants) == (tuple(ours[:2]), (ours[2],))
    assert grants_of(without_grant(state, "g1", at(2))) == (ours[1], ours[2])
    ended = without_grant(state, "g3", at(2))
    assert (grants_of(ended), ended.has_part(ExecutionGrants)) == ((ours[0], ours[1]), False)
    assert without_grant(state, "g4", at(2)) is state
