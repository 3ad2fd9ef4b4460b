"""The messages that come while a request waits for its answer: they may take back what it asks for.

They wait in the inbox of the session that asks, and in those of the sessions above it, which wait for it. They are
shown in the order of their arrival. The number of the newest one is the sum of the numbers of the newest in each
inbox, so it rises with each message and never falls as long as the request is open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...errors import InvalidInput, MessagesUnseen, StateUnreadable
from ...state.execution.requests import RequestStatus
from ..children.above import sessions_above
from ..context import StoreContext
from ..database import Reply
from ..inbox import InboxMessages
from .records import FoundRequest, LaterMessage

_LISTED_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class LaterMessages:
    """The messages behind a request.

    Attributes:
        messages: Those that wait, in their order.
        newest: Number of the newest message that has come; 0: none has.
    """

    messages: tuple[LaterMessage, ...] = ()
    newest: int = 0

    @classmethod
    def of(cls, found: Mapping[str, InboxMessages]) -> LaterMessages:
        """Put the messages of several sessions in one order.

        Args:
            found: By session; those above first.
        """
        waiting = [(name, each) for name, inbox in found.items() for each in inbox.messages]
        waiting.sort(key=lambda entry: entry[1].at_ms)
        newest = sum(inbox.newest for inbox in found.values())
        messages = (
            LaterMessage(number=number, session_id=name, operation_id=each.id, text=each.text, at_ms=each.at_ms)
            for number, (name, each) in enumerate(waiting, newest - len(waiting) + 1)
        )
        return cls(tuple(messages), newest)

    def attached_to(self, request: FoundRequest, *, is_listing: bool) -> FoundRequest:
        """The request with them; in a listing with the beginnings of their texts."""
        shown = tuple(map(_cut, self.messages)) if is_listing else self.messages
        return replace(request, messages=shown, newest_message=self.newest)

    def check(self, session_id: str, seen: int) -> None:
        """Refuse an answer of somebody who has not seen all messages.

        Raises:
            MessagesUnseen: A later one has come.
            InvalidInput: None has this number.
        """
        if seen < self.newest:
            raise MessagesUnseen(session_id, newest=self.newest, seen=seen)
        if seen > self.newest:
            raise InvalidInput(
                "seen", seen, f"the newest message has the number {self.newest}; look at the request again."
            )


def with_messages(
    context: StoreContext, requests: Sequence[FoundRequest], *, is_listing: bool = False
) -> list[FoundRequest]:
    """The same requests, those that are open with the messages behind them; in one read for all at roots.

    Args:
        is_listing: Texts are cut.
    """
    asking = {each.summary.session_id for each in requests if each.status is RequestStatus.OPEN}
    above = sessions_above(context, sorted(asking))
    names = list(dict.fromkeys(name for own, others in above.items() for name in (*others, own)))
    reads = [InboxMessages.reads(context.keys(name)) for name in names]
    replies = context.read_apart("requests.later", reads)
    inboxes = {name: _read(each) for name, each in zip(names, replies, strict=True)}
    later = {own: LaterMessages.of({name: inboxes[name] for name in (*others, own)}) for own, others in above.items()}
    return [
        later[each.summary.session_id].attached_to(each, is_listing=is_listing)
        if each.status is RequestStatus.OPEN
        else each
        for each in requests
    ]


def _read(replies: Sequence[Reply] | StateUnreadable) -> InboxMessages:
    """Messages as they are stored; none of an inbox that is damaged, which whoever loads its session is told."""
    if isinstance(replies, StateUnreadable):
        return InboxMessages((), 0)
    try:
        return InboxMessages.parse(replies)
    except StateUnreadable:
        return InboxMessages((), 0)


def _cut(message: LaterMessage) -> LaterMessage:
    text = message.text
    return message if len(text) <= _LISTED_CHARS else replace(message, text=f"{text[: _LISTED_CHARS - 1]}…")
