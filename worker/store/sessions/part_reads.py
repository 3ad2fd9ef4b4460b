"""Reading parts of a session for those who show it: some messages, or the state without its long lists.

A session of a thousand steps is megabytes as a whole; these reads cost what they give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from ...errors import StateUnreadable
from ...state.agent_state import AgentState
from ...state.codec.join import Head, join_outline, read_head
from ...state.conversation.messages import DEFAULT, Message
from ..context import SessionScope, StorePart
from ..database import Command, Reply
from ..packing import unpack
from .loading import missing_error, read_whole, require_head, with_changed_budget


@dataclass(frozen=True, slots=True)
class StoredMessages:
    """Messages of a conversation that follow each other.

    Attributes:
        total: How many the conversation has in all.
    """

    messages: Sequence[Message]
    total: int


class PartReadVerbs(StorePart):
    """Reading parts of a session.

    Raises:
        SessionNotFound: There is no such session, or it has expired.
        StateUnreadable: A part of it cannot be read.
        StoreUnavailable: No answer in time, or the session changes too fast to be read.
    """

    def messages(self, session_id: str, offset: int, limit: int) -> StoredMessages:
        """Read at most `limit` messages of the conversation behind the first `offset` ones."""
        scope = self._context.session(session_id)

        def reads(head: Head) -> list[Command]:
            total = head.lengths.get(DEFAULT, 0)
            if offset >= total:
                return []
            generation = head.state.store.section().generation
            return [("LRANGE", scope.keys.section(DEFAULT, generation), offset, min(total, offset + limit) - 1)]

        head, lists, _ = read_whole(session_id, lambda: _read(scope, reads))
        total = head.lengths.get(DEFAULT, 0)
        found = lists[0] if lists else []
        messages = [_parse(unpack(item), offset + place) for place, item in enumerate(found)]
        return StoredMessages(messages, total)

    def outline(self, session_id: str) -> AgentState:
        """Read the state without the messages of its sections and without the committed steps of its execution."""
        scope = self._context.session(session_id)

        def reads(head: Head) -> list[Command]:
            lists = head.state.part_lists
            return [("LRANGE", scope.keys.part(name, each.generation), 0, -1) for name, each in lists.items()]

        head, lists, budget = read_whole(session_id, lambda: _read(scope, reads))
        items = [list(map(unpack, entries)) for entries in lists]
        outline = join_outline(head, dict(zip(head.state.part_lists, items, strict=True)))
        return with_changed_budget(outline, budget)


def _read(
    scope: SessionScope, reads: Callable[[Head], list[Command]]
) -> tuple[Head, list[list[bytes]], bytes | None] | None:
    """Read the head, lists that it names, and the control field of a changed budget; None: it was saved in between.

    Args:
        reads: Makes the commands that read the lists.
    """
    session = scope.keys.session
    of_budget: Command = ("HGET", scope.keys.ctl, "budget")
    stored, budget = scope.database.pipeline("parts.head", [("HMGET", session, "version", "head"), of_budget])
    version, content = stored
    if version is None:
        raise missing_error(scope.context, scope.session_id)
    head = read_head(require_head(content))
    commands = reads(head)
    if not commands:
        return head, [], budget
    *lists, after = scope.database.transaction("parts.lists", [*commands, ("HGET", session, "version")])
    return (head, lists, budget) if after == version else None


def _parse(item: Reply, place: int) -> Message:
    try:
        return Message.from_json(item)
    except ValidationError:
        raise StateUnreadable(f"{DEFAULT}[{place}]", "it is no message") from None
