"""Connections to servers: one owner task for each server and its credentials, on the loop whose steps use it.

The library's connections must be closed by the task that opened them, so each has an owner task that does nothing else.
It sleeps until the connection ends, is idle for too long, or the worker drains.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from ..errors import MissingExtra
from ..redaction import redact
from .credentials import Credentials
from .lists import ToolNotes
from .outages import ServerAway
from .server import MCPServer

if TYPE_CHECKING:
    from .session import ServerSession

log = logging.getLogger(__name__)

# After a failure the next try waits so long, and twice as long after each further one.
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0
_MOST_DOUBLINGS: Final = 8
_CLOSE_SECONDS: Final = 8.0


@dataclass(slots=True)
class _Failures:
    """How often opening has failed in a row, and when the next try may be made (seconds of the loop's clock)."""

    count: int = 0
    not_before: float = 0.0
    error: ServerAway | None = None

    def add(self, now: float, error: ServerAway) -> None:
        pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(self.count, _MOST_DOUBLINGS))
        self.count, self.not_before, self.error = self.count + 1, now + pause, error


class Connection:
    """The connection to one server with one set of credentials, opened again when it is needed. On one loop only."""

    def __init__(
        self, server: MCPServer, credentials: Credentials, on_changed: Callable[[], None], on_idle: Callable[[], None]
    ) -> None:
        self._on_changed = on_changed
        self._on_idle = on_idle
        self._server = server
        self._credentials = credentials
        self._failures = _Failures()
        self._opened: asyncio.Future[ServerSession] | None = None
        self._owner: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._users = 0
        self._idle: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def use(self) -> AsyncGenerator[ServerSession]:
        """Use the open connection; it is not idle meanwhile.

        Raises:
            ServerAway: It cannot be opened now.
        """
        self._users += 1
        if self._idle is not None:
            self._idle.cancel()
        try:
            yield await self._session()
        finally:
            self._users -= 1
            if not self._users:
                seconds = self._server.idle.total_seconds()
                self._idle = asyncio.get_running_loop().call_later(seconds, self._end_idle)

    def _end_idle(self) -> None:
        self._closing.set()
        self._on_idle()

    async def close(self) -> None:
        """Close the connection and end its command; a later use opens it again."""
        if self._idle is not None:
            self._idle.cancel()
        self._closing.set()
        if self._owner is not None and not self._owner.done():
            await asyncio.wait([self._owner], timeout=_CLOSE_SECONDS)

    @property
    def is_open(self) -> bool:
        """Whether calls can be sent now."""
        return self._opened is not None and self._opened.done() and not self._closing.is_set()

    async def _session(self) -> ServerSession:
        loop = asyncio.get_running_loop()
        if self._opened is None or self._closing.is_set() or self._owner is None or self._owner.done():
            wait, failed = self._failures.not_before - loop.time(), self._failures.error
            if wait > 0 and failed is not None:
                raise ServerAway(failed.server, failed.why, wait, trouble=failed.trouble)
            self._opened, self._closing = loop.create_future(), asyncio.Event()
            self._owner = loop.create_task(self._own(self._opened, self._closing))
        opened = self._opened
        # Shielded: a call that is cancelled must not end the opening for those that wait with it.
        return await asyncio.shield(opened)

    async def _own(self, opened: asyncio.Future[ServerSession], closing: asyncio.Event) -> None:
        """Open the connection, keep it, and close it, all in this task."""
        try:
            await self._keep_open(opened, closing)
        except BaseException as error:
            closing.set()
            if not opened.done():
                self._fail(opened, error)
            elif not isinstance(error, Exception):
                raise
            else:
                why = redact(_describe(error))
                log.info("the connection to MCP server %s has ended: %s", self._server.name, why)

    async def _keep_open(self, opened: asyncio.Future[ServerSession], closing: asyncio.Event) -> None:
        from .session import ServerSession

        session = ServerSession(self._server, self._on_changed)
        is_older = bool(self._server.words and self._failures.count % 2)
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(self._server.connect_timeout.total_seconds()):
                await stack.enter_async_context(session.connect(self._credentials, closing.set, is_older=is_older))
                await session.refresh_tools()
            self._failures = _Failures()
            opened.set_result(session)
            await closing.wait()

    def _fail(self, opened: asyncio.Future[ServerSession], error: BaseException) -> None:
        """Tell everybody who waits that the connection cannot be opened."""
        loop = asyncio.get_running_loop()
        if isinstance(error, ImportError):
            opened.set_exception(MissingExtra("mcp", f"MCP server {self._server.name!r}"))
        else:
            away = self._away(error)
            self._failures.add(loop.time(), away)
            away.seconds = self._failures.not_before - loop.time()
            opened.set_exception(away)
        opened.exception()  # it is no surprise to the loop when no task waits any more

    def _away(self, error: BaseException) -> ServerAway:
        from .session import trouble_of

        first = _first_of(error)
        if isinstance(first, ServerAway):
            return first
        return ServerAway(self._server.name, redact(_describe(first)), trouble=trouble_of(first))

    @property
    def key(self) -> str:
        """Names the server with these credentials."""
        return self._credentials.key


class ServerConnections:
    """The connections of one process. Steps of several loops have connections of their own.

    Attributes:
        changed: Keys of servers whose lists have changed since they were last asked for.
        notes: What is odd about the servers' tools.
    """

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self.notes = ToolNotes()
        self._lock = threading.Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, dict[str, Connection]] = {}

    def to(self, server: MCPServer, credentials: Credentials) -> Connection:
        """The connection to a server, open or not. Only on a loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            known = self._by_loop.setdefault(loop, {})
            place = credentials.connection_key
            found = known.get(place)
            if found is None:
                key = credentials.key
                found = known[place] = Connection(
                    server,
                    credentials,
                    on_changed=lambda: self.changed.add(key),
                    on_idle=lambda: self._forget(loop, place),  # credentials change, and must not pile up
                )
            return found

    def _forget(self, loop: asyncio.AbstractEventLoop, place: str) -> None:
        with self._lock:
            self._by_loop.get(loop, {}).pop(place, None)

    @property
    def open_count(self) -> int:
        """How many connections are open."""
        with self._lock:
            return sum(each.is_open for known in self._by_loop.values() for each in known.values())

    def close(self) -> None:
        """Close all connections and end their commands; from any thread but those of the loops."""
        with self._lock:
            loops, self._by_loop = self._by_loop, {}
        waiting = [
            asyncio.run_coroutine_threadsafe(_close_all(list(known.values())), loop)
            for loop, known in loops.items()
            if loop.is_running()
        ]
        done = concurrent.futures.wait(waiting, timeout=_CLOSE_SECONDS)
        if done.not_done:
            log.warning("%d connections to MCP servers did not close in time", len(done.not_done))


async def _close_all(connections: list[Connection]) -> None:
    await asyncio.gather(*(each.close() for each in connections))


def _first_of(error: BaseException) -> BaseException:
    """The first of the reasons; the library wraps them in groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _describe(error: BaseException) -> str:
    """A reason in a line."""
    first = _first_of(error)
    if isinstance(first, TimeoutError):
        return "no answer in time"
    text = str(first).strip().splitlines()
    if text and type(first).__name__ in ("MCPError", "MCPToolError", "AnswerTooLarge", "CallRefused"):
        return text[0][:300]
    return f"{type(first).__name__}: {text[0]:.300}" if text else type(first).__name__
