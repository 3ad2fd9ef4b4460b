"""What somebody else wrote cannot forge a log line, in either form, and no known secret is in it."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from celery_agents.config.logs import JsonFormatter, TextFormatter

FORGED = "gone\n[2026-01-01 00:00:00,000: INFO/MainProcess] all is well \x1b[2J\u202e"
STYLE = "[%(asctime)s: %(levelname)s/%(processName)s] %(message)s"


def redact(text: str) -> str:
    return text.replace("hunter2hunter2", "[redacted]")


def record(message: str, *args: object, failing: bool = False) -> logging.LogRecord:
    exc_info = None
    if failing:
        try:
            raise ValueError(FORGED + " hunter2hunter2")
        except ValueError:
            exc_info = sys.exc_info()
    return logging.LogRecord("celery_agents.x", logging.INFO, __file__, 1, message, args, exc_info)


def check(written: str) -> None:
    assert not any(char in written for char in "\x1b\u202e")
    assert "hunter2" not in written


def test_a_forged_line_of_a_text_log_does_not_begin_in_the_first_column() -> None:
    written = TextFormatter(logging.Formatter(STYLE), redact).format(record("session %s", FORGED, failing=True))
    check(written)
    first, *others = written.splitlines()
    assert first.startswith("[2")
    assert others
    assert all(line.startswith("    ") for line in others)


def test_a_json_line_is_one_line_of_ascii_controls_escaped() -> None:
    written = JsonFormatter(redact).format(record("session %s", FORGED + "hunter2hunter2", failing=True))
    check(written)
    assert "\n" not in written
    assert json.loads(written)["message"].endswith("[redacted]")


def test_the_record_itself_is_left_to_other_handlers() -> None:
    given = record("session %s", FORGED)
    TextFormatter(None, redact).format(given)
    assert given.args == (FORGED,)


@pytest.mark.parametrize("text", ["ordinary", "größer 5 %", ""])
def test_ordinary_messages_are_as_the_inner_formatter_writes_them(text: str) -> None:
    assert TextFormatter(logging.Formatter(STYLE), str).format(record("%s", text)).endswith(f"] {text}")
