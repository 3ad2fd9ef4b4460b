"""The sinks that failed at a trace which they got after the last commit of its execution.

The state cannot keep them any more: a field of the session does, and goes with the record of the execution.
"""

from __future__ import annotations

from collections.abc import Mapping

from .. import fields
from ..context import StoreContext
from ..keys import failed_sinks_field


def note_failed_sinks(context: StoreContext, session_id: str, execution_id: str, failed: Mapping[str, str]) -> bool:
    """Store why sinks have failed, by their names; False where the session is gone.

    Raises:
        StoreUnavailable: No answer in time. It may be stored; storing it again is safe.
    """
    session = context.keys(session_id).session
    write = ("HSET", session, failed_sinks_field(execution_id), fields.to_json(dict(failed)))
    is_there = ("EXISTS", session), (1,)
    return context.database.compare_and_apply("trace.failed", [is_there], [write]) is not None


def read_failed_sinks(context: StoreContext, session_id: str, execution_id: str) -> dict[str, str]:
    """Read why sinks have failed, by their names; empty where none has, and without a session."""
    read = ("HGET", context.keys(session_id).session, failed_sinks_field(execution_id))
    (stored,) = context.database.pipeline("trace.read", [read])
    return {} if stored is None else fields.read_json(stored, "the failed sinks of a trace")
