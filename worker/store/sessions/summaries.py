"""Summaries of sessions: the content that listings show, and look for, besides the headers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final

from pydantic import ValidationError

from ...errors import InvalidInput, StateUnreadable
from ...state.conversation.messages import DEFAULT
from ...state.execution.usage import InferenceUsage
from .. import fields
from ..context import StorePart
from ..packing import unpack
from ..session_records import Header, SessionSummary
from .reads import read_result

_FIRST_CHARS: Final = 200


class SummaryVerbs(StorePart):
    """Summaries of sessions."""

    def summaries(self, session_ids: Sequence[str]) -> dict[str, SessionSummary]:
        """Read first message, steps, tokens and cost of sessions, by id; those that cannot be read are left out."""
        all_keys = [self._context.keys(session_id) for session_id in session_ids]
        reads = [[("HGET", keys.session, "head"), ("LINDEX", keys.section(DEFAULT, 0), 0)] for keys in all_keys]
        found: dict[str, SessionSummary] = {}
        for session_id, replies in zip(session_ids, self._context.read_apart("summaries", reads), strict=True):
            with contextlib.suppress(StateUnreadable, AttributeError, KeyError, TypeError):
                if not isinstance(replies, StateUnreadable):
                    found[session_id] = _summary(*replies)
        return found

    def last_errors(self, headers: Sequence[Header]) -> dict[str, str]:
        """The last error of the latest execution of sessions, by id; those without one are left out."""
        reads = [[("HGET", self._context.keys(each.session_id).session, f"e:{each.execution_id}")] for each in headers]
        found: dict[str, str] = {}
        for header, replies in zip(headers, self._context.read_apart("errors", reads), strict=True):
            with contextlib.suppress(StateUnreadable):
                result = None if isinstance(replies, StateUnreadable) else read_result(header.session_id, replies[0])
                if result is not None and result.errors:
                    found[header.session_id] = result.errors[-1]
        return found


def _summary(head: bytes | None, message: bytes | None) -> SessionSummary:
    stored: Any = fields.read_json(head, "head") if head else {}
    execution: Any = stored.get("state", {}).get("execution") or {}
    first = fields.read_json(unpack(message), "a message").get("content", "") if message else ""
    return SessionSummary(
        first_message=str(first)[:_FIRST_CHARS],
        steps=execution.get("step_count", 0),
        cost=execution.get("cost"),
        tokens=_count_tokens(execution.get("usage", {})),
    )


def _count_tokens(usage: Any) -> int | None:
    """All tokens of a stored usage; None where it is damaged."""
    try:
        return InferenceUsage.from_dict(usage).total
    except (ValidationError, InvalidInput, TypeError):
        return None
