"""docs/security.md names tests that exist, and docs/limits.md settings that exist, with their defaults."""

from __future__ import annotations

import re

import pytest

from celery_agents.config.settings import Settings
from celery_agents.tasks.http.event_hub import MOST_WAITING_BYTES, MOST_WAITING_BYTES_OF_ALL

from support.product import ROOT

SECURITY = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
LIMITS = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
ITEMS = 26
DEFAULTS = {
    "MAX_ANSWER_BYTES": "4 MB", "MAX_CALLS": "128", "MAX_RESULT_CHARS": "32 000", "MAX_RESULT_BYTES": "256 kB",
    "MAX_MESSAGE_BYTES": "1 MB", "INBOX_LIMIT": "1 000", "MAX_INBOX_BYTES": "8 MB", "MAX_SESSION_BYTES": "32 MB",
    "MAX_EVENT_BYTES": "16 kB", "EVENTS_KEPT": "1 000", "DEAD_KEPT": "10 000", "EXECUTIONS_KEPT": "50",
    "CACHE_BYTES": "128 MB",
}  # fmt: skip
UNITS = {"kB": 1_000, "MB": 1_000_000}


def rows_of(part: str) -> list[list[str]]:
    """The rows of a table below its head, each split at its bars."""
    rows = [row.split("|") for row in re.findall(r"^\| .* \|$", part, re.MULTILINE)][1:]
    return [row for row in rows if not set(row[1]) <= {"-", " "}]


def test_each_user_of_redis_has_a_row() -> None:
    table = SECURITY.partition("## Users of Redis")[2].partition("\n## ")[0]
    told = {name for row in rows_of(table) for name in re.findall(r"`(\w+)`", row[1])}
    users = (ROOT / "deploy" / "redis" / "users.acl").read_text(encoding="utf-8")
    assert told == set(re.findall(r"^user (\w+) ", users, re.MULTILINE))


def test_each_item_holds_with_a_test_or_says_why_not() -> None:
    rows = rows_of(SECURITY.partition("## Users of Redis")[0])
    assert len(rows) >= ITEMS
    for _, item, verdict, shown, _ in rows:
        assert verdict.strip() in ("holds", "not promised", "not applicable"), item
        assert verdict.strip() != "holds" or "`tests/" in shown, item


@pytest.mark.parametrize("page", [SECURITY, LIMITS], ids=["security", "limits"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", page)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_defaults_of_the_limits_are_those_of_the_settings(name: str) -> None:
    number, _, unit = DEFAULTS[name].rpartition(" ")
    value = int(number.replace(" ", "")) * UNITS[unit] if unit in UNITS else int(DEFAULTS[name].replace(" ", ""))
    assert Settings.model_fields[name.lower()].default == value
    assert any(f"`{name}`" in row and DEFAULTS[name] in row for row in LIMITS.splitlines())


def test_the_bytes_that_wait_for_slow_readers_are_those_of_the_event_hub() -> None:
    one, of_all = (number // UNITS["MB"] for number in (MOST_WAITING_BYTES, MOST_WAITING_BYTES_OF_ALL))
    (row,) = (row for row in LIMITS.splitlines() if row.startswith("| events and live text that wait for one"))
    assert f"{one} MB; {of_all} MB |" in row
