"""Durations, times and beginnings of ids as people write them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from celery_agents.tasks.cli import request_commands
from celery_agents.tasks.cli.options import duration, find_session, moment_option, read_text
from celery_agents.worker.errors import InvalidInput, SessionNotFound


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


@pytest.mark.parametrize(
    "text", ["", "5", "h", "-1h", "1y", "1h later", "0s", "nan s", "1e9d", "９９９９９９９９９w", "900000d", "999999w"]
)
def test_anything_else_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        duration(text)


def test_a_file_that_cannot_be_read_is_a_usage_error(tmp_path: Path) -> None:
    writable = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    with os.fdopen(writable) as file, pytest.raises(typer.BadParameter, match="it cannot be read: Bad file descriptor"):
        read_text(file, "FILE")


@pytest.fixture
def set_zone() -> Iterator[Callable[[str], None]]:
    """Sets the time zone of the process for one test."""
    before = os.environ.get("TZ")

    def set_to(zone: str | None) -> None:
        os.environ.pop("TZ", None)
        if zone is not None:
            os.environ["TZ"] = zone
        time.tzset()

    yield set_to
    set_to(before)


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        ("Asia/Tokyo", "9999-12-31T23:00:00+00:00"),
        ("Asia/Tokyo", "0001-01-01T00:00"),
        ("Asia/Tokyo", "9999-12-31T23:59"),
        ("America/New_York", "0001-01-01T00:00"),
        ("America/New_York", "9999-12-31T23:59"),
    ],
)
def test_a_time_that_no_calendar_has_is_a_usage_error(zone: str, text: str, set_zone: Callable[[str], None]) -> None:
    set_zone(zone)
    with pytest.raises(typer.BadParameter, match="give a time from 1970 to the year 9999"):
        moment_option(datetime.fromisoformat(text))


def test_a_time_without_an_offset_is_local_time(set_zone: Callable[[str], None]) -> None:
    set_zone("Asia/Tokyo")
    assert moment_option(datetime.fromisoformat("2030-01-31T06:00")) == datetime(2030, 1, 30, 21, tzinfo=UTC)
    assert moment_option(None) is None


@given(st.text())
def test_no_text_makes_it_fall_over(text: str) -> None:
    with contextlib.suppress(typer.BadParameter):
        assert duration(text) > timedelta()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("349", "349d"),  # and not its child, or its fork
        ("349…", "349d"),
        ("349d.f", "349d.fork"),
        ("order", "order"),
        ("tree", "tree"),
        ("3", "several ids begin like this: 349d, 35aa; write more of it."),
        ("349d.", "349d"),
        ("order-", "several ids begin like this: order-17, order-18; write more of it."),
        ("s", "several ids begin like this: s0, s1, s2, s3, s4 and more; write more of it."),
    ],
)
def test_the_beginning_of_an_id_names_a_session_and_not_what_is_below_it(text: str, expected: str) -> None:
    ids = ["349d", "349d.child", "349d.child.below", "349d.fork", "35aa", "order", "order-17", "order-17.a", "order-18",
           "order.a", "tree", *(f"tree.{number}" for number in range(255)), *(f"s{number}" for number in range(9))]  # fmt: skip

    def header(wanted: str) -> Any:
        if wanted in ids:
            return SimpleNamespace(session_id=wanted)
        raise SessionNotFound(f"There is no session {wanted!r}.")

    sessions = SimpleNamespace(
        find_matching=lambda prefix, limit: sorted(each for each in ids if each.startswith(prefix))[:limit]
    )
    client: Any = SimpleNamespace(header=header, store=SimpleNamespace(sessions=sessions))
    if expected in ids:
        assert find_session(client, text) == expected
    else:
        with pytest.raises(InvalidInput) as refused:
            find_session(client, text)
        assert expected in str(refused.value)


def test_a_time_of_a_request_names_its_zone(set_zone: Callable[[str], None]) -> None:
    set_zone("America/New_York")
    at_ms = int(datetime(2026, 1, 2, 3, 4, tzinfo=UTC).timestamp() * 1000)
    assert request_commands._format_time(at_ms) == "2026-01-02 03:04 UTC"
