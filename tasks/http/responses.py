"""JSON responses: written and redacted in a thread, sent in pieces, and not for ever."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...worker.known_secrets import SecretStream, current_matcher, redact_known_json
from ..client.async_client import AsyncAgentClient
from .access import Access
from .memory import SMALL_BYTES, MemoryBudget

_log = logging.getLogger(__name__)

JSON: Final = "application/json"
_PIECE_CHARS: Final = 256_000
_SENT_BYTES: Final = 64_000
_SEND_SECONDS: Final = 30.0
_SLOWEST_BYTES_PER_SECOND: Final = 50_000


class JsonResponse(Response):
    """A value as JSON, without the secrets that this process knows. `write` has to be called before it is sent."""

    def __init__(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(None, status, {"Cache-Control": "no-store", **(headers or {})}, JSON)
        self._value = value
        self._pieces: list[bytes] = []
        self._size = 0
        self._budget: MemoryBudget | None = None
        self._access: Access | None = None

    async def write(self, client: AsyncAgentClient, budget: MemoryBudget, access: Access) -> None:
        """Write the text in a thread, and count it until it is sent.

        Args:
            budget: Of all responses that are being sent.
            access: That of the caller.
        """
        value, self._value = self._value, None
        self._pieces = await client.run(lambda _: write_json(value))
        self._size = sum(map(len, self._pieces))
        MutableHeaders(raw=self.raw_headers)["content-length"] = str(self._size)
        self._budget, self._access = budget, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. A reader who takes too long for it is left."""
        del scope, receive
        assert self._budget is not None, "it was not written"
        assert self._access is not None
        seconds = _SEND_SECONDS + self._size / _SLOWEST_BYTES_PER_SECOND
        with self._budget.hold(self._access, self._size if self._size > SMALL_BYTES else 0):
            try:
                async with asyncio.timeout(seconds):
                    await self._send(send)
            except TimeoutError:
                _log.info("a reader has not taken %d bytes within %.0f s, and is left", self._size, seconds)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            for start in range(0, len(piece), _SENT_BYTES):
                some = piece[start : start + _SENT_BYTES]
                await send({"type": "http.response.body", "body": some, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def write_json(value: Any) -> list[bytes]:
    """Write a value as JSON without known secrets, in pieces: a thread that does it lets others run in between."""
    text, stream = json.dumps(value, ensure_ascii=False, default=_write_other), SecretStream(current_matcher())
    pieces = [stream.feed(text[start : start + _PIECE_CHARS]) for start in range(0, len(text), _PIECE_CHARS)]
    pieces.append(stream.flush())
    if "".join(pieces) != text:
        pieces = [redact_known_json(text)]
    return [piece.encode(errors="replace") for piece in pieces]


def _write_other(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)
