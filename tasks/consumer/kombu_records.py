"""Records that kombu has made of our messages in the hash `unacked`: those of earlier versions of this package.

kombu puts the message of a record back after the visibility timeout, but only in a worker in which it consumes a queue
itself. A record of another form would end that worker; here it becomes a quarantined message.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any, Final

from celery import Celery

from ...worker.store.redis.database import RedisDatabase
from ..broker_keys import queue_keys, unacked_index_key, unacked_key, visibility_seconds
from .message_checks import InvalidMessage, check_unacked, parse_element
from .quarantine import Quarantine
from .refusals import REDELIVERY, refusals

# kombu's record is a list of the message, its exchange and its routing key. Its end is enough to know the queue.
_END_OF_RECORD: Final = re.compile(rb', "((?:[^"\\]|\\.)*)"\]\s*$')
_LONGEST_END: Final = 1_000
# KEYS: hash and index of the records, and the list of the queue. ARGV: the record's name, and the message.
_RESTORE: Final = """
redis.call('ZREM', KEYS[2], ARGV[1])
if redis.call('HDEL', KEYS[1], ARGV[1]) == 1 and KEYS[3] then redis.call('RPUSH', KEYS[3], ARGV[2]) end
"""


def restore_records(
    app: Celery, database: RedisDatabase, quarantine: Quarantine, is_ours: Callable[[str], bool]
) -> None:
    """Put the messages of records whose time is over back into our queues, and malformed records into quarantine.

    Args:
        is_ours: Tells by its routing key whether a record is of one of our queues. Those of other apps, which keep
            theirs under the same keys and may have longer timeouts, stay as they are.
    """
    keys = (unacked_key(app), unacked_index_key(app))
    latest = time.time() - visibility_seconds(app)
    (names,) = database.exchange([("ZRANGEBYSCORE", keys[1], "-inf", latest)])
    if isinstance(names, Exception):
        refusals.record(REDELIVERY, f"unacknowledged messages cannot be looked at: {names}")
        return
    for name in names:
        (record,) = database.exchange([("HGET", keys[0], name)])
        reason, queue, text = examine_unacked(record), (), ""
        if names_another_queue(record, is_ours) or (reason and not quarantine.put(record, reason, REDELIVERY)):
            continue
        if reason is None and record is not None:
            message, _, routing_key = json.loads(record)
            message["properties"]["delivery_info"]["redelivered"] = True
            queue, text = queue_keys(app, routing_key)[:1], json.dumps(message)
        (reply,) = database.exchange([("EVAL", _RESTORE, 2 + len(queue), *keys, *queue, name, text)])
        if isinstance(reply, Exception):
            refusals.record(REDELIVERY, f"an unacknowledged message cannot be restored: {reply}")


def names_another_queue(record: Any, is_ours: Callable[[str], bool]) -> bool:
    """Tell whether a record is of a queue that is not this app's; one without a queue's name belongs to nobody."""
    end = _END_OF_RECORD.search(record[-_LONGEST_END:]) if isinstance(record, bytes) else None
    return end is not None and not is_ours(end[1].decode("utf-8", "replace"))


def examine_unacked(record: Any) -> str | None:
    """Say what is wrong with a stored record of an unacknowledged message; None when nothing is, or there is none."""
    if record is None:
        return None
    if not isinstance(record, bytes):
        return f"an unacknowledged message cannot be read: {record}"
    try:
        check_unacked(parse_element(record))
    except InvalidMessage as error:
        return f"an unacknowledged message: {error}"
    return None
