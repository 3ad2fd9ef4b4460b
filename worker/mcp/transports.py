"""Transports of the library `mcp`, with two changes: the end of a connection is told, and one request fails alone.

The library ends the whole connection when one HTTP request cannot be made. Here the failed request gets an error of
its own instead, which says whether it was sent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx2
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from .server import Credentials, MCPServer

NOT_SENT: Final = -31901
"""Code of the error that a request gets which never reached the server."""

LOST: Final = -31902
"""Code of the error that a request gets which may have reached the server."""

REFUSED: Final = -31903
"""Code of the error that a request gets which the server refused by its HTTP status."""

_SESSION: Final = "mcp-session-id"
_BUSY: Final = (429,)
_UNCLEAR: Final = (500, 502, 503, 504)
# A response that is open for so long without a byte is given up; the timeout of a call is shorter.
_READ_SECONDS: Final = 3600.0


class _Client(httpx2.AsyncClient):
    """An HTTP client whose failures are responses that hold an error of the protocol.

    Args:
        on_forgotten: Called when the server does not know the connection's session any more; a new one is needed.
    """

    def __init__(self, *, on_forgotten: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self._on_forgotten = on_forgotten

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        try:
            response = await super().send(request, **options)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol) as error:
            return _failure(request, NOT_SENT, _describe(error))
        except httpx2.TransportError as error:
            return _failure(request, LOST, _describe(error))
        if response.status_code == 404 and _SESSION in request.headers:
            await response.aclose()
            self._on_forgotten()
            return _failure(request, NOT_SENT, "the server has forgotten the session, as after a restart")
        if response.status_code < 400 or _says_why(response):
            return response
        code = response.status_code
        kind = NOT_SENT if code in _BUSY else LOST if code in _UNCLEAR else REFUSED
        await response.aclose()
        return _failure(request, kind, f"HTTP {code} {response.reason_phrase}".strip())


def _says_why(response: httpx2.Response) -> bool:
    """Whether the body may be an error of the protocol, which says more than the status."""
    is_json = response.headers.get("content-type", "").lower().startswith("application/json")
    return is_json and response.status_code not in (*_BUSY, *_UNCLEAR, 401, 403)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _failure(request: httpx2.Request, code: int, message: str) -> httpx2.Response:
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    return httpx2.Response(400, json=body, request=request)


class _WatchedStream:
    """A stream of messages that tells its end."""

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._on_end()
            raise

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)


@asynccontextmanager
async def open_transport(
    server: MCPServer, credentials: Credentials, on_end: Callable[[], None]
) -> AsyncGenerator[tuple[Any, Any]]:
    """Open the way to a server.

    Args:
        on_end: Called when the server's side has ended.
    """
    if server.url is None:
        program, *arguments = server.words
        # The program sees what the library lets through (PATH, HOME and the like) and what `env` says: no secrets.
        parameters = StdioServerParameters(
            command=program, args=arguments, env=dict(server.env), cwd=server.cwd or Path.cwd()
        )
        async with stdio_client(parameters) as (read, write):
            yield _WatchedStream(read, on_end), write
        return
    seconds = server.connect_timeout.total_seconds()
    limits = httpx2.Timeout(seconds, read=_READ_SECONDS)
    async with (
        _Client(on_forgotten=on_end, headers=dict(credentials.headers), timeout=limits) as client,
        streamable_http_client(server.url, http_client=client) as (read, write),
    ):
        yield _WatchedStream(read, on_end), write
