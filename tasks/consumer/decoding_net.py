"""Decoding broker elements so that a malformed one cannot end the worker.

A stock worker ends on `not json`, `[]`, invalid UTF-8 or a deep nesting bomb, because kombu decodes what it popped and
lets the exception escape. Our decoder turns whatever is no message of a known task into a call of
`celery_agents.quarantine`, which stores it with the reason, where `celery-agents doctor` shows it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from typing import Any, Final, cast

from .features import DECODING_NET, NO_ACK_MARK
from .kombu_internals import accept_no_ack_mark, mark_no_ack, replace_decoding, stock_deliver, stock_loads
from .message_checks import LARGEST_BYTES, InvalidMessage, check_message, check_task
from .quarantine import UnackedEntry, quarantine_message

log = logging.getLogger(__name__)

# What a message of an unforeseen form makes Celery raise; a lost connection raises none of these.
_MESSAGE_ERRORS: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


def install_decoding_net(queues: Collection[str], known_tasks: Collection[str], no_ack_queue: str | None) -> None:
    """Let this process decode and deliver broker elements with a net.

    Args:
        queues: Our queues. What is addressed to others, such as events and remote control, is only made sure to be
            a message.
        known_tasks: Names of the tasks that this worker has; a live view.
        no_ack_queue: The queue that is consumed without acknowledgement. kombu's Redis transport keeps no record of
            what came from there and yet takes each message off it again: four commands a step for nothing. Its own
            mark for such consumers, which the AMQP transports set, spares them.
    """
    DECODING_NET.is_available()
    marked_queue = no_ack_queue if no_ack_queue is not None and NO_ACK_MARK.is_available() else None
    if marked_queue is not None:
        accept_no_ack_mark()
    net = _DecodingNet(queues, known_tasks, marked_queue)

    def deliver(transport: Any, message: Any, queue: Any) -> None:
        net.deliver(transport, message, queue)

    replace_decoding(net.loads, _decode_text, deliver)


class _DecodingNet:
    """The functions that stand in for kombu's."""

    def __init__(self, queues: Collection[str], known_tasks: Collection[str], marked_queue: str | None) -> None:
        self._queues = queues
        self._known_tasks = known_tasks
        self._marked_queue = marked_queue
        self._address = min(queues)

    def loads(self, text: Any) -> Any:
        """Decode an element, or return a message that puts it away."""
        try:
            element = _decode(text)
            if isinstance(element, list) and len(cast("list[Any]", element)) == 3:
                reason = "a JSON list, not an object"
                return UnackedEntry(cast("list[Any]", element), self._put_away(str(text), reason))
            message = check_message(element)
            if self._marked_queue is not None:
                mark_no_ack(message, self._marked_queue)
            return message
        except InvalidMessage as error:
            return self._put_away(str(text), str(error))
        except Exception as error:  # noqa: BLE001 - whatever else somebody thinks of must not end the worker
            return self._put_away(str(text), f"cannot be examined: {type(error).__name__}")

    def deliver(self, transport: Any, message: Any, queue: Any) -> None:
        """Deliver a message, or one that puts it away.

        The decoder cannot check this: it is not told the queue, and the address in a message may be forged.
        """
        if queue not in self._queues:
            stock_deliver(transport, message, queue)
            return
        try:
            stock_deliver(transport, self._check(message), queue)
        except _MESSAGE_ERRORS as error:
            log.warning("an element of queue %s was put away: %s", queue, type(error).__name__)
            reason = f"cannot be delivered: {type(error).__name__}"
            stock_deliver(transport, self._put_away(repr(message), reason), queue)

    def _check(self, message: Any) -> Any:
        try:
            check_task(message, self._known_tasks)
        except InvalidMessage as error:
            return self._put_away(json.dumps(message), str(error))
        except Exception as error:  # noqa: BLE001 - as above
            return self._put_away(repr(message), f"cannot be examined: {type(error).__name__}")
        return message

    def _put_away(self, element: str, reason: str) -> dict[str, Any]:
        return quarantine_message(self._address, element, reason)


def _decode_text(value: Any) -> Any:
    """Make invalid UTF-8 visible instead of raising."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def _decode(text: Any) -> Any:
    if len(text) > LARGEST_BYTES:
        raise InvalidMessage(f"larger than {LARGEST_BYTES} bytes")
    try:
        # kombu looks at every object for one of its marked types, which takes longer than all the rest of the decoding.
        return stock_loads(text) if "__type__" in text else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"not JSON: {type(error).__name__}") from None
