"""MCP servers as users write them: what is refused, effect classes, names, stored lists."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import Rule
from celery_agents.worker.errors import ConfigurationError, StateUnreadable
from celery_agents.worker.mcp import (
    MCPServer,
    RemoteTool,
    ServerConnections,
    ToolList,
    read_list,
    require_servers,
    tools_of,
)
from celery_agents.worker.state import AgentState
from celery_agents.worker.tools import ApprovalContext, Effect, InvalidArguments, tool

URL = "https://crm.example/mcp"
OBJECT = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}


def remote(name: str, schema: Any = OBJECT, **annotations: bool) -> RemoteTool:
    return RemoteTool(name=name, description="It does.", schema=schema, annotations=annotations)


def state(**metadata: str) -> AgentState:
    fresh = AgentState.fresh(now=datetime(2026, 1, 1, tzinfo=UTC))
    for name, value in metadata.items():
        fresh = fresh.with_metadata(name, value)
    return fresh


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "a b"}, "name='a b' must be a letter followed"),
        ({"name": ""}, "name='' must be a letter followed"),
        ({"url": None}, "give either url= or command=, one of them is needed"),
        ({"command": "crm"}, "give either url= or command=, not both"),
        ({"url": "crm.example"}, "url='crm.example' must begin with http"),
        ({"url": "https://[crm"}, r"url='https://\[crm' must begin with http"),
        ({"url": None, "command": ""}, "command= is empty"),
        ({"env": {"A": "b"}}, "env= and cwd= belong to command="),
        ({"url": None, "command": "crm", "env": {"PORT": 8080}}, "env= must be texts by name"),
        ({"url": None, "command": "crm", "env": [("A", "b")]}, "env= must be texts by name"),
        ({"auth": "a-token "}, "as a blank at an end"),
        ({"url": None, "command": "crm", "auth": "x"}, "auth= and headers= belong to url="),
        ({"trust": "yes"}, "trust='yes' must be 'none' or 'annotations'"),
        ({"effects": {"create": "safe"}}, "tool crm: create: effect 'safe' is unknown; use one of"),
        ({"effects": {"create": "lookup"}}, r"effects\['create'\]='lookup'"),
        ({"only": "create"}, "only='create' must be a list"),
        ({"idle": 5}, "idle=5 must be a timedelta above 0"),
        ({"patience": timedelta(0)}, "must be a timedelta above 0"),
        ({"timeout": timedelta(0)}, "timeout=.* must be a timedelta above 0"),
        ({"timeout": 5}, "timeout=5 must be a timedelta above 0"),
        ({"auth": 5}, "auth= must be a token as text, an Auth of httpx2, or a function"),
        ({"auth": ""}, "the token of auth= is empty"),
        ({"auth": "a-token\n"}, "or has characters that no header can have"),
        ({"headers": {"a": 5}}, "headers=dict must be texts of plain ASCII by name"),
        ({"headers": "x"}, "headers=str must be texts"),
        ({"max_message_bytes": 5}, "max_message_bytes=5 must be from 10000 to"),
        ({"approval": "sometimes"}, "approval='sometimes' must be"),
    ],
)
def test_a_server_that_cannot_work_is_refused_where_it_is_written(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        MCPServer(**{"url": URL, "name": "crm", **fields})


def test_two_servers_of_one_name_and_other_things_are_refused_by_the_agent() -> None:
    crm = MCPServer(URL, name="crm")
    with pytest.raises(ConfigurationError, match="agent 'desk': two MCP servers are named 'crm'; rename one"):
        Agent("desk", driver=lambda _: "", mcp=[crm, MCPServer(URL, name="crm")])
    with pytest.raises(ConfigurationError, match="agent 'desk': mcp='crm' must be a list of MCPServer"):
        Agent("desk", driver=lambda _: "", mcp=["crm"])  # type: ignore[list-item]


def test_a_worker_does_not_start_with_a_command_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match="MCP server 'files': the program 'no-such-program' of command="):
        require_servers([MCPServer(command="no-such-program --stdio", name="files")])


def test_effect_classes_come_from_the_user_then_from_a_trusted_server() -> None:
    trusted = MCPServer(URL, name="crm", trust="annotations", effects={"create": "keyed"})
    assert trusted.effect_of("create", {"readOnlyHint": True}) is Effect.KEYED
    assert trusted.effect_of("read", {"readOnlyHint": True}) is Effect.PURE
    assert trusted.effect_of("put", {"idempotentHint": True}) is Effect.KEYED
    assert trusted.effect_of("fire", {"readOnlyHint": False}) is Effect.UNSAFE
    untrusted = MCPServer(URL, name="crm")
    assert untrusted.effect_of("read", {"readOnlyHint": True}) is Effect.UNSAFE


def test_names_fit_every_provider_and_tools_that_cannot_be_used_are_left_out(caplog: Any) -> None:
    offered = ToolList.of([
        remote("create.ticket/now"), remote("x" * 100), remote("hidden"), remote("no-object", {"type": "string"}),
        remote("no-schema", {"type": "object", "properties": {"a": {"type": "nothing"}}}),
        remote("create_ticket_now"),
    ])  # fmt: skip
    server = MCPServer(URL, name="crm", only=["create*", "x*", "no-*", "gone"], effects={"lost": "pure"})
    with caplog.at_level(logging.WARNING):
        names = [each.name for each in tools_of(server, offered, ServerConnections())]
    assert names[0] == "crm_create_ticket_now"
    assert (names[1][:8], len(names[1]), len(names)) == ("crm_xxxx", 64, 2)
    for said in ("no tool that fits 'lost', 'gone'", "'no-object' is left out: its input schema describes no object",
                 "'no-schema' is left out: its input schema is no JSON Schema",
                 "'create_ticket_now' is left out: 'create.ticket/now' has the same name"):  # fmt: skip
        assert said in caplog.text


def test_arguments_are_checked_by_the_servers_schema() -> None:
    (create,) = tools_of(MCPServer(URL, name="crm"), ToolList.of([remote("create")]), ServerConnections())
    assert create.bind({"title": "x"}) == {"title": "x"}
    assert create.bind('{"title": "x"}') == {"title": "x"}
    for wrong, said in (({}, "it needs title"), ({"title": 1}, "it must be a string"), ("{", "not valid JSON")):
        with pytest.raises(InvalidArguments, match=said):
            create.bind(wrong)  # type: ignore[arg-type]


def test_a_list_is_the_same_after_it_was_stored_and_a_damaged_one_is_refused() -> None:
    offered = ToolList.of([remote("b"), remote("a", readOnlyHint=True)])
    assert read_list(offered.raw) == offered
    assert ToolList.of(reversed(offered.tools)).digest == offered.digest
    with pytest.raises(StateUnreadable, match="no list of an MCP server's tools"):
        read_list(b'[{"name": 1}]')


def test_remote_tools_leave_the_agents_own_tools_and_definition_as_they_are() -> None:
    @tool(effect="pure")
    def crm_create(title: str) -> str:
        """Own."""
        return title

    agent = Agent("desk", driver=lambda _: "", tools=[crm_create], mcp=[MCPServer(URL, name="crm")])
    offered = ToolList.of([remote("create"), remote("read")])
    tools = tools_of(agent.mcp[0], offered, ServerConnections(), agent.toolset.names())
    made = agent.with_remote_tools(tools, away=["files"])
    assert made.toolset.names() == ("crm_create", "crm_read")
    assert made.toolset["crm_create"] is crm_create
    assert agent.toolset.names() == ("crm_create",)
    assert (made.definition_hash, made.answering) == (agent.definition_hash, agent.answering)
    assert made.notice == "The MCP servers files cannot be reached: their tools are missing now."


@pytest.mark.parametrize(
    ("annotations", "is_destructive"),
    [
        (None, False),
        ({}, True),
        ({"readOnlyHint": True}, False),
        ({"destructiveHint": False}, False),
        ({"destructiveHint": True}, True),
    ],
)
def test_rules_match_what_a_server_says_of_destruction(annotations: Any, is_destructive: bool) -> None:
    context = ApprovalContext(
        session_id="s", execution_id="e", step=1, index=0, tool="crm_x", state=state(), annotations=annotations
    )
    assert Rule(destructive=True).applies_to(context, {}) is is_destructive
    assert Rule(destructive=False).applies_to(context, {}) is not is_destructive
    assert Rule().applies_to(context, {})


@pytest.mark.parametrize(
    ("pattern", "applies"),
    [
        ("crm_tickets_delete", True),
        ("crm_*", True),
        ("crm.tickets/delete", True),
        ("crm.*", True),
        ("crm.tickets/*", True),
        ("crm2.*", False),
        ("tickets/delete", False),
        ("*delete", True),
    ],
)
def test_rules_find_a_tool_by_the_models_name_and_by_the_servers(pattern: str, applies: bool) -> None:
    offered = ToolList.of([remote("tickets/delete")])
    (found,) = tools_of(MCPServer(URL, name="crm"), offered, ServerConnections())
    context = ApprovalContext(
        session_id="s", execution_id="e", step=1, index=0, tool=found.name, state=state(),
        annotations=found.annotations, remote_name=found.remote_name,
    )  # fmt: skip
    assert Rule(pattern).applies_to(context, {}) is applies


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"name": "crm"}, {"name": "crm_admin"}),
        ({"name": "crm_admin"}, {"name": "crm"}),
        ({"name": "crm"}, {"name": "crm_"}),
        ({"name": "crm_"}, {"name": "crm__x"}),
        ({"name": "a"}, {"name": "a_b_c"}),
        ({"name": "crm", "only": ["*"]}, {"name": "crm_admin"}),
        ({"name": "crm", "only": ["read", "ad*"]}, {"name": "crm_admin"}),
        ({"name": "crm", "only": ["[ab]*"]}, {"name": "crm_admin"}),
        ({"name": "crm", "only": ["admin.pay"]}, {"name": "crm_admin"}),
        ({"name": "crm", "only": ["admin/*"]}, {"name": "crm_admin"}),
    ],
)
def test_servers_of_which_one_could_take_the_calls_of_the_other_are_refused(one: Any, other: Any) -> None:
    servers = [MCPServer(URL, **one), MCPServer(URL, **other)]
    short, long = sorted((one["name"], other["name"]), key=len)
    sentence = (
        f"agent 'desk': the MCP servers '{short}' and '{long}' can have tools of one name: a tool .* of '{short}' "
        f"would take the calls of '{long}'s tool 'x'. Rename one of them, or name the tools of '{short}' in only="
    )
    with pytest.raises(ConfigurationError, match=sentence.replace("'s tool", "''s tool")):
        Agent("desk", driver=lambda _: "", mcp=servers)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"name": "crm"}, {"name": "crmadmin"}),
        ({"name": "crm"}, {"name": "CRM_admin"}),
        ({"name": "m1"}, {"name": "m10"}),
        ({"name": "crm", "only": ["read", "admi", "admin"]}, {"name": "crm_admin"}),
        ({"name": "crm", "only": ["create_*"]}, {"name": "crm_admin"}),
    ],
)
def test_servers_whose_tools_can_have_no_name_in_common_are_taken(one: Any, other: Any) -> None:
    servers = [MCPServer(URL, **one), MCPServer(URL, **other)]
    assert Agent("desk", driver=lambda _: "", mcp=servers).mcp == tuple(servers)


SERVER_NAMES = st.from_regex(r"[ab][ab_]{0,4}", fullmatch=True)
TOOL_NAMES = st.text("ab_./", min_size=1, max_size=8) | st.text("ab", min_size=60, max_size=70)
PATTERNS = st.lists(st.text("ab_.*?", min_size=1, max_size=5), max_size=2)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(SERVER_NAMES, PATTERNS, st.lists(TOOL_NAMES, max_size=4)), max_size=3))
def test_no_tool_of_a_server_ever_has_the_name_of_another_servers_tool(given_servers: Any) -> None:
    servers = [MCPServer(URL, name=name, only=only) for name, only, _ in given_servers]
    try:
        agent = Agent("desk", driver=lambda _: "", mcp=servers)
    except ConfigurationError:
        return
    connections, owners = ServerConnections(), {}
    for server, (_, _, names) in zip(agent.mcp, given_servers, strict=True):
        for each in tools_of(server, ToolList.of([remote(name) for name in names]), connections):
            assert owners.setdefault(each.name, server) is server
