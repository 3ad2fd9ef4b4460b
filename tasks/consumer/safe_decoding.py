"""Decoding broker elements so that a malformed one cannot end the worker.

A stock worker ends on `not json`, `[]`, invalid UTF-8 or a deep nesting bomb, because kombu decodes what it popped and
lets the exception escape. Our decoder passes on whatever cannot be decoded, and our delivery puts aside what is no
message: it goes into quarantine. `element_rules` decides what is taken from our queues.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kombu import Queue

from .command_checks import CommandChecks
from .element_rules import admit
from .features import SAFE_DECODING
from .kombu_internals import replace_decoding, stock_deliver, stock_loads
from .message_checks import InvalidMessage, check_message, check_size, decode_text
from .quarantine import Quarantine
from .refusals import REMOTE_CONTROL, refusals

# What a message of an unforeseen form makes Celery raise; a lost connection raises none of these.
_MESSAGE_ERRORS: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


def install_safe_decoding(queues: Iterable[Queue], commands: CommandChecks, quarantine: Quarantine) -> None:
    """Let this process decode and deliver broker elements safely: a malformed one goes into quarantine.

    Args:
        queues: Our queues that kombu consumes. Data for others, such as events, are only made sure to be a message.
        commands: The checks of remote control.
    """
    SAFE_DECODING.is_available()
    decoder = _SafeDecoder([_Origin.of(queue) for queue in queues], commands, quarantine)

    def deliver(transport: Any, message: Any, queue: Any) -> None:
        decoder.deliver(transport, message, queue)

    replace_decoding(decoder.loads, decode_text, deliver)


@dataclass(frozen=True, slots=True)
class _Origin:
    """A queue of ours, and the delivery information of each message that comes from it."""

    queue: str
    delivery_info: dict[str, Any]

    @classmethod
    def of(cls, queue: Any) -> _Origin:
        # No exchange: a message that is restored goes to this queue, and not where a forged binding of one leads.
        return cls(queue=queue.name, delivery_info={"exchange": "", "routing_key": queue.name})

    def deliver(self, transport: Any, message: dict[str, Any]) -> str | None:
        """Deliver a message as one of this queue; say what is wrong with one that Celery cannot take."""
        try:
            self._mark(message)
            stock_deliver(transport, message, self.queue)
        except _MESSAGE_ERRORS as error:
            return f"cannot be delivered: {type(error).__name__}"
        return None

    def _mark(self, message: dict[str, Any]) -> None:
        """Replace the delivery info, which kombu uses to acknowledge and restore."""
        properties: dict[str, Any] = message["properties"]
        info = self.delivery_info.copy()
        if properties["delivery_info"].get("redelivered") is True:
            info["redelivered"] = True
        properties["delivery_info"] = info
        properties["delivery_tag"] = uuid.uuid4().hex  # two messages with one tag would share a record


class _Malformed(NamedTuple):
    """An element that cannot be decoded, and why."""

    text: object
    reason: str


class _SafeDecoder:
    """The functions that replace kombu's decoding and delivery."""

    def __init__(self, origins: list[_Origin], commands: CommandChecks, quarantine: Quarantine) -> None:
        self._origins = {origin.queue: origin for origin in origins}
        self._commands = commands
        self._quarantine = quarantine

    def loads(self, text: Any) -> Any:
        """Decode an element; one that is malformed is noticed where it is delivered."""
        try:
            return _decode_json(text)
        except Exception as error:  # noqa: BLE001 - whatever somebody thinks of must not end the worker
            return _Malformed(text, _describe(error))

    def deliver(self, transport: Any, message: Any, queue: Any) -> None:
        """Deliver a message, or put it aside.

        The decoder cannot check this: it is not told the queue, and the address in a message may be forged.
        """
        if self._commands.is_mailbox(queue):
            if (fault := _find_fault(message, self._commands.check)) is None:
                stock_deliver(transport, message, queue)
            else:
                refusals.record(REMOTE_CONTROL, f"a command: {fault}")
            return
        origin = self._origins.get(queue)
        fault = _find_fault(message, None if origin is None else admit)
        if fault is None and origin is None:
            stock_deliver(transport, message, queue)
        elif fault is None and origin is not None:
            fault = origin.deliver(transport, message)
        if fault is not None:
            self._quarantine.put(message.text if isinstance(message, _Malformed) else message, fault)


def _find_fault(message: Any, check: Callable[[dict[str, Any]], object] | None) -> str | None:
    """Say what is wrong with a decoded element; None when it may be delivered."""
    if isinstance(message, _Malformed):
        return message.reason
    try:
        checked = check_message(message)
        if check is not None:
            check(checked)
    except Exception as error:  # noqa: BLE001 - as in `loads`
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
