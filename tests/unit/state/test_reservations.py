"""Shares of what a parent has left: siblings get no money twice, and the parent keeps what its closing step needs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from celery_agents.worker.state import BudgetWish, ExecutionBudget, Shortage, cover, keep_closing_step, reserve
from celery_agents.worker.state.execution.reservations import subtract

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


def test_what_is_taken_is_less_for_the_others() -> None:
    left = ExecutionBudget(max_steps=5, max_tokens=50, max_cost=0.5, max_seconds=9.0)
    assert subtract(left, ExecutionBudget()) == left
    taken = ExecutionBudget(max_steps=2, max_tokens=20, max_cost=0.25, max_seconds=5.0)
    assert subtract(left, taken) == ExecutionBudget(max_steps=3, max_tokens=30, max_cost=0.25, max_seconds=9.0)
    assert left.remaining() == left


def test_a_parent_keeps_its_closing_step_and_half_at_most() -> None:
    left = ExecutionBudget(max_steps=5, max_tokens=50, max_cost=0.5)
    assert keep_closing_step(left, 10, 0.125) == ExecutionBudget(max_steps=4, max_tokens=40, max_cost=0.375)
    assert keep_closing_step(left, 40, 0.4) == ExecutionBudget(max_steps=4, max_tokens=25, max_cost=0.25)
    assert keep_closing_step(ExecutionBudget(), 40, 0.4) == ExecutionBudget()


def test_the_texts_of_what_does_not_fit() -> None:
    left = ExecutionBudget(max_steps=2, max_tokens=10)
    wanted = BudgetWish(wanted=ExecutionBudget(max_steps=3))
    fitting = BudgetWish(wanted=ExecutionBudget(max_steps=2))
    texts = [getattr(each, "message", each) for each in reserve(left, [wanted, fitting, BudgetWish()], NOW)]
    assert texts == [
        "it would need 3 steps, and 2 are left; ask for less",
        ExecutionBudget(max_steps=2, max_tokens=5),
        "no steps are left for it: 2 for all calls of this step",
    ]
    (short,) = reserve(ExecutionBudget(max_seconds=0.0), [BudgetWish()], NOW)
    assert getattr(short, "message", "") == "no seconds are left for it: 0 for all calls of this step"
    (short,) = reserve(ExecutionBudget(deadline=NOW), [BudgetWish()], NOW)
    assert getattr(short, "message", "") == "its deadline has passed"
    assert cover(ExecutionBudget(max_steps=3), ExecutionBudget(max_steps=0)) == Shortage(
        "no steps are left for it: the calls before it used them"
    )


def test_a_child_ends_a_little_before_its_parent() -> None:
    for seconds, margin in ((5, 0.5), (20, 2), (1000, 2)):
        deadline = NOW + timedelta(seconds=seconds)
        (granted,) = reserve(ExecutionBudget(deadline=deadline), [BudgetWish()], NOW)
        assert isinstance(granted, ExecutionBudget)
        assert granted.deadline == deadline - timedelta(seconds=margin)


def test_a_remainder_goes_to_the_first_ones() -> None:
    found = reserve(ExecutionBudget(max_steps=8, max_tokens=7), [BudgetWish()] * 3, NOW)
    assert [(getattr(each, "max_steps", None), getattr(each, "max_tokens", None)) for each in found] == [
        (3, 3), (3, 2), (2, 2),
    ]  # fmt: skip
