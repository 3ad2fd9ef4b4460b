"""Credentials as users give them: texts, an authentication of httpx, functions; and that no text shows them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import httpx2
import pytest
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientMetadata

from celery_agents.worker.agent import Agent
from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.known_secrets import redact_known
from celery_agents.worker.mcp import MCPServer
from celery_agents.worker.mcp.credentials import Credentials
from celery_agents.worker.mcp.outages import ServerAway
from celery_agents.worker.mcp.transports import _auth_of
from celery_agents.worker.state import AgentState

URL = "https://crm.example/mcp"


def state(**metadata: str) -> AgentState:
    fresh = AgentState.fresh(now=datetime(2026, 1, 1, tzinfo=UTC))
    for name, value in metadata.items():
        fresh = fresh.with_metadata(name, value)
    return fresh


def credentials(server: MCPServer, **metadata: str) -> Credentials:
    return asyncio.run(server.credentials(state(**metadata)))


def token_of(session: AgentState) -> str:
    return str(session.metadata["token"])


async def token_async(session: AgentState) -> str:
    await asyncio.sleep(0)
    return token_of(session)


class Callable_:
    async def __call__(self, session: AgentState) -> str:
        return token_of(session)


@pytest.mark.parametrize("auth", [token_of, token_async, Callable_(), lambda session: token_async(session)])
def test_credentials_of_different_customers_are_different_connections(auth: Callable[..., Any]) -> None:
    server = MCPServer(URL, name="crm", auth=auth, headers={"X-Team": "a"})
    one, two = credentials(server, token="secret-one"), credentials(server, token="secret-two")
    assert one.connection_key != two.connection_key
    assert dict(one.headers) == {"X-Team": "a", "Authorization": "Bearer secret-one"}
    assert credentials(server, token="secret-one") == one
    assert redact_known("it said secret-one") == "it said [redacted]"


def test_a_function_may_give_headers_or_an_authentication() -> None:
    async def headers(session: AgentState) -> dict[str, str]:
        return {"X-Api-Key": token_of(session)}

    server = MCPServer(URL, name="crm", auth=headers, headers=lambda _: {"X-Team": "a"})
    assert dict(credentials(server, token="key-of-one").headers) == {"X-Team": "a", "X-Api-Key": "key-of-one"}
    assert redact_known("key-of-one") == "[redacted]"
    basic = httpx2.BasicAuth("user", "password")
    server = MCPServer(URL, name="crm", auth=lambda _: basic)
    assert credentials(server).auth is basic


def test_plain_functions_run_in_threads_and_hold_nothing_up() -> None:
    seen: list[str] = []

    def slow(_: AgentState) -> str:
        seen.append(threading.current_thread().name)
        time.sleep(0.2)
        return "a-slow-token"

    server = MCPServer(URL, name="crm", auth=slow)

    async def many() -> float:
        began = time.monotonic()
        await asyncio.gather(*(server.credentials(state()) for _ in range(20)))
        return time.monotonic() - began

    assert asyncio.run(many()) < 2
    assert threading.current_thread().name not in seen


def fail(_: AgentState) -> str:
    raise RuntimeError("the vault at https://me:a-password-of-mine@vault.example is locked")


async def hang(_: AgentState) -> str:
    await asyncio.sleep(60)
    return ""


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"auth": fail}, "the function of auth= has failed: RuntimeError: the vault at"),
        ({"headers": fail}, "the function of headers= has failed: RuntimeError"),
        ({"auth": hang}, "the functions of auth= and headers= gave nothing in 0.2 s"),
        ({"auth": lambda _: time.sleep(5)}, "gave nothing in 0.2 s"),
        ({"auth": lambda _: 5}, "the function of auth= gave a int: auth= must be a token"),
        ({"auth": lambda _: None}, "gave a NoneType: it must give a token as text, headers by name"),
        ({"auth": lambda _: ""}, "the token of auth= is empty"),
        ({"auth": lambda _: "a-token\r\nX-Evil: 1"}, "characters that no header can have"),
        ({"headers": lambda _: {"a": 5}}, "the function of headers= gave a dict"),
    ],
)
def test_a_function_that_fails_is_a_server_that_is_away(fields: dict[str, Any], why: str) -> None:
    server = MCPServer(URL, name="crm", connect_timeout=timedelta(seconds=0.2), **fields)
    with pytest.raises(ServerAway) as caught:
        credentials(server)
    assert str(caught.value).startswith("the MCP server 'crm' is away: ")
    assert why in caught.value.why
    assert "a-password-of-mine" not in str(caught.value)
    assert "X-Evil" not in str(caught.value)


class Tokens:
    async def get_tokens(self) -> None:
        return None

    async def set_tokens(self, tokens: Any) -> None:
        del tokens

    get_client_info = get_tokens
    set_client_info = set_tokens


async def open_browser(address: str) -> None:
    del address


async def wait_for_visit() -> Any:
    return None


def test_an_authentication_that_needs_a_browser_is_refused_and_one_of_a_machine_is_taken() -> None:
    about: Any = OAuthClientMetadata.model_validate({"redirect_uris": ["http://localhost/callback"]})
    storage: Any = Tokens()
    person = OAuthClientProvider(URL, about, storage, redirect_handler=open_browser, callback_handler=wait_for_visit)
    with pytest.raises(ConfigurationError, match=r"auth=OAuthClientProvider\(…\) opens a browser, and nobody sits at"):
        MCPServer(URL, name="crm", auth=person)
    machine = ClientCredentialsOAuthProvider(
        URL, storage, "me", "a-secret-of-the-client", issuer="https://auth.example"
    )
    assert credentials(MCPServer(URL, name="crm", auth=machine)).auth is machine
    with pytest.raises(ServerAway, match="opens a browser"):
        credentials(MCPServer(URL, name="crm", auth=lambda _: person))


def test_two_authentications_never_share_a_connection_and_the_same_one_shares_its_list() -> None:
    def made(password: str) -> Credentials:
        return MCPServer(URL, name="crm", auth=httpx2.BasicAuth("user", password)).fixed_credentials

    one, same, other = made("one"), made("one"), made("other")
    assert one.key == same.key != other.key
    assert len({one.connection_key, same.connection_key, other.connection_key}) == 3


def test_an_authentication_of_httpx_is_taken_where_it_only_changes_the_request() -> None:
    class Asking(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Any:
            yield httpx.Request("POST", "https://auth.example/token")

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, text=request.headers["authorization"])

    async def send(auth: Any) -> str:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), auth=_auth_of(auth)) as client:
            return (await client.get(URL)).text

    assert asyncio.run(send(httpx.BasicAuth("user", "password"))).startswith("Basic ")
    with pytest.raises(TypeError, match="Asking makes requests of httpx; use an Auth of httpx2"):
        asyncio.run(send(Asking()))


def test_no_text_shows_the_credentials_of_a_server(caplog: pytest.LogCaptureFixture) -> None:
    over_http = MCPServer(
        f"{URL}?api_key=key-in-the-address&plain=1",
        name="crm",
        auth="a-static-secret",
        headers={"X-Api-Key": "in-header"},
    )
    command = MCPServer(command="crm", name="files", env={"CRM_TOKEN": "token-of-command", "CRM_MODE": "ordinary-mode"})
    agent = Agent("desk", driver=lambda _: "", mcp=[over_http, command])
    shown = repr(over_http) + repr(command) + str(agent.definition)
    for secret in ("a-static-secret", "in-header", "token-of-command"):
        assert secret not in shown
        assert redact_known(f"<{secret}>") == "<[redacted]>"
    assert redact_known("key-in-the-address") == "[redacted]"
    assert redact_known("ordinary-mode") == "ordinary-mode"
    with caplog.at_level(logging.INFO):
        logging.getLogger("httpx2").info('HTTP Request: %s %s "%s"', "POST", f"{URL}?api_key=another-key", "200 OK")
    assert "another-key" not in caplog.text
    assert "200 OK" in caplog.text


def test_only_the_newest_of_very_many_tokens_are_searched_for() -> None:
    server = MCPServer(URL, name="crm", auth=token_of)
    for number in range(150):
        credentials(server, token=f"token-number-{number:05d}")
    assert redact_known("token-number-00149") == "[redacted]"
    assert redact_known("token-number-00001") == "token-number-00001"


class TokensOf(Tokens):
    def __init__(self, customer: int) -> None:
        self.customer = customer


def test_authentications_of_two_customers_share_no_list() -> None:
    def of_client(client: str) -> str:
        auth = ClientCredentialsOAuthProvider(URL, Tokens(), client, "a-secret", issuer="https://auth.example")  # type: ignore[arg-type]
        return MCPServer(URL, name="crm", auth=auth).fixed_credentials.key

    def of_storage(customer: int) -> str:
        about: Any = OAuthClientMetadata.model_validate({"redirect_uris": ["http://localhost/callback"]})
        storage: Any = TokensOf(customer)
        return MCPServer(URL, name="crm", auth=OAuthClientProvider(URL, about, storage)).fixed_credentials.key

    assert of_client("acme") == of_client("acme") != of_client("umbrella")
    assert of_storage(1) == of_storage(1) != of_storage(2)


@pytest.mark.parametrize("headers", [{"": "x"}, {"a b": "x"}, {"ä": "x"}, {"a\nb": "x"}, {"a": "x "}])
def test_headers_that_cannot_be_sent_are_refused_where_they_are_written(headers: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="headers=dict must be texts of plain ASCII by name"):
        MCPServer(URL, name="crm", headers=headers)
