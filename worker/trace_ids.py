"""The ids of traces: derived from the execution, so that all workers and all sinks give it the same ones."""

from __future__ import annotations

import hashlib


def derive_trace_id(execution_id: str) -> int:
    """Derive the trace id of an execution, 128 bits. The trace of a tree is that of its root's execution."""
    return int.from_bytes(hashlib.sha256(f"trace:{execution_id}".encode()).digest()[:16], "big") or 1


def derive_root_span_id(execution_id: str, retries: int) -> int:
    """Derive the id of the parent span of all steps, 64 bits; after a retry the steps have another parent."""
    return derive_span_id(f"{execution_id}:{retries}")


def derive_span_id(name: str) -> int:
    """Derive the id of a span from a name that is unique in all traces, 64 bits."""
    return int.from_bytes(hashlib.sha256(f"span:{name}".encode()).digest()[:8], "big") or 1
