"""Names of limits, and of what is paused."""

from __future__ import annotations

from typing import Any, Final

from ..errors import InvalidInput

_NAME_CHARS: Final = 200


def check_name(place: str, value: Any, advice: str, *, may_be_empty: bool = False) -> None:
    """Check a name among the values of flow.

    Raises:
        InvalidInput: It is no text of 1 to 200 printable characters without `|`.
    """
    is_name = isinstance(value, str) and value.isprintable() and "|" not in value and len(value) <= _NAME_CHARS
    if not is_name or value != value.strip() or not (value or may_be_empty):
        raise InvalidInput(place, value, f"{advice}; up to {_NAME_CHARS} printable characters without |.")
