"""Shares of what a parent has left: siblings get no money twice, and the parent keeps what its closing step needs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from celery_agents.worker.state import BudgetWish, ExecutionBudget, Shortage, cover, keep_closing_step, reserve

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STEPS, COSTS = st.none() | st.integers(0, 30), st.none() | st.floats(0, 5)
BUDGETS = st.builds(ExecutionBudget, max_steps=STEPS, max_tokens=STEPS, max_cost=COSTS)
WISHES = st.builds(BudgetWish, wanted=st.none() | BUDGETS, limits=BUDGETS)
SHARED = ("max_steps", "max_tokens", "max_cost")


def sums(granted: list[Any], name: str) -> float:
    return sum(getattr(each, name) or 0 for each in granted)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(BUDGETS, st.lists(WISHES, max_size=6), st.integers(0, 40), st.floats(0, 6))
def test_shares_are_covered_and_capped_and_leave_a_closing_step(
    left: ExecutionBudget, wishes: list[BudgetWish], tokens: int, cost: float
) -> None:
    shared = keep_closing_step(left, tokens, cost)
    found = reserve(left, wishes, NOW, shared=shared)
    granted = [each for each in found if isinstance(each, ExecutionBudget)]
    for name in SHARED:
        given_limit, limit = getattr(left, name), getattr(shared, name)
        assert limit is None or sums(granted, name) <= limit + 1e-9
        assert not given_limit or limit < given_limit or name != "max_steps", "a step is kept"
        assert not given_limit or limit > 0 or name == "max_steps" or given_limit == 1, "children get some"
    for wish, budget in zip(wishes, found, strict=True):
        for name in SHARED if isinstance(budget, ExecutionBudget) else ():
            share = getattr(budget, name)
            caps = [getattr(wish.limits, name), getattr(wish.wanted or wish.limits, name), getattr(shared, name)]
            assert all(cap is None or share <= cap + 1e-9 for cap in caps)
            assert share is None or share > 0


def test_what_a_capped_sibling_leaves_goes_to_the_others() -> None:
    wishes = [BudgetWish(limits=ExecutionBudget(max_steps=limit)) for limit in (None, 2, 100)]
    found = reserve(ExecutionBudget(max_steps=20), wishes, NOW)
    assert [each.max_steps for each in found if isinstance(each, ExecutionBudget)] == [9, 2, 9]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(BUDGETS, BUDGETS)
def test_a_reservation_that_is_made_is_covered_and_never_grows(wanted: ExecutionBudget, left: ExecutionBudget) -> None:
    granted = cover(wanted, left)
    values = [min((each for each in (getattr(wanted, n), getattr(left, n)) if each is not None), default=None)
              for n in SHARED]  # fmt: skip
    if isinstance(granted, Shortage):
        assert 0 in values
        assert "are left for it: the calls before it used them" in granted.message
    else:
        assert [getattr(granted, name) for name in SHARED] == values
        assert 0 not in values
