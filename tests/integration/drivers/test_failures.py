"""Everything that can go wrong with a provider: one request each, the right kind of error, and no secret in it."""

import asyncio
import json
import logging
import socket
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from celery_agents.worker.drivers import InferenceRequest, PydanticAIDriver
from celery_agents.worker.errors import DriverError, UnusableAnswer
from celery_agents.worker.redaction import describe_exception
from celery_agents.worker.state import AgentState, Message

from support.provider import Provider

KEY = "sk-failing-0123456789abcdef"
STATE = AgentState.fresh().with_messages([Message.user("hi")])


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


def failure(model: str, base_url: str, timeout: float = 10.0) -> DriverError:
    async def once() -> None:
        driver = PydanticAIDriver(model, base_url=base_url)
        try:
            await driver.infer(InferenceRequest(STATE, "s", "e", 1, timeout=timeout))
        finally:
            await driver.aclose()

    with pytest.raises(DriverError) as caught:
        asyncio.run(once())
    return caught.value


def failing(provider: Provider, timeout: float = 10.0, **fault: Any) -> DriverError:
    """The error of one infer; the provider has seen exactly one request."""
    provider.plan("ok", faults=[fault])
    error = failure("openai:gpt-4o-mini", provider.base_url, timeout)
    assert len(provider.ledger()) == 1
    return error


def everything_about(error: BaseException) -> str:
    told = [repr(each) for each in (error, error.args, vars(error), error.__cause__, error.__context__)]
    return "\n".join([*told, *traceback.format_exception(error), describe_exception(error).to_json().decode()])


@pytest.mark.parametrize(
    ("code", "kind", "transient"),
    [
        (400, "rejected", False),
        (401, "authentication", False),
        (402, "quota", False),
        (403, "authentication", False),
        (404, "not_found", False),
        (408, "http_error", True),
        (409, "http_error", True),
        (418, "http_error", False),
        (422, "rejected", False),
        (425, "http_error", True),
        (429, "rate_limit", True),
        (500, "server_error", True),
        (502, "server_error", True),
        (503, "unavailable", True),
        (504, "server_error", True),
        (529, "overloaded", True),
    ],
)
def test_each_status_makes_one_request_and_its_kind_of_error(provider: Provider, code: int, kind: str, transient: bool):
    error = failing(provider, fault="status", code=code, echo_key=True)
    assert (error.kind, error.transient, error.status) == (kind, transient, code)
    assert error.request_id == "req_planned"
    assert f"HTTP {code}" in str(error)
    assert KEY not in everything_about(error)


def test_an_address_that_redirects_is_said_and_not_asked_again(provider: Provider):
    error = failing(provider, fault="status", code=307, echo_key=True)
    assert (error.kind, error.transient, error.status) == ("redirected", False, 307)
    assert "check the base_url (HTTP 307, 127.0.0.1:" in str(error)
    assert KEY not in everything_about(error)


def test_retry_after_in_seconds(provider: Provider):
    assert failing(provider, fault="status", code=429, retry_after=7).retry_after == 7.0


def test_retry_after_as_a_date(provider: Provider):
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    waited = failing(provider, fault="status", code=503, retry_after=date).retry_after
    assert waited is not None
    assert 60 < waited <= 90


@pytest.mark.parametrize("header", ["soon", "-5", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_retry_after_that_says_nothing_useful(provider: Provider, header: str):
    assert failing(provider, fault="status", code=429, retry_after=header).retry_after in (None, 0.0)


@pytest.mark.parametrize("fault", ["hang", "drip"])
def test_an_answer_that_does_not_come_in_time(provider: Provider, fault: str):
    error = failing(provider, timeout=0.5, fault=fault, interval=0.1)
    assert (error.kind, error.transient, error.status) == ("timeout", True, None)


@pytest.mark.parametrize("fault", ["cut", "truncate"])
def test_a_connection_that_breaks(provider: Provider, fault: str):
    error = failing(provider, fault=fault)
    assert (error.kind, error.transient, error.status) == ("connection", True, None)


@pytest.mark.parametrize("fault", ["malformed", "wrong_types", "empty"])
def test_an_answer_that_cannot_be_read(provider: Provider, fault: str):
    error = failing(provider, fault=fault)
    assert isinstance(error, UnusableAnswer)
    assert error.transient
    assert "cannot be read" in str(error) or "no JSON" in str(error)


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    error = failure("openai:gpt-4o-mini", f"http://127.0.0.1:{port}/v1")
    assert (error.kind, error.transient) == ("connection", True)


def test_no_key_is_found_while_the_step_runs(provider: Provider, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(DriverError, match="needs ANTHROPIC_API_KEY") as caught:
        asyncio.run(PydanticAIDriver("anthropic:claude-haiku-4-5").infer(InferenceRequest(STATE, "s", "e", 1)))
    assert (caught.value.kind, caught.value.transient) == ("configuration", False)


@pytest.mark.parametrize("code", [401, 500])
def test_a_key_that_the_provider_repeats_is_in_no_log(provider: Provider, code: int, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    failing(provider, fault="status", code=code, echo_key=True)
    assert KEY not in caplog.text


class _Refusing(BaseHTTPRequestHandler):
    """Answers every request with the server's status, and repeats the key it got in body and headers."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server: Any = self.server
        server.requests += 1
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        text = f"wrong key {KEY}"
        body = json.dumps({"type": "error", "error": {"type": text, "code": text, "message": text}}).encode()
        self.send_response(server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Retry-After", "2")
        self.send_header("x-should-retry", "true")
        self.send_header("request-id", KEY)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def refusing() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    server.requests = 0  # type: ignore[attr-defined]
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("status", [401, 429, 500, 503, 529])
@pytest.mark.parametrize(
    ("model", "package"),
    [
        ("openai-chat:gpt-4o", "openai"),
        ("openai-responses:gpt-4o", "openai"),
        ("anthropic:claude-haiku-4-5", "anthropic"),
        ("google:gemini-2.5-flash", "google.genai"),
        ("bedrock:amazon.nova-lite-v1:0", "boto3"),
    ],
)
def test_no_providers_client_repeats_a_request_or_tells_the_key(
    refusing: ThreadingHTTPServer, model: str, package: str, status: int
):
    pytest.importorskip(package)
    server: Any = refusing
    server.status = status
    error = failure(model, f"http://127.0.0.1:{refusing.server_port}")
    assert server.requests == 1
    assert (error.status, error.transient) == (status, status != 401)
    assert error.request_id is None
    assert error.code in (None, str(status))
    assert KEY not in everything_about(error)
    if status == 429:
        assert error.retry_after == 2.0
