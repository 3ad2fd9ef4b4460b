"""Tools of MCP servers in a step: the lists that the model gets, journaled before it is asked.

A step is pinned to its lists by their digests, so that each leg of it knows the tools that the model has chosen from,
whatever the servers offer by then.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ..agent import Agent
from ..concurrency import fibers
from ..errors import DriverError, ModelCallRefused, StateUnreadable, StoreUnavailable
from ..mcp.credentials import Credentials
from ..mcp.lists import ToolList, read_list
from ..mcp.outages import ConnectionLost, MCPToolError, ServerAway
from ..mcp.server import MCPServer
from ..mcp.tool import MCPTool, tools_of
from ..recent import Recent
from ..state.agent_state import AgentState
from .run import Run
from .services import EngineServices

R = TypeVar("R")

RESERVED_NAMES: Final = ("final_result",)
"""Names of tools that pydantic-ai gives to the structured output of a model."""

_CACHED_SERVERS: Final = 1024
_CACHED_LISTS: Final = 256
_CACHED_AGENTS: Final = 64
_SHORTEST_LIFE_MS: Final = 5_000
_LONGEST_LIFE_MS: Final = 86_400_000
_KEEP_SECONDS: Final = 86_400.0
_LATE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Known:
    """The newest list of a server that this process has seen, and until when it is used (seconds, this machine)."""

    tools: ToolList
    fresh_until: float


class RemoteTools:
    """Gives the agent of a run the tools of its servers."""

    def __init__(self, services: EngineServices) -> None:
        self._services = services
        self._lists = services.store.tool_lists
        self._steps = services.store.steps
        self._known = Recent[str, _Known](_CACHED_SERVERS)
        self._by_digest = Recent[str, ToolList](_CACHED_LISTS)
        self._given_up = Recent[str, float](_CACHED_SERVERS)
        self._kept_at = Recent[str, float](_CACHED_LISTS)
        self._agents = Recent[tuple[str, frozenset[tuple[str, str]]], Agent](_CACHED_AGENTS)

    def adopt(self, run: Run) -> Run:
        """The run whose agent has the tools of its servers, as the step is pinned to them.

        Raises:
            DriverError: A server is away whose tools were never listed; the step is tried again later.
            ModelCallRefused: The step was interrupted.
        """
        agent = run.agent
        if not agent.mcp or run.outcome is not None or (run.ending.is_stopping and run.journal.answer is None):
            return run
        pins = self._pins(run)
        return run.changed(agent=self._agent_with(run, agent, pins))

    def _pins(self, run: Run) -> Mapping[str, str]:
        """The digest of each server's list by the server's name; "" for a server that was away all the time."""
        raw = run.journal.tools
        if raw is None:
            pins = self._newest_lists(run)
            raw = self._steps.record_tools(run.claim, json.dumps(pins).encode())
        try:
            pins = json.loads(raw)
            return {str(name): str(digest) for name, digest in pins.items()}
        except (ValueError, AttributeError):
            raise StateUnreadable("journal tools", "it names no lists of tools") from None

    def _newest_lists(self, run: Run) -> dict[str, str]:
        found: dict[str, str] = {}
        missing: list[tuple[MCPServer, Credentials]] = []
        for server, credentials in self._credentials(run).items():
            if isinstance(credentials, ServerAway):
                found[server.name] = self._adopt_answer(run, server, server.fixed_credentials.key, credentials)
                continue
            known = self._fresh_list(credentials.key)
            if known is None:
                missing.append((server, credentials))
            else:
                found[server.name] = known.digest
        return found | self._ask_servers(run, missing)

    def _credentials(self, run: Run) -> dict[MCPServer, Credentials | ServerAway]:
        """The credentials for each server, or why there are none now."""
        asking = [server for server in run.agent.mcp if server.asks_for_credentials]
        found: dict[MCPServer, Credentials | ServerAway] = {
            server: server.fixed_credentials for server in run.agent.mcp if server not in asking
        }
        if asking:
            given = self._on_loop(run, asking, lambda: _ask_for_credentials(asking, run.state))
            found |= dict(zip(asking, given, strict=True))
        return found

    def _fresh_list(self, key: str) -> ToolList | None:
        """The list of a server that need not be asked for again: of this process, or of another worker."""
        changed = self._services.connections.changed
        if key in changed:
            self._lists.forget_freshness(key)
            changed.discard(key)
            self._known.drop(key)
            return None
        known = self._known.get(key)
        if known is not None and known.fresh_until > self._services.monotonic():
            return known.tools
        stored = self._lists.newest(key)
        if stored is None or not stored.fresh_ms or stored.raw is None:
            return None
        return self._remember(key, read_list(stored.raw), stored.fresh_ms)

    def _ask_servers(self, run: Run, servers: list[tuple[MCPServer, Credentials]]) -> dict[str, str]:
        """Ask servers for their lists, side by side. A server that is away has its earlier list."""
        if not servers:
            return {}
        answers = self._on_loop(run, [server for server, _ in servers], lambda: self._list_all(servers))
        return {
            server.name: self._adopt_answer(run, server, credentials.key, answer)
            for (server, credentials), answer in zip(servers, answers, strict=True)
        }

    def _on_loop(
        self, run: Run, servers: Sequence[MCPServer], start: Callable[[], Coroutine[Any, Any, Sequence[R]]]
    ) -> Sequence[R | ServerAway]:
        """Ask servers something on the loop, and end that when the step is interrupted.

        Each has its own time. Where all of it is over at once, as behind a pause of this process, they are away.
        """
        limit = max(each.connect_timeout.total_seconds() for each in servers) + _LATE_SECONDS
        try:
            future = self._services.loop.submit(start, limit)
            run.lease.on_interrupt(future.cancel)
            return fibers.result(future)
        except TimeoutError:
            return [ServerAway(each.name, "no answer in time") for each in servers]
        except concurrent.futures.CancelledError as error:
            raise ModelCallRefused("the step was interrupted") from error

    async def _list_all(self, servers: list[tuple[MCPServer, Credentials]]) -> list[tuple[ToolList, int] | Exception]:
        return await asyncio.gather(*(self._list_one(server, credentials) for server, credentials in servers))

    async def _list_one(self, server: MCPServer, credentials: Credentials) -> tuple[ToolList, int] | Exception:
        connection = self._services.connections.to(server, credentials)
        was_open = connection.is_open
        try:
            async with asyncio.timeout(server.connect_timeout.total_seconds()), connection.use() as session:
                tools = await session.refresh_tools() if was_open else session.tools
                return tools, session.list_ms
        except TimeoutError:
            return ServerAway(server.name, "no answer in time")
        except (ServerAway, ConnectionLost, MCPToolError) as error:
            return error

    def _adopt_answer(self, run: Run, server: MCPServer, key: str, answer: tuple[ToolList, int] | Exception) -> str:
        """The digest of the list to use.

        Raises:
            DriverError: There is none.
        """
        if not isinstance(answer, Exception):
            tools, life_ms = answer
            life_ms = life_ms or round(server.list_for.total_seconds() * 1000)
            life_ms = min(_LONGEST_LIFE_MS, max(_SHORTEST_LIFE_MS, life_ms))
            self._lists.save(key, tools.digest, tools.raw, life_ms)
            return self._remember(key, tools, life_ms).digest
        stored = self._lists.newest(key)
        if stored is not None and stored.raw is not None:  # calls say themselves that the server is away
            return self._remember(key, read_list(stored.raw), _SHORTEST_LIFE_MS).digest
        patience, now = server.patience.total_seconds(), self._services.monotonic()
        since_ms = run.loaded.delayed_since_ms
        if since_ms and run.loaded.now_ms - since_ms >= patience * 1000:
            self._given_up.put(key, now + patience)  # the next steps do without at once
        if (self._given_up.get(key) or now) > now:
            return ""
        raise DriverError("mcp_server", str(answer), transient=True)

    def _remember(self, key: str, tools: ToolList, life_ms: int) -> ToolList:
        self._known.put(key, _Known(tools, self._services.monotonic() + life_ms / 1000))
        return self._by_digest.put(tools.digest, tools)

    def _list_of(self, digest: str) -> ToolList | None:
        """The list with this digest; None where it is not stored any more."""
        found = self._by_digest.get(digest)
        if found is not None:
            return found
        raw = self._lists.get(digest)
        return None if raw is None else self._by_digest.put(digest, read_list(raw))

    def _keep(self, digest: str) -> None:
        """Renew the life of a list once a day, since steps that wait are pinned to it."""
        now = self._services.monotonic()
        kept_at = self._kept_at.get(digest)
        if kept_at is not None and now - kept_at < _KEEP_SECONDS:
            return
        try:
            self._lists.keep(digest)
        except StoreUnavailable:
            return  # the next step does it
        self._kept_at.put(digest, now)

    def _agent_with(self, run: Run, agent: Agent, pins: Mapping[str, str]) -> Agent:
        """The agent with the tools of its servers; the same one for the same lists."""
        for digest in filter(None, pins.values()):
            self._keep(digest)
        place = (agent.name, frozenset(pins.items()))
        found = self._agents.get(place)
        if found is not None:
            return found
        tools: list[MCPTool] = []
        away: list[str] = []
        taken = (*agent.toolset.names(), *RESERVED_NAMES)
        for server in agent.mcp:
            offered = self._list_of(pins.get(server.name, ""))
            if offered is None:
                away.append(server.name)
            else:
                # In a thread: checking the schemas of a long list takes a second.
                tools += fibers.run_in_thread(tools_of, server, offered, self._services.connections, taken)
        made = agent.with_remote_tools(tools, away)
        return made if away else self._agents.put(place, made)


async def _ask_for_credentials(servers: Sequence[MCPServer], state: AgentState) -> list[Credentials | ServerAway]:
    """The credentials for each server, side by side."""

    async def ask(server: MCPServer) -> Credentials | ServerAway:
        try:
            return await server.credentials(state)
        except ServerAway as away:
            return away

    return await asyncio.gather(*map(ask, servers))
