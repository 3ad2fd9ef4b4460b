"""Access to the HTTP interface: bearer tokens with scopes, tokens of sessions, and requests of this machine."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from starlette.requests import Request

from ...config.settings import Settings, SettingsError
from ...worker.errors import ConfigurationError
from ...worker.requests import InvalidToken
from ..client.async_client import AsyncAgentClient
from .problems import HttpProblem

_SHORTEST_TOKEN: Final = 16
_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Scope(StrEnum):
    """The things that a token may allow."""

    SUBMIT = "submit"
    """Submit jobs and messages, retry."""

    READ = "read"
    """Read everything: sessions, events, requests, agents, workers."""

    ANSWER = "answer"
    """Answer requests, and take remembered approvals back."""

    STOP = "stop"
    """Stop, suspend and resume."""

    ADMIN = "admin"
    """Everything, and what only an operator may: tokens for others, prompts and models of sessions."""


@dataclass(frozen=True, slots=True)
class Access:
    """The rights of a request's bearer.

    Attributes:
        scopes: Allowed scopes.
        session_id: The one session, with those below it, that it may reach. None: all.
    """

    scopes: frozenset[Scope]
    session_id: str | None = None

    def check(self, scope: Scope, session_id: str | None) -> None:
        """Refuse what is not allowed.

        Args:
            session_id: The session that is asked about. None: none in particular.
        Raises:
            HttpProblem: The scope is missing, or it is another session.
        """
        if scope not in self.scopes and Scope.ADMIN not in self.scopes:
            raise HttpProblem(403, "missing-scope", f"This needs a token with the scope {scope.value!r}.")
        own = self.session_id
        if own is not None and (session_id is None or not _is_at_or_below(session_id, own)):
            raise HttpProblem(403, "other-session", "This token is for one session, and reaches nothing else.")


NOTHING: Final = Access(frozenset())
"""The access of a request that needs no token but the one in its path."""


class AccessRules:
    """Finds out what a request may do."""

    def __init__(self, settings: Settings) -> None:
        """
        Raises:
            SettingsError: `http_token_secrets` cannot be read.
        """
        self._tokens = read_tokens(settings.http_token_secrets)
        self._origins = allowed_origins(settings)

    async def access_of(self, request: Request, client: AsyncAgentClient) -> Access:
        """Read the bearer token of a request.

        Raises:
            HttpProblem: There is none and one is needed, or it is not known.
        """
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() == "bearer" and token:
            return await self._access_by(token, client)
        if self._tokens:
            raise _unauthorized("Send a token: Authorization: Bearer <token>.")
        self._check_local(request)
        return Access(frozenset({Scope.ADMIN}))

    async def _access_by(self, token: str, client: AsyncAgentClient) -> Access:
        for digest, scopes in self._tokens:
            if hmac.compare_digest(digest, _digest(token)):
                return Access(scopes)
        try:
            claims = await client.read_session_token(token)
        except (InvalidToken, ConfigurationError):
            raise _unauthorized("This token is not known, or its time is over.") from None
        return Access(frozenset(Scope(scope) for scope in claims.scopes), claims.session_id)

    def _check_local(self, request: Request) -> None:
        """Without tokens only programs of this machine may ask, and no page of another site in its browser."""
        if request.client is None or not is_loopback(request.client.host):
            raise _unauthorized("Without tokens only this machine may ask. Set CELERY_AGENTS_HTTP_TOKEN_SECRETS.")
        host = request.url.hostname or ""
        if host not in _LOCAL_NAMES:
            raise HttpProblem(403, "foreign-host", f"Without tokens the host must be localhost, not {host[:100]!r}.")
        origin = request.headers.get("origin")
        own = f"{request.url.scheme}://{request.headers.get('host', '')}"
        if origin is not None and origin != own and origin not in self._origins:
            raise HttpProblem(
                403, "foreign-origin", "Pages of this origin may not ask. Set CELERY_AGENTS_HTTP_ORIGINS."
            )


def read_tokens(text: str | None) -> tuple[tuple[bytes, frozenset[Scope]], ...]:
    """Read the setting `http_token_secrets`: digests of tokens with their scopes.

    Raises:
        SettingsError: An entry has no scopes, an unknown one, or too short a token. No token is in the message.
    """
    found: list[tuple[bytes, frozenset[Scope]]] = []
    entries = [entry.strip() for entry in (text or "").split(",") if entry.strip()]
    for number, entry in enumerate(entries, 1):
        token, _, names = entry.partition(":")
        place = f"CELERY_AGENTS_HTTP_TOKEN_SECRETS: entry {number}"
        if len(token) < _SHORTEST_TOKEN:
            raise SettingsError(
                f"{place} has a token shorter than {_SHORTEST_TOKEN} characters; `openssl rand -hex 32`."
            )
        try:
            scopes = frozenset(Scope(name.strip()) for name in names.split("+"))
        except ValueError:
            known = ", ".join(scope.value for scope in Scope)
            raise SettingsError(f"{place} needs scopes: write <token>:<scope>+<scope>, of {known}.") from None
        found.append((_digest(token), scopes))
    return tuple(found)


def allowed_origins(settings: Settings) -> tuple[str, ...]:
    """The origins whose pages may call the interface."""
    return tuple(origin.strip().rstrip("/") for origin in settings.http_origins.split(",") if origin.strip())


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _is_at_or_below(session_id: str, root: str) -> bool:
    return session_id == root or session_id.startswith(f"{root}.")


def _unauthorized(detail: str) -> HttpProblem:
    return HttpProblem(401, "missing-token", detail, headers={"WWW-Authenticate": "Bearer"})


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
