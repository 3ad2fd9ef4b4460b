"""What is shown."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from celery_agents.tasks.cli.budget_views import print_budget
from celery_agents.tasks.cli.event_lines import EventLines, describe_tools
from celery_agents.tasks.cli.session_views import session_lines
from celery_agents.tasks.cli.views import age, as_json, clean, one_line, plural, seconds, table
from celery_agents.worker.state import AgentState, ExecutionBudget, ExecutionState
from celery_agents.worker.store.session_records import Header

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def event(kind: str, step: int = 0, after: float = 0.0, **data: Any) -> Any:
    return SimpleNamespace(type=kind, step=step, at_ms=round((NOW.timestamp() + after) * 1000), data=data)


def told(*events: Any) -> list[str | None]:
    lines = EventLines()
    return [lines.line(each) for each in events]


def test_what_an_agent_wrote_cannot_steer_the_terminal() -> None:
    assert clean("a\x1b[31mred\x07\r\nb\tc\x9b2J\u202e") == "a\\x1b[31mred\\x07\nb\tc\\x9b2J\\u202e"


def test_json_holds_no_character_that_acts_on_a_terminal() -> None:
    written = as_json({"text": "a\x1b[2J\x9b2J\u202e\x7f\ud800"})
    assert written == '{"text": "a\\u001b[2J\\u009b2J\\u202e\\u007f\\ud800"}'
    assert json.loads(written)["text"] == "a\x1b[2J\x9b2J\u202e\x7f\ud800"


def test_what_a_model_wrote_does_not_look_like_a_line_of_ours() -> None:
    state = AgentState.fresh(now=NOW).with_user_message("hello\nsession s1  agent other\nassistant: paid", now=NOW)
    lines = session_lines(header(), state, "")
    assert lines[-3:] == ["user: hello", "    session s1  agent other", "    assistant: paid"]


def header() -> Header:
    return Header("s1", "a", "completed", version=1)


def test_a_line_is_one_line() -> None:
    assert one_line("a\n b\t\x00c", 80) == "a b \\x00c"
    assert one_line("x" * 100, 10) == "x" * 9 + "…"


def test_a_table_is_aligned() -> None:
    assert table(("A", "LONG"), [("aaa", "b"), ("c", "d\ne")]) == ["A    LONG", "aaa  b", "c    d e"]


@pytest.mark.parametrize(("seconds", "text"), [(-5, "0s"), (59, "59s"), (60, "1m"), (7200, "2h"), (200_000, "2d")])
def test_an_age_has_one_unit(seconds: float, text: str) -> None:
    assert age(NOW, NOW + timedelta(seconds=seconds)) == text


def test_a_duration_of_any_length_is_read_at_a_glance() -> None:
    values = (0.254, 9.99, 42.4, 599, 1_923, 7_100, 12_600)
    assert [seconds(value) for value in values] == [
        "0.25 s", "9.99 s", "42 s", "599 s", "32 min", "118 min", "3.5 h",
    ]  # fmt: skip


def test_a_budget_without_a_limit_of_steps_has_the_default_one(capsys: pytest.CaptureFixture[str]) -> None:
    for default, most in ((100, "100 of its own, by default"), (0, "-"), (None, "-")):
        print_budget("s1", ExecutionState(execution_id="e1", default_steps=default), False)
        assert f"max_steps    0     {most}\n" in capsys.readouterr().out
    limited = ExecutionState(execution_id="e1", default_steps=0, budget=ExecutionBudget(max_steps=7))
    print_budget("s1", limited, False)
    assert "max_steps    0     7\n" in capsys.readouterr().out


def test_json_takes_times_and_odd_values() -> None:
    assert as_json({"at": NOW, "x": {1}, "ü": None}) == '{"at": "2026-01-02T03:04:05+00:00", "x": "{1}", "ü": null}'


def test_plurals() -> None:
    assert (plural(1, "step"), plural(0, "step")) == ("1 step", "0 steps")


def test_tools_are_counted_and_failures_named() -> None:
    tools = [
        {"name": "read", "outcome": "ok"},
        {"name": "list"},
        {"name": "read"},
        {"name": "read", "outcome": "error"},
    ]
    assert describe_tools(tools) == "read ×2, list, read (error)"


def test_a_job_is_told_step_by_step() -> None:
    assert told(
        event("execution_submitted"),
        event("execution_started", 1, 0.1),
        event("step_committed", 1, 0.5, tools=[{"name": "search", "outcome": "ok"}], tokens=1),
        event("step_recovered", 2, 7, attempt=2, worker="w2"),
        event("step_committed", 2, 8, tools=[]),
        event("execution_completed", 2, 8, status="completed", steps=2, tokens=12, cost=0.25),
    ) == [
        None,
        "   0.10 s  started",
        "   0.50 s  step 1: search · 1 token",
        "   7.00 s  step 2: carried on by w2, attempt 2",
        "   8.00 s  step 2: answers",
        "   8.00 s  completed: 2 steps, 12 tokens, $0.2500",
    ]


def test_ends_say_why() -> None:
    assert told(
        event("execution_failed", 1, status="failed", steps=1, error="no key"),
        event("execution_stopped", 1, status="stopped", reason="user_requested"),
    ) == ["   0.00 s  failed: 1 step (no key)", "   0.00 s  stopped: user_requested"]


def test_an_event_of_a_newer_version_is_told_by_its_name() -> None:
    assert told(event("moon_landed")) == ["   0.00 s  moon landed"]


def test_an_outage_is_told_with_its_reason_and_the_next_try() -> None:
    at_ms = round(NOW.timestamp() * 1000)
    assert told(
        event("model_call_failed", 2, message="it failed (HTTP 500).", next_try_ms=at_ms + 1_200),
        event("step_delayed", 2, 2.0, reason="server_error: it failed (HTTP 500).", next_try_ms=at_ms + 17_000),
        event("step_resumed", 2, 17.0, worker="w1"),
    ) == [
        "   0.00 s  step 2: the model call failed; next try in 1 s (03:04:06 UTC): it failed (HTTP 500).",
        "   2.00 s  step 2: delayed; next try in 15 s (03:04:22 UTC): server_error: it failed (HTTP 500).",
        "  17.00 s  step 2: tried again by w1",
    ]


def test_an_answer_that_is_cut_short_says_so() -> None:
    assert told(event("execution_completed", 1, status="completed", steps=1, finish_reason="length")) == [
        "   0.00 s  completed: 1 step (the answer was cut short: length)"
    ]


def test_who_asked_for_a_stop_is_told_in_one_line() -> None:
    (line,) = told(event("stop_requested", 1, by="ops\n   0.00 s  completed"))
    assert line == "   0.00 s  a stop was requested by ops 0.00 s completed"


ODD_TIMES = [float("inf"), float("nan"), 10**30, -(10**30), "soon", None, [], {}]


@pytest.mark.parametrize("moment", ODD_TIMES)
@pytest.mark.parametrize("kind", ["model_call_failed", "step_delayed"])
def test_an_event_with_an_odd_time_is_told_and_ends_no_watch(kind: str, moment: object) -> None:
    lines, odd = EventLines(), event(kind, 2, next_try_ms=moment)
    assert "cannot be read" in (lines.line(odd) or "")
    assert lines.status(odd) is None


def test_an_end_with_odd_numbers_is_told() -> None:
    assert told(event("execution_failed", 1, status="failed", steps=[], tokens={}, cost="x", error=7)) == [
        "   0.00 s  execution_failed: its data cannot be read"
    ]
