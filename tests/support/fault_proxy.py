"""A TCP proxy in front of Redis that understands replies, so that the k-th of them can be lost.

It runs in a thread of this process. Every method may be called from any thread, and has taken effect when it returns.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

T = TypeVar("T")

Then = Literal["reset", "silence"]


class Frames:
    """Cuts a stream of the Redis protocol (RESP2 and RESP3) into its top-level values."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._position = 0
        self._open: list[int] = []  # for each unfinished array, from the outside in, how many values it still lacks

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take more of the stream, and give the values that are complete now."""
        self._buffer += data
        while self._advance():
            yield bytes(self._buffer[: self._position])
            del self._buffer[: self._position]
            self._position = 0

    def rest(self) -> bytes:
        """Give back what belongs to no complete value yet, and forget it."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        self._position = 0
        self._open.clear()
        return rest

    def _advance(self) -> bool:
        """Move behind the next complete top-level value; False when it needs more data."""
        while True:
            end = self._buffer.find(b"\r\n", self._position)
            if end < 0:
                return False
            kind, header = self._buffer[self._position : self._position + 1], self._buffer[self._position + 1 : end]
            end += 2
            if kind in (b"$", b"=", b"!"):
                length = int(header)
                if length >= 0:
                    end += length + 2
                    if len(self._buffer) < end:
                        return False
            elif kind in (b"*", b"~", b">", b"%", b"|"):
                members = int(header) * (2 if kind in (b"%", b"|") else 1)
                if members > 0:
                    self._position = end
                    self._open.append(members)
                    continue
            self._position = end
            if self._close_one():
                return True

    def _close_one(self) -> bool:
        """A value is complete: close every array that it completes. True when that was all."""
        while self._open:
            self._open[-1] -= 1
            if self._open[-1] > 0:
                return False
            self._open.pop()
        return True


@dataclass(frozen=True)
class Exchange:
    """One command that was answered, or would have been."""

    connection: int
    command: str


@dataclass
class _Trap:
    """Loses the k-th reply, or the k-th command, among those whose command is in `commands` (None: all)."""

    k: int
    then: Then
    commands: frozenset[str] | None
    seen: int = 0
    sprung: Exchange | None = None

    def catches(self, exchange: Exchange) -> bool:
        if self.sprung is not None or (self.commands is not None and exchange.command not in self.commands):
            return False
        self.seen += 1
        if self.seen != self.k:
            return False
        self.sprung = exchange
        return True


@dataclass
class _Connection:
    number: int
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    asked: deque[str] = field(default_factory=deque[str])
    subscribed: bool = False
    silent: bool = False

    def reset(self) -> None:
        for side in (self.client, self.server):
            raw = side.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            side.transport.abort()


class FaultProxy:
    """Forwards to `127.0.0.1:upstream_port`; `port` is its own.

    Without faults it changes nothing. `exchanges` lists the commands whose replies it has seen, in order. With `tls` it
    decrypts what comes for a Redis that speaks none.
    """

    def __init__(self, upstream_port: int, *, tls: ssl.SSLContext | None = None) -> None:
        self._upstream_port = upstream_port
        self._tls = tls
        self.exchanges: list[Exchange] = []
        self._connections: dict[int, _Connection] = {}
        self._numbers = 0
        self._delay = 0.0
        self._rate: float | None = None
        self._flowing: asyncio.Event
        self._reply_traps: list[_Trap] = []
        self._command_traps: list[_Trap] = []
        self._handlers: set[asyncio.Task[None]] = set()

    def start(self) -> FaultProxy:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        self._do(self._start)
        return self

    def end(self) -> None:
        """Close everything and stop the thread."""
        self._do(self._end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    # faults

    def delay(self, seconds: float) -> None:
        """Hold back whatever arrives, in both directions, for so long; 0 ends it."""
        self._do(self._set, "_delay", seconds)

    def throttle(self, bytes_per_second: float | None) -> None:
        """Let so many bytes through per connection and direction; None ends it."""
        self._do(self._set, "_rate", bytes_per_second)

    def blackhole(self, on: bool = True) -> None:
        """Accept connections and data and forward nothing; off again, what was held back goes on its way."""
        self._do(self._set_blackhole, on)

    def reset_connections(self) -> int:
        """Reset every connection, and say how many there were; new ones are accepted."""
        return self._do(self._reset_connections)

    def refuse(self) -> None:
        """Reset every connection and listen no more."""
        self._do(self._refuse)

    def accept(self) -> None:
        """Listen again, on the same port."""
        self._do(self._listen, self.port)

    def swallow_reply(
        self, k: int = 1, *, commands: set[str] | None = None, then: Then = "reset"
    ) -> Callable[[], bool]:
        """Lose the k-th reply from now (from 1): Redis has done the command, nobody learns of it.

        Args:
            k: Counted over all connections, among the replies to `commands`.
            commands: Names in upper case, {"EXEC"}; None is all of them. Pushed and published messages are no replies.
            then: "reset" the connection, or keep it in "silence" for good.

        Returns:
            A function that says whether it has happened.
        """
        return self._set_trap(self._reply_traps, k, commands, then)

    def swallow_command(
        self, k: int = 1, *, commands: set[str] | None = None, then: Then = "reset"
    ) -> Callable[[], bool]:
        """Lose the k-th command from now: Redis gets neither it nor what follows on that connection. See above."""
        return self._set_trap(self._command_traps, k, commands, then)

    def calm(self) -> None:
        """End every fault; connections that were silenced are reset."""
        self._do(self._calm)

    # on the loop

    def _do(self, what: Callable[..., Any], *arguments: Any) -> Any:
        async def run() -> Any:
            result = what(*arguments)
            return await result if isinstance(result, Coroutine) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(20)

    async def _start(self) -> None:
        self._flowing = asyncio.Event()
        self._flowing.set()
        await self._listen(0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _listen(self, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=512, ssl=self._tls)

    async def _end(self) -> None:
        self._refuse()
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    def _set(self, name: str, value: object) -> None:
        setattr(self, name, value)

    def _set_blackhole(self, on: bool) -> None:
        (self._flowing.clear if on else self._flowing.set)()

    def _reset_connections(self) -> int:
        connections = list(self._connections.values())
        for connection in connections:
            connection.reset()
        return len(connections)

    def _refuse(self) -> None:
        self._server.close()
        self._reset_connections()

    def _set_trap(self, traps: list[_Trap], k: int, commands: set[str] | None, then: Then) -> Callable[[], bool]:
        trap = _Trap(k, then, None if commands is None else frozenset(commands))
        self._do(traps.append, trap)
        return lambda: trap.sprung is not None

    def _calm(self) -> None:
        self._delay, self._rate = 0.0, None
        self._flowing.set()
        self._reply_traps.clear()
        self._command_traps.clear()
        for connection in list(self._connections.values()):
            if connection.silent:
                connection.reset()

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        try:
            await self._forward(reader, client)
        except asyncio.CancelledError:
            # Ending is how this task ends; the streams module would report it as an error.
            return
        finally:
            self._handlers.discard(handler)

    async def _forward(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            from_server, server = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        except OSError:
            client.transport.abort()
            return
        self._numbers += 1
        connection = _Connection(self._numbers, client, server)
        self._connections[connection.number] = connection
        pumps = [
            asyncio.ensure_future(self._pump(reader, server, connection, self._commands(connection))),
            asyncio.ensure_future(self._pump(from_server, client, connection, self._replies(connection))),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            del self._connections[connection.number]
            client.close()
            server.close()

    async def _pump(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        connection: _Connection,
        let_through: Callable[[bytes], bytes],
    ) -> None:
        while data := await source.read(65536):
            if self._delay:
                await asyncio.sleep(self._delay)
            await self._flowing.wait()
            if connection.silent:
                continue
            passed = let_through(data)
            if self._rate is None:
                target.write(passed)
            else:
                await self._trickle(target, passed)
            await target.drain()

    async def _trickle(self, target: asyncio.StreamWriter, data: bytes) -> None:
        portion = max(1, int((self._rate or 0) / 50))
        for start in range(0, len(data), portion):
            target.write(data[start : start + portion])
            await target.drain()
            await asyncio.sleep(0.02)

    def _commands(self, connection: _Connection) -> Callable[[bytes], bytes]:
        frames = Frames()

        def let_through(data: bytes) -> bytes:
            passed = bytearray()
            for frame in frames.feed(data):
                name = _command(frame)
                connection.subscribed = connection.subscribed or name in ("SUBSCRIBE", "PSUBSCRIBE", "MONITOR")
                if self._caught(self._command_traps, connection, name):
                    # What stands before the lost command still goes out, before the reset.
                    connection.server.write(bytes(passed))
                    return b""
                connection.asked.append(name)
                passed += frame
            return bytes(passed)

        return let_through

    def _replies(self, connection: _Connection) -> Callable[[bytes], bytes]:
        frames = Frames()

        def let_through(data: bytes) -> bytes:
            if connection.subscribed:
                return frames.rest() + data
            passed = bytearray()
            for frame in frames.feed(data):
                if frame[:1] != b">":
                    name = connection.asked.popleft() if connection.asked else "?"
                    self.exchanges.append(Exchange(connection.number, name))
                    if self._caught(self._reply_traps, connection, name):
                        connection.client.write(bytes(passed))
                        return b""
                passed += frame
            return bytes(passed)

        return let_through

    def _caught(self, traps: list[_Trap], connection: _Connection, command: str) -> bool:
        exchange = Exchange(connection.number, command)
        # Every trap counts, also when an earlier one has caught it.
        caught = [trap for trap in traps if trap.catches(exchange)]
        for trap in caught:
            connection.silent = True
            if trap.then == "reset":
                asyncio.get_running_loop().call_later(0.01, connection.reset)
        return bool(caught)

    def __enter__(self) -> FaultProxy:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end()


def _command(frame: bytes) -> str:
    """The name of a command: the first member of its array."""
    parts = frame.split(b"\r\n", 3)
    return parts[2].decode("ascii", "replace").upper() if frame[:1] == b"*" and len(parts) > 2 else "?"
