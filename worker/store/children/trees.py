"""Trees of sessions: which is below which, the status of each, and what all have used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...errors import StateUnreadable
from ...state.codec.join import read_head
from ...state.execution.children import ParentLink
from ...state.execution.execution import ExecutionState
from .. import fields
from ..bookkeeping import read_link
from ..context import StorePart
from ..database import Command, Reply
from ..keys import root_of, tree_range
from ..session_records import Header, SessionState
from ..sessions.listing import read_headers
from ..sessions.loading import missing_error
from .above import tree_roots

_ACTIVE: Final = frozenset({SessionState.PENDING, SessionState.IN_PROGRESS, SessionState.WAITING})


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """A session of a tree, with those below it.

    Attributes:
        header: What a listing shows of it.
        parent: The request of its parent that it answers; None for a root, and where it cannot be read.
        steps, tokens, cost: What it and the sessions below it have used in their present executions: tokens of all
            kinds, US dollars (None when no price is known).
        children: The sessions below it, in the order in which they were made.
    """

    header: Header
    parent: ParentLink | None
    steps: int
    tokens: int
    cost: float | None
    children: tuple[TreeNode, ...] = ()

    @property
    def session_id(self) -> str:
        """The id of the session."""
        return self.header.session_id

    def walk(self) -> Iterator[TreeNode]:
        """The node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(slots=True)
class Member:
    """A session of a tree as it is stored."""

    header: Header
    parent: ParentLink | None
    execution: ExecutionState | None
    below: list[Member] = field(default_factory=list["Member"])


class Trees(StorePart):
    """Reads trees. Nothing here changes a session."""

    def members(self, session_id: str) -> list[str]:
        """Ids of all sessions below the root of this session, in no order."""
        shard = self._context.keys(session_id).shard
        command: Command = ("ZRANGEBYLEX", shard.children, *tree_range(root_of(session_id)))
        (found,) = self._context.database.pipeline("tree.members", [command])
        return [fields.name(member) for member in found]

    def below(self, session_id: str) -> list[Header]:
        """The sessions below this one, parents first; also of one that is not there any more."""
        members = self.members(session_id)
        found = self._find([session_id, *members]) if members else {}
        top = [each for each in found.values() if _above(each, session_id) == session_id]
        return [node.header for each in sorted(top, key=_order) for node in _node(each).walk()]

    def active_below(self, session_id: str) -> Iterator[Header]:
        """The sessions below this one that have not ended, parents first; listed until there is no further one."""
        seen: set[str] = set()
        while True:
            listed = self.below(session_id)
            fresh = [each for each in listed if each.status in _ACTIVE and each.session_id not in seen]
            if not fresh:
                return
            seen |= {each.session_id for each in fresh}
            yield from fresh

    def tree(self, session_id: str) -> TreeNode:
        """This session and those below it.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
        """
        found = self._find([session_id, *self.members(session_id)])
        if session_id not in found:
            raise missing_error(self._context, session_id)
        return _node(found[session_id])

    def _find(self, names: Sequence[str]) -> dict[str, Member]:
        """Read a session and the children of its root by their ids, each with those below it."""
        unique = list(dict.fromkeys(names))
        found = {name: member for name, member in zip(unique, self._read(unique), strict=True) if member}
        for member in found.values():
            if (above := _above(member, names[0])) in found:
                found[above].below.append(member)
        return found

    def roots(self, session_ids: Iterable[str]) -> dict[str, str]:
        """The session at the root of the tree of each of these: itself for a root, and for a fork."""
        return tree_roots(self._context, session_ids)

    def link(self, session_id: str) -> ParentLink | None:
        """The place of a session in its tree; None for a root, and for a session that is not there.

        Raises:
            StateUnreadable: It is damaged.
        """
        (found,) = self._context.database.pipeline(
            "tree.link", [("HGET", self._context.keys(session_id).session, "parent")]
        )
        return read_link(found)

    def _read(self, names: Sequence[str]) -> list[Member | None]:
        all_keys = [self._context.keys(name) for name in names]
        headers = read_headers(self._context, all_keys)
        reads: list[list[Command]] = [[("HMGET", keys.session, "version", "parent", "head")] for keys in all_keys]
        replies = self._context.read_apart("tree.read", reads)
        return [
            None if header is None else _make_member(header, found)
            for header, found in zip(headers, replies, strict=True)
        ]


def _make_member(header: Header, found: Sequence[Reply] | StateUnreadable) -> Member | None:
    """Parse what was read of a session; None where it has gone since its header was read."""
    if isinstance(found, StateUnreadable):  # its header says so
        return Member(header, None, None)
    ((version, parent, head),) = found
    if version is None:
        return None
    try:
        return Member(header, read_link(parent), read_head(head).state.execution if head is not None else None)
    except StateUnreadable:
        return Member(header, None, None)


def _above(member: Member, asked: str) -> str:
    """The id of the session above; "" of the one that was asked for, so that no circle of damaged links is walked."""
    name = member.header.session_id
    if name == asked:
        return ""
    # A child whose link cannot be read must not be passed over.
    return root_of(name) if member.parent is None else member.parent.session_id


def _node(member: Member) -> TreeNode:
    """The node of a session, with what its children have used and its execution is not charged for yet."""
    ordered = sorted(member.below, key=_order)
    children = tuple(map(_node, ordered))
    execution = member.execution
    uncharged = [node for each, node in zip(ordered, children, strict=True) if _is_uncharged(execution, each.parent)]
    costs = [execution.cost if execution else None, *(node.cost for node in uncharged)]
    known = [cost for cost in costs if cost is not None]
    return TreeNode(
        header=member.header,
        parent=member.parent,
        steps=(execution.steps_used if execution else 0) + sum(node.steps for node in uncharged),
        tokens=(execution.usage.total if execution else 0) + sum(node.tokens for node in uncharged),
        cost=sum(known) if known else None,
        children=children,
    )


def _order(member: Member) -> tuple[int, int, int, int]:
    link, created_ms = member.parent, member.header.created_ms
    return (created_ms, 0, 0, 0) if link is None else (created_ms, link.step, link.index, link.round)


def _is_uncharged(execution: ExecutionState | None, link: ParentLink | None) -> bool:
    """Whether the step that started a child is not committed, so that its execution does not hold the child's usage."""
    if execution is None or link is None or execution.execution_id != link.execution_id:
        return False
    return execution.step_count < link.step and not execution.status.is_terminal()
