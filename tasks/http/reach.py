"""The sessions that a token reaches: one with those below it, or those with a label."""

from __future__ import annotations

from ...worker.errors import SessionDeleted, SessionExpired
from ...worker.state.values.ids import read_session_id
from ..client.client import AgentClient


def is_in_tree(client: AgentClient, session_id: str | None, root: str) -> bool:
    """Whether a session is below another one because it has started it, or a session below it."""
    while session_id != root:
        link = None if session_id is None else client.store.trees.link(read_session_id(session_id))
        if link is None:
            return False
        session_id = link.session_id
    return True


def has_label(client: AgentClient, session_id: str, label: tuple[str, str]) -> bool:
    """Whether a session has a label, or lacks it and the session at the root of its tree has it.

    What is left of a session that was deleted or has expired does not say whose it was: it has none.

    Raises:
        SessionNotFound: There is none of this id, and was none.
    """
    key, value = label
    try:
        found = client.header(session_id).labels
    except (SessionDeleted, SessionExpired):
        return False
    if key not in found:
        root = client.store.trees.roots([session_id])[session_id]
        found = found if root == session_id else client.header(root).labels
    return found.get(key) == value
