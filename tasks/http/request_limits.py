"""Middleware that refuses requests whose headers or bodies are too long, before they are read."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import HttpProblem, respond

_MAX_HEADER_BYTES: Final = 32_768


class RequestLimits:
    """Refuses a body by its announced length, and a longer one than announced while it is read."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        """
        Args:
            most_bytes: Of a body.
        """
        self._app = app
        self._most = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        problem = self._check(scope)
        if problem is not None:
            await respond(problem)(scope, receive, send)
            return
        read = 0

        async def receive_some() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._most:
                raise self._too_large()
            return message

        await self._app(scope, receive_some, send)

    def _check(self, scope: Scope) -> HttpProblem | None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > _MAX_HEADER_BYTES:
            return HttpProblem(431, "headers-too-large", f"The headers are longer than {_MAX_HEADER_BYTES} bytes.")
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        return self._too_large() if not announced.isdigit() or int(announced) > self._most else None

    def _too_large(self) -> HttpProblem:
        detail = f"The body is longer than {self._most} bytes, the setting http_max_body_bytes."
        return HttpProblem(413, "body-too-large", detail)
