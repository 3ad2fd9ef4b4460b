"""Sizes of broker elements are checked before anything is parsed."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace
from typing import Any

import pytest

from celery_agents.tasks.consumer.message_checks import (
    LARGEST_BYTES,
    MOST_VALUES,
    InvalidMessage,
    check_size,
    decode_body,
    decode_text,
)
from celery_agents.tasks.consumer.safe_redelivery import MOST_HELD_BYTES, SafeQoS


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


def test_of_a_refused_element_only_the_beginning_is_decoded() -> None:
    for data, reason in ((b"x" * (LARGEST_BYTES + 1), "larger"), (b"{}" + b"\xff" * 1_000_000, "no UTF-8")):
        text = decode_text(data)
        assert len(text) < 10_000
        with pytest.raises(InvalidMessage, match=reason):
            check_size(text)
    assert decode_text("ä".encode()) == "ä"
    assert decode_text(7) == 7


class PlainQoS:
    """What kombu does, without Redis."""

    def can_consume(self) -> bool:
        return True

    def append(self, message: Any, delivery_tag: str) -> None: ...

    def ack(self, delivery_tag: str) -> None: ...

    def reject(self, delivery_tag: str, requeue: bool = False) -> None: ...


def message(queue: str, size: int) -> Any:
    return SimpleNamespace(body="x" * size, delivery_info={"routing_key": queue})


@pytest.mark.parametrize("end", ["ack", "reject"])
def test_no_further_message_is_taken_while_control_messages_fill_the_memory(end: str) -> None:
    qos: Any = type("LimitedQoS", (SafeQoS, PlainQoS), {"control_queue": "control"})()
    for number in range(20):
        qos.append(message("reports", MOST_HELD_BYTES // 10), f"report-{number}")
    assert qos.can_consume(), "what another queue brings is its app's affair"
    for number in range(4):
        qos.append(message("control", MOST_HELD_BYTES // 4), f"tag-{number}")
    assert not qos.can_consume()
    getattr(qos, end)("tag-2")
    assert qos.can_consume()
    for number in range(MOST_HELD_BYTES // 4_000):
        qos.append(message("control", 0), f"small-{number}")
    assert not qos.can_consume(), "many small ones fill it as well"
