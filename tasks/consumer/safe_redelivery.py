"""Redelivering unacknowledged messages so that a malformed record cannot end the worker.

kombu's Redis transport keeps each message of an acknowledged queue in the hash `unacked` until it is acknowledged, and
puts it back into its queue after the visibility timeout. A record of another form, or a key of another type, makes a
stock worker end at that moment, and each worker after it. Here the record becomes a quarantined message instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from . import internals
from .garbage_collection import MessageGarbage
from .message_checks import LARGEST_BYTES, InvalidMessage, check_size, check_unacked, decode_text
from .quarantine import Quarantine
from .refusals import REDELIVERY, refusals

MOST_HELD_BYTES: Final = 16_000_000
"""Bodies of control messages that a worker holds at a time; beyond, it takes no further message until one is done."""

_HELD_BESIDE_BODY: Final = 4_000
# kombu's record is a list of the message, its exchange and its routing key. Its end is enough to know the queue.
_END_OF_RECORD: Final = re.compile(rb', "((?:[^"\\]|\\.)*)"\]\s*$')
_LONGEST_END: Final = 1_000


def install_safe_redelivery(
    control_queue: str, quarantine: Quarantine, is_ours: Callable[[str], bool] | None = None
) -> None:
    """Let this process restore unacknowledged messages safely: a malformed record goes into quarantine.

    It also bounds what the process holds of control messages at a time.

    Args:
        control_queue: The queue whose messages are bounded.
        is_ours: Tells by its routing key whether a record is of a queue of this app. Those of other apps, which keep
            theirs under the same keys and may have longer timeouts, stay as they are. None: all are.
    """
    own = {"control_queue": control_queue, "quarantine": quarantine, "is_ours": is_ours and staticmethod(is_ours)}
    internals.replace_redelivery(lambda stock: type("SafeQoS", (SafeQoS, stock), own))


class SafeQoS:
    """A mixin in front of kombu's class for unacknowledged messages, so that no record can make it fail.

    It takes no further message while control messages of many bytes are not acknowledged.
    """

    channel: Any
    control_queue: str
    quarantine: Quarantine
    is_ours: Callable[[str], bool] | None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._stock: Any = super()
        self._held: dict[str, int] = {}
        self._garbage = MessageGarbage()

    def can_consume(self) -> bool:
        """Tell whether there is room for another message."""
        return sum(tuple(self._held.values())) < MOST_HELD_BYTES and self._stock.can_consume()

    def append(self, message: Any, delivery_tag: str) -> None:
        """Record a message; where Redis refuses that, run it all the same, since it has left its queue already."""
        if message.delivery_info.get("routing_key") == self.control_queue:
            self._held[delivery_tag] = len(message.body) + _HELD_BESIDE_BODY
        try:
            self._stock.append(message, delivery_tag)
        except self.channel.ResponseError as error:
            refusals.record(REDELIVERY, f"a message cannot be recorded as unacknowledged: {error}")
            internals.remember_locally(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Forget a message that is done."""
        self._garbage.add(self._held.pop(delivery_tag, 0))
        try:
            self._stock.ack(delivery_tag)
        except self.channel.ResponseError as error:
            refusals.record(REDELIVERY, f"a message cannot be acknowledged: {error}")
            internals.forget_locally(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Forget a message, or put it back."""
        self._held.pop(delivery_tag, None)
        self._stock.reject(delivery_tag, requeue=requeue)

    def restore_visible(self, *args: Any, **options: Any) -> None:
        """Put messages back whose time is over."""
        try:
            self._stock.restore_visible(*args, **options)
        except self.channel.ResponseError as error:
            refusals.record(REDELIVERY, f"unacknowledged messages cannot be looked at: {error}")

    def restore_by_tag(self, tag: Any, client: Any = None, leftmost: bool = False) -> None:
        """Put a message back, or its record aside."""
        with self.channel.conn_or_acquire(client) as connection:
            if self.is_ours is not None and _is_of_another_app(self, connection, tag, self.is_ours):
                return
            reason = _examine_record(self, connection, tag)
            if reason is None:
                reason = _restore(self._stock, self, connection, tag, leftmost)
            if reason is not None:
                _put_aside(self, connection, tag, reason, self.quarantine)


def _is_of_another_app(qos: Any, connection: Any, tag: Any, is_ours: Callable[[str], bool]) -> bool:
    try:
        record: Any = connection.hget(qos.unacked_key, tag)
    except qos.channel.ResponseError:
        return False
    return names_another_queue(record, is_ours)


def names_another_queue(record: Any, is_ours: Callable[[str], bool]) -> bool:
    """Tell whether a record is of a queue that is not this app's; one without a queue's name belongs to nobody."""
    end = _END_OF_RECORD.search(record[-_LONGEST_END:]) if isinstance(record, bytes) else None
    return end is not None and not is_ours(end[1].decode("utf-8", "replace"))


def _examine_record(qos: Any, connection: Any, tag: Any) -> str | None:
    """Say what is wrong with a record; None when it can be restored, or has gone."""
    try:
        return examine_unacked(connection.hget(qos.unacked_key, tag))
    except qos.channel.ResponseError as error:
        return f"an unacknowledged message cannot be read: {error}"


def examine_unacked(record: Any) -> str | None:
    """Say what is wrong with a stored record of an unacknowledged message; None when nothing is, or there is none."""
    if record is None:
        return None
    if len(record) > LARGEST_BYTES:
        return f"an unacknowledged message is larger than {LARGEST_BYTES} bytes"
    try:
        text = decode_text(record)
        check_size(text)
        check_unacked(json.loads(text))
    except InvalidMessage as error:
        return str(error)
    except (ValueError, RecursionError) as error:
        return f"an unacknowledged message is not JSON: {type(error).__name__}"
    return None


def _restore(stock: Any, qos: Any, connection: Any, tag: Any, leftmost: bool) -> str | None:
    try:
        stock.restore_by_tag(tag, client=connection, leftmost=leftmost)
    except qos.channel.ResponseError as error:  # such as a queue that this Redis user may not write to
        return f"an unacknowledged message cannot be restored: {error}"
    return None


def _put_aside(qos: Any, connection: Any, tag: Any, reason: str, quarantine: Quarantine) -> None:
    """Move a record into quarantine; one that the store does not take stays."""
    try:
        if quarantine.put(connection.hget(qos.unacked_key, tag) or "", reason, REDELIVERY):
            pipe = connection.pipeline()
            pipe.zrem(qos.unacked_index_key, tag)
            pipe.hdel(qos.unacked_key, tag)
            pipe.execute()
    except qos.channel.ResponseError as error:
        refusals.record(REDELIVERY, f"an unacknowledged message cannot be quarantined: {error}")
