"""Decoding broker elements so that a malformed one cannot end the worker.

A stock worker ends on `not json`, `[]`, invalid UTF-8 or a deep nesting bomb, because kombu decodes what it popped and
lets the exception escape. Our decoder turns whatever is no message of ours into a call of `celery_agents.quarantine`,
which stores it with the reason, where `celery-agents doctor` shows it. `element_rules` decides what is ours.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, cast

from kombu import Queue

from .command_checks import CommandChecks
from .element_rules import admit
from .features import SAFE_DECODING
from .kombu_internals import replace_decoding, stock_deliver, stock_loads
from .message_checks import InvalidMessage, check_message, check_size, decode_text
from .quarantine import UnackedEntry, quarantine_message
from .refusals import ELEMENT, REMOTE_CONTROL, refusals

# What a message of an unforeseen form makes Celery raise; a lost connection raises none of these.
_MESSAGE_ERRORS: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)

_NO_OBJECT: Final = "a JSON list, not an object"


def install_safe_decoding(queues: Iterable[Queue], commands: CommandChecks) -> None:
    """Let this process decode and deliver broker elements safely: a malformed one becomes a quarantined message.

    Args:
        queues: Our queues that kombu consumes. Data for others, such as events, are only made sure to be a message.
        commands: The checks of remote control.
    """
    SAFE_DECODING.is_available()
    decoder = _SafeDecoder([_Origin.of(queue) for queue in queues], commands)

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
        info: dict[str, Any] = {"exchange": queue.exchange.name, "routing_key": queue.routing_key or queue.name}
        return cls(queue=queue.name, delivery_info=info)

    def mark(self, message: dict[str, Any]) -> None:
        """Replace the delivery info, which kombu uses to acknowledge and restore."""
        properties: dict[str, Any] = message["properties"]
        info = self.delivery_info.copy()
        if properties["delivery_info"].get("redelivered") is True:
            info["redelivered"] = True
        properties["delivery_info"] = info
        properties["delivery_tag"] = uuid.uuid4().hex  # two messages with one tag would share a record


class _SafeDecoder:
    """The functions that replace kombu's decoding and delivery."""

    def __init__(self, origins: list[_Origin], commands: CommandChecks) -> None:
        self._origins = {origin.queue: origin for origin in origins}
        self._commands = commands
        self._address = min(self._origins)

    def loads(self, text: Any) -> Any:
        """Decode an element, or return a call of the quarantine task; `deliver` counts it."""
        try:
            element = _decode_json(text)
            if isinstance(element, list) and len(cast("list[Any]", element)) == 3:
                call = quarantine_message(self._address, str(text), _NO_OBJECT)
                return UnackedEntry(cast("list[Any]", element), call)
            return check_message(element)
        except InvalidMessage as error:
            return self._quarantine(lambda: str(text), str(error))
        except Exception as error:  # noqa: BLE001 - whatever else somebody thinks of must not end the worker
            return self._quarantine(lambda: str(text), f"cannot be examined: {type(error).__name__}")

    def deliver(self, transport: Any, message: Any, queue: Any) -> None:
        """Deliver a message, or the call of the quarantine task in its place.

        The decoder cannot check this: it is not told the queue, and the address in a message may be forged.
        """
        origin = self._origins.get(queue)
        if origin is None:
            self._deliver_to_others(transport, message, queue)
            return
        checked = self._check(message)
        try:
            origin.mark(checked)
            stock_deliver(transport, checked, queue)
        except _MESSAGE_ERRORS as error:
            call = self._quarantine(lambda: repr(message), f"cannot be delivered: {type(error).__name__}")
            refusals.record(ELEMENT, call.reason)
            origin.mark(call)
            stock_deliver(transport, call, queue)

    def _deliver_to_others(self, transport: Any, message: Any, queue: Any) -> None:
        if self._commands.is_mailbox(queue):
            if isinstance(message, _QuarantineCall):
                refusals.record(REMOTE_CONTROL, f"a command: {message.reason}")
                return
            try:
                self._commands.check(message)
            except InvalidMessage as error:
                refusals.record(REMOTE_CONTROL, str(error))
                return
            except Exception as error:  # noqa: BLE001 - as in `loads`
                refusals.record(REMOTE_CONTROL, f"a command cannot be examined: {type(error).__name__}")
                return
        stock_deliver(transport, message, queue)

    def _check(self, message: Any) -> dict[str, Any]:
        if not isinstance(message, _QuarantineCall):
            if isinstance(message, UnackedEntry):
                refusals.record(ELEMENT, _NO_OBJECT)
                return dict(message)  # without the parts of the list
            try:
                admit(message)
                return message
            except InvalidMessage as error:
                element, reason = message, str(error)
                message = self._quarantine(lambda: json.dumps(element), reason)
            except Exception as error:  # noqa: BLE001 - as in `loads`
                element, reason = message, f"cannot be examined: {type(error).__name__}"
                message = self._quarantine(lambda: repr(element), reason)
        refusals.record(ELEMENT, message.reason)
        return message

    def _quarantine(self, show: Callable[[], str], reason: str) -> _QuarantineCall:
        try:
            element = show()
        except Exception as error:  # noqa: BLE001 - a text of it is the less important part
            element = f"cannot be shown: {type(error).__name__}"
        return _QuarantineCall(quarantine_message(self._address, element, reason), reason)


class _QuarantineCall(dict[str, Any]):
    """A call of the quarantine task that this process made, and that needs no check."""

    def __init__(self, message: dict[str, Any], reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def _decode_json(text: Any) -> Any:
    check_size(text)
    try:
        # kombu looks at every object for one of its marked types, which takes longer than all the rest of the decoding.
        return stock_loads(text) if "__type__" in text else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"not JSON: {type(error).__name__}") from None
