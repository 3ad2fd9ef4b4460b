"""The field `parent` of a session: its place in a tree."""

from __future__ import annotations

from pydantic import ValidationError

from ...errors import StateUnreadable
from ...state import ParentLink


def read_link(raw: bytes | None) -> ParentLink | None:
    """Parse the field `parent` of a session; None for a session without a parent.

    Raises:
        StateUnreadable: It is damaged.
    """
    if not raw:
        return None
    try:
        return ParentLink.from_json(raw)
    except ValidationError:
        raise StateUnreadable("parent", "it names no parent") from None
