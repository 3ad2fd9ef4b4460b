"""The lines of concurrency limits, as the script `holders` is asked about them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...flow.concurrency import LimitPart, concurrency_field, part_of
from ..context import StoreContext
from ..database import Word


def script_words(
    context: StoreContext, parts: Sequence[LimitPart], asked: dict[str, Any]
) -> tuple[list[str], list[Word]]:
    """The keys and arguments of the script `holders` for parts of limits."""
    keys = [key for part in parts for key in context.fleet.holders(str(part)).all]
    limits = [(concurrency_field(part.name), part.label) for part in parts]
    words = json.dumps({**asked, "parts": [str(part) for part in parts], "limits": limits})
    return [context.fleet.flow, context.fleet.lines, *keys], [words]


def may_go(context: StoreContext, session_id: str, put_off: str) -> bool:
    """Whether a session that a concurrency limit has put off just now may go by now.

    Raises:
        StoreUnavailable: No answer in time.
    """
    part = part_of(put_off)
    if part is None:  # nobody has defined the limit
        defined = ("HGET", context.fleet.flow, concurrency_field(put_off.partition(":")[2]))
        return context.database.pipeline("holders.defined", [defined])[0] is not None
    words = script_words(context, (part,), {"op": "look", "session": session_id})
    return bool(context.database.script("holders.look", "holders", *words)[0])
