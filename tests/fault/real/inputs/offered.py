"""The tools that the agents of these examples offer."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from typing import Any, Final, Literal

from celery_agents.worker.tools import tool

from .extremes import Model
from .stored import noted, once

given_result: Final[list[Any]] = [None]


def _given() -> Any:
    result = given_result[0]
    if isinstance(result, BaseException):
        raise result
    return result


@tool(effect="pure")
def given() -> Any:
    """Return what the example says, or raise it."""
    return _given()


@tool(effect="unsafe")
async def given_async() -> Any:
    """The same on the event loop."""
    return _given()


@tool(effect="keyed")
def whole(value: int = 0, amount: float = 0.0, flag: bool = False) -> list[Any]:
    """Numbers."""
    return [value, amount, flag]


@tool(effect="keyed")
def words(value: str = "", choice: Literal["a", "b"] = "a", many: list[str] | None = None) -> list[Any]:
    """Texts."""
    return [value, choice, many]


@tool(effect="unsafe")
def anything(value: Any = None, table: dict[str, Any] | None = None) -> list[Any]:
    """Anything at all."""
    return [value, table]


@tool(effect="pure")
def typed(
    value: decimal.Decimal | None = None, when: dt.datetime | None = None, lasting: dt.timedelta | None = None,
    name: uuid.UUID | None = None, data: bytes | None = None, model: Model | None = None,
) -> list[Any]:  # fmt: skip
    """What pydantic reads from JSON."""
    return [value, when, lasting, name, model, data and len(data)]


TOOLS: Final = (noted, once, given, given_async, whole, words, anything, typed)
