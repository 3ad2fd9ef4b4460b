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

from . import kombu_internals as kombu
from .features import SAFE_REDELIVERY
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
    if SAFE_REDELIVERY.is_available():
        kombu.replace_redelivery(lambda stock: limit_held(guard(stock, quarantine, is_ours), control_queue))


def limit_held(stock: Any, control_queue: str) -> Any:
    """Return a subclass that takes no further message while control messages of many bytes are not acknowledged."""

    class LimitedQoS(stock):
        def __init__(self, *args: Any, **options: Any) -> None:
            inherited: Any = super()
            inherited.__init__(*args, **options)
            self.held: dict[str, int] = {}
            self.garbage = MessageGarbage()

        def can_consume(self) -> bool:
            inherited: Any = super()
            return sum(tuple(self.held.values())) < MOST_HELD_BYTES and inherited.can_consume()

        def append(self, message: Any, delivery_tag: str) -> None:
            if message.delivery_info.get("routing_key") == control_queue:
                self.held[delivery_tag] = len(message.body) + _HELD_BESIDE_BODY
            inherited: Any = super()
            inherited.append(message, delivery_tag)

        def ack(self, delivery_tag: str) -> None:
            self.garbage.add(self.held.pop(delivery_tag, 0))
            inherited: Any = super()
            inherited.ack(delivery_tag)

        def reject(self, delivery_tag: str, requeue: bool = False) -> None:
            self.held.pop(delivery_tag, None)
            inherited: Any = super()
            inherited.reject(delivery_tag, requeue=requeue)

    return LimitedQoS


def guard(stock: Any, quarantine: Quarantine, is_ours: Callable[[str], bool] | None) -> Any:
    """Return a subclass of kombu's class for unacknowledged messages that no record can make fail."""

    class GuardedQoS(stock):
        def append(self, message: Any, delivery_tag: str) -> None:
            _append(super(), self, message, delivery_tag)

        def ack(self, delivery_tag: str) -> None:
            _ack(super(), self, delivery_tag)

        def restore_visible(self, *args: Any, **options: Any) -> None:
            inherited: Any = super()
            try:
                inherited.restore_visible(*args, **options)
            except self.channel.ResponseError as error:
                refusals.record(REDELIVERY, f"unacknowledged messages cannot be looked at: {error}")

        def restore_by_tag(self, tag: Any, client: Any = None, leftmost: bool = False) -> None:
            with self.channel.conn_or_acquire(client) as connection:
                if is_ours is not None and _is_of_another_app(self, connection, tag, is_ours):
                    return
                reason = _examine_record(self, connection, tag)
                if reason is None:
                    reason = _restore(super(), self, connection, tag, leftmost)
                if reason is not None:
                    _put_aside(self, connection, tag, reason, quarantine)

    return GuardedQoS


def _append(stock: Any, qos: Any, message: Any, delivery_tag: str) -> None:
    """Record a message; where Redis refuses that, run it all the same, since it has left its queue already."""
    try:
        stock.append(message, delivery_tag)
    except qos.channel.ResponseError as error:
        refusals.record(REDELIVERY, f"a message cannot be recorded as unacknowledged: {error}")
        kombu.remember_locally(qos, message, delivery_tag)


def _ack(stock: Any, qos: Any, delivery_tag: str) -> None:
    try:
        stock.ack(delivery_tag)
    except qos.channel.ResponseError as error:
        refusals.record(REDELIVERY, f"a message cannot be acknowledged: {error}")
        kombu.forget_locally(qos, delivery_tag)


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
