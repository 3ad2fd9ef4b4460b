"""The ways to a server: the library's over HTTP, where one request fails alone, and our own over standard streams.

The library ends the whole connection when one HTTP request cannot be made. Here the failed request gets an error of
its own instead, which says whether it was sent. What comes back has limits; see `metering`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
from mcp.client.streamable_http import streamable_http_client

from ...config.routes import describe_route
from .credentials import Credentials
from .metering import (
    LARGE_BYTES,
    TOO_LARGE,
    LargeResponse,
    MessageTooLarge,
    MeteredBody,
    Pace,
    WatchedReader,
    WatchedWriter,
)
from .server import MCPServer
from .stdio import open_stdio

NOT_SENT: Final = -31901
"""Code of the error that a request gets which never reached the server."""

LOST: Final = -31902
"""Code of the error that a request gets which may have reached the server."""

REFUSED: Final = -31903
"""Code of the error that a request gets which the server refused by its HTTP status."""

DENIED: Final = -31905
"""Code of the error that a request gets whose credentials the server does not accept: HTTP 401."""

FORBIDDEN: Final = -31906
"""Code of the error that a request gets which the credentials do not allow: HTTP 403."""

NO_CREDENTIALS: Final = -31907
"""Code of the error that a request gets for which no credentials could be had."""

UNREADABLE: Final = -31908
"""Code of the error that a request gets which was answered with something that is no answer of the protocol."""

_SESSION: Final = "mcp-session-id"
# Behind these statuses is no error of the protocol that says more.
_KINDS: Final = {429: NOT_SENT, 401: DENIED, 403: FORBIDDEN, 408: LOST, **dict.fromkeys(range(500, 600), LOST)}
# A response that is open for so long without a byte is given up; the timeout of a call is shorter.
_READ_SECONDS: Final = 3600.0
_IDLE_CONNECTIONS: Final = 20


class _Compressed(httpx2.TransportError):
    """The size of the answer is not known before it is unpacked."""


class _Client(httpx2.AsyncClient):
    """An HTTP client whose failures are responses that hold an error of the protocol.

    Args:
        pace: How quickly the connection is read, and how long a message may be.
        on_forgotten: Called when the server does not know the connection's session any more; a new one is needed.
    """

    def __init__(self, *, pace: Pace, on_forgotten: Callable[[], None], **options: Any) -> None:
        # The hook sees a response before an authentication reads its body.
        # All slots share it: how many calls a server gets at a time is for concurrency limits, not for a pool that lets
        # the others wait until the server seems to be away.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=_IDLE_CONNECTIONS)
        super().__init__(event_hooks={"response": [self._meter]}, limits=limits, **options)
        self.headers["Accept-Encoding"] = "identity"  # a compressed message has no known size
        self._pace = pace
        self._on_forgotten = on_forgotten

    async def _meter(self, response: httpx2.Response) -> None:
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise _Compressed(f"the server compresses its answer ({encoding:.20}), unasked")
        response.stream = MeteredBody(response.stream, self._pace, is_stream=_is_stream(response))

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        try:
            response = await super().send(request, **options)
            return await self._read(request, response)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol) as error:
            return _failure(request, NOT_SENT, _describe_connection(error, request))
        except _Compressed as error:
            return _failure(request, REFUSED, str(error))
        except MessageTooLarge as error:
            return _failure(request, TOO_LARGE, str(error))
        except httpx2.TransportError as error:
            return _failure(request, LOST, _describe_connection(error, request))
        except Exception as error:  # noqa: BLE001 - an authentication may raise anything
            return _failure(request, NO_CREDENTIALS, f"the authentication has failed: {_describe(error)}")

    async def _read(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """The response, read whole unless it is a stream; a failure in its stead where it says nothing useful."""
        code = response.status_code
        if code == 404 and _SESSION in request.headers:
            await response.aclose()
            self._on_forgotten()
            return _failure(request, NOT_SENT, "the server has forgotten the session, as after a restart")
        if code >= 400 and not _says_why(response):
            kind = _KINDS.get(code, REFUSED)
            await response.aclose()
            return _failure(request, kind, f"HTTP {code} {response.reason_phrase}".strip())
        if _is_stream(response):
            return response
        if response.is_success and _is_unanswered(request, response):
            await response.aclose()
            kind = response.headers.get("content-type", "").partition(";")[0] or "no content"
            return _failure(request, UNREADABLE, f"it answers with HTTP {code} and {kind:.60}, which is no answer")
        await response.aread()
        if len(response.content) <= LARGE_BYTES or response.next_request is not None:
            return response
        await self._pace.large.acquire()
        return LargeResponse(response, self._pace)


def _is_stream(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").lower().startswith("text/event-stream")


def _is_unanswered(request: httpx2.Request, response: httpx2.Response) -> bool:
    """Whether a response that is no stream cannot be the answer to a request that wants one."""
    is_json = response.headers.get("content-type", "").lower().startswith("application/json")
    if request.method != "POST" or (is_json and response.status_code != 202):
        return False
    try:
        sent = json.loads(request.content)
    except ValueError:
        return False  # one of an authentication
    return isinstance(sent, dict) and "method" in sent and "id" in sent


def _says_why(response: httpx2.Response) -> bool:
    """Whether the body may be an error of the protocol, which says more than the status."""
    is_json = response.headers.get("content-type", "").lower().startswith("application/json")
    return is_json and response.status_code not in _KINDS


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _describe_connection(error: Exception, request: httpx2.Request) -> str:
    return f"{_describe(error)} ({describe_route(str(request.url))})"


def _failure(request: httpx2.Request, code: int, message: str) -> httpx2.Response:
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    return httpx2.Response(400, json=body, request=request)


@asynccontextmanager
async def open_transport(
    server: MCPServer, credentials: Credentials, on_end: Callable[[], None]
) -> AsyncGenerator[tuple[Any, Any]]:
    """Open the way to a server.

    Args:
        on_end: Called when the server's side has ended.
    """
    pace = Pace(server.name, server.max_message_bytes)
    open_questions: set[Any] = set()
    way = open_stdio(server, pace) if server.url is None else _open_http(server, credentials, pace, on_end)
    async with way as (read, write):
        reader = WatchedReader(read, pace=pace, open_questions=open_questions, on_end=on_end)
        yield reader, WatchedWriter(write, pace, open_questions)


@asynccontextmanager
async def _open_http(
    server: MCPServer, credentials: Credentials, pace: Pace, on_end: Callable[[], None]
) -> AsyncGenerator[tuple[Any, Any]]:
    seconds = server.connect_timeout.total_seconds()
    limits = httpx2.Timeout(seconds, read=_READ_SECONDS)
    assert server.url is not None
    async with (
        _Client(
            pace=pace,
            on_forgotten=on_end,
            headers=dict(credentials.headers),
            timeout=limits,
            auth=_auth_of(credentials.auth),
        ) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=None) as (read, write),
    ):
        yield read, write


def _auth_of(auth: Any) -> httpx2.Auth | None:
    return auth if auth is None or isinstance(auth, httpx2.Auth) else _AuthOfHttpx(auth)


class _AuthOfHttpx(httpx2.Auth):
    """An authentication of httpx, which httpx2 takes for none of its own; it may only change the request."""

    def __init__(self, auth: Any) -> None:
        self._auth = auth

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """The flow of the other library."""
        flow = self._auth.async_auth_flow(request)
        try:
            given = await anext(flow)
            while True:
                if not isinstance(given, httpx2.Request):
                    name = type(self._auth).__name__
                    raise TypeError(f"{name} makes requests of httpx; use an Auth of httpx2, as the library mcp does")
                response = yield given
                given = await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()
