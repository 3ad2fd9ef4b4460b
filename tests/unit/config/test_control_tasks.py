"""Which control tasks the settings let workers take."""

from __future__ import annotations

import warnings

import pytest

from celery_agents.config.settings import CONTROL_TASKS, Settings, SettingsError
from celery_agents.tasks.app import create_app
from celery_agents.tasks.names import CONTROL, PREFIX, STEP


def test_only_what_harms_no_other_session_is_taken_by_default() -> None:
    taken = {name for name in CONTROL_TASKS if Settings.build().takes_control(name)}
    assert taken == {"submit", "answer_by_token", "complete", "fail"}


def test_all_are_taken_or_those_that_are_named() -> None:
    assert all(Settings.build(control_tasks="all").takes_control(name) for name in CONTROL_TASKS)
    named = Settings.build(control_tasks=" stop, submit ")
    assert [name for name in CONTROL_TASKS if named.takes_control(name)] == ["submit", "stop"]
    assert not any(Settings.build(control_tasks="").takes_control(name) for name in CONTROL_TASKS)


def test_each_name_of_the_setting_is_a_task_and_each_task_has_a_name_there() -> None:
    tasks = {name for name in create_app(Settings.build(control_tasks="all")).tasks if name.startswith(PREFIX)}
    assert tasks - {STEP} == {*CONTROL}


@pytest.mark.parametrize("control_tasks", ["all", "", "submit, retry", "stop"])
def test_each_task_is_registered_once(control_tasks: str) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        tasks = create_app(Settings.build(control_tasks=control_tasks)).tasks
        assert {*CONTROL} <= tasks.keys()
    assert [str(each.message) for each in said if any(f"'{name}'" in str(each.message) for name in CONTROL)] == []


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(SettingsError, match=r"CONTROL_TASKS.*'aprove' is no control task; choose from all, submit"):
        Settings.build(control_tasks="submit,aprove")
