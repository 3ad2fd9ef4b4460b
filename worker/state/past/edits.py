"""Edits of a conversation: the differences of a fork from its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ...errors import InvalidInput
from ..values.frozen import freeze

_ADVICE = "give ReplaceMessage(number, content) or SetResult(call_id, value), or an object with the same fields."


@dataclass(frozen=True, slots=True)
class ReplaceMessage:
    """Another text for a message of the user or of the model; calls that it asks for stay.

    Attributes:
        number: Of the message in the conversation, from 1.
    """

    number: int
    content: str


@dataclass(frozen=True, slots=True)
class SetResult:
    """Another result for a tool call, as if the tool had returned it.

    Attributes:
        call_id: As in the message that asks for the call. Of several calls with one id, the newest one is meant.
        value: JSON.
    """

    call_id: str
    value: Any


Edit = ReplaceMessage | SetResult


def read_edits(given: object) -> tuple[Edit, ...]:
    """Read edits, or their fields.

    Raises:
        InvalidInput: One is none; the error names it.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise InvalidInput("edit", given, "give a list of edits.")
    return tuple(_read_edit(f"edit[{place}]", each) for place, each in enumerate(cast("Sequence[object]", given)))


def _read_edit(name: str, given: object) -> Edit:
    edit: Any = given
    if isinstance(given, Mapping):
        edit = _from_fields(cast("Mapping[str, Any]", given))
    if isinstance(edit, ReplaceMessage) and isinstance(edit.content, str) and type(edit.number) is int:  # pyright: ignore[reportUnnecessaryIsInstance]
        freeze(edit.content, f"{name}.content")
    elif isinstance(edit, SetResult) and isinstance(edit.call_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        return SetResult(edit.call_id, freeze(edit.value, f"{name}.value"))
    else:
        raise InvalidInput(name, cast("Any", given), _ADVICE)
    return edit


def _from_fields(values: Mapping[str, Any]) -> Edit | None:
    if set(values) == {"number", "content"}:
        return ReplaceMessage(values["number"], values["content"])
    return SetResult(values["call_id"], values["value"]) if set(values) == {"call_id", "value"} else None
