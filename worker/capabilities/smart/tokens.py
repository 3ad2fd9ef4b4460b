"""Estimates of tokens: how much of its context a model's request fills."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ...errors import ConfigurationError
from ...state.conversation.messages import Message

TokenCounter = Callable[[str], int]
"""Counts the tokens of a text; give the model's own tokenizer where the estimate is not good enough."""

_ASCII_PER_TOKEN: Final = 4
_OTHERS_PER_TOKEN: Final = 1.5


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text: four ASCII characters make one, or one and a half others; rounded up."""
    if text.isascii():
        return -(-len(text) // _ASCII_PER_TOKEN)
    others = sum(not character.isascii() for character in text)
    return -int(-((len(text) - others) / _ASCII_PER_TOKEN + others / _OTHERS_PER_TOKEN) // 1)


def count_tokens(messages: Iterable[Message], counter: TokenCounter) -> int:
    """The tokens of messages, the arguments of their tool calls included."""
    return sum(message_tokens(each, counter) for each in messages)


def message_tokens(message: Message, counter: TokenCounter) -> int:
    """The tokens of one message."""
    tokens = counter(message.content) if message.content else 0
    for call in message.tool_calls:
        tokens += counter(call.name) + counter(call.args_json())
    return tokens


def check_whole(field: str, value: object, *, least: int = 0) -> None:
    """Refuse what is no whole number from `least`.

    Raises:
        ConfigurationError: It names the field and the value.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigurationError(f"{field}={value!r:.60}: give a whole number, from {least}")


def check_share(field: str, value: object) -> None:
    """Refuse what is no number above 0 and up to 1.

    Raises:
        ConfigurationError: It names the field and the value.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise ConfigurationError(f"{field}={value!r:.60}: give a number above 0, up to 1")
