"""The mark that a deletion leaves: the session's hash with the field `created` and no other, for the retention.

As long as it is there, the id of the session is not used again. A deletion removes fields and adds none, so that a
Redis at its memory limit takes it.
"""

from __future__ import annotations

from typing import Final

from ...errors import SessionDeleted, SessionNotFound
from ..context import StoreContext
from ..database import Guard
from ..keys import SessionKeys

MARK: Final = "created"
"""The one field of a session that was deleted; that of any other session stands beside `version`."""


def missing_error(context: StoreContext, session_id: str) -> SessionNotFound:
    """The error for a session that has no version: it was deleted, or there is none."""
    (mark,) = context.database.pipeline("session.mark", [("HGET", context.keys(session_id).session, MARK)])
    return SessionDeleted(session_id) if mark is not None else SessionNotFound(session_id)


def is_unused(keys: SessionKeys) -> Guard:
    """The guard of a script that creates a session: nobody has, and no deletion has left its mark."""
    return (("HMGET", keys.session, "version", MARK), ("", ""))
