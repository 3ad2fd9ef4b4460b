"""Several queued messages in one trip.

kombu asks Redis for one message, hands it over, and turns its loop once more for the next one; with small steps that
loop is half of what a worker computes. Where steps wait in the queue and slots are free, ours asks for more behind the
same BRPOP: it blocks as ever, and what lies in the queue when it returns comes with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import kombu.transport.redis as kombu_redis
from celery.worker import state

log = logging.getLogger(__name__)

_transport: Final[Any] = kombu_redis
_channel: Final[Any] = _transport.Channel  # its two halves of a BRPOP are what has to be continued
_stock_start: Final[Callable[..., None]] = _channel._brpop_start
_stock_read: Final[Callable[..., Any]] = _channel._brpop_read
_stock_flush_reauth: Final[Callable[[Any], None]] = _channel._flush_brpop_reauth
# Handing over that many takes about ten milliseconds, in which the loop notices nothing else.
MOST: Final = 32


def enable_batch_fetch(queue: str, slots: Callable[[], int]) -> None:
    """From now on this process takes what waits in a queue together, never more than it has free slots.

    Args:
        queue: It must be consumed without acknowledgement: what kombu popped and did not hand over is lost, as with
            its own BRPOP, and found again by the sweep.
        slots: How many tasks this worker runs at a time.
    """

    def start(channel: Any, timeout: Any = None) -> None:
        channel.asked_for_more = False  # of a connection that was lost meanwhile
        _stock_start(channel, timeout)
        busy = len(state.reserved_requests)
        more = min(slots() - busy, MOST) - 1
        # A worker with nothing else to do gets its one message by the BRPOP.
        if (
            busy > 1
            and more > 0
            and channel._in_poll
            and queue in channel.active_queues
            and not channel.more_is_refused
        ):
            channel.client.connection.send_command("RPOP", _key(channel, queue), more)
            channel.asked_for_more = True

    def read(channel: Any, **options: Any) -> Any:
        try:
            return _stock_read(channel, **options)
        finally:  # nothing came for the BRPOP, or what came could not be handed over: the second answer still follows
            if channel.asked_for_more:
                _deliver_more(channel, queue)

    def flush_reauth(channel: Any) -> None:
        if not channel.asked_for_more:  # a command sent now would take the answer for its own; kombu tries again
            _stock_flush_reauth(channel)

    # Of each connection's channel: whether a second answer follows, and whether this user may not ask for it.
    _channel.asked_for_more = _channel.more_is_refused = False
    _channel._brpop_start = start
    _channel._brpop_read = read
    _channel._flush_brpop_reauth = flush_reauth


def _key(channel: Any, queue: str) -> str:
    """Where messages of ordinary priority lie."""
    return f"{channel.global_keyprefix}{channel._q_for_pri(queue, 0)}"


def _deliver_more(channel: Any, queue: str) -> None:
    connection = channel.client.connection
    channel.asked_for_more = False
    if connection._sock is None:  # lost with the first answer
        return
    try:
        elements = channel.client.parse_response(connection, "RPOP")
    except channel.ResponseError as error:  # this user may not
        log.warning("messages are taken one by one: %s", error)
        channel.more_is_refused = True
        return
    except channel.connection_errors:
        connection.disconnect()
        raise
    for element in elements or ():
        channel.connection._deliver(_transport.loads(_transport.bytes_to_str(element)), queue)
