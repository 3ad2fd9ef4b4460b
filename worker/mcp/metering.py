"""Limits of what a server sends: the size of a message, the pace of all of them, and the questions that wait.

Reading more slowly holds a server up, since neither the library nor the operating system keeps much that is not
read. So a server that floods a connection costs its own calls their time, and the worker nothing.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Self

import httpx2
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from .received import prepare_result, prepare_tools

log = logging.getLogger(__name__)

TOO_LARGE: Final = -31904
"""Code of the error that a request gets whose answer is longer than a message may be."""

LARGE_BYTES: Final = 64_000
"""Messages longer than this are read two at a time, since a message in memory is many times as large as its text."""

_LARGE_AT_ONCE: Final = 2
# What comes without having been asked for, such as progress and log messages: first so much, then so much a second.
_BURST_MESSAGES: Final = 1_000
_MESSAGES_PER_SECOND: Final = 100
_BURST_IN_LIMITS: Final = 4
_BYTES_PER_SECOND: Final = 64_000
_QUESTIONS_AT_ONCE: Final = 32
_END_BYTES: Final = 3
_CANCELLED: Final = "notifications/cancelled"
_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
# Behind an odd number of backslashes: the escape of a character in two halves, or of a half alone.
_HALVES: Final = re.compile(
    rb"(?<!\\)(\\+)u(?:[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|([dD][89a-fA-F][0-9a-fA-F]{2}))"
)
_BEGUN_ESCAPE: Final = re.compile(
    rb"(?<!\\)\\+(?:u(?:[0-9a-fA-F]{0,3}|[dD][89aAbB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?))?\Z"
)
_ESCAPE_BYTES: Final = 12


class Flooded(Exception):
    """The server asks without reading the answers; the connection ends."""


class MessageTooLarge(httpx2.SSEError):
    """A message of the server is longer than the limit; nothing after it was read.

    It is an error of the kind that the library takes for the end of the request, and not for that of the connection.
    """


def whole_characters(text: bytes) -> bytes:
    """JSON in which half a character, as a text that was cut ends in, is U+FFFD: the library takes no such JSON."""
    return _HALVES.sub(_replace_half, text) if b"\\ud" in text or b"\\uD" in text else text


def _replace_half(found: re.Match[bytes]) -> bytes:
    is_escape, half = len(found[1]) % 2, found[2]
    if half is not None:
        return found[1] + b"ufffd" if is_escape else found[0]
    return found[0] if is_escape else found[0][:-5] + b"ufffd"


def too_large(limit: int) -> str:
    """The sentence about an answer that is longer than a message may be."""
    return f"the answer has more than {limit} bytes, which is max_message_bytes= of its MCPServer"


class Pace:
    """How quickly a connection is read. Answers to our own requests come at any pace.

    Attributes:
        limit: Bytes of one message.
        large: Held while a large message is read and handed over.
    """

    def __init__(self, server: str, limit: int) -> None:
        self.limit = limit
        self.large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._server = server
        self._messages = _Bucket(_BURST_MESSAGES, _MESSAGES_PER_SECOND)
        self._bytes = _Bucket(_BURST_IN_LIMITS * limit, _BYTES_PER_SECOND)
        self._asked: set[Any] = set()
        self._has_warned = False

    def expect_answer(self, request_id: Any) -> None:
        """A request goes out, and may be answered."""
        self._asked.add(request_id)
        self._messages.widen(1)
        self._bytes.widen(self.limit)

    def forget_answer(self, request_id: Any) -> None:
        """A request has been answered, or is given up."""
        if request_id in self._asked:
            self._asked.discard(request_id)
            self._messages.narrow(1)
            self._bytes.narrow(self.limit)

    async def take_bytes(self, count: float) -> None:
        """Wait until so many bytes may have come."""
        await self._wait(self._bytes.take(count))

    async def take_message(self) -> None:
        """Wait until another message may have come."""
        await self._wait(self._messages.take(1))

    async def _wait(self, seconds: float) -> None:
        if seconds <= 0:
            return
        if not self._has_warned:
            self._has_warned = True
            log.warning("MCP server %s sends more than it was asked for; it is read slowly", self._server)
        await asyncio.sleep(seconds)


class _Bucket:
    """A token bucket that may be in debt."""

    def __init__(self, most: float, per_second: float) -> None:
        self._most = self._left = most
        self._per_second = per_second
        self._at = asyncio.get_running_loop().time()

    def widen(self, count: float) -> None:
        self._most += count
        self._left += count

    def narrow(self, count: float) -> None:
        self._most -= count
        self._left = min(self._left, self._most)

    def take(self, count: float) -> float:
        """Take so many; returns the seconds until they were there."""
        now = asyncio.get_running_loop().time()
        self._left = min(self._most, self._left + (now - self._at) * self._per_second) - count
        self._at = now
        return -self._left / self._per_second


class MeteredBody(httpx2.AsyncByteStream):
    """The body of a response: a single message, or a stream of events of which each is one.

    Raises:
        MessageTooLarge: A message is longer than the limit.
    """

    def __init__(self, body: Any, pace: Pace, *, is_stream: bool) -> None:
        self._body = body
        self._pace = pace
        self._is_stream = is_stream
        self._holds = False
        self._begun = b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, before = 0, b""
        try:
            async for chunk in self._body:
                await self._pace.take_bytes(len(chunk))
                ends = self._ends(before, chunk)
                size += len(chunk) if not ends else ends[0] - len(before)
                if size > self._pace.limit:
                    raise MessageTooLarge(too_large(self._pace.limit))
                if self._is_stream and size > LARGE_BYTES and not self._holds:
                    await self._pace.large.acquire()
                    self._holds = True
                if text := self._mend(chunk):
                    yield text
                if ends:  # the events that ended in the chunk have been handed over
                    size = len(before) + len(chunk) - ends[-1]
                    self._let_go()
                before = chunk[-_END_BYTES:]
            if self._begun:
                yield whole_characters(self._begun)
        finally:
            self._let_go()

    def _mend(self, chunk: bytes) -> bytes:
        """A chunk as `whole_characters` has it, without the beginning of an escape, which goes with the next one."""
        text = self._begun + chunk
        begun = _BEGUN_ESCAPE.search(text) if b"\\" in text[-_ESCAPE_BYTES:] else None
        end = len(text) if begun is None else begun.start()
        self._begun = text[end:]
        return whole_characters(text[:end])

    def _ends(self, before: bytes, chunk: bytes) -> list[int]:
        """The places at which events end in a chunk, counted from the bytes before it, where an end may begin."""
        if not self._is_stream:
            return []
        found = [each.end() for each in _EVENT_END.finditer(before + chunk)]
        return [end for end in found if end > len(before)]

    def _let_go(self) -> None:
        if self._holds:
            self._holds = False
            self._pace.large.release()

    async def aclose(self) -> None:
        self._let_go()
        await self._body.aclose()


class LargeResponse(httpx2.Response):
    """A response that has been read whole, and is handed over while few others are."""

    def __init__(self, response: httpx2.Response, pace: Pace) -> None:
        super().__init__(
            response.status_code, headers=response.headers, content=response.content, request=response.request
        )
        self._pace: Pace | None = pace

    async def aclose(self) -> None:
        """Let the next one be handed over."""
        pace, self._pace = self._pace, None
        if pace is not None:
            pace.large.release()
        await super().aclose()


class _Watched:
    """A stream of the connection, which is used like the one that it watches."""

    def __init__(self, stream: Any, pace: Pace, open_questions: set[Any]) -> None:
        self._stream = stream
        self._pace = pace
        self._open_questions = open_questions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)


class WatchedReader(_Watched):
    """The stream of a server's messages, read at a pace; it tells its end."""

    def __init__(self, stream: Any, pace: Pace, open_questions: set[Any], on_end: Callable[[], None]) -> None:
        super().__init__(stream, pace, open_questions)
        self._on_end = on_end

    def __aiter__(self) -> WatchedReader:
        return self

    async def __anext__(self) -> Any:
        try:
            item = await self._stream.__anext__()
            await self._pace.take_message()
            self._look_at(getattr(item, "message", None))
        except BaseException:
            self._on_end()
            raise
        return item

    def _look_at(self, message: Any) -> None:
        if isinstance(message, JSONRPCRequest):
            if message.id in self._open_questions:
                raise Flooded("the server has asked twice under one id")
            self._open_questions.add(message.id)
            if len(self._open_questions) > _QUESTIONS_AT_ONCE:
                raise Flooded(f"the server has asked {_QUESTIONS_AT_ONCE} times without reading an answer")
        elif isinstance(message, JSONRPCNotification) and message.method == _CANCELLED:
            self._open_questions.discard((message.params or {}).get("requestId"))
        elif isinstance(message, (JSONRPCResponse, JSONRPCError)):
            self._pace.forget_answer(message.id)
            if isinstance(message, JSONRPCResponse):
                prepare_tools(message.result)
                prepare_result(message.result)


class WatchedWriter(_Watched):
    """The stream of messages to a server: our requests, and answers to its questions."""

    async def send(self, item: SessionMessage) -> None:
        """Send one message."""
        if isinstance(item.message, JSONRPCRequest):
            self._pace.expect_answer(item.message.id)
        elif isinstance(item.message, JSONRPCNotification) and item.message.method == _CANCELLED:
            self._pace.forget_answer((item.message.params or {}).get("requestId"))
        await self._stream.send(item)
        if isinstance(item.message, (JSONRPCResponse, JSONRPCError)):
            self._open_questions.discard(item.message.id)
