"""`MCPServer`: a server whose tools an agent may call, as users write it into `Agent(mcp=[…])`."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cached_property
from importlib import import_module
from itertools import permutations
from typing import Any, Final, Literal, cast

from ...config.urls import is_web_address
from ..errors import ConfigurationError, MissingExtra
from ..state.agent_state import AgentState
from ..tools.approval import Approval, check_approval
from ..tools.checks import check_effect
from ..tools.effect import Effect
from .credentials import (
    Authentication,
    Credentials,
    ask_for_credentials,
    fixed_credentials,
    is_function,
    problem_of_auth,
    problem_of_headers,
    remember_credentials,
)

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
_FIXED: Final = re.compile(r"[^*?\[]+")
_TRUST: Final = ("none", "annotations")
_MESSAGE_BYTES: Final = (10_000, 16_000_000)
_TIMES: Final = ("idle", "patience", "list_for", "connect_timeout")


Auth = str | Authentication | Callable[[AgentState], Any] | None
"""A token, an `Auth` of httpx2, a function that gives one of them or headers, or None."""

Headers = Mapping[str, str] | Callable[[AgentState], Mapping[str, str] | Awaitable[Mapping[str, str]]] | None
"""HTTP headers, a function that gives them, or None."""


@dataclass(frozen=True, eq=False)
class MCPServer:
    """A server of the Model Context Protocol whose tools an agent may call.

    Each tool has the name `<server>_<tool>` for the model.

    Attributes:
        url: Address of a server that speaks streamable HTTP. None: `command` starts one.
        command: Program and arguments of a server that speaks over its standard streams. Each worker process runs one.
        name: Short name: a letter, then letters, digits and `_`, 32 at most.
        auth: The bearer token, an `Auth` of httpx2, or a function of the session's state that gives a token, headers or
            an `Auth`; it may be async, and another one runs in a thread. None: no token.
        headers: HTTP headers, or a function of the session's state that gives them, likewise.
        env: Further environment variables of the command.
        cwd: The directory in which the command runs. None: the worker's.
        trust: "annotations" believes what the server says of its tools' effects. "none": every tool is unsafe, unless
            `effects` says otherwise.
        effects: Effect classes by the server's tool name: "pure", "keyed" or "unsafe". They go before annotations.
        only: Patterns of the server's tool names, as `create_*`; other tools are left out. Empty: all.
        approval: Whether a person approves calls of the server's tools; see `@tool`.
        timeout: Time that a call may take. None: the agent's `tool_timeout`.
        idle: A connection without calls is closed after this time, and the command ended.
        patience: Time for which a call to a server that is away is tried again; then the model reads an error.
        connect_timeout: Time in which a connection must be open and the list of tools there.
        list_for: Time for which the list of tools is used where the server does not say; then it is asked again.
        max_message_bytes: Bytes of one message of the server, such as the result of a call; a longer one is an error.
    """

    url: str | None = None
    _: KW_ONLY
    command: str | Sequence[str] | None = None
    name: str
    auth: Auth = field(default=None, repr=False)
    headers: Headers = field(default=None, repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | None = None
    trust: Literal["none", "annotations"] = "none"
    effects: Mapping[str, Effect | str] = field(default_factory=dict[str, Any])
    only: Sequence[str] = ()
    approval: Approval = "never"
    timeout: timedelta | None = None
    idle: timedelta = timedelta(minutes=5)
    patience: timedelta = timedelta(minutes=5)
    connect_timeout: timedelta = timedelta(seconds=10)
    list_for: timedelta = timedelta(minutes=5)
    max_message_bytes: int = 1_000_000

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"MCPServer: name={self.name!r:.60} must be a letter followed by up to 31 letters, digits or '_'"
            )
        self._check_way()
        if self.trust not in _TRUST:
            raise self._refusal(f"trust={self.trust!r:.60} must be 'none' or 'annotations'")
        effects = {tool: check_effect(f"{self.name}: {tool}", effect) for tool, effect in self.effects.items()}
        for tool, effect in effects.items():
            if effect not in (Effect.PURE, Effect.KEYED, Effect.UNSAFE):
                advice = "a call that the server answers with a task is looked up by itself; use pure, keyed or unsafe"
                raise self._refusal(f"effects[{tool!r}]={effect.value!r}: {advice}")
        object.__setattr__(self, "effects", effects)
        if isinstance(self.only, str) or not all(isinstance(each, str) and each for each in self.only):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._refusal(f"only={self.only!r:.60} must be a list of tool names or patterns, as ['create_*']")
        for name in (*_TIMES, *(["timeout"] if self.timeout is not None else [])):
            if not isinstance(value := getattr(self, name), timedelta) or value <= timedelta(0):
                raise self._refusal(f"{name}={value!r:.60} must be a timedelta above 0")
        size = self.max_message_bytes
        if not isinstance(size, int) or not _MESSAGE_BYTES[0] <= size <= _MESSAGE_BYTES[1]:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._refusal(
                f"max_message_bytes={size!r:.60} must be from {_MESSAGE_BYTES[0]} to {_MESSAGE_BYTES[1]}"
            )
        check_approval(self.name, self.approval)
        for problem in (problem_of_auth(self.auth), problem_of_headers(self.headers)):
            if problem is not None:
                raise self._refusal(problem)
        remember_credentials(self.url, self.auth, self.headers, self.env)

    def _check_way(self) -> None:
        """Check how the server is reached, and bring the command into one form."""
        if (self.url is None) == (self.command is None):
            raise self._refusal(f"give either url= or command=, {'not both' if self.url else 'one of them is needed'}")
        if self.url is not None:
            if not is_web_address(self.url):
                raise self._refusal(f"url={self.url!r:.80} must begin with http:// or https:// and name a host")
            if self.env or self.cwd:
                raise self._refusal("env= and cwd= belong to command=; a server with a url has its own")
            return
        if self.auth is not None or self.headers is not None:
            raise self._refusal("auth= and headers= belong to url=; give a command its credentials in env=")
        env: Any = self.env
        if not isinstance(env, Mapping) or {type(each) for pair in cast("Any", env).items() for each in pair} - {str}:
            raise self._refusal("env= must be texts by name")
        words = (
            shlex.split(self.command) if isinstance(self.command, str) else [str(word) for word in self.command or ()]
        )
        if not words:
            raise self._refusal("command= is empty; give a program and its arguments")
        object.__setattr__(self, "command", tuple(words))

    def _refusal(self, problem: str) -> ConfigurationError:
        return ConfigurationError(f"MCP server {self.name!r}: {problem}")

    @property
    def words(self) -> tuple[str, ...]:
        """Program and arguments of the command; empty for a server with a url."""
        return tuple(self.command or ())

    @property
    def asks_for_credentials(self) -> bool:
        """Whether functions of the session's state give the credentials."""
        return is_function(self.auth) or is_function(self.headers)

    @property
    def _place(self) -> list[Any]:
        return [self.name, self.url, list(self.words), dict(self.env), self.cwd]

    @cached_property
    def fixed_credentials(self) -> Credentials:
        """The credentials of a server without functions; of one with functions, those without what they give."""
        auth, headers = (None if is_function(each) else each for each in (self.auth, self.headers))
        return fixed_credentials(self._place, auth, headers)

    async def credentials(self, state: AgentState | None) -> Credentials:
        """The credentials for a session's calls.

        Raises:
            ServerAway: A function of the user's failed, took longer than `connect_timeout`, or gave something else.
        """
        if not self.asks_for_credentials:
            return self.fixed_credentials
        seconds = self.connect_timeout.total_seconds()
        return await ask_for_credentials(self.name, self._place, self.auth, self.headers, state, seconds)

    def offers(self, tool: str) -> bool:
        """Whether the agent may call a tool of this name."""
        return not self.only or any(fnmatchcase(tool, pattern) for pattern in self.only)

    def may_offer(self, beginning: str) -> bool:
        """Whether a tool of the server may have a name for the model that goes on as `<server>_<beginning>_`."""
        wanted = f"{beginning}_"
        for pattern in self.only or ("*",):
            fixed = _FIXED.match(pattern)
            given = local_form(fixed.group()) if fixed else ""
            is_whole = len(given) == len(pattern)
            if given.startswith(wanted) or (not is_whole and wanted.startswith(given)):
                return True
        return False

    def effect_of(self, tool: str, annotations: Mapping[str, Any]) -> Effect:
        """The effect class of a tool: what `effects` says, else a trusted server's annotations, else unsafe."""
        given = self.effects.get(tool)
        if given is not None:
            return Effect(given)
        if self.trust != "annotations":
            return Effect.UNSAFE
        if annotations.get("readOnlyHint") is True:
            return Effect.PURE
        return Effect.KEYED if annotations.get("idempotentHint") is True else Effect.UNSAFE

    def unknown_names(self, tools: Iterable[str]) -> list[str]:
        """Names in `effects` and patterns in `only` that fit none of the server's tools."""
        known = list(tools)
        missing = [name for name in self.effects if name not in known]
        return missing + [each for each in self.only if not any(fnmatchcase(name, each) for name in known)]


def local_form(tool: str) -> str:
    """A server's name of a tool in the characters that every provider accepts."""
    return re.sub("[^A-Za-z0-9_-]", "_", tool)


def check_servers(agent: str, servers: Any) -> tuple[MCPServer, ...]:
    """The servers of an agent.

    Raises:
        ConfigurationError: One of them is none, two have one name, or tools of two can have one name.
    """
    found: dict[str, MCPServer] = {}
    for server in servers:
        if not isinstance(server, MCPServer):
            raise ConfigurationError(f"agent {agent!r}: mcp={server!r:.60} must be a list of MCPServer(…)")
        if server.name in found:
            raise ConfigurationError(f"agent {agent!r}: two MCP servers are named {server.name!r}; rename one")
        found[server.name] = server
    for one, other in permutations(found.values(), 2):
        if other.name.startswith(f"{one.name}_") and one.may_offer(rest := other.name[len(one.name) + 1 :]):
            raise ConfigurationError(
                f"agent {agent!r}: the MCP servers {one.name!r} and {other.name!r} can have tools of one name: a tool "
                f"{rest + '_x'!r} of {one.name!r} would take the calls of {other.name!r}'s tool 'x'. Rename one of "
                f"them, or name the tools of {one.name!r} in only=[…]"
            )
    return tuple(found.values())


def require_servers(servers: Iterable[MCPServer]) -> None:
    """Check, when a worker starts, that it can speak to servers and start their commands.

    Raises:
        MissingExtra: The library `mcp` is not installed.
        ConfigurationError: A command does not exist.
    """
    for server in servers:
        try:
            # Loaded now: it takes a second or two, in which a running step would hold up all others.
            import_module(".transports", __package__)
        except ImportError as error:
            raise MissingExtra("mcp", f"MCP server {server.name!r}") from error
        if server.words and shutil.which(server.words[0], path=server.env.get("PATH")) is None:
            raise ConfigurationError(
                f"MCP server {server.name!r}: the program {server.words[0]!r} of command= is not found; install it, "
                "or write its full path"
            )
