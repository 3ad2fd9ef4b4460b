"""The job of both sides: look an order up, refund it, answer the customer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .ledger import Kind, Ledger, Side, hold_seconds

MESSAGE: Final = "Order 17 arrived broken. I want my money back."

SYSTEM_PROMPT: Final = """\
You are the support of a tea shop. When an order arrived broken, look it up with find_order, refund its whole amount \
with refund, and then tell the customer in one sentence what you refunded. Call one tool at a time, and refund an \
order only once."""

_ORDERS: Final[Mapping[str, tuple[str, int]]] = {"17": ("teapot", 2400), "18": ("kettle", 3900)}
_NUMBER: Final = re.compile(r"\d+")


@dataclass(frozen=True)
class ToolRequest:
    """A tool call that the support asks for."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


def decide_next(message: str, results: Sequence[Any]) -> ToolRequest | str:
    """Decide what a model would decide: the next tool call, or the answer to the customer.

    Args:
        message: The customer's message.
        results: Results of the tool calls since this message.
    """
    number = _NUMBER.search(message)
    if number is None:
        return "Which order is it about? Please give its number."
    if not results:
        return ToolRequest("find_order", {"number": number.group()})
    order: Any = results[0]
    if not isinstance(order, Mapping):
        return f"I could not help: {order}"
    if len(results) == 1:
        return ToolRequest("refund", {"number": number.group(), "cents": order["cents"]})
    return f"I am sorry that your {order['item']} arrived broken. I {results[1]}."


def look_up_order(number: str) -> dict[str, Any]:
    """Look an order up.

    Raises:
        LookupError: There is no such order.
    """
    if number not in _ORDERS:
        raise LookupError(f"there is no order {number}")
    item, cents = _ORDERS[number]
    return {"number": number, "item": item, "cents": cents}


def pay_refund(side: Side, key: str, number: str, cents: int, *, timeout_seconds: float = 60.0) -> str:
    """Pay a refund out through the ledger, which recognises a key that it knows.

    Args:
        key: Idempotency key of this refund.
        timeout_seconds: How long to wait for the ledger.
    """
    ledger = Ledger.from_environment()
    if ledger is not None:
        ledger.write(side, Kind.REFUND, key=key, cents=cents, hold=hold_seconds(), timeout_seconds=timeout_seconds)
    return f"refunded {cents / 100:.2f} for order {number}"


def note_paid_answer(side: Side, *, tool: str = "", text: str = "") -> None:
    """Note that a model's answer was obtained, and so has to be paid for.

    Args:
        tool: The tool that it asks for; "" when it is the answer to the customer.
        text: The answer's text.
    """
    ledger = Ledger.from_environment()
    if ledger is not None:
        ledger.write(side, Kind.ANSWER, tool=tool, text=text)
