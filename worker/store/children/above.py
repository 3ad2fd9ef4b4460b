"""The way from a session up to the root of its tree.

The ids of children and of forks both begin with that of a root. A child has a link to its parent; a fork has none, and
is itself the root of what it has started.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...errors import StateUnreadable
from ..bookkeeping import read_link
from ..context import StoreContext
from ..database import Command, Reply
from ..keys import root_of


def sessions_above(context: StoreContext, session_ids: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The sessions above each of these, the root first. A session at a root costs no read."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(session_ids, ())
    level = {name: name for name in found if root_of(name) != name}
    while level:
        reads: list[list[Command]] = [[("HGET", context.keys(each).session, "parent")] for each in level.values()]
        links = [_link(replies) for replies in context.read_apart("requests.above", reads)]
        above = zip(level, links, strict=True)
        level = {name: link for name, link in above if link is not None and link not in (name, *found[name])}
        for name, link in level.items():
            found[name] = (link, *found[name])
    return found


def tree_roots(context: StoreContext, session_ids: Iterable[str]) -> dict[str, str]:
    """The session at the root of the tree of each of these: itself for a root, and for a fork."""
    return {name: above[0] if above else name for name, above in sessions_above(context, session_ids).items()}


def _link(replies: Sequence[Reply] | StateUnreadable) -> str | None:
    if isinstance(replies, StateUnreadable):
        return None
    try:
        link = read_link(replies[0])
    except StateUnreadable:
        return None
    return None if link is None else link.session_id
