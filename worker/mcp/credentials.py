"""Credentials of a connection to a server: fixed values, an authentication of httpx, or what functions give."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Final, Protocol, cast

import anyio.to_thread

from ..concurrency.tool_threads import ThreadLimit
from ..known_secrets import remember_passing_secrets, remember_secrets
from ..redaction import redact
from ..secret_values import is_secret_name, secrets_of_variables
from ..state.agent_state import AgentState
from .line_limit import LineLimit
from .outages import ServerAway

Given = Any
"""What `auth` and `headers` may be given as, right or wrong; see `MCPServer`."""


class Authentication(Protocol):
    """An `Auth` of httpx2 or httpx."""

    def async_auth_flow(self, request: Any) -> Any:
        """The requests of one request's authentication."""
        ...


# Functions of users that hang, such as for a vault, must not take the threads that others need.
_THREADS: Final = ThreadLimit(32)
_HTTP_LOGGERS: Final = ("httpx2", "httpx")
_HEADER_NAME: Final = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LIBRARY_LOGGER: Final = "mcp.client.streamable_http"
_LIBRARY_LINES: Final = LineLimit()


@dataclass(frozen=True, slots=True)
class Credentials:
    """The headers and the authentication of a connection, for one session's calls.

    Attributes:
        headers: HTTP headers, a token included; empty for a command.
        key: Names the server with these credentials: lists of tools are shared by equal keys.
        auth: An authentication of httpx; None for none.
    """

    headers: Mapping[str, str]
    key: str
    auth: Any = field(default=None, repr=False)

    @property
    def connection_key(self) -> str:
        """Names a connection in this process: two authentications never share one."""
        return self.key if self.auth is None else f"{self.key}:{id(self.auth)}"


def is_authentication(given: Given) -> bool:
    """Whether this is an authentication of httpx2 or httpx."""
    return hasattr(given, "async_auth_flow")


def is_function(given: Given) -> bool:
    """Whether this is a function of the session's state."""
    return callable(given) and not is_authentication(given)


def problem_of_auth(auth: Given) -> str | None:
    """Say why this cannot be the `auth` of a server; None where it can."""
    if isinstance(auth, str):
        problem = "the token of auth= is empty, or has characters that no header can have, as a blank at an end"
        return None if _can_be_sent(auth) else problem
    if auth is None or is_function(auth):
        return None
    if not is_authentication(auth):
        return (
            "auth= must be a token as text, an Auth of httpx2, or a function of the session's state that gives either"
        )
    context = getattr(auth, "context", None)
    if getattr(context, "redirect_handler", None) or getattr(context, "callback_handler", None):
        return (
            f"auth={type(auth).__name__}(…) opens a browser, and nobody sits at a worker. Give a token, "
            "ClientCredentialsOAuthProvider, or a provider without handlers whose storage has a refresh token"
        )
    return None


def problem_of_headers(headers: Given) -> str | None:
    """Say why these cannot be the `headers` of a server; None where they can."""
    if headers is None or is_function(headers) or _are_headers(headers):
        return None
    wanted = "texts of plain ASCII by name, without blanks at their ends, or a function that gives them"
    return f"headers={type(headers).__name__} must be {wanted}"


def _are_headers(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    return all(
        isinstance(name, str) and _HEADER_NAME.fullmatch(name) and _can_be_sent(each)
        for name, each in cast("Any", value).items()
    )


def _can_be_sent(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and value.isprintable() and value == value.strip() != ""


def fixed_credentials(place: list[Any], auth: Given, headers: Given) -> Credentials:
    """The credentials of a server that no function gives.

    Args:
        place: What else names the server.
    """
    shown = dict(headers or {})
    if isinstance(auth, str):
        shown["Authorization"] = f"Bearer {auth}"
        auth = None
    return Credentials(shown, _key_of(place, shown, auth), auth)


async def ask_for_credentials(
    server: str, place: list[Any], auth: Given, headers: Given, state: AgentState | None, seconds: float
) -> Credentials:
    """The credentials of a server, of which functions of the user give a part.

    Args:
        seconds: Time in which the functions must answer.
    Raises:
        ServerAway: A function failed, took too long, or gave something else; the text says which.
    """
    if state is None:
        raise ServerAway(server, "its credentials are functions of the session's state, and there is no session here")
    try:
        async with asyncio.timeout(seconds):
            more = await _ask("headers", headers, state, problem_of_headers)
            given = await _ask("auth", auth, state, _problem_of_given)
    except _Refused as refused:
        raise ServerAway(server, str(refused)) from None
    except TimeoutError:
        raise ServerAway(server, f"the functions of auth= and headers= gave nothing in {seconds:g} s") from None
    shown: dict[str, str] = {**(more or {}), **(cast("Mapping[str, str]", given) if isinstance(given, Mapping) else {})}
    found = fixed_credentials(place, None if isinstance(given, Mapping) else given, shown)
    remember_passing_secrets(secrets_of(given, found.headers))
    return found


class _Refused(Exception):
    """A function of the user's has failed, or gave something that cannot be used."""


async def _ask(name: str, given: Given, state: AgentState, problem_of: Callable[[Any], str | None]) -> Any:
    if not is_function(given):
        return given
    try:
        value = await _call(given, state)
    except Exception as error:  # a function of the user's may raise anything
        raise _Refused(
            f"the function of {name}= has failed: {redact(f'{type(error).__name__}: {error}'):.300}"
        ) from error
    problem = problem_of(value)
    if problem is not None:
        raise _Refused(f"the function of {name}= gave a {type(value).__name__}: {problem}")
    return value


async def _call(function: Callable[[AgentState], Any], state: AgentState) -> Any:
    """Call a function, in a thread unless it is async."""
    is_async = inspect.iscoroutinefunction
    if is_async(function) or is_async(getattr(type(function), "__call__", None)):  # noqa: B004 - a method is looked at
        return await function(state)
    value = await anyio.to_thread.run_sync(function, state, limiter=_THREADS.of_this_loop(), abandon_on_cancel=True)
    return await value if inspect.isawaitable(value) else value


def _problem_of_given(value: Any) -> str | None:
    if _are_headers(value):
        return None
    if value is None or is_function(value):
        return "it must give a token as text, headers by name, or an Auth of httpx2"
    return problem_of_auth(value)


def _key_of(place: list[Any], headers: Mapping[str, str], auth: Any) -> str:
    """Stable across processes, which share lists of tools.

    Of an authentication its type and plain fields count; of one of OAuth also the id of its client, and the plain
    fields of its storage: by these those of two customers differ.
    """
    named = [*place, sorted(headers.items())]
    if auth is not None:
        fields: dict[str, Any] = getattr(auth, "__dict__", {})
        storage = getattr(fields.get("context"), "storage", fields.get("_storage"))
        clients = sorted(str(each.client_id) for each in fields.values() if hasattr(each, "client_id"))
        named += [f"{type(auth).__module__}.{type(auth).__qualname__}", _plain(auth, str), clients]
        named += [_plain(storage, (str, int, PathLike))]
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:32]


def _plain(value: Any, kinds: type | tuple[type, ...]) -> list[list[str]]:
    fields: dict[str, Any] = getattr(value, "__dict__", {})
    return sorted([name, str(each)] for name, each in fields.items() if isinstance(each, kinds))


def secrets_of(auth: Given, headers: Given) -> list[str]:
    """The parts of a server's credentials that must not be in a text."""
    found = [auth] if isinstance(auth, str) else []
    shown: Mapping[str, str] = cast("Any", headers) if isinstance(headers, Mapping) else {}
    for name, value in shown.items():
        if is_secret_name(name.replace("-", "_")) or name.lower() == "authorization":
            found.append(value.partition(" ")[2] or value)
    return found


def remember_credentials(url: str | None, auth: Given, headers: Given, env: Mapping[str, str]) -> None:
    """Make the fixed credentials of a server known as secrets of this process, before anything can be logged."""
    shown: Mapping[str, str] = cast("Any", headers) if isinstance(headers, Mapping) else {}
    remember_secrets([*secrets_of(auth, headers), *secrets_of_variables({**env, **shown}), url])
    for name in _HTTP_LOGGERS:
        _add_filter(name, _redact_record)
    _add_filter(_LIBRARY_LOGGER, _quieten)


def _add_filter(name: str, wanted: Callable[[logging.LogRecord], bool]) -> None:
    logger = logging.getLogger(name)
    if wanted not in logger.filters:
        logger.addFilter(wanted)


def _quieten(record: logging.LogRecord) -> bool:
    """The library writes a traceback for each message that is none, with a part of the message: a line is enough."""
    record.exc_info = record.exc_text = None
    return _redact_record(record) and _LIBRARY_LINES.take()


def _redact_record(record: logging.LogRecord) -> bool:
    """The client library logs each address, as the root of a project's own logging may show."""
    text = record.getMessage()
    clean = redact(text)
    if clean != text:
        record.msg, record.args = clean, ()
    return True
