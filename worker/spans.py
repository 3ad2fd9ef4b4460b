"""Ids and attributes of spans that all workers and all sinks write alike; the ids are derived from the execution."""

from __future__ import annotations

import hashlib
from typing import Final

from .state.execution.usage import InferenceUsage

NAME_CHARS: Final = 200
"""The most of a name or an id that a model made up: a receiver drops a span that is too large, and those beside it."""


def derive_trace_id(execution_id: str) -> int:
    """Derive the trace id of an execution, 128 bits. The trace of a tree is that of its root's execution."""
    return int.from_bytes(hashlib.sha256(f"trace:{execution_id}".encode()).digest()[:16], "big") or 1


def derive_root_span_id(execution_id: str, retries: int) -> int:
    """Derive the id of the parent span of all steps, 64 bits; after a retry the steps have another parent."""
    return derive_span_id(f"{execution_id}:{retries}")


def derive_span_id(name: str) -> int:
    """Derive the id of a span from a name that is unique in all traces, 64 bits."""
    return int.from_bytes(hashlib.sha256(f"span:{name}".encode()).digest()[:8], "big") or 1


def usage_attributes(usage: InferenceUsage) -> dict[str, int]:
    """Tokens by the names of the GenAI conventions: input and output are the whole, the others parts of these."""
    parts = {
        "cache_read.input": usage.cache_read, "cache_creation.input": usage.cache_write,
        "reasoning.output": usage.reasoning,
    }  # fmt: skip
    counts = {"input": usage.sent, "output": usage.received, **{name: count for name, count in parts.items() if count}}
    return {f"gen_ai.usage.{name}_tokens": count for name, count in counts.items()}
