"""Heads and bodies of HTTP requests: each limit holds at its number, and what is beyond it is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel, RootModel
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from celery_agents.tasks.client.verbs import Scope as Right
from celery_agents.tasks.http.access import Access
from celery_agents.tasks.http.problems import HttpProblem
from celery_agents.tasks.http.request_bodies import RequestBodies, RequestLimits, count_values

OPERATOR = Access(scopes=frozenset({Right.ADMIN}))
SHORT, LONG = 1_000, 3_000_000


class Whole(RootModel[Any]):
    """A body of any JSON."""


class Options(BaseModel):
    """A body that may be left out."""

    number: int = 7


class Needed(BaseModel):
    """A body with a field that must be given."""

    number: int
    other: int = 1


def head_status(headers: list[tuple[bytes, bytes]], path: str = "/", query: bytes = b"", **more: Any) -> int:
    """The status of a request with this head, whose body may have 1 000 bytes."""
    statuses: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        statuses.append(200)

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    scope = {"type": "http", "method": "GET", "headers": headers, "path": path, "query_string": query, **more}
    asyncio.run(RequestLimits(app, most_bytes=SHORT)(scope, receive, send))
    return statuses[0]


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [(1, 32_767, 200), (1, 32_768, 431), (32_768, 0, 200), (32_769, 0, 431)],
)
def test_headers_have_32_kib_at_most(name: int, value: int, status: int) -> None:
    assert head_status([(b"n" * name, b"v" * value)]) == status


@pytest.mark.parametrize(("length", "status"), [(16_384, 200), (16_385, 414)])
def test_path_and_query_have_16_kib_at_most(length: int, status: int) -> None:
    assert head_status([], path="/" + "x" * (length - 1)) == status
    assert head_status([], path="/", query=b"x" * (length - 1)) == status
    assert head_status([], path="/\u00e9", raw_path=b"/" + b"x" * (length - 1)) == status


@pytest.mark.parametrize(
    ("length", "status"),
    [(b"0", 200), (b"1000", 200), (b"1001", 413), (b"-1", 413), (b"x", 413), (b"1" * 21, 413), (b"0" * 21, 413)],
)
def test_a_body_that_says_that_it_is_too_long_is_not_read(length: bytes, status: int) -> None:
    assert head_status([(b"content-length", length)]) == status


def test_what_is_no_request_goes_to_the_application() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["reached"] = True

    scope: dict[str, Any] = {"type": "lifespan"}
    nothing: Any = None
    asyncio.run(RequestLimits(app, most_bytes=SHORT)(scope, nothing, nothing))
    assert scope["reached"]


# --- bodies -------------------------------------------------------------------------------------------------------


def read(
    body: bytes,
    model: Any = Whole,
    media_type: str = "application/json",
    most: int = SHORT,
    all_: int = LONG,
    encoding: str = "",
) -> Any:
    """The body as it is read."""

    async def whole() -> Any:
        async with RequestBodies(most, all_).read(_request(body, media_type, encoding), model, OPERATOR) as found:
            return found

    return asyncio.run(whole())


def refused(*args: Any, **kwargs: Any) -> tuple[int, str]:
    with pytest.raises(HttpProblem) as problem:
        read(*args, **kwargs)
    return problem.value.status, problem.value.kind


def test_a_body_has_its_limit_at_most() -> None:
    text = json.dumps("x" * (SHORT - 2)).encode()
    assert read(text).root == "x" * (SHORT - 2)
    assert refused(text + b" ") == (413, "body-too-large")


def test_a_body_is_json_that_fits() -> None:
    assert read(b"{}", None) is None
    assert (read(b"", Options).number, read(b'{"number": 3}', Options).number) == (7, 3)
    assert read(b"1", media_type="Application/JSON; charset=utf-8").root == 1
    for media_type in ("text/plain", "", "application/x-www-form-urlencoded"):
        assert refused(b"1", media_type=media_type) == (415, "unsupported-media-type")
    assert refused(b"{") == (400, "malformed-json")
    assert refused(b"", Needed) == (400, "malformed-json")
    assert refused(b"\x1f\x8b", encoding="GZIP") == (415, "unsupported-encoding")
    assert read(b"1", encoding="identity").root == 1
    for wrong in (b"{}", b'{"number": true}', b'{"number": "3"}', b'{"number": 3.0}'):
        assert refused(wrong, Needed)[0] == 422


def test_a_body_that_does_not_come_whole_is_told_why() -> None:
    async def cut_off() -> Message:
        return {"type": "http.disconnect"}

    async def stop_halfway() -> Message:
        if sent:
            await asyncio.sleep(30)
        sent.append("the beginning")
        return {"type": "http.request", "body": b"[1", "more_body": True}

    async def read_from(receive: Receive, seconds: float) -> Any:
        request = Request({"type": "http", "headers": [(b"content-type", b"application/json")]}, receive)
        bodies = RequestBodies(SHORT, LONG, seconds=seconds)
        async with asyncio.timeout(4), bodies.read(request, Whole, OPERATOR) as found:
            return found

    sent: list[str] = []
    cases: list[tuple[Receive, float, tuple[int, str]]] = [
        (cut_off, 20, (400, "body-cut-off")),
        (stop_halfway, 0.05, (408, "body-too-slow")),
    ]
    for receive, seconds, expected in cases:
        with pytest.raises(HttpProblem) as problem:
            asyncio.run(read_from(receive, seconds))
        assert (problem.value.status, problem.value.kind) == expected
    assert sent == ["the beginning"]


def test_a_body_has_50_000_values_at_most() -> None:
    assert len(read(json.dumps([0] * 49_999).encode(), most=LONG, all_=2**40).root) == 49_999
    assert refused(json.dumps([0] * 50_000).encode(), most=LONG, all_=2**40) == (413, "too-many-values")


@pytest.mark.parametrize(
    ("raw", "values"),
    [
        (b"1", 1),
        (b"[1]", 2),
        (b"[1,2]", 3),
        (b'{"a":[1]}', 3),
        (b"," * 49_999, 50_000),
        (b'"' + b"," * 50_000 + b'"', 1),
    ],
)
def test_values_are_counted_by_their_separators(raw: bytes, values: int) -> None:
    assert count_values(raw) == values


@pytest.mark.parametrize(("text", "width"), [("x", 1), ("\u00e9", 2), ("\U0001f600", 4), ("\\u0041", 4)])
def test_a_body_counts_as_what_it_takes_once_it_is_parsed(text: str, width: int) -> None:
    """Three copies of each character in the width that the widest one needs, and 600 bytes of each value."""
    body = f'"{text}"'.encode()
    needed = 1 * 3 + 600 + len(body) * width * 3 + 600

    async def read_both(room: int) -> None:
        bodies = RequestBodies(SHORT, room)
        async with bodies.read(_request(b"1"), Whole, OPERATOR), bodies.read(_request(body), Whole, OPERATOR):
            pass

    asyncio.run(read_both(needed))
    with pytest.raises(HttpProblem, match="take more than their part"):
        asyncio.run(read_both(needed - 1))


def _request(body: bytes, media_type: str = "application/json", encoding: str = "") -> Request:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-type", media_type.encode()), (b"content-encoding", encoding.encode())]
    return Request({"type": "http", "headers": headers}, receive)
