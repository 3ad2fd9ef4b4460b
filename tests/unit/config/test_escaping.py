"""Characters that act on a terminal or on the text around them are escaped."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_agents.config.escaping import escape, escape_json, escape_line, indent

ACTING = ["\x1b", "\x07", "\x00", "\r", "\x7f", "\x9b", "\x85", "\u202e", "\u2066", "\u200f", "\u200b", "\u2028"]
ACTING += ["\ufeff", "\ud800", "\U000e0041", "\U000e0101", "\u3164", "\u034f", "\ufe01"]


@pytest.mark.parametrize("char", ACTING)
def test_no_acting_character_stays_in_any_form(char: str) -> None:
    for form in (escape(f"a{char}b"), escape_line(f"a{char}b"), indent(f"a{char}b")):
        assert char not in form
        assert form.startswith("a\\")
    assert char not in escape_json(json.dumps(f"a{char}b", ensure_ascii=False))


@pytest.mark.parametrize("text", ["plain", "a\tb\nc", "grüße 你好", "👩‍💻 joined", "می‌خواهم", "e\u0301", "❤\ufe0f"])
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert escape(text) == text


def test_a_line_has_no_line_break() -> None:
    assert escape_line("a\n2026 forged\tb") == "a\\n2026 forged\\tb"
    assert escape("windows\r\nbreaks") == "windows\nbreaks"


def test_further_lines_are_indented() -> None:
    assert indent("one\nstep 2: paid") == "one\n    step 2: paid"


@given(st.recursive(st.text(st.characters()), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_escaped_json_has_the_same_value(value: object) -> None:
    assert json.loads(escape_json(json.dumps(value, ensure_ascii=False))) == value
