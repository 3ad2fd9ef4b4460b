"""The idempotency key of a tool call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..state.values.canonical import canonical_digest


def idempotency_key(execution_id: str, step: int, index: int, tool: str, args: Mapping[str, Any] | str) -> str:
    """Derive the key under which a service recognises this call again: 64 hex digits.

    It depends on nothing that a retry changes: not on the attempt, the claim, the worker or the model's own call id.
    The order of the arguments does not matter.

    Args:
        execution_id: The execution.
        step: Number of the step, from 1.
        index: Position of the call in its step, from 0.
        tool: Name of the tool.
        args: The arguments that are used: a JSON object, or the raw text of what was not one.
    """
    return canonical_digest([str(execution_id), step, index, tool, args])
