"""One HTTP request that fails is answered with an error that says whether it was sent; the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx2
import pytest

from celery_agents.worker.mcp.transports import LOST, NOT_SENT, REFUSED, _Client

URL = "https://crm.example/mcp"


def send(
    handler: Callable[[httpx2.Request], httpx2.Response],
    on_forgotten: Callable[[], None] = lambda: pytest.fail("no session was forgotten"),
    **headers: str,
) -> httpx2.Response:
    async def post() -> httpx2.Response:
        async with _Client(on_forgotten=on_forgotten, transport=httpx2.MockTransport(handler)) as client:
            return await client.post(URL, json={}, headers=headers)

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
def test_a_request_that_fails_says_whether_it_was_sent(error: Exception, code: int) -> None:
    def fail(_: httpx2.Request) -> httpx2.Response:
        raise error

    answer = send(fail).json()
    assert answer["error"] == {"code": code, "message": f"{type(error).__name__}: {error}"}


@pytest.mark.parametrize(
    ("status", "code"),
    [(429, NOT_SENT), (500, LOST), (502, LOST), (503, LOST), (401, REFUSED), (403, REFUSED), (404, REFUSED)],
)
def test_a_status_without_an_error_of_the_protocol_becomes_one(status: int, code: int) -> None:
    answer = send(lambda _: httpx2.Response(status, text="<html>")).json()
    assert answer["error"]["code"] == code
    assert answer["error"]["message"].startswith(f"HTTP {status}")


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
