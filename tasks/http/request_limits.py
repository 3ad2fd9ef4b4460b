"""Middleware that refuses requests with a head that is too long, and bodies that announce that they are."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from .problems import HttpProblem, respond
from .request_bodies import too_large

_MAX_HEADER_BYTES: Final = 32_768
_MAX_TARGET_BYTES: Final = 16_384
_LENGTH_DIGITS: Final = 20


class RequestLimits:
    """Refuses requests by their head, before anything of them is read or looked up."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        """
        Args:
            most_bytes: Of a body.
        """
        self._app = app
        self._most = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        problem = self._check(scope) if scope["type"] == "http" else None
        if problem is not None:
            await respond(problem)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> HttpProblem | None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > _MAX_HEADER_BYTES:
            return HttpProblem(431, "headers-too-large", f"The headers are longer than {_MAX_HEADER_BYTES} bytes.")
        target = len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
        if target > _MAX_TARGET_BYTES:
            detail = f"Path and query are longer than {_MAX_TARGET_BYTES} bytes."
            return HttpProblem(414, "uri-too-long", detail)
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        is_length = announced.isdigit() and len(announced) <= _LENGTH_DIGITS
        return None if is_length and int(announced) <= self._most else too_large(self._most)
