"""The digest by which steps with the same calls are recognised."""

from __future__ import annotations

from collections.abc import Iterable

from ..state.execution.tool_calls import ToolCall
from ..state.values.canonical import canonical_digest


def digest_calls(calls: Iterable[ToolCall]) -> str:
    """Derive 64 hex digits from the set of names and arguments; empty where there are no calls.

    The order of the calls and of their arguments does not matter, and a call that is there twice counts once.
    """
    digests = sorted({canonical_digest([call.name, call.args]) for call in calls})
    return canonical_digest(digests) if digests else ""
