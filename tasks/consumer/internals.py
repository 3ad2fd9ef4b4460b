"""Everything of Celery, kombu and redis-py that is used and not promised. Nothing else touches it.

A worker is faster or safer with these attributes, and takes steps without any of them: where one is missing, for
example in a newer version of the library, the library works as it is, and log and `doctor` say what that means.
"""

from __future__ import annotations

import inspect
import logging
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from importlib import import_module
from operator import attrgetter
from typing import Any, Final

import kombu.transport.redis as kombu_redis
from celery.worker import control, state

log = logging.getLogger(__name__)

EVENT_SECONDS: Final = 0.05
"""How long the events of tasks wait for others to be sent with them. Who watches a screen does not notice it."""

_REDIS: Final = "kombu.transport.redis"
_SUBCLIENT: Final = f"{_REDIS}:Channel.subclient"
_BINDINGS: Final = (f"{_REDIS}:Channel._refresh_binding", f"{_REDIS}:Channel.sweep_bindings")
_RESERVED: Final = "celery.worker.state:reserved_requests"
_REVOKING: Final = ("celery.worker.state:active_requests", "celery.worker.state:revoked")
# A worker does not look for these when it starts: their objects alone have them, or Flower alone uses them.
_STRATEGY: Final = "celery.worker.strategy:default"
_BUFFERS: Final = (
    "celery.events.dispatcher:EventDispatcher.buffer_limit",
    "celery.events.dispatcher:EventDispatcher.on_send_buffered",
)
_SOCKET: Final = "redis.connection:Connection._sock"
_PARSER: Final = "redis.connection:Connection._parser.parse_error"
_LATER: Final = (*_BINDINGS, _STRATEGY, *_BUFFERS, _SOCKET, _PARSER)

WITHOUT: Final[Mapping[str, str]] = {
    _SUBCLIENT: "malformed remote control ends it",
    **dict.fromkeys(_BINDINGS, "Flower needs a Redis user that may run scripts"),
    _RESERVED: "it fetches steps for slots that other tasks of the app have",
    **dict.fromkeys(_REVOKING, "a revoke in Flower does not stop a session"),
    _STRATEGY: "kombu fetches its messages, one in each round trip, without a record of those it has not ended",
    **dict.fromkeys(_BUFFERS, "each step wakes the thread that sends its events"),
    **dict.fromkeys((_SOCKET, _PARSER), "it uses the documented calls of redis-py, which take longer"),
}
"""The attributes, by module and path in it, each with what is true of a worker without it."""

_redis: Final[Any] = kombu_redis
_state: Final[Any] = state

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


def running_messages() -> list[Any]:
    """Return the messages of tasks that run in this worker, and that Celery has not cancelled with its connection."""
    running = active_requests() if knows_revokes() else ()
    return [each.message for each in running if not getattr(each, "_already_cancelled", False)]


def forget_revoked(task_id: str) -> None:
    """Accept a task id again that was revoked."""
    _state.revoked.discard(task_id)


def wrap_remote_command(name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a remote control command of this process, if it has it, by what `wrap` makes of it."""
    command = _commands.get(name) or getattr(control, name, None)
    if command is not None:
        _commands[name] = control.control_command(name=name)(wrap(command))


def batch_events(dispatcher: Any, call_later: Callable[[float, Callable[[], object]], object]) -> None:
    """Let a dispatcher send the events of tasks together, `EVENT_SECONDS` after the first of them.

    By itself it asks Celery's loop to send them with each event, which wakes the thread of that loop, and the sender of
    the 24th event sends all of them and waits for the broker.

    Args:
        call_later: Calls back after so many seconds, in any thread.
    """
    names = [path.rpartition(".")[2] for path in _BUFFERS]
    for path, name in zip(_BUFFERS, names, strict=True):
        if not hasattr(dispatcher, name):
            _note_missing(path)
            return
    ask_loop = dispatcher.on_send_buffered
    if ask_loop is None:  # events are sent one by one
        return
    is_asked = False

    def send_later() -> None:
        nonlocal is_asked
        if not is_asked:  # two threads may both see this; then the loop is asked twice
            is_asked = True
            call_later(EVENT_SECONDS, send)

    def send() -> None:
        nonlocal is_asked
        is_asked = False
        ask_loop()

    dispatcher.buffer_limit, dispatcher.on_send_buffered = sys.maxsize, send_later


def has_known_strategy(consumer: Any, task: str) -> bool:
    """Tell whether a consumer has a function that takes a task's message as we hand it over."""
    try:
        inspect.signature(consumer.strategies[task]).bind("message", "body", "ack", "reject", "callbacks")
    except (AttributeError, KeyError, TypeError, ValueError):
        _note_missing(_STRATEGY)
        return False
    return True


# --- kombu's Redis transport ------------------------------------------------------------------------------------------


def check_subscriptions(stock: Any, check: Callable[[Any], bool]) -> Any:
    """Return a subclass of a channel that drops what comes over a subscription and does not pass a check.

    Args:
        check: Takes redis-py's answer, a list of type, pattern, channel and data. kombu has not looked at it.
    """

    def open_subscriptions(channel: Any) -> Any:
        subclient = stock.subclient.__get__(channel)
        parse = subclient.parse_response

        def parse_response(*args: Any, **options: Any) -> Any:
            answer = parse(*args, **options)
            return answer if check(answer) else None

        subclient.parse_response = parse_response
        return subclient

    if not _has(_SUBCLIENT):
        return stock
    return type(stock.__name__, (stock,), {"subclient": cached_property(open_subscriptions)})


def without_binding_scripts(stock: Any) -> Any:
    """Return a subclass of a channel that keeps the bindings of expiring queues by commands, and sweeps none.

    For a process whose Redis user may run no scripts. The workers sweep: each consumes an expiring queue of its own.
    """
    if not _has(*_BINDINGS):
        return stock
    commands: dict[str, Any] = {"_refresh_binding": staticmethod(_refresh_binding), "sweep_bindings": _sweep_nothing}
    return type(stock.__name__, (stock,), commands)


def _sweep_nothing(channel: Any, limit: int = 100) -> int:
    del channel, limit
    return 0


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
