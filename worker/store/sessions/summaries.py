"""Summaries of sessions: the content that listings show, and look for, besides the headers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
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
        found, replaced = self._summaries(dict.fromkeys(session_ids, 0))
        if any(replaced.values()):  # a rewind, a clear or a summary has replaced the conversation
            again, _ = self._summaries({name: generation for name, generation in replaced.items() if generation})
            found.update(again)
        return found

    def _summaries(self, generations: Mapping[str, int]) -> tuple[dict[str, SessionSummary], dict[str, int]]:
        """Read summaries with the first messages of these generations; those where it is another one, with that."""
        all_keys = [(self._context.keys(session_id), generation) for session_id, generation in generations.items()]
        reads = [
            [("HGET", keys.session, "head"), ("LINDEX", keys.section(DEFAULT, generation), 0)]
            for keys, generation in all_keys
        ]
        found: dict[str, SessionSummary] = {}
        replaced: dict[str, int] = {}
        for session_id, replies in zip(generations, self._context.read_apart("summaries", reads), strict=True):
            with contextlib.suppress(StateUnreadable, AttributeError, KeyError, TypeError):
                if not isinstance(replies, StateUnreadable):
                    found[session_id], generation = _summary(*replies)
                    if generation != generations[session_id]:
                        replaced[session_id] = generation
        return found, replaced

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


def _summary(head: bytes | None, message: bytes | None) -> tuple[SessionSummary, int]:
    """Make a summary; with it the generation of the conversation."""
    stored: Any = fields.read_json(head, "head") if head else {}
    execution: Any = stored.get("state", {}).get("execution") or {}
    first = fields.read_json(unpack(message), "a message").get("content", "") if message else ""
    summary = SessionSummary(
        first_message=str(first)[:_FIRST_CHARS],
        steps=execution.get("step_count", 0),
        cost=execution.get("cost"),
        tokens=_count_tokens(execution.get("usage", {})),
    )
    generation: Any = stored
    for name in ("state", "context", "store", "sections", DEFAULT, "generation"):
        generation = generation.get(name, {})  # parts that are as they begin are left out
    return summary, generation if isinstance(generation, int) else 0


def _count_tokens(usage: Any) -> int | None:
    """All tokens of a stored usage; None where it is damaged."""
    try:
        return InferenceUsage.from_dict(usage).total
    except (ValidationError, InvalidInput, TypeError):
        return None
