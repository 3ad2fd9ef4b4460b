"""Checks of remote control messages, by which Flower and `celery control` command a worker."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, cast

from celery import Celery
from kombu.utils.encoding import bytes_to_str

from ..channels import subclass_channels
from .internals import check_subscriptions
from .message_checks import (
    InvalidMessage,
    check_json,
    check_message,
    decode_body,
    describe_fault,
    is_texts,
    parse_element,
    shown,
)
from .refusals import REMOTE_CONTROL, refusals

LARGEST_COMMAND_BYTES: Final = 256_000
_MAILBOX: Final = ".pidbox"
_LARGEST_CLOCK: Final = 2**53
LONGEST_TEXT: Final = 1_000
"""Characters of one text in a command: a worker keeps ids that are revoked, and each of them by its length."""

_NO_TEXT_WITH: Final = ("pattern", "matcher")


def check_commands(app: Celery) -> None:
    """Let the connections that an app makes from now on drop remote control and events that would end its worker.

    kombu lets what it raises at `[]` or at a nesting bomb escape. With another broker than Redis nothing is checked.
    """
    checks = CommandChecks(app)

    def check(answer: Any) -> bool:
        parts = cast("list[Any]", answer) if isinstance(answer, list) else [b""]
        if not bytes_to_str(parts[0]).endswith("message"):
            return True
        channel, data = parts[-2:]
        try:
            message = check_message(parse_element(data))
            if checks.is_mailbox(bytes_to_str(channel)):
                checks.check(message)
        except Exception as error:  # noqa: BLE001 - no content of a command may end the worker
            refusals.record(REMOTE_CONTROL, f"a command: {describe_fault(error)}")
            return False
        return True

    subclass_channels(app, partial(check_subscriptions, check=check))


class CommandChecks:
    """Checks what arrives in the mailbox of a worker, before Celery reads it."""

    def __init__(self, app: Celery) -> None:
        namespace = cast("Any", app.control).mailbox.namespace
        self._suffix = f".{namespace}{_MAILBOX}"
        self._reply_exchange = f"reply.{namespace}{_MAILBOX}"

    def is_mailbox(self, channel: str) -> bool:
        """Tell whether a channel of Redis carries remote control messages."""
        return f".{channel}".endswith(self._suffix)

    def check(self, message: Mapping[str, Any]) -> None:
        """Check the form of a remote control message.

        Raises:
            InvalidMessage: Celery would fail, hang or use much memory when it reads it.
        """
        if len(message["body"]) > LARGEST_COMMAND_BYTES:
            raise InvalidMessage(f"a command larger than {LARGEST_COMMAND_BYTES} bytes")
        check_json(message)
        clock = message["headers"].get("clock")
        if clock is not None and not (type(clock) is int and 0 <= clock < _LARGEST_CLOCK):
            raise InvalidMessage(f"clock={shown(clock)} in the headers of a command")
        self._check_command(_read_command(message))

    def _check_command(self, command: Mapping[str, Any]) -> None:
        if not isinstance(command.get("method"), str):
            raise InvalidMessage(f"method={shown(command.get('method'))} of a command is no text")
        if not isinstance(command.get("arguments"), (dict, type(None))):
            raise InvalidMessage(f"arguments={shown(command.get('arguments'))} of a command are no object")
        for name in _NO_TEXT_WITH:
            if command.get(name) is not None:
                raise InvalidMessage(f"{name}={shown(command[name])} of a command; name the workers as destination")
        destination = command.get("destination")
        if destination is not None and not is_texts(destination):
            raise InvalidMessage(f"destination={shown(destination)} of a command is no list of workers")
        if not isinstance(command.get("ticket"), (str, type(None))):
            raise InvalidMessage(f"ticket={shown(command.get('ticket'))} of a command is no text")
        self._check_reply_address(command.get("reply_to"))
        _check_lengths(command)

    def _check_reply_address(self, address: Any) -> None:
        """A worker sends its answer there with its own permissions, so only the queue of replies is taken."""
        if not address:
            return
        if not isinstance(address, dict) or not isinstance(cast("dict[str, Any]", address).get("routing_key"), str):
            raise InvalidMessage(f"reply_to={shown(address)} of a command is no address")
        if cast("dict[str, Any]", address).get("exchange") != self._reply_exchange:
            raise InvalidMessage(f"reply_to={shown(address)} of a command is not at {self._reply_exchange}")


def _read_command(message: Mapping[str, Any]) -> Mapping[str, Any]:
    command = decode_body(message)
    if not isinstance(command, dict):
        raise InvalidMessage("a command that is no object")
    return cast("dict[str, Any]", command)


def _check_lengths(value: Any) -> None:
    if isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            raise InvalidMessage(f"a text of {len(value)} characters in a command; {LONGEST_TEXT} are allowed")
    elif isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            _check_lengths(name)
            _check_lengths(item)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            _check_lengths(item)
