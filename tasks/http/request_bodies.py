"""Limits of requests: the length of a head; and of a body its length, its time, and the memory of its parsed values."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable
from typing import Final, TypeVar

from anyio import to_thread
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from .access import Access
from .memory import Held, MemoryBudget
from .problems import HttpProblem, problem_of_validation, respond
from .responses import JSON

Model = TypeVar("Model", bound=BaseModel)
T = TypeVar("T")
Check = Callable[[bytes], None]

MOST_VALUES: Final = 50_000
"""Values in a body, those within others too."""

_MAX_HEADER_BYTES: Final = 32_768
_MAX_TARGET_BYTES: Final = 16_384
_LENGTH_DIGITS: Final = 20
_BODY_SECONDS: Final = 60.0
_RETRY_AFTER_SECONDS: Final = "2"
# What a value takes once it is parsed, and what a text takes that is stored, at most.
_VALUE_BYTES: Final = 600
_COPIES: Final = 3
_SHORT_BYTES: Final = 64_000
_STRING: Final = re.compile(rb'"(?:[^"\\]+|\\.)*+"?', re.DOTALL)
_COMPRESSION: Final = re.compile(r"gzip|deflate|compress|br|zstd", re.IGNORECASE)
_FOUR_BYTES: Final = re.compile(rb"[\xf0-\xff]|\\u")


class RequestBodies:
    """Reads the bodies of all requests of a process.

    What they take, as they come and parsed, counts together from the first byte to the end of the request.
    """

    def __init__(
        self, most_bytes: int, most_bytes_of_all: int, *, seconds: float = _BODY_SECONDS, by_settings: bool = True
    ) -> None:
        """
        Args:
            most_bytes: Of a body.
            most_bytes_of_all: Memory of all bodies together.
            seconds: The time in which a body has to come.
            by_settings: The two limits are those of the settings, which refusals name.
        """
        self._most = most_bytes
        self._budget = MemoryBudget(most_bytes_of_all)
        self._seconds = seconds
        self._by_settings = by_settings
        self._line = asyncio.Semaphore(1)

    @contextlib.asynccontextmanager
    async def read(
        self, request: Request, model: type[Model] | None, access: Access, check: Check | None = None
    ) -> AsyncGenerator[Model | None]:
        """Read and check a body, and count it until the context ends.

        Args:
            model: What the body has to be. None: it is not read.
            access: That of the caller.
            check: Looks at the bytes of the body before they are parsed, and refuses them by an `HttpProblem`.
        Raises:
            HttpProblem: It is too long, too slow, no JSON, of another media type, or does not fit.
        """
        if model is None:
            yield None
            return
        with self._budget.hold(access) as held:
            try:
                async with asyncio.timeout(self._seconds):
                    raw = await self._receive(request, held)
            except TimeoutError:
                detail = f"The body did not come within {self._seconds:g} seconds. Send it again."
                raise HttpProblem(408, "body-too-slow", detail) from None
            except ClientDisconnect:
                raise HttpProblem(400, "body-cut-off", "The connection ended before the body did.") from None
            if check is not None:
                check(bytes(raw))
            body = await self._parse(request, raw, model, held)
            del raw  # it would be kept as long as the caller uses the body
            yield body

    async def _receive(self, request: Request, held: Held) -> bytearray:
        raw = bytearray()
        async for chunk in request.stream():
            raw += chunk
            if len(raw) > self._most:
                raise _too_large(self._most, by_settings=self._by_settings)
            self._grow(held, len(raw))
        return raw

    async def _parse(self, request: Request, raw: bytearray, model: type[Model], held: Held) -> Model:
        if not raw and all(not each.is_required() for each in model.model_fields.values()):
            return model()
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != JSON:  # a form of another site cannot send this one without being asked first
            raise HttpProblem(415, "unsupported-media-type", f"Send the body as {JSON}.")
        if _COMPRESSION.search(request.headers.get("content-encoding", "")):
            raise HttpProblem(415, "unsupported-encoding", "Send the body as it is, without a Content-Encoding.")
        values, width = await self._compute(raw, lambda: _weigh(raw))
        if values > MOST_VALUES:
            detail = f"The body has more than {MOST_VALUES} values. Send less in one request."
            raise HttpProblem(413, "too-many-values", detail)
        self._grow(held, len(raw) * width * _COPIES + values * _VALUE_BYTES)
        return await self._compute(raw, lambda: _validate(model, raw))

    async def _compute(self, raw: bytearray, work: Callable[[], T]) -> T:
        """Do what takes long for a long body in a thread, for one body at a time, so that other requests go on."""
        if len(raw) <= _SHORT_BYTES:
            return work()
        async with self._line:
            return await to_thread.run_sync(work)

    def _grow(self, held: Held, size: int) -> None:
        if not held.fits(size):
            setting = ", the setting http_max_bodies_bytes" if self._by_settings else ""
            detail = (
                f"The bodies of all present requests take more than their part of {self._budget.most} bytes{setting}. "
                "Try again, or start another process."
            )
            raise HttpProblem(429, "too-many-bodies", detail, headers={"Retry-After": _RETRY_AFTER_SECONDS})
        held.resize(size)


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
        headers = dict(scope["headers"])
        if b"content-length" in headers and b"transfer-encoding" in headers:  # RFC 9112, 6.1: as if somebody smuggles
            detail = "Send Content-Length or Transfer-Encoding, and not both."
            return HttpProblem(400, "two-lengths", detail, headers={"Connection": "close"})
        announced = headers.get(b"content-length", b"0")
        is_length = announced.isdigit() and len(announced) <= _LENGTH_DIGITS
        return None if is_length and int(announced) <= self._most else _too_large(self._most)


def _too_large(most_bytes: int, *, by_settings: bool = True) -> HttpProblem:
    setting = ", the setting http_max_body_bytes" if by_settings else ""
    return HttpProblem(413, "body-too-large", f"The body is longer than {most_bytes} bytes{setting}.")


def count_values(raw: bytes | bytearray) -> int:
    """Count the values of a JSON text before it is parsed, or a few more."""
    found = _count_separators(raw)
    return found if found <= MOST_VALUES else _count_separators(_STRING.sub(b"", raw))


def _weigh(raw: bytearray) -> tuple[int, int]:
    """The number of values of a body, and the most bytes that a character of it takes in memory."""
    return count_values(raw), 4 if _FOUR_BYTES.search(raw) else 1 if raw.isascii() else 2


def _validate(model: type[Model], raw: bytearray) -> Model:
    try:
        return model.model_validate_json(raw, strict=True)  # as the client, which takes no "3" and no True for a 3
    except ValidationError as error:
        raise _problem_of(error) from None


def _count_separators(raw: bytes | bytearray) -> int:
    return 1 + raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def _problem_of(error: ValidationError) -> HttpProblem:
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return HttpProblem(400, "malformed-json", f"The body is no JSON. {first['msg']}.")
    return problem_of_validation(error, "body")
