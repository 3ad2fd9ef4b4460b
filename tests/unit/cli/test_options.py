"""Durations as people write them."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from celery_agents.tasks.cli.options import duration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", timedelta(seconds=90)),
        ("30m", timedelta(minutes=30)),
        ("1h", timedelta(hours=1)),
        ("7d", timedelta(days=7)),
        ("2W", timedelta(weeks=2)),
        ("1h30m", timedelta(minutes=90)),
        ("1.5 h", timedelta(minutes=90)),
    ],
)
def test_units_are_understood(text: str, expected: timedelta) -> None:
    assert duration(text) == expected


@pytest.mark.parametrize("text", ["", "5", "h", "-1h", "1y", "1h later", "0s", "nan s", "1e9d", "９９９９９９９９９w"])
def test_anything_else_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        duration(text)


@given(st.text())
def test_no_text_makes_it_fall_over(text: str) -> None:
    with contextlib.suppress(typer.BadParameter):
        assert duration(text) > timedelta()
