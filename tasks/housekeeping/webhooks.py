"""Posts to webhooks: to the addresses that were checked, without redirects or proxies, within one deadline.

A URL comes from the submitter of a job, so the worker must not become a way into its network. The host's name is
resolved once; every address must be allowed, and the connection goes to the first of them that takes it, so that no
second answer of the name server can lead elsewhere. Nothing of the receiver's answer is used except its status.

The module speaks HTTP/1.1 itself: the standard library's client knows no deadline for a call, only one for each read.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket
import ssl
from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import SplitResult

from ...config.networks import AllowedNetworks
from ...config.routes import describe_route
from ...worker.concurrency.event_loop import EventLoopThread
from .receivers import split_webhook

DEADLINE_SECONDS: Final = 10.0
"""For a whole call: name, connection, request and the answer's status."""

CALLS_PER_HOST: Final = 4
"""Calls to one host at the same time."""

_LONGEST_WAIT_SECONDS: Final = 55.0
# A name server that does not answer holds a thread for longer than a call may last; there is one for each call.
_NAME_THREADS: Final = 200
_MOST_LINES: Final = 200
_READ_BYTES: Final = 16_384


class WebhookFailed(Exception):
    """A receiver was not reached, may not be reached, or did not take the result."""


class _Host:
    """The calls to one host: those that wait or run, and room for those that run."""

    def __init__(self) -> None:
        self.calls = 0
        self.room = asyncio.Semaphore(CALLS_PER_HOST)


class WebhookPoster:
    """Posts on an event loop of its own, so that slow receivers hold no thread."""

    def __init__(self, allowed: AllowedNetworks, *, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._allowed = allowed
        self._deadline_seconds = deadline_seconds
        self._loop = EventLoopThread()
        self._hosts: dict[str, _Host] = {}
        self._tls: ssl.SSLContext | None = None
        self._name_threads = concurrent.futures.ThreadPoolExecutor(_NAME_THREADS, "celery-agents-names")

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> concurrent.futures.Future[None]:
        """Post once, behind other calls to the same host.

        Returns:
            A future that raises `WebhookFailed`, or `InvalidInput` for a URL that is none.
        """
        return self._loop.submit(lambda: self._post(url, headers, body), _LONGEST_WAIT_SECONDS)

    def close(self) -> None:
        """End all calls."""
        self._loop.close()
        self._name_threads.shutdown(wait=False, cancel_futures=True)

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> None:
        parts = split_webhook(url)
        name = receiver_of(url)
        host = self._hosts.setdefault(name, _Host())
        host.calls += 1
        try:
            async with host.room:
                await self._call(parts, headers, body)
        finally:
            host.calls -= 1
            if not host.calls:
                del self._hosts[name]

    async def _call(self, parts: SplitResult, headers: Mapping[str, str], body: bytes) -> None:
        try:
            async with asyncio.timeout(self._deadline_seconds):
                status = await self._exchange(parts, _request(parts, headers, body))
        except TimeoutError:
            raise WebhookFailed(
                f"{parts.hostname} did not take the result within {self._deadline_seconds:g} s"
            ) from None
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            address, _, proxy = describe_route(parts.geturl()).partition(" by ")
            unused = f"; callbacks take no proxy: {proxy}" if proxy else ""
            raise WebhookFailed(f"{address} cannot be reached ({type(error).__name__}{unused})") from error
        if 300 <= status < 400:
            raise WebhookFailed(f"{parts.hostname} answered {status}; redirects are not followed")
        if not 200 <= status < 300:
            raise WebhookFailed(f"{parts.hostname} answered {status}")

    async def _exchange(self, parts: SplitResult, request: bytes) -> int:
        assert parts.hostname is not None
        addresses, port = await self._resolve(parts)
        tls: dict[str, Any] = {}
        if parts.scheme == "https":
            tls = {"ssl": self._context(), "server_hostname": parts.hostname}
        reader, writer = await _connect(addresses, port, tls, self._deadline_seconds / 2 / len(addresses))
        try:
            writer.write(request)
            await writer.drain()
            return await _read_status(reader)
        finally:
            writer.transport.abort()

    async def _resolve(self, parts: SplitResult) -> tuple[list[str], int]:
        """Resolve the host and check every address of it.

        Raises:
            WebhookFailed: One of them may not be reached.
        """
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._name_threads, look_up)
        addresses = [str(entry[4][0]) for entry in found]
        forbidden = self._allowed.find_forbidden(host, addresses)
        if forbidden is not None or not addresses:
            raise WebhookFailed(
                f"{host} is at {forbidden}, which is not a public address; "
                "name the host or its network in CELERY_AGENTS_WEBHOOK_ALLOW"
            )
        return addresses, port

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


async def _connect(
    addresses: list[str], port: int, tls: Mapping[str, Any], seconds_each: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that lets us within its time; the last one has all that is left."""
    for address in addresses[:-1]:
        with contextlib.suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(seconds_each):
                return await asyncio.open_connection(address, port, limit=_READ_BYTES, **tls)
    return await asyncio.open_connection(addresses[-1], port, limit=_READ_BYTES, **tls)


def receiver_of(url: str) -> str:
    """The host and port of a URL, as the name under which its calls are counted."""
    parts = split_webhook(url)
    return f"{parts.hostname}:{parts.port or parts.scheme}"


def _request(parts: SplitResult, headers: Mapping[str, str], body: bytes) -> bytes:
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    lines = [
        f"POST {parts.path or '/'}{f'?{parts.query}' if parts.query else ''} HTTP/1.1",
        f"Host: {host}{'' if parts.port is None else f':{parts.port}'}",
        *(f"{name}: {value}" for name, value in headers.items()),
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    if any(not line.isascii() or not line.isprintable() for line in lines):
        raise WebhookFailed("a header of the call would hold a line break")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _read_status(reader: asyncio.StreamReader) -> int:
    """Read the status of the answer, past interim ones (1xx)."""
    is_status_line, lines = True, 0
    while lines < _MOST_LINES:
        line = (await reader.readuntil(b"\n")).strip()
        lines += 1
        if is_status_line:
            version, _, rest = line.partition(b" ")
            if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
                raise WebhookFailed("the receiver's answer is no HTTP")
            status = int(rest[:3])
            if status >= 200:
                return status
        is_status_line = not line  # a blank line ends an interim answer
    raise WebhookFailed("the receiver's answer has no status")
