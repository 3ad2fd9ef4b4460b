"""Everything of kombu that is used and not documented.

Nobody else touches it. `PROBES` lists what a worker looks for when it starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import kombu.transport.redis as kombu_redis
from celery import Celery
from kombu.exceptions import OperationalError
from kombu.transport import virtual

from ...worker.errors import StoreUnavailable
from ..names import STEP

_transport: Final[Any] = kombu_redis
_VirtualQoS: Final[Any] = getattr(virtual, "QoS", None)

DECODING: Final = (
    "kombu.transport.redis:loads",
    "kombu.transport.redis:bytes_to_str",
    "kombu.transport.redis:Transport._deliver",
)
FETCHING: Final = (
    "kombu.transport.redis:Channel._brpop_start",
    "kombu.transport.redis:Channel._brpop_read",
    "kombu.transport.redis:Channel._flush_brpop_reauth",
    "kombu.transport.redis:Channel._in_poll",
    "kombu.transport.redis:Channel._q_for_pri",
    *DECODING,
)
NO_ACK_MARK: Final = ("kombu.transport.redis:Channel.no_ack_consumers", "kombu.transport.redis:loads")
READING: Final = ("kombu.transport.redis:Channel._brpop_read",)
REDELIVERY: Final = (
    "kombu.transport.redis:Channel.QoS",
    "kombu.transport.redis:QoS.restore_by_tag",
    "kombu.transport.redis:QoS.restore_visible",
)
CALLBACKS: Final = ("kombu.transport.redis:Transport._callbacks",)
HUB: Final = ("kombu.asynchronous:Hub.poller", "kombu.asynchronous:Hub.call_soon")
POLLER: Final = ("kombu.utils.eventio:poll()._epoll|_kqueue",)
PUBLISHING: Final = ("kombu.transport.redis:Channel.create_publish_batch",)
PROBES: Final = (*FETCHING, *REDELIVERY, *NO_ACK_MARK, *CALLBACKS, *HUB, *POLLER, *PUBLISHING)

_NO_ACK_TAG: Final = "celery-agents-no-ack"

# The originals, taken before this package replaces them; None where kombu has no such attribute.
_stock_start: Final[Any] = getattr(_transport.Channel, "_brpop_start", None)
_stock_read: Final[Any] = getattr(_transport.Channel, "_brpop_read", None)
_stock_flush: Final[Any] = getattr(_transport.Channel, "_flush_brpop_reauth", None)
_stock_deliver: Final[Any] = getattr(_transport.Transport, "_deliver", None)
_stock_loads: Final[Any] = getattr(_transport, "loads", None)

# --- decoding -----------------------------------------------------------------------------------------------------


def stock_loads(text: Any) -> Any:
    """Decode JSON as kombu's Redis transport does."""
    return _stock_loads(text)


def stock_deliver(transport: Any, message: Any, queue: Any) -> None:
    """Hand a decoded message to the consumer of its queue, as kombu does."""
    _stock_deliver(transport, message, queue)


def replace_decoding(
    loads: Callable[[Any], Any], bytes_to_str: Callable[[Any], Any], deliver: Callable[[Any, Any, Any], None]
) -> None:
    """Let kombu's Redis transport use these functions, as far as it has such functions."""
    if _stock_loads is not None:
        _transport.loads = loads
    if hasattr(_transport, "bytes_to_str"):
        _transport.bytes_to_str = bytes_to_str
    if _stock_deliver is not None:
        _transport.Transport._deliver = deliver


# --- messages without acknowledgement -----------------------------------------------------------------------------


def accept_no_ack_mark() -> None:
    """Let channels of the Redis transport know the mark that `mark_no_ack` sets."""
    _transport.Channel.no_ack_consumers = frozenset({_NO_ACK_TAG})


def no_ack_tag() -> str:
    """Return the consumer tag of a message whose acknowledgement nobody waits for."""
    return _NO_ACK_TAG


def mark_no_ack(message: dict[str, Any], queues: Collection[str]) -> None:
    """Note in a decoded message that nobody waits for its acknowledgement, if it came from one of these queues."""
    delivery_info = message["properties"]["delivery_info"]
    if delivery_info.get("routing_key") in queues:
        delivery_info["consumer_tag"] = _NO_ACK_TAG


def has_no_ack_mark(message: Any) -> bool:
    """Tell whether kombu would ignore the acknowledgement of a message."""
    marks: Any = getattr(message.channel, "no_ack_consumers", None)
    return message.delivery_info.get("consumer_tag") in (marks or ())


def key_type(channel: Any, key: str) -> str | None:
    """Ask Redis for the type of a key; None where the user may not ask."""
    try:
        with channel.conn_or_acquire() as client:  # on the channel's own connection a BRPOP may wait
            answer = client.type(key)
    except channel.ResponseError:
        return None
    return answer.decode() if isinstance(answer, bytes) else str(answer)


# --- redelivery ---------------------------------------------------------------------------------------------------


def replace_redelivery(subclass: Callable[[Any], Any]) -> None:
    """Let channels of the Redis transport keep unacknowledged messages by a subclass of kombu's class for that."""
    _transport.Channel.QoS = subclass(_transport.Channel.QoS)


def replace_binding_scripts() -> None:
    """Let channels of the Redis transport keep the bindings of expiring queues by commands, and sweep none.

    For a process whose Redis user may run no scripts. The workers sweep: each consumes an expiring queue of its own.
    """
    _transport.Channel._refresh_binding = staticmethod(_refresh_binding)
    _transport.Channel.sweep_bindings = _sweep_nothing


def _sweep_nothing(channel: Any, limit: int = 100) -> int:
    del channel, limit
    return 0


def _refresh_binding(*, keys: Sequence[str], args: Sequence[Any], client: Any) -> None:
    """Do what kombu's script does, for a client or for a pipeline, by this machine's clock."""
    member, exchange, milliseconds = args
    client.sadd(keys[0], member)
    client.zadd(keys[1], {exchange: time.time() * 1000 + int(milliseconds)}, gt=True)


def forget_locally(qos: Any, delivery_tag: str) -> None:
    """Acknowledge a message in the memory of this process alone."""
    _VirtualQoS.ack(qos, delivery_tag)


def remember_locally(qos: Any, message: Any, delivery_tag: str) -> None:
    """Keep an unacknowledged message in the memory of this process alone."""
    _VirtualQoS.append(qos, message, delivery_tag)


# --- fetching -----------------------------------------------------------------------------------------------------


def replace_fetching(start: Callable[..., None], read: Callable[..., Any], flush_reauth: Callable[[Any], None]) -> None:
    """Let channels of the Redis transport send BRPOP, read its answer and renew credentials with these functions."""
    _transport.Channel._brpop_start = start
    _transport.Channel._brpop_read = read
    _transport.Channel._flush_brpop_reauth = flush_reauth


def replace_reading(read: Callable[..., Any]) -> None:
    """Let channels of the Redis transport read the answer to a BRPOP with this function."""
    _transport.Channel._brpop_read = read


def set_channel_default(name: str, value: object) -> None:
    """Give every channel of the Redis transport an attribute."""
    setattr(_transport.Channel, name, value)


def start_brpop(channel: Any, timeout: Any) -> None:
    """Send the BRPOP of a channel, as kombu does."""
    _stock_start(channel, timeout)


def read_brpop(channel: Any, **options: Any) -> Any:
    """Read the answer to a BRPOP and deliver the message in it, as kombu does."""
    return _stock_read(channel, **options)


def flush_reauth(channel: Any) -> None:
    """Send new credentials, as kombu does."""
    _stock_flush(channel)


def waits_for_brpop(channel: Any) -> bool:
    """Tell whether a BRPOP was sent whose answer was not read."""
    return bool(channel._in_poll)


def ask_another_queue_first(channel: Any) -> None:
    """Let the next BRPOP name its first queue last: Redis stops at the first key of another type."""
    cycle = getattr(channel, "_queue_cycle", None)
    order = getattr(cycle, "items", None)
    if cycle is not None and order:
        cycle.rotate(order[0])


def last_queue(channel: Any) -> str | None:
    """Return the queue that the last BRPOP brought a message from; None where kombu keeps no such order."""
    order = getattr(getattr(channel, "_queue_cycle", None), "items", None)
    return order[-1] if order else None


def send_rpop(channel: Any, queue: str, count: int) -> None:
    """Ask for messages of ordinary priority on the connection of the BRPOP."""
    key = f"{channel.global_keyprefix}{channel._q_for_pri(queue, 0)}"
    channel.client.connection.send_command("RPOP", key, count)


def deliver_element(channel: Any, element: Any, queue: str) -> None:
    """Decode an element of a queue and hand it to the queue's consumer."""
    channel.connection._deliver(_transport.loads(_transport.bytes_to_str(element)), queue)


# --- the worker's loop --------------------------------------------------------------------------------------------


def receiver_of(channel: Any, queue: str) -> Callable[[dict[str, Any]], None] | None:
    """Return what kombu calls with each decoded message of a queue; None when nobody consumes it."""
    return channel.connection._callbacks.get(queue)


def descriptor_of(poller: Any) -> int:
    """Return the file descriptor of a hub's poller; 0 where it has none, as with `poll`."""
    selector = getattr(poller, "_epoll", None) or getattr(poller, "_kqueue", None)
    return selector.fileno() if selector is not None else 0


# --- publishing ---------------------------------------------------------------------------------------------------


class _NotSent(Exception):
    """Ends a batch of kombu before it is sent."""


def written_message(app: Celery, options: dict[str, Any]) -> tuple[str, str]:
    """Let kombu's Redis transport write a step message into a batch that is never sent.

    Returns:
        The Redis key and the message, as the batch would have pushed them.
    Raises:
        ValueError: The batch holds no push, or several.
        StoreUnavailable: The broker does not answer: kombu asks it to which queues an exchange leads.
    """
    batches: list[Any] = []
    commands: list[tuple[Any, ...]] = []
    try:
        with app.producer_or_acquire() as producer:
            channel: Any = producer.channel
            create = channel.create_publish_batch

            def create_publish_batch(*args: Any, **more: Any) -> Any:
                batches.append(create(*args, **more))
                return batches[-1]

            channel.create_publish_batch = create_publish_batch
            try:
                with producer.batch():
                    app.send_task(STEP, producer=producer, retry=False, **options)
                    commands += [args for batch in batches for args, _ in batch.pipeline.command_stack]
                    raise _NotSent
            except _NotSent:
                pass
            finally:
                del channel.create_publish_batch
    except OperationalError as error:
        raise StoreUnavailable(f"the broker cannot be reached: {error}") from error
    pushes = [command for command in commands if command[0].upper() == "LPUSH"]
    if len(pushes) != 1:
        raise ValueError(f"kombu pushed one message {len(pushes)} times")
    return pushes[0][1], pushes[0][2]
