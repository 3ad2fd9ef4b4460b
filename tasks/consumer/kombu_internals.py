"""Everything of kombu that is used and not documented.

Nobody else touches it. `PROBES` lists what a worker looks for when it starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import kombu.transport.redis as kombu_redis
from kombu.transport import virtual

_transport: Final[Any] = kombu_redis
_VirtualQoS: Final[Any] = getattr(virtual, "QoS", None)

DECODING: Final = (
    "kombu.transport.redis:loads",
    "kombu.transport.redis:bytes_to_str",
    "kombu.transport.redis:Transport._deliver",
)
READING: Final = ("kombu.transport.redis:Channel._brpop_read",)
REDELIVERY: Final = (
    "kombu.transport.redis:Channel.QoS",
    "kombu.transport.redis:QoS.restore_by_tag",
    "kombu.transport.redis:QoS.restore_visible",
)
PROBES: Final = (*DECODING, *REDELIVERY, *READING)

# The originals, taken before this package replaces them; None where kombu has no such attribute.
_stock_read: Final[Any] = getattr(_transport.Channel, "_brpop_read", None)
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


# --- keys ---------------------------------------------------------------------------------------------------------


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


# --- reading ------------------------------------------------------------------------------------------------------


def replace_reading(read: Callable[..., Any]) -> None:
    """Let channels of the Redis transport read the answer to a BRPOP with this function."""
    _transport.Channel._brpop_read = read


def read_brpop(channel: Any, **options: Any) -> Any:
    """Read the answer to a BRPOP and deliver the message in it, as kombu does."""
    return _stock_read(channel, **options)
