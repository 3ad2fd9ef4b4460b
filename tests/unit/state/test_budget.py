"""Budgets: what is left, which is smaller, and when nothing is left."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.state import UNLIMITED, AgentState, ExecutionBudget, InferenceUsage
from celery_agents.worker.state.execution.execution import ExecutionState

from support.states import NOON, at, budgets, final_step, is_same, running, stored_and_loaded, tool_step

LIMITS = ("max_steps", "max_tokens", "max_seconds", "max_cost")


@given(budgets)
def test_b1_nothing_used_leaves_the_budget_as_it_is(budget: ExecutionBudget) -> None:
    assert is_same(budget.remaining(), budget)


@given(budgets, st.integers(0, 10**7), st.integers(0, 10**7), st.floats(0, 1e10), st.floats(0, 1e10))
def test_b1_what_is_left_is_never_below_zero_and_none_stays_none(
    budget: ExecutionBudget, steps: int, tokens: int, seconds: float, cost: float
) -> None:
    left = budget.remaining(steps=steps, tokens=tokens, seconds=seconds, cost=cost)
    for name in LIMITS:
        before, after = getattr(budget, name), getattr(left, name)
        assert (after is None) is (before is None)
        if after is not None:
            assert 0 <= after <= before
            assert type(after) is type(before)
    assert left.deadline == budget.deadline


@given(budgets, st.integers(0, 10**6), st.integers(0, 10**6))
def test_b1_using_twice_is_using_the_sum(budget: ExecutionBudget, one: int, other: int) -> None:
    assert budget.remaining(steps=one).remaining(steps=other) == budget.remaining(steps=one + other)


def test_b1_as_the_source_shows_it() -> None:
    left = ExecutionBudget(max_steps=20, max_tokens=10000, max_seconds=60.0).remaining(steps=5, tokens=3000)
    assert left == ExecutionBudget(max_steps=15, max_tokens=7000, max_seconds=60.0)


@given(budgets, budgets)
def test_b2_capping_is_commutative(one: ExecutionBudget, other: ExecutionBudget) -> None:
    assert one.capped_by(other) == other.capped_by(one)


@given(budgets, budgets, budgets)
def test_b2_capping_is_associative(one: ExecutionBudget, two: ExecutionBudget, three: ExecutionBudget) -> None:
    assert one.capped_by(two).capped_by(three) == one.capped_by(two.capped_by(three))


@given(budgets)
def test_b2_capping_is_idempotent_and_unlimited_is_neutral(budget: ExecutionBudget) -> None:
    assert budget.capped_by(budget) == budget
    assert budget.capped_by(UNLIMITED) == budget == UNLIMITED.capped_by(budget)


@given(budgets, budgets)
def test_b2_the_smaller_limit_of_each_field(one: ExecutionBudget, other: ExecutionBudget) -> None:
    capped = one.capped_by(other)
    for name in (*LIMITS, "deadline"):
        limits = [limit for limit in (getattr(one, name), getattr(other, name)) if limit is not None]
        assert getattr(capped, name) == min(limits, default=None)


@given(budgets, budgets)
def test_b2_a_cap_never_gives_more(one: ExecutionBudget, other: ExecutionBudget) -> None:
    if one.is_exhausted(NOON) or other.is_exhausted(NOON):
        assert one.capped_by(other).is_exhausted(NOON)


def test_b3_empty_is_without_any_limit() -> None:
    assert ExecutionBudget.unlimited().is_empty()
    for name in LIMITS:
        assert not ExecutionBudget(**{name: 0}).is_empty()
    assert not ExecutionBudget(deadline=NOON).is_empty()


def test_b3_zero_is_a_limit_and_it_is_reached() -> None:
    budget = ExecutionBudget(max_steps=0)
    assert not budget.is_empty()
    assert budget.is_exhausted()


@pytest.mark.parametrize("name", LIMITS)
def test_b4_any_limit_at_zero_exhausts(name: str) -> None:
    others = {other: 5 for other in LIMITS if other != name}
    assert ExecutionBudget(**{name: 0}, **others).is_exhausted()
    assert not ExecutionBudget(**{name: 1}, **others).is_exhausted()


def test_b4_a_deadline_that_is_now_is_reached() -> None:
    budget = ExecutionBudget(deadline=NOON)
    assert not budget.is_exhausted(at(-0.000001))
    assert budget.is_exhausted(at(0))
    assert budget.is_exhausted(at(1))
    assert budget.is_exhausted()
    assert not UNLIMITED.is_exhausted()


@given(budgets)
def test_b5_a_budget_survives_storing(budget: ExecutionBudget) -> None:
    state = AgentState.fresh().with_execution(budget=budget)
    assert is_same(stored_and_loaded(state).execution.budget, budget)  # type: ignore[union-attr]


def test_b5_a_deadline_is_kept_in_utc_and_one_without_timezone_is_refused() -> None:
    there = datetime(2026, 5, 1, 12, 0, 0, 1, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    budget = ExecutionBudget(deadline=there)
    assert budget.deadline == there
    assert budget.deadline.tzinfo is UTC
    assert ExecutionBudget(deadline="2026-05-01T12:00:00Z").deadline == datetime(2026, 5, 1, 12, tzinfo=UTC)  # type: ignore[arg-type]
    for naive in (datetime(2026, 5, 1), "2026-05-01T12:00:00"):  # noqa: DTZ001
        with pytest.raises(InvalidInput, match="deadline: a time without timezone"):
            ExecutionBudget(deadline=naive)  # type: ignore[arg-type]


def test_b5_whole_numbers_are_accepted_where_fractions_are() -> None:
    budget = ExecutionBudget(max_seconds=60, max_cost=1)
    assert type(budget.max_seconds) is float
    assert type(budget.max_cost) is float


BAD: tuple[tuple[str, Any], ...] = (
    *((name, value) for name in LIMITS for value in (-1, True, False, "5", [], float("nan"), float("inf"), -0.5)),
    ("max_steps", 1.5),
    ("max_tokens", 2**63),
    ("max_tokens", 10**5000),
    ("deadline", True),
    ("deadline", 5),
    ("deadline", "tomorrow"),
    ("deadline", []),
    ("max_minutes", 5),
)


@pytest.mark.parametrize(
    ("name", "value"),
    BAD,
    ids=lambda value: f"{value}"[:20] if isinstance(value, str | bool | float) else type(value).__name__,
)
def test_b5_a_limit_that_is_none_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=name):
        ExecutionBudget(**{name: value})


def test_b13_a_childs_budget_is_the_parents_remainder_capped_by_its_own() -> None:
    parent = ExecutionBudget(max_steps=10, max_tokens=1000)
    assert parent.capped_by(ExecutionBudget(max_steps=100, max_tokens=5000)) == parent
    own = ExecutionBudget(max_steps=5, max_tokens=500, max_seconds=30.0)
    assert UNLIMITED.capped_by(own) == own


def test_b13_three_levels_keep_shrinking() -> None:
    budget, left = ExecutionBudget(max_steps=100), []
    for own in (50, 60, 70):
        state = running(budget=budget.capped_by(ExecutionBudget(max_steps=own)))
        for number in (1, 2, 3):
            state = state.with_current_step(tool_step(number=number)).with_current_step_completed()
        assert state.execution is not None
        budget = state.execution.budget.remaining_from(state.execution)
        left.append(budget.max_steps)
    assert left == [47, 44, 41]


def test_b13_what_an_execution_has_left() -> None:
    state = running(budget=ExecutionBudget(max_steps=3, max_tokens=100, max_seconds=60, max_cost=1.0))
    state = state.with_current_step(tool_step(), now=at(2)).with_usage(InferenceUsage(), 0.25)
    assert state.execution is not None
    left = state.execution.budget.remaining_from(state.execution, at(10))
    assert left == ExecutionBudget(max_steps=2, max_tokens=85, max_seconds=50, max_cost=0.75)


def test_b14_what_a_child_used_is_charged_to_its_parent_before_the_next_child() -> None:
    state = running(budget=ExecutionBudget(max_tokens=100))
    state = state.with_usage(InferenceUsage(input=60), 0.1)
    assert state.execution is not None
    assert state.execution.budget.remaining_from(state.execution).max_tokens == 40
    again = stored_and_loaded(state.with_usage(InferenceUsage(output=70))).execution
    assert again is not None
    assert again.budget.remaining_from(again).is_exhausted()


def test_the_part_of_children_is_told_apart_unless_an_earlier_version_has_charged_some() -> None:
    execution = running().with_usage(InferenceUsage(input=60), 0.1).execution
    assert execution is not None
    assert (execution.child_tokens, execution.child_cost) == (None, None)
    once = execution.with_child_charge(InferenceUsage(output=7), None, 0)
    twice = once.with_child_charge(InferenceUsage(output=3), 0.25, 2)
    assert (twice.child_tokens, twice.child_cost, twice.child_steps) == (10, 0.25, 2)
    assert (twice.usage.total, twice.cost) == (70, pytest.approx(0.35))
    old = ExecutionState.from_dict({**twice.to_dict(), "child_tokens": None, "child_cost": None})
    assert old.with_child_charge(InferenceUsage(output=7), 0.25, 1).child_tokens is None


def test_b15_the_counters_start_anew_with_the_next_execution() -> None:
    state = running(budget=ExecutionBudget(max_steps=1)).with_current_step(final_step()).with_execution_completed()
    state = state.with_execution(budget=ExecutionBudget(max_steps=1)).with_execution_started()
    assert state.execution is not None
    assert not state.execution.budget.remaining_from(state.execution).is_exhausted()
    assert state.usage == InferenceUsage()


def test_b16_a_partly_filled_budget_leaves_the_rest_unlimited() -> None:
    budget = ExecutionBudget(max_tokens=10)
    assert [getattr(budget, name) for name in (*LIMITS, "deadline")] == [None, 10, None, None, None]


def test_b8_the_token_measure_is_the_sum_of_all_five_kinds() -> None:
    usage = InferenceUsage(input=1, output=20, cache_write=300, cache_read=4000, reasoning=50000, requests=9)
    assert usage.total == 54321
    assert (usage + usage).total == 2 * usage.total
    assert (usage + usage).requests == 18
    assert usage + InferenceUsage() == usage


def test_what_a_provider_claims_beyond_all_measure_is_kept_as_the_largest_there_is() -> None:
    most = InferenceUsage(**dict.fromkeys(InferenceUsage.model_fields, 2**63 - 1))
    assert most + most == most
    state = running()
    assert state.execution is not None
    charged = state.execution.with_charge(most, 1.5e308).with_charge(most, 1.5e308)
    assert charged.usage == most
    assert charged.cost == sys.float_info.max
    assert type(charged).from_json(charged.to_json()) == charged


@pytest.mark.parametrize("used", [10**400, -(10**400), float("nan"), float("inf"), True, "1"])
def test_a_use_that_no_limit_can_be_compared_with_is_refused(used: Any) -> None:
    for name in ("seconds", "cost"):
        with pytest.raises(InvalidInput, match=rf"remaining\({name}\): give what was used as a number, from 0"):
            ExecutionBudget(max_seconds=1.0, max_cost=1.0).remaining(**{name: used})


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf"), 10**400, True, "1"])
def test_a_cost_that_no_state_can_store_is_refused(cost: Any) -> None:
    with pytest.raises(InvalidInput, match=r"with_usage\(cost\): give US dollars as a number, from 0"):
        AgentState.fresh().with_usage(InferenceUsage(), cost)


def test_tokens_of_children_stay_at_the_largest_number_that_can_be_stored() -> None:
    """A provider may claim any number."""
    huge = InferenceUsage(input=2**63 - 1, output=2**63 - 1)
    state = AgentState.fresh().with_execution()
    assert state.execution is not None
    execution = state.execution.with_child_charge(huge, 1.0, 1).with_child_charge(huge, sys.float_info.max, 1)
    charged = stored_and_loaded(state.with_context_and_execution(state.context, execution)).execution
    assert charged is not None
    assert (charged.child_tokens, charged.child_cost) == (2**63 - 1, sys.float_info.max)
