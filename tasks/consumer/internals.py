"""Everything of Celery, kombu and redis-py that is used and not promised. Nothing else touches it.

A worker is faster or safer with these attributes, and takes steps without any of them: where one is missing, for
example in a newer version of the library, the library works as it is, and log and `doctor` say what that means.
"""

from __future__ import annotations

import inspect
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import Any, Final

import kombu.transport.redis as kombu_redis
from celery.worker import control, state
from kombu.transport import virtual

log = logging.getLogger(__name__)

_REDIS: Final = "kombu.transport.redis"
_LOADS: Final = f"{_REDIS}:loads"
_DELIVER: Final = f"{_REDIS}:Transport._deliver"
_READ: Final = f"{_REDIS}:Channel._brpop_read"
_REDELIVERY: Final = (f"{_REDIS}:Channel.QoS", f"{_REDIS}:QoS.restore_by_tag", f"{_REDIS}:QoS.restore_visible")
_BINDINGS: Final = (f"{_REDIS}:Channel._refresh_binding", f"{_REDIS}:Channel.sweep_bindings")
_RESERVED: Final = "celery.worker.state:reserved_requests"
_REVOKING: Final = ("celery.worker.state:active_requests", "celery.worker.state:revoked")
# A worker does not look for these when it starts: their objects alone have them, or Flower alone uses them.
_STRATEGY: Final = "celery.worker.strategy:default"
_BUFFER_LIMIT: Final = "celery.events.dispatcher:EventDispatcher.buffer_limit"
_SOCKET: Final = "redis.connection:Connection._sock"
_PARSER: Final = "redis.connection:Connection._parser.parse_error"
_LATER: Final = (*_BINDINGS, _STRATEGY, _BUFFER_LIMIT, _SOCKET, _PARSER)

WITHOUT: Final[Mapping[str, str]] = {
    **dict.fromkeys((_LOADS, _DELIVER), "malformed control messages end it"),
    _READ: "a control queue of another type ends it",
    **dict.fromkeys(_REDELIVERY, "a malformed unacknowledged record ends it"),
    **dict.fromkeys(_BINDINGS, "Flower needs a Redis user that may run scripts"),
    _RESERVED: "it fetches steps for slots that other tasks of the app have",
    **dict.fromkeys(_REVOKING, "a revoke in Flower does not stop a session"),
    _STRATEGY: "kombu fetches its steps, one in each round trip",
    _BUFFER_LIMIT: "a step that sends the 24th event sends all of them",
    **dict.fromkeys((_SOCKET, _PARSER), "it uses the documented calls of redis-py, which take longer"),
}
"""The attributes, by module and path in it, each with what is true of a worker without it."""

_redis: Final[Any] = kombu_redis
_state: Final[Any] = state
_VirtualQoS: Final[Any] = getattr(virtual, "QoS", None)
# The originals, taken before this package replaces them; None where kombu has no such attribute.
stock_loads: Final[Any] = getattr(_redis, "loads", None)
stock_deliver: Final[Any] = getattr(_redis.Transport, "_deliver", None)
stock_read: Final[Any] = getattr(_redis.Channel, "_brpop_read", None)

_noted: dict[str, None] = {}
_commands: dict[str, Callable[..., Any]] = {}


# --- looking for them -------------------------------------------------------------------------------------------------


def missing_internals() -> list[str]:
    """Return the attributes that this process looked for and did not find."""
    return sorted({*_missing_at_start(), *_noted})


@cache
def _missing_at_start() -> tuple[str, ...]:
    return tuple(path for path in WITHOUT if path not in _LATER and not _exists(path))


def _exists(path: str) -> bool:
    module, _, names = path.partition(":")
    try:
        attrgetter(names)(import_module(module))
    except (ImportError, AttributeError):
        return False
    return True


def _has(*paths: str) -> bool:
    """Tell whether all of these are there; log what is missing, and what that means."""
    missing = [path for path in paths if not _exists(path)]
    for path in missing:
        _note_missing(path)
    return not missing


def _note_missing(path: str) -> None:
    if path not in _noted:
        _noted[path] = None
        log.warning("not found: %s; this worker goes on, but %s; install a version that is known", path, WITHOUT[path])


# --- Celery -----------------------------------------------------------------------------------------------------------


def reserved_count() -> int:
    """Return how many tasks this worker has received and not finished; 0 where Celery does not tell."""
    reserved = getattr(_state, "reserved_requests", None)
    if reserved is None:
        _note_missing(_RESERVED)
    return len(reserved or ())


def knows_revokes() -> bool:
    """Tell whether Celery says which tasks run and which are revoked."""
    return _has(*_REVOKING)


def active_requests() -> list[Any]:
    """Return the requests of tasks that run in this worker."""
    return list(_state.active_requests)


def forget_revoked(task_id: str) -> None:
    """Accept a task id again that was revoked."""
    _state.revoked.discard(task_id)


def wrap_remote_command(name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a remote control command of this process, if it has it, by what `wrap` makes of it."""
    command = _commands.get(name) or getattr(control, name, None)
    if command is not None:
        _commands[name] = control.control_command(name=name)(wrap(command))


def buffer_all_events(dispatcher: Any, limit: int) -> None:
    """Let an event dispatcher buffer `limit` events; the sender of the next one sends them all."""
    if hasattr(dispatcher, "buffer_limit"):
        dispatcher.buffer_limit = limit
    else:
        _note_missing(_BUFFER_LIMIT)


def has_known_strategy(consumer: Any, task: str) -> bool:
    """Tell whether a consumer has a function that takes a task's message as we hand it over."""
    try:
        inspect.signature(consumer.strategies[task]).bind("message", "body", "ack", "reject", "callbacks")
    except (AttributeError, KeyError, TypeError, ValueError):
        _note_missing(_STRATEGY)
        return False
    return True


# --- kombu's Redis transport ------------------------------------------------------------------------------------------


def replace_decoding(loads: Callable[[Any], Any], deliver: Callable[[Any, Any, Any], None]) -> None:
    """Let kombu decode and deliver elements by these functions, as far as it has such functions."""
    if _has(_LOADS):
        _redis.loads = loads
    if _has(_DELIVER):
        _redis.Transport._deliver = deliver


def replace_reading(read: Callable[..., Any]) -> None:
    """Let kombu's channels read the answer to a BRPOP with this function."""
    if _has(_READ):
        _redis.Channel._brpop_read = read


def replace_redelivery(subclass: Callable[[Any], Any]) -> None:
    """Let kombu's channels keep unacknowledged messages by a subclass of kombu's class for that."""
    if _has(*_REDELIVERY):
        _redis.Channel.QoS = subclass(_redis.Channel.QoS)


def forget_locally(qos: Any, delivery_tag: str) -> None:
    """Acknowledge a message in the memory of this process alone."""
    _VirtualQoS.ack(qos, delivery_tag)


def remember_locally(qos: Any, message: Any, delivery_tag: str) -> None:
    """Keep an unacknowledged message in the memory of this process alone."""
    _VirtualQoS.append(qos, message, delivery_tag)


def replace_binding_scripts() -> None:
    """Let kombu's channels keep the bindings of expiring queues by commands, and sweep none.

    For a process whose Redis user may run no scripts. The workers sweep: each consumes an expiring queue of its own.
    """
    if _has(*_BINDINGS):
        _redis.Channel._refresh_binding = staticmethod(_refresh_binding)
        _redis.Channel.sweep_bindings = lambda channel, limit=100: 0  # pyright: ignore[reportUnknownLambdaType]


def _refresh_binding(*, keys: Sequence[str], args: Sequence[Any], client: Any) -> None:
    """Do what kombu's script does, for a client or for a pipeline, by this machine's clock."""
    member, exchange, milliseconds = args
    client.sadd(keys[0], member)
    client.zadd(keys[1], {exchange: time.time() * 1000 + int(milliseconds)}, gt=True)


# --- redis-py ---------------------------------------------------------------------------------------------------------


def plain_socket(connection: Any) -> tuple[socket.socket, Callable[[bytes], Exception]] | None:
    """Return the socket of a connected redis-py connection and the parser of its errors.

    Returns:
        None with TLS, and where redis-py keeps them elsewhere: then its own calls have to be used.
    """
    parse_error = getattr(getattr(connection, "_parser", None), "parse_error", None)
    if parse_error is None or not hasattr(connection, "_sock"):
        _note_missing(_PARSER if parse_error is None else _SOCKET)
        return None
    return (connection._sock, parse_error) if type(connection._sock) is socket.socket else None
