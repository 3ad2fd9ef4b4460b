"""Calls and results go in pairs: providers refuse a conversation in which one is without the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .messages import Message, Role


@dataclass
class _Group:
    """A message and, when it asks for tool calls, the results found for them so far."""

    message: Message
    results: list[Message | None] = field(default_factory=list[Message | None])

    def take(self, result: Message) -> bool:
        """Put the result at the first call of its id that has none yet."""
        for place, call in enumerate(self.message.tool_calls):
            if call.id == result.tool_call_id and self.results[place] is None:
                self.results[place] = result
                return True
        return False

    def repair(self) -> tuple[Message, ...]:
        """The message with its results, without the calls that have none."""
        results = tuple(result for result in self.results if result is not None)
        calls = self.message.tool_calls
        if len(results) == len(calls):
            return (self.message, *results)
        answered = tuple(call for call, result in zip(calls, self.results, strict=True) if result is not None)
        message = self.message.with_tool_calls(answered)
        return (message, *results) if answered or message.content.strip() else ()


def repair_pairs(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The same conversation with every call answered right after it, in call order.

    A result without its call is dropped, and so is a call without a result; the text of the same answer stays. Ids are
    matched with the nearest earlier message that asked for them, because some providers use the same ones every turn.
    """
    if not any(message.tool_calls or message.role is Role.TOOL for message in messages):
        return tuple(messages)
    groups: list[_Group] = []
    asking: _Group | None = None
    for message in messages:
        if message.role is Role.TOOL:
            if asking is not None:
                asking.take(message)
            continue
        group = _Group(message, [None] * len(message.tool_calls))
        groups.append(group)
        if message.tool_calls:
            asking = group
    return tuple(message for group in groups for message in group.repair())
