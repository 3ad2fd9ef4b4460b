"""Connections of one HTTP process: how many there may be, and how long each may take for a head or for its readings.

uvicorn limits neither: its `limit_concurrency` counts requests whose head has come, and it waits for ever for a head
and for a reader who takes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...config.settings import Settings, SettingsError

_log = logging.getLogger(__name__)

# Besides streams, which stay open.
_REQUESTS: Final = 1_000
# Files for connections to Redis, logs, and connections that are accepted before one is closed for them.
_OTHER_FILES: Final = 400
_FEWEST_CONNECTIONS: Final = 50

_HEAD_SECONDS: Final = 10.0
_UNREAD_BODY_SECONDS: Final = 5.0
_READER_SECONDS: Final = 30.0
_WRITE_BUFFER_BYTES: Final = 32_768
_PIPELINED_BYTES: Final = 65_536


def count_connections(settings: Settings) -> int:
    """Find how many connections the process may have, and raise its limit of open files to what that takes.

    Raises:
        SettingsError: The limit of open files leaves hardly any.
    """
    wanted = settings.http_max_streams + _REQUESTS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    found = soft - _OTHER_FILES
    text = (
        f"the limit of open files is {soft}; {needed} are needed for http_max_streams={settings.http_max_streams} and "
        f"{_REQUESTS} other connections. Raise it (ulimit -n, LimitNOFILE=), or lower CELERY_AGENTS_HTTP_MAX_STREAMS"
    )
    if found < _FEWEST_CONNECTIONS:
        raise SettingsError(f"{text}.")
    _log.warning("%s. Until then %d connections are taken at a time.", text, found)
    return found


@dataclass(slots=True)
class OpenConnections:
    """The connections of a process that may be closed to make room, the oldest first.

    Attributes:
        most: Further connections take the place of these, or are closed at once.
        without_request: Connections on which no whole head of a request has come.
        uploading: Connections whose request's body has not come to its end.
    """

    most: int
    without_request: dict[ConnectionProtocol, None] = field(default_factory=dict["ConnectionProtocol", None])
    uploading: dict[ConnectionProtocol, None] = field(default_factory=dict["ConnectionProtocol", None])

    def make_room(self, newest: ConnectionProtocol) -> None:
        """Close one connection for a new one: one that waits for a head, else for a body, else the new one itself."""
        next(iter(self.without_request), next(iter(self.uploading), newest)).abort()

    def forget(self, connection: ConnectionProtocol) -> None:
        """Leave this connection open, or alone when it is closed."""
        self.without_request.pop(connection, None)
        self.uploading.pop(connection, None)


class ConnectionProtocol(H11Protocol):
    """uvicorn's protocol with limits; `limited_to` makes the class for a process."""

    open: ClassVar[OpenConnections]
    _timer: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None

    @classmethod
    def limited_to(cls, most: int) -> type[ConnectionProtocol]:
        """The protocol of a process that has so many connections at most."""
        return cast("type[ConnectionProtocol]", type(cls.__name__, (cls,), {"open": OpenConnections(most)}))

    def abort(self) -> None:
        """Close the connection at once, without sending what waits."""
        self.open.forget(self)
        self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        """Take a connection, and close another one where there are too many."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        if len(self.connections) > self.open.most:
            self.open.make_room(self)
        if not transport.is_closing():
            self.open.without_request[self] = None
            self._set_timer(_HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.open.forget(self)
        self._set_timer(None)
        self._stop_watching_reader()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a piece of a request, and see how far that has come."""
        super().data_received(data)
        self._look()
        if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) > _PIPELINED_BYTES:
            self.abort()  # a request behind this one, which has no answer yet

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no HTTP; the request in whose body they are has lost its sender."""
        cycle = cast("Any", self.cycle)  # None before the first request, which its type does not say
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.abort()  # an answer has begun

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of a body that was refused, which is not read."""
        super().on_response_complete()
        self._look()
        if self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY:
            self._set_timer(_UNREAD_BODY_SECONDS)

    def pause_writing(self) -> None:
        """Give a reader some time to take what waits for it."""
        super().pause_writing()
        if self._reader_timer is None:
            self._reader_timer = self.loop.call_later(_READER_SECONDS, self.abort)

    def resume_writing(self) -> None:
        """Go on with a reader who has taken something."""
        self._stop_watching_reader()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection; at once where its reader has not even taken the last response."""
        if self.transport.get_write_buffer_size():
            self.abort()
        else:
            super().timeout_keep_alive_handler()

    def _look(self) -> None:
        """See what the connection waits for: a head, a body or neither."""
        self.open.forget(self)
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE:
            self.open.without_request[self] = None
            if self._timer is None and self.timeout_keep_alive_task is None:
                self._set_timer(_HEAD_SECONDS)
            return
        self._set_timer(None)
        if self.conn.their_state is h11.SEND_BODY:
            self.open.uploading[self] = None

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.abort)

    def _stop_watching_reader(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None
