"""Reducers combine what parallel branches bring; None counts as empty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.state import Message
from celery_agents.worker.state.reducers import (
    CLEAR_MESSAGES,
    add_messages,
    add_numbers,
    append_list,
    deep_merge_dict,
    first_value,
    last_value,
    max_value,
    merge_dict,
    min_value,
    set_union,
    unique_append_list,
)

CASES: list[tuple[Callable[[Any, Any], Any], Any, Any, Any]] = [
    (add_messages, [{"id": 1, "text": "a"}], {"id": 2}, [{"id": 1, "text": "a"}, {"id": 2}]),
    (add_messages, [{"id": 1, "text": "a"}, {"id": 2}], [{"id": 1, "text": "b"}], [{"id": 1, "text": "b"}, {"id": 2}]),
    (add_messages, [{"id": 1}], CLEAR_MESSAGES, []),
    (add_messages, [{"text": "a"}], {"text": "a"}, [{"text": "a"}, {"text": "a"}]),
    (merge_dict, {"a": 1, "b": {"c": 1}}, {"b": {"d": 2}}, {"a": 1, "b": {"d": 2}}),
    (deep_merge_dict, {"a": [1], "b": {"c": 1}}, {"a": [2], "b": {"d": 2}}, {"a": [2], "b": {"c": 1, "d": 2}}),
    (append_list, [1, 2], [2, 3], [1, 2, 2, 3]),
    (append_list, (1,), "text", [1, "text"]),
    (unique_append_list, [1, [2]], [[2], 3, 1], [1, [2], 3]),
    (add_numbers, 2, 0.5, 2.5),
    (max_value, 2, 5, 5),
    (min_value, 2, 5, 2),
    (first_value, 2, 5, 2),
    (last_value, 2, 5, 5),
    (set_union, [3, 1], [1, 2], [3, 1, 2]),
    (set_union, {3, 1}, [1, 2], {1, 2, 3}),
]


@pytest.mark.parametrize(("reducer", "current", "update", "merged"), CASES)
def test_a_reducer_combines_two_values(
    reducer: Callable[[Any, Any], Any], current: Any, update: Any, merged: Any
) -> None:
    assert reducer(current, update) == merged


@pytest.mark.parametrize(
    ("reducer", "value"),
    [
        (add_messages, [Message.user("a")]), (merge_dict, {"a": 1}), (deep_merge_dict, {"a": {"b": 1}}),
        (append_list, [1]), (unique_append_list, [1]), (add_numbers, 4), (max_value, 4), (min_value, -4),
        (first_value, "a"), (last_value, "a"), (set_union, [1]),
    ],
)  # fmt: skip
def test_none_counts_as_empty_on_both_sides(reducer: Callable[[Any, Any], Any], value: Any) -> None:
    assert reducer(None, value) == value
    assert reducer(value, None) == value


@pytest.mark.parametrize(("reducer", "empty"), [(append_list, []), (merge_dict, {}), (set_union, []), (add_numbers, 0)])
def test_two_nones_are_empty(reducer: Callable[[Any, Any], Any], empty: Any) -> None:
    assert reducer(None, None) == empty


@pytest.mark.parametrize(
    "reducer", [merge_dict, deep_merge_dict, append_list, unique_append_list, add_numbers, max_value, min_value]
)
def test_branches_may_be_combined_in_any_grouping(reducer: Callable[[Any, Any], Any]) -> None:
    values: tuple[Any, Any, Any] = ({"a": 1}, {"a": 2, "b": {"c": 1}}, {"b": {"d": 1}})
    if reducer in (append_list, unique_append_list):
        values = ([1, 2], [2], [3, 1])
    elif reducer not in (merge_dict, deep_merge_dict):
        values = (3, 1, 2)
    one, two, three = values
    assert reducer(reducer(one, two), three) == reducer(one, reducer(two, three))


def test_a_reducer_changes_neither_value() -> None:
    current, update = {"a": {"b": 1}}, {"a": {"c": 2}}
    deep_merge_dict(current, update)
    assert (current, update) == ({"a": {"b": 1}}, {"a": {"c": 2}})


@pytest.mark.parametrize(
    ("reducer", "current", "update"),
    [
        (add_messages, [], "hello"),
        (merge_dict, [1], {}),
        (add_numbers, 1, "2"),
        (set_union, 1, []),
        (add_messages, [], 3),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(
    reducer: Callable[[Any, Any], Any], current: Any, update: Any
) -> None:
    with pytest.raises(InvalidInput, match=reducer.__name__):
        reducer(current, update)
