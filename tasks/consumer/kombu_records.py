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
from .control_fetcher import PUT_BACK
from .message_checks import InvalidMessage, check_unacked, parse_element
from .quarantine import Quarantine
from .refusals import REDELIVERY, refusals

# kombu's record is a list of the message, its exchange and its routing key. Its end is enough to know the queue.
_END_OF_RECORD: Final = re.compile(rb', "((?:[^"\\]|\\.)*)"\]\s*$')
_LONGEST_END: Final = 1_000
_MOST_AT_ONCE: Final = 100


class KombuRecords:
    """Restores the messages of records in kombu's hash `unacked`."""

    def __init__(
        self, app: Celery, database: RedisDatabase, *, quarantine: Quarantine, is_ours: Callable[[str], bool]
    ) -> None:
        """
        Args:
            is_ours: Tells by its routing key whether a record is of one of our queues. Those of other apps, which keep
                theirs under the same keys and may have longer timeouts, stay as they are.
        """
        self._app = app
        self._database = database
        self._quarantine = quarantine
        self._is_ours = is_ours
        self._keys = (unacked_key(app), unacked_index_key(app))
        self._offset = 0

    def restore(self) -> None:
        """Put messages of records whose time is over back into our queues, and malformed records into quarantine.

        It looks at a bounded number of records, and the next time at those behind: there may be many of other apps.
        """
        latest = time.time() - visibility_seconds(self._app)
        limit = ("LIMIT", self._offset, _MOST_AT_ONCE)
        (names,) = self._database.exchange([("ZRANGEBYSCORE", self._keys[1], "-inf", latest, *limit)])
        if isinstance(names, Exception):
            refusals.record(REDELIVERY, f"unacknowledged messages cannot be looked at: {names}")
            return
        records = self._database.exchange([("HGET", self._keys[0], name) for name in names]) if names else ()
        stay = sum(not self._restore_one(name, record) for name, record in zip(names, records, strict=True))
        self._offset = self._offset + stay if len(names) == _MOST_AT_ONCE else 0

    def _restore_one(self, name: bytes, record: Any) -> bool:
        """Remove a record, and tell whether it is gone."""
        if names_another_queue(record, self._is_ours):
            return False
        reason, queue, text = examine_unacked(record), (), ""
        if reason is None and record is not None:
            message, _, routing_key = json.loads(record)
            if not self._is_ours(routing_key):
                return False
            message["properties"]["delivery_info"]["redelivered"] = True
            queue, text = queue_keys(self._app, routing_key)[:1], json.dumps(message)
        elif reason and not self._quarantine.put(record, reason, REDELIVERY):
            return False
        (reply,) = self._database.exchange([("EVAL", PUT_BACK, 2 + len(queue), *self._keys, *queue, name, text)])
        if isinstance(reply, Exception):
            refusals.record(REDELIVERY, f"an unacknowledged message cannot be restored: {reply}")
        return not isinstance(reply, Exception)


def names_another_queue(record: Any, is_ours: Callable[[str], bool]) -> bool:
    """Tell whether a record is of a queue that is not this app's; one without a queue's name belongs to no app."""
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
