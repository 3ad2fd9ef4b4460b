"""Decoding broker elements so that a malformed one cannot end the worker.

A stock worker ends on `not json`, `[]`, invalid UTF-8 or a deep nesting bomb, because kombu decodes what it popped and
lets the exception escape. Our decoder passes on whatever cannot be decoded, and our delivery puts aside what is no
message: it goes into quarantine. `element_rules` decides what is taken from our queues.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from queue import Empty
from typing import Any, Final, NamedTuple

from kombu import Queue

from .command_checks import CommandChecks
from .element_rules import admit
from .internals import replace_decoding, replace_reading, stock_deliver, stock_loads, stock_read
from .message_checks import InvalidMessage, check_message, check_size
from .quarantine import Quarantine
from .refusals import FETCH, REMOTE_CONTROL, refusals

# What a message of an unforeseen form makes Celery raise; a lost connection raises none of these.
_MESSAGE_ERRORS: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
# Redis refuses at once, and kombu would ask again as fast as it can.
_REFUSED_SECONDS: Final = 0.05


def install_safe_decoding(queues: Iterable[Queue], commands: CommandChecks, quarantine: Quarantine) -> None:
    """Let this process read, decode and deliver broker elements safely: a malformed one goes into quarantine.

    Args:
        queues: Our queues that kombu consumes. Data for others, such as events, are only made sure to be a message.
        commands: The checks of remote control.
    """
    decoder = _SafeDecoder(queues, commands, quarantine)

    def deliver(transport: Any, message: Any, queue: Any) -> None:
        decoder.deliver(transport, message, queue)

    replace_decoding(_decode, deliver)
    replace_reading(_read)


def _read(channel: Any, **options: Any) -> Any:
    """Read the answer to a BRPOP; an error of the keys counts as an empty queue, after a short pause."""
    try:
        return stock_read(channel, **options)
    except channel.ResponseError as error:
        refusals.record(FETCH, f"Redis refuses to pop messages: {error}")
        time.sleep(_REFUSED_SECONDS)
        raise Empty from error


class _Malformed(NamedTuple):
    """An element that cannot be decoded, and why."""

    text: object
    reason: str


def _decode(text: Any) -> Any:
    """Decode an element; one that is malformed is noticed where it is delivered."""
    try:
        return _decode_json(text)
    except Exception as error:  # noqa: BLE001 - whatever somebody thinks of must not end the worker
        return _Malformed(text, _describe(error))


class _SafeDecoder:
    """Delivers elements or puts them aside; to decode, kombu is not told the queue, and an address may be forged."""

    def __init__(self, queues: Iterable[Any], commands: CommandChecks, quarantine: Quarantine) -> None:
        # No exchange: a message that is restored goes to this queue, and not where a forged binding of one leads.
        self._origins = {each.name: {"exchange": "", "routing_key": each.name} for each in queues}
        self._commands = commands
        self._quarantine = quarantine

    def deliver(self, transport: Any, message: Any, queue: Any) -> None:
        """Deliver an element that has passed the checks of its queue."""
        is_command, origin = self._commands.is_mailbox(queue), self._origins.get(queue)
        check = self._commands.check if is_command else admit if origin is not None else None
        fault = _find_fault(message, check)
        if fault is None:
            fault = _deliver(transport, message, queue, origin)
        if fault is None:
            return
        if is_command:
            refusals.record(REMOTE_CONTROL, f"a command: {fault}")
        else:
            self._quarantine.put(message.text if isinstance(message, _Malformed) else message, fault)


def _deliver(transport: Any, message: dict[str, Any], queue: Any, origin: Mapping[str, Any] | None) -> str | None:
    """Deliver a message; say what is wrong with one of our queues that Celery cannot take."""
    if origin is None:
        stock_deliver(transport, message, queue)
        return None
    properties: dict[str, Any] = message["properties"]
    is_redelivered = properties["delivery_info"].get("redelivered") is True
    # kombu acknowledges and restores by these; two messages with one tag would share a record.
    properties["delivery_info"] = {**origin, "redelivered": True} if is_redelivered else {**origin}
    properties["delivery_tag"] = uuid.uuid4().hex
    try:
        stock_deliver(transport, message, queue)
    except _MESSAGE_ERRORS as error:
        return f"cannot be delivered: {type(error).__name__}"
    return None


def _find_fault(message: Any, check: Callable[[dict[str, Any]], object] | None) -> str | None:
    """Say what is wrong with a decoded element; None when it may be delivered."""
    if isinstance(message, _Malformed):
        return message.reason
    try:
        checked = check_message(message)
        if check is not None:
            check(checked)
    except Exception as error:  # noqa: BLE001 - as in `_decode`
        return _describe(error)
    return None


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, InvalidMessage) else f"cannot be examined: {type(error).__name__}"


def _decode_json(text: Any) -> Any:
    check_size(text)
    try:
        # kombu looks at every object for one of its marked types, which takes longer than all the rest of the decoding.
        return stock_loads(text) if "__type__" in text else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"not JSON: {type(error).__name__}") from None
