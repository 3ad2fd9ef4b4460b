"""A call that a server may have carried out is never an ordinary error: the model would ask again, with a new key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_agents.worker.mcp import MCPServer, RemoteTool, ServerConnections, ToolList, tools_of
from celery_agents.worker.mcp.outages import MCPToolError
from celery_agents.worker.tools import Memo, NeedsTime, OutcomeUnknown, Replies, ToolContext

from support.mcp_ambiguous import FAILING, SILENT, AmbiguousServer

pytestmark = pytest.mark.timeout(60)

SHORT = timedelta(seconds=2)
KEY = "key-of-the-call"
OFFERED = ToolList.of([RemoteTool("put", "", {"type": "object"})])


@pytest.fixture
def started() -> Iterator[list[AmbiguousServer]]:
    servers: list[AmbiguousServer] = []
    yield servers
    for each in servers:
        each.close()


def call(server: AmbiguousServer, effect: str, **context: Any) -> Any:
    """One run of a call: what it gives, or what it raises."""
    described = MCPServer(server.url, name="crm", effects={"put": effect}, connect_timeout=SHORT, patience=SHORT)
    deadline = datetime.now(UTC) + SHORT
    given = ToolContext(
        session_id="s", execution_id="e", step=1, index=0, idempotency_key=KEY, deadline=deadline, **context
    )
    return asyncio.run(_call(described, given))


async def _call(described: MCPServer, given: ToolContext) -> Any:
    connections = ServerConnections()
    (tool,) = tools_of(described, OFFERED, connections)
    try:
        return await tool.call(given, {})
    except (MCPToolError, OutcomeUnknown, NeedsTime) as error:
        return error
    finally:
        await connections.to(described, described.fixed_credentials).close()


def test_tries_go_on_for_all_of_the_patience_whatever_clock_a_worker_has() -> None:
    """Of two workers whose clocks are far apart, and with a patience that many short pauses do not fill."""
    patience = timedelta(hours=6)
    server = AmbiguousServer("done")
    server.close()
    described = MCPServer(server.url, name="crm", connect_timeout=SHORT, patience=patience)
    now = began = datetime(2031, 1, 1, tzinfo=UTC)  # of Redis
    memos: list[Memo] = []
    while True:
        given = ToolContext(
            session_id="s", execution_id="e", step=1, index=0, idempotency_key=KEY, deadline=now + SHORT,
            remaining=SHORT.total_seconds, replies=Replies(memos=tuple(memos)),
        )  # fmt: skip
        found = asyncio.run(_call(described, given))
        if not isinstance(found, NeedsTime):
            break
        assert isinstance(found.until, timedelta)
        memos.append(Memo(dict(found.memo or {})))
        now += found.until
    assert isinstance(found, MCPToolError)
    assert patience <= now - began < patience + timedelta(minutes=1)
    assert len(memos) < 16


def call_to_the_end(server: AmbiguousServer, effect: str, *, dies: bool = False, **context: Any) -> Any:
    """A call with its later runs, each of which is later than the server's patience; with `dies` the server is gone
    after the first."""
    found = call(server, effect, **context)
    if dies:
        server.close()
    memos: list[Memo] = []
    while isinstance(found, NeedsTime):
        memo = dict(found.memo or {})
        memos.append(Memo({**memo, "away": (datetime.fromisoformat(memo["away"]) - SHORT).isoformat()}))
        found = call(server, effect, **{**context, "replies": Replies(memos=tuple(memos))})
    return found


@pytest.mark.parametrize("effect", ["unsafe", "keyed"])
@pytest.mark.parametrize("way", sorted(SILENT))
def test_what_may_have_run_is_unknown_and_an_unsafe_call_is_sent_once(
    started: list[AmbiguousServer], way: str, effect: str
) -> None:
    server = AmbiguousServer(way)
    started.append(server)
    assert isinstance(call_to_the_end(server, effect), OutcomeUnknown)
    assert set(server.keys) == {KEY}
    assert len(server.keys) == 1 or effect == "keyed"


@pytest.mark.parametrize("way", sorted(SILENT))
def test_a_keyed_call_whose_server_goes_away_after_it_is_unknown(started: list[AmbiguousServer], way: str) -> None:
    server = AmbiguousServer(way)
    found = call_to_the_end(server, "keyed", dies=True)
    assert isinstance(found, OutcomeUnknown), found
    assert set(server.keys) == {KEY}


@pytest.mark.parametrize("then", [*sorted(FAILING), "HTTP 429"])
@pytest.mark.parametrize("way", ["hangs up", pytest.param("HTTP 502", marks=pytest.mark.long)])
def test_a_later_try_that_is_refused_says_nothing_about_an_earlier_one(
    started: list[AmbiguousServer], way: str, then: str
) -> None:
    server = AmbiguousServer(way, then)
    started.append(server)
    found = call_to_the_end(server, "keyed")
    assert isinstance(found, OutcomeUnknown), found
    assert server.keys == [KEY]


@pytest.mark.parametrize("way", sorted(FAILING))
def test_a_call_that_a_dead_worker_had_begun_is_unknown_where_the_server_does_not_take_it(
    started: list[AmbiguousServer], way: str
) -> None:
    server = AmbiguousServer(way)
    started.append(server)
    assert isinstance(call_to_the_end(server, "keyed", is_repeated=True), OutcomeUnknown)
    away = AmbiguousServer(way)
    away.close()
    assert isinstance(call_to_the_end(away, "keyed", is_repeated=True), OutcomeUnknown)


@pytest.mark.parametrize("effect", [pytest.param("pure", marks=pytest.mark.long), "keyed", "unsafe"])
@pytest.mark.parametrize("way", sorted(FAILING))
def test_a_call_that_was_refused_at_its_first_try_is_an_error(
    started: list[AmbiguousServer], way: str, effect: str
) -> None:
    server = AmbiguousServer(way)
    started.append(server)
    found = call_to_the_end(server, effect)
    assert isinstance(found, MCPToolError), found
    assert server.keys == []


@pytest.mark.parametrize("way", sorted(SILENT))
def test_a_pure_call_has_no_outcome_to_know(started: list[AmbiguousServer], way: str) -> None:
    server = AmbiguousServer(way)
    started.append(server)
    assert isinstance(call_to_the_end(server, "pure"), MCPToolError)


@pytest.mark.parametrize("then", ["done", "failed"])
@pytest.mark.parametrize("way", ["hangs up", "HTTP 502"])
def test_what_the_tool_itself_says_at_a_later_try_counts(started: list[AmbiguousServer], way: str, then: str) -> None:
    server = AmbiguousServer(way, then)
    started.append(server)
    found = call_to_the_end(server, "keyed")
    assert str(found) == {"done": "done", "failed": '{"code": "RATE_LIMITED"}'}[then]
    assert isinstance(found, MCPToolError) == (then == "failed")


def test_a_task_that_the_server_does_not_know_any_more_is_unknown(started: list[AmbiguousServer]) -> None:
    server = AmbiguousServer("done")
    started.append(server)
    memos = (Memo({"task": "a-task"}),)
    for effect in ("keyed", "unsafe"):
        found = call(server, effect, replies=Replies(memos=memos))
        assert isinstance(found, OutcomeUnknown), found
    assert server.keys == []
