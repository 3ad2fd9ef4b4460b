"""A run: its groups, and the names that a phase may change."""

from __future__ import annotations

import ast
from dataclasses import fields
from typing import get_type_hints

import pytest

from celery_agents.worker.engine.run import Run, RunChanges
from celery_agents.worker.engine.run_values import Ending, Obtained, Progress

from support.product import modules

CHANGES = get_type_hints(RunChanges)


def test_a_run_has_at_most_twenty_fields() -> None:
    assert len(fields(Run)) <= 20


def test_what_may_change_are_fields_of_a_run_of_the_same_types() -> None:
    kept = {each.name: str(each.type) for each in fields(Run)}
    given = {name: str(RunChanges.__annotations__[name].__forward_arg__) for name in CHANGES}
    assert {name: kept[name].removesuffix(" | None") for name in given} == given


def test_each_change_in_the_engine_has_the_name_of_a_field() -> None:
    found: list[str] = []
    for name, path in modules().items():
        if ".worker.engine" in name:
            calls = (
                node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)
            )
            changing = (call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "changed")
            found += [str(keyword.arg) for call in changing for keyword in call.keywords if keyword.arg != "changes"]
    assert found
    assert set(found) - {"None"} <= set(CHANGES)


@pytest.mark.parametrize("group", [Progress(), Obtained(), Ending()], ids=lambda group: type(group).__name__)
def test_a_group_refuses_a_name_that_it_lacks(group: Progress | Obtained | Ending) -> None:
    with pytest.raises((TypeError, ValueError), match="is_stoping"):
        group._replace(is_stoping=True)
