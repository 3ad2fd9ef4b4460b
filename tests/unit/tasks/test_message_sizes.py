"""Sizes of broker elements are checked before anything is parsed."""

from __future__ import annotations

import base64
import json

import pytest

from celery_agents.tasks.consumer.message_checks import (
    LARGEST_BYTES,
    MOST_VALUES,
    InvalidMessage,
    check_size,
    decode_body,
    parse_element,
)


def test_what_stands_in_texts_is_no_value() -> None:
    check_size(json.dumps({"message": '"[{,:\\' * MOST_VALUES, "also": ",,,,\n" * MOST_VALUES}))


@pytest.mark.parametrize(
    "text",
    [
        "[" * (MOST_VALUES + 1),
        json.dumps([{}] * MOST_VALUES),
        json.dumps({str(number): 0 for number in range(MOST_VALUES)}),
        json.dumps({"text": ",", "list": [0] * (MOST_VALUES + 1)}),
        '"' + '\\"' * 100 + '"' + "," * (MOST_VALUES + 1),
    ],
)
def test_a_text_of_more_values_than_allowed_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessage, match="JSON values"):
        check_size(text)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ['"' + '\\"' * 1_900_000, '"' * 3_900_000, "," * 20_000 + '"\\' * 1_900_000])
def test_no_text_takes_long_to_count(text: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        check_size(text + "," * (2 * MOST_VALUES) if text.endswith('"' * 10) else "," * 2 * MOST_VALUES + text)
    assert "JSON values" in str(caught.value)


def test_the_body_in_a_message_is_counted_too() -> None:
    body = base64.b64encode(json.dumps([[], {"a": [0] * MOST_VALUES}, None]).encode()).decode()
    with pytest.raises(InvalidMessage, match="JSON values"):
        decode_body({"body": body, "properties": {"body_encoding": "base64"}})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"x" * (LARGEST_BYTES + 1), "larger"),
        (b"{}" + b"\xff" * 1_000_000, "UnicodeDecodeError"),
        (b"not json", "not JSON"),
        (b"[" * 9_000, "not JSON: (RecursionError|JSONDecodeError)"),
        (b'{"a": {"__type__": "datetime", "__value__": 7}}', "not JSON"),
    ],
)
def test_what_is_no_json_in_utf_8_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidMessage, match=reason):
        parse_element(data)
    assert parse_element('"ä"'.encode()) == "ä"
