"""One HTTP request that fails is answered with an error that says whether it was sent; the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest

from celery_agents.worker.mcp.metering import TOO_LARGE, Pace
from celery_agents.worker.mcp.transports import (
    DENIED,
    FORBIDDEN,
    LOST,
    NO_CREDENTIALS,
    NOT_SENT,
    REFUSED,
    UNREADABLE,
    _Client,
)

URL = "https://crm.example/mcp"
LIMIT = 100_000

ROUTE = f"{httpx2.URL(URL).host}:443 by ALL_PROXY (proxy:3128)"


def send(
    handler: Callable[[httpx2.Request], httpx2.Response],
    on_forgotten: Callable[[], None] = lambda: pytest.fail("no session was forgotten"),
    auth: httpx2.Auth | None = None,
    body: Any = None,
    **headers: str,
) -> httpx2.Response:
    async def post() -> httpx2.Response:
        transport, pace = httpx2.MockTransport(handler), Pace("crm", LIMIT)
        async with _Client(pace=pace, on_forgotten=on_forgotten, transport=transport, auth=auth) as client:
            return await client.post(URL, json=body or {}, headers=headers)

    return asyncio.run(post())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (httpx2.ConnectError("refused"), NOT_SENT),
        (httpx2.ConnectTimeout("slow"), NOT_SENT),
        (httpx2.PoolTimeout("busy"), NOT_SENT),
        (httpx2.ReadError("cut"), LOST),
        (httpx2.WriteError("cut"), LOST),
        (httpx2.RemoteProtocolError("gone"), LOST),
        (httpx2.ReadTimeout("slow"), LOST),
    ],
)
def test_a_request_that_fails_says_whether_it_was_sent_and_by_which_proxy(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name.upper()}_PROXY", raising=False)
    monkeypatch.setenv("ALL_PROXY", "http://someone:s3cret@proxy:3128")

    def fail(_: httpx2.Request) -> httpx2.Response:
        raise error

    answer = send(fail).json()
    assert answer["error"] == {"code": code, "message": f"{type(error).__name__}: {error} ({ROUTE})"}


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (429, NOT_SENT), (401, DENIED), (403, FORBIDDEN), (404, REFUSED), (400, REFUSED), (408, LOST),
        *((status, LOST) for status in (500, 501, 502, 503, 504, 507, 520, 522, 524, 529, 599)),
    ],
)  # fmt: skip
def test_a_status_without_an_error_of_the_protocol_becomes_one(status: int, code: int) -> None:
    answer = send(lambda _: httpx2.Response(status, text="<html>")).json()
    assert answer["error"]["code"] == code
    assert answer["error"]["message"].startswith(f"HTTP {status}")


CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}


@pytest.mark.parametrize("status", [200, 202, 204])
@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "text/plain", ""])
def test_a_call_that_is_answered_with_no_answer_may_have_been_carried_out(status: int, kind: str) -> None:
    answer = send(lambda _: httpx2.Response(status, text="<html>", headers={"content-type": kind}), body=CALL).json()
    assert answer["error"]["code"] == UNREADABLE
    assert answer["error"]["message"].startswith(f"it answers with HTTP {status} and ")


@pytest.mark.parametrize("body", [{"jsonrpc": "2.0", "method": "notifications/cancelled"}, {"grant": "x", "id": 1}, []])
def test_what_wants_no_answer_of_the_protocol_gets_what_the_server_said(body: Any) -> None:
    assert send(lambda _: httpx2.Response(202), body=body).status_code == 202


def test_an_error_of_the_protocol_and_an_answer_pass_as_they_are() -> None:
    body = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "Method not found"}}
    assert send(lambda _: httpx2.Response(404, json=body)).json() == body
    assert send(lambda _: httpx2.Response(200, json={"id": 1})).json() == {"id": 1}


def test_a_server_that_has_forgotten_the_session_needs_a_new_connection_and_has_not_run_the_call() -> None:
    forgotten: list[bool] = []
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Session not found"}}
    answer = send(lambda _: httpx2.Response(404, json=body), lambda: forgotten.append(True), **{"mcp-session-id": "1"})
    assert answer.json()["error"]["code"] == NOT_SENT
    assert forgotten == [True]


class Endless(httpx2.AsyncByteStream):
    """A body that never ends, and counts what was read of it."""

    def __init__(self, chunk: bytes = b"x" * 10_000) -> None:
        self.chunk = chunk
        self.sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.sent += len(self.chunk)
            yield self.chunk


@pytest.mark.parametrize(("status", "kind"), [(200, "application/json"), (400, "application/json"), (307, "text/html")])
def test_a_body_without_end_is_read_to_the_limit_and_is_an_error(status: int, kind: str) -> None:
    body = Endless()
    headers = {"content-type": kind, "location": "/elsewhere"}
    answer = send(lambda _: httpx2.Response(status, headers=headers, stream=body)).json()
    assert (answer["error"]["code"], body.sent) == (TOO_LARGE, LIMIT + 10_000)
    assert "more than 100000 bytes, which is max_message_bytes=" in answer["error"]["message"]


def test_an_authentication_that_reads_bodies_reads_no_more_of_them() -> None:
    class Reading(httpx2.Auth):
        requires_response_body = True

    body = Endless()
    headers = {"content-type": "application/json"}
    answer = send(lambda _: httpx2.Response(200, headers=headers, stream=body), auth=Reading()).json()
    assert (answer["error"]["code"], body.sent) == (TOO_LARGE, LIMIT + 10_000)


def test_a_compressed_answer_is_refused_since_its_size_is_not_known() -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.headers["accept-encoding"])
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        return httpx2.Response(200, headers=headers, stream=Endless())

    said = send(answer).json()
    assert (asked, said["error"]["code"]) == (["identity"], REFUSED)
    assert "compresses its answer (gzip)" in said["error"]["message"]


def test_an_authentication_that_fails_is_an_error_of_the_request() -> None:
    class Failing(httpx2.Auth):
        def auth_flow(self, request: httpx2.Request) -> Any:
            raise RuntimeError("the vault is locked")

    answer = send(lambda _: pytest.fail("nothing is sent"), auth=Failing()).json()
    assert answer["error"]["code"] == NO_CREDENTIALS
    assert answer["error"]["message"] == "the authentication has failed: RuntimeError: the vault is locked"


def test_calls_of_all_slots_are_at_their_server_at_the_same_time() -> None:
    calls, arrived = 130, 0

    async def ask() -> set[int]:
        together = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal arrived
            await reader.readuntil(b"\r\n\r\n")
            arrived += 1
            if arrived == calls:
                together.set()
            await together.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
            waits = httpx2.Timeout(30, pool=2)
            async with _Client(
                pace=Pace("crm", LIMIT), on_forgotten=lambda: None, timeout=waits, trust_env=False
            ) as client:
                found = await asyncio.gather(*(client.post(url, json={}) for _ in range(calls)))
        return {each.status_code for each in found}

    assert asyncio.run(ask()) == {200}
