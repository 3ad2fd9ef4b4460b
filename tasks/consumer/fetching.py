"""Fetching several queued messages in one round trip.

kombu asks Redis for one message, delivers it, and turns its loop once more for the next one; with small steps that
loop is half of what a worker computes. A busy worker with free slots therefore sends an RPOP behind kombu's BRPOP, on
the same connection: the BRPOP blocks as ever, and the RPOP brings what else lies in the queue when the BRPOP returns.
A worker that takes several queues asks the one that the last BRPOP brought a message from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from . import kombu_internals as kombu
from .celery_internals import reserved_count
from .features import BATCH_FETCH
from .safe_fetch import read_guarded

log = logging.getLogger(__name__)

# Delivering that many takes about ten milliseconds, in which the loop notices nothing else.
BATCH_LIMIT: Final = 32


def enable_batch_fetch(queues: Sequence[str], slots: Callable[[], int]) -> None:
    """Let this process fetch what waits in a queue together, never more than it has free slots.

    Args:
        queues: They must be consumed without acknowledgement: what kombu popped and did not deliver is lost, as with
            its own BRPOP, and found again by the sweep.
        slots: Returns how many tasks this worker runs at a time.
    """
    if not BATCH_FETCH.is_available():
        return

    def start(channel: Any, timeout: Any = None) -> None:
        channel.has_pending_batch = False  # a connection that was lost may have left it set
        kombu.start_brpop(channel, timeout)
        count = _batch_size(slots())
        last = kombu.last_queue(channel)
        queue = last if last is not None and last in queues else queues[0]
        if count and _may_fetch(channel, queue):
            kombu.send_rpop(channel, queue, count)
            channel.has_pending_batch, channel.batch_queue = True, queue

    def read(channel: Any, **options: Any) -> Any:
        try:
            return read_guarded(channel, **options)
        finally:  # the second answer follows, whatever became of the first
            if channel.has_pending_batch:
                _deliver_batch(channel, channel.batch_queue)

    def flush_reauth(channel: Any) -> None:
        if not channel.has_pending_batch:  # a command sent now would take the answer for its own; kombu tries again
            kombu.flush_reauth(channel)

    kombu.set_channel_default("has_pending_batch", False)
    kombu.set_channel_default("is_batch_refused", False)
    kombu.replace_fetching(start, read, flush_reauth)


def _batch_size(slots: int) -> int:
    """Return how many messages to ask for besides the BRPOP's; a worker with nothing else to do needs none."""
    busy = reserved_count()
    return max(0, min(slots - busy, BATCH_LIMIT) - 1) if busy > 1 else 0


def _may_fetch(channel: Any, queue: str) -> bool:
    return kombu.waits_for_brpop(channel) and queue in channel.active_queues and not channel.is_batch_refused


def _deliver_batch(channel: Any, queue: str) -> None:
    connection = channel.client.connection
    channel.has_pending_batch = False
    if not connection.is_connected:  # lost with the first answer
        return
    try:
        elements = channel.client.parse_response(connection, "RPOP")
    except channel.ResponseError as error:  # this Redis user is not allowed to
        log.warning("messages are fetched one by one: %s", error)
        channel.is_batch_refused = True
        return
    except channel.connection_errors:
        connection.disconnect()
        raise
    for element in elements or ():
        kombu.deliver_element(channel, element, queue)
