"""Tokens: estimates of how much of its context a model's request fills, and what auxiliary calls have used."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil
from typing import Final

from ...state.conversation.messages import Message
from ...state.execution.usage import InferenceUsage
from ...state.parts.state_part import PartValue
from ...state.values.field_types import Count

TokenCounter = Callable[[str], int]
"""Counts the tokens of a text; give the model's own tokenizer where the estimate is not good enough."""

_ASCII_PER_TOKEN: Final = 4
_OTHERS_PER_TOKEN: Final = 1.5


class ReflectionUsage(PartValue):
    """Tokens of one reflection. `cached_input_tokens` are part of `input_tokens`."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    cached_input_tokens: Count = 0
    total_tokens: Count = 0
    reasoning_tokens: Count = 0

    @classmethod
    def of(cls, usage: InferenceUsage) -> ReflectionUsage:
        """The usage of an answer under these names."""
        return cls(
            input_tokens=usage.sent,
            output_tokens=usage.output,
            cached_input_tokens=usage.cache_read,
            total_tokens=usage.total,
            reasoning_tokens=usage.reasoning,
        )


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text: four ASCII characters make one, or one and a half others; rounded up."""
    others = 0 if text.isascii() else sum(not character.isascii() for character in text)
    return ceil((len(text) - others) / _ASCII_PER_TOKEN + others / _OTHERS_PER_TOKEN)


def count_tokens(messages: Iterable[Message], counter: TokenCounter) -> int:
    """The tokens of messages, the arguments of their tool calls included."""
    return sum(message_tokens(each, counter) for each in messages)


def message_tokens(message: Message, counter: TokenCounter) -> int:
    """The tokens of one message."""
    tokens = counter(message.content) if message.content else 0
    for call in message.tool_calls:
        tokens += counter(call.name) + counter(call.args_json())
    return tokens
