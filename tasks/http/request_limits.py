"""Middleware that refuses requests that are too long or too slow, before they are read or while they are."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import HttpProblem, respond

_MAX_HEADER_BYTES: Final = 32_768
_MAX_TARGET_BYTES: Final = 16_384
_BODY_SECONDS: Final = 60.0
_RETRY_AFTER_SECONDS: Final = "2"


class RequestLimits:
    """Refuses a body by its announced length, and a longer one than announced while it is read.

    The bodies of all requests that are served count together, from their first byte to the end of the request.
    """

    def __init__(
        self, app: ASGIApp, most_bytes: int, most_bytes_of_all: int, body_seconds: float = _BODY_SECONDS
    ) -> None:
        """
        Args:
            most_bytes: Of a body.
            most_bytes_of_all: Of the bodies of all requests that are served at the same time.
            body_seconds: The time in which a body has to come.
        """
        self._app = app
        self._most = most_bytes
        self._most_of_all = most_bytes_of_all
        self._seconds = body_seconds
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        problem = self._check(scope)
        if problem is not None:
            await respond(problem)(scope, receive, send)
            return
        read, ends_at = 0, asyncio.get_running_loop().time() + self._seconds
        is_whole = False

        async def receive_some() -> Message:
            nonlocal read, is_whole
            try:
                async with asyncio.timeout_at(None if is_whole else ends_at):
                    message = await receive()
            except TimeoutError:
                detail = f"The body did not come within {self._seconds:g} seconds. Send it again."
                raise HttpProblem(408, "body-too-slow", detail) from None
            is_whole = not message.get("more_body", False)
            size = len(message.get("body", b""))
            read += size
            self._held += size
            if read > self._most:
                raise self._too_large()
            if self._held > self._most_of_all:
                raise self._too_many()
            return message

        try:
            await self._app(scope, receive_some, send)
        finally:
            self._held -= read

    def _check(self, scope: Scope) -> HttpProblem | None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > _MAX_HEADER_BYTES:
            return HttpProblem(431, "headers-too-large", f"The headers are longer than {_MAX_HEADER_BYTES} bytes.")
        target = len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
        if target > _MAX_TARGET_BYTES:
            detail = f"Path and query are longer than {_MAX_TARGET_BYTES} bytes."
            return HttpProblem(414, "uri-too-long", detail)
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        return self._too_large() if not announced.isdigit() or int(announced) > self._most else None

    def _too_large(self) -> HttpProblem:
        detail = f"The body is longer than {self._most} bytes, the setting http_max_body_bytes."
        return HttpProblem(413, "body-too-large", detail)

    def _too_many(self) -> HttpProblem:
        detail = (
            f"The bodies of all present requests are longer than {self._most_of_all} bytes, the setting "
            "http_max_bodies_bytes. Try again, or start another process."
        )
        return HttpProblem(429, "too-many-bodies", detail, headers={"Retry-After": _RETRY_AFTER_SECONDS})
