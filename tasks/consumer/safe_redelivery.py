"""Redelivering unacknowledged messages so that a malformed record cannot end the worker.

kombu's Redis transport keeps each message of an acknowledged queue in the hash `unacked` until it is acknowledged, and
puts it back into its queue after the visibility timeout. A record of another form, or a key of another type, makes a
stock worker end at that moment, and each worker after it. Here the record becomes a quarantined message instead.
"""

from __future__ import annotations

import json
from typing import Any

from . import kombu_internals as kombu
from .features import SAFE_REDELIVERY
from .message_checks import LARGEST_BYTES, InvalidMessage, check_unacked
from .quarantine import quarantine_message
from .refusals import REDELIVERY, refusals
from .safe_decoding import decode_text


def install_safe_redelivery(control_queue: str) -> None:
    """Let this process restore unacknowledged messages safely: a malformed record becomes a quarantined message.

    Args:
        control_queue: The queue that takes the calls of the quarantine task.
    """
    if not SAFE_REDELIVERY.is_available():
        return

    def subclass(stock: Any) -> Any:
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
                    reason = _examine_record(self, connection, tag)
                    if reason is None:
                        reason = _restore(super(), self, connection, tag, leftmost)
                    if reason is not None:
                        _quarantine(self, connection, tag, reason, control_queue)

        return GuardedQoS

    kombu.replace_redelivery(subclass)


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
        check_unacked(json.loads(decode_text(record)))
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


def _quarantine(qos: Any, connection: Any, tag: Any, reason: str, control_queue: str) -> None:
    """Replace a record by a call of the quarantine task, in one transaction."""
    refusals.record(REDELIVERY, reason)
    try:
        record = decode_text(connection.hget(qos.unacked_key, tag)) or ""
        message = quarantine_message(control_queue, record, reason)
        pipe = connection.pipeline()
        pipe.zrem(qos.unacked_index_key, tag)
        pipe.hdel(qos.unacked_key, tag)
        pipe.lpush(control_queue, json.dumps(message))
        pipe.execute()
    except qos.channel.ResponseError as error:
        refusals.record(REDELIVERY, f"an unacknowledged message cannot be quarantined: {error}")
