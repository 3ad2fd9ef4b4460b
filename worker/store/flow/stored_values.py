"""Reading the values of flow as they are stored: anybody with access to Redis may have written them."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from ...errors import InvalidInput
from ...state.values.value import Value

V = TypeVar("V", bound=Value)


def read_stored(kind: type[V], raw: bytes | None) -> V | None:
    """Parse a stored value; None where there is none, or it cannot be read: then it holds nothing."""
    try:
        return None if raw is None else kind.from_json(raw)
    except (ValidationError, InvalidInput):
        return None
