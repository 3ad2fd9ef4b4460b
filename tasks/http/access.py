"""Access to the HTTP interface: bearer tokens with scopes, tokens of sessions, and requests of this machine."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from starlette.requests import Request

from ...config.settings import Settings, SettingsError
from ...worker.errors import ConfigurationError, InvalidInput, SessionNotFound
from ...worker.requests.tokens import InvalidToken
from ...worker.state.execution.requests import RequestKind
from ...worker.store.keys import root_of
from ...worker.store.labels import check_labels
from ..client.async_client import AsyncAgentClient
from ..client.verbs import Scope
from .problems import HttpProblem
from .reach import has_label, is_in_tree

V = TypeVar("V", bound=str | None)

_SHORTEST_TOKEN: Final = 16
_PROXY_HEADERS: Final = frozenset(
    {"forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "cf-connecting-ip"}
)
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_LOCAL_HOST: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?", re.ASCII | re.IGNORECASE)


_SERVER_SCOPES: Final = tuple(scope for scope in Scope if scope is not Scope.CHAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The rights of a request's bearer.

    Attributes:
        scopes: Allowed scopes.
        session_id: The one session, with those below it, that it may reach. None: all.
        label: The key and the value of the label of the sessions that it may reach, with those below them. None: all.
        answer_to: The addressee whose requests a token of a session answers. None: no addressee's.
        subject: Who bears a token of a session, for the events; a name for all such where its maker has not said.
        person: The same; "" where its maker has not said.
    """

    scopes: frozenset[Scope] = frozenset()
    session_id: str | None = None
    label: tuple[str, str] | None = None
    answer_to: str | None = None
    subject: str = ""
    person: str = ""

    @property
    def is_visitor(self) -> bool:
        """Whether it is not one of the setting's tokens: those are of services, others of the person who got them."""
        return self.session_id is not None or not self.scopes

    @property
    def memory_share(self) -> float:
        """The part of a budget of memory that must not be exceeded for this caller."""
        return 0.5 if self.is_visitor else 1.0 if Scope.ADMIN in self.scopes else 0.75

    def has(self, scope: Scope) -> bool:
        """Whether it allows what this scope does."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def check(self, scope: Scope, session_id: str | None, *, for_chat: bool = False, for_label: bool = False) -> None:
        """Refuse what is not allowed.

        Args:
            session_id: The session that is asked about. None: none in particular.
            for_chat: The scope `chat` will do.
            for_label: A token of a label need not name a session.
        Raises:
            HttpProblem: The scope is missing, or it is another session.
        """
        if not self.has(scope) and not (for_chat and Scope.CHAT in self.scopes):
            raise HttpProblem(403, "missing-scope", f"This needs a token with the scope {scope.value!r}.")
        own = self.session_id
        if own is not None and (session_id is None or root_of(session_id) != root_of(own)):
            raise _other_session()
        if self.label is not None and session_id is None and not for_label:
            detail = f"This token reaches the sessions of {'='.join(self.label)} alone, and not what concerns all."
            raise HttpProblem(403, "other-label", detail)

    async def check_place(self, session_id: str | None, client: AsyncAgentClient) -> None:
        """Refuse a session that is not below the token's, though its id begins as that one's: those above, and forks.

        Raises:
            HttpProblem: It is such a session, or there is none of this id.
            SessionNotFound: It has not the token's label, or there is none of this id.
        """
        own = self.session_id
        if session_id is not None and not await self.has_label_of(session_id, client):
            raise SessionNotFound(session_id)
        if own is not None and session_id != own and not await client.run(lambda of: is_in_tree(of, session_id, own)):
            raise _other_session()

    async def has_label_of(self, session_id: str, client: AsyncAgentClient) -> bool:
        """Whether a session has the token's label, where it has one.

        Raises:
            SessionNotFound: There is none of this id.
        """
        label = self.label
        return label is None or await client.run(lambda of: has_label(of, session_id, label))

    def bind_labels(self, given: Mapping[str, V]) -> dict[str, V | str]:
        """Labels that are given or asked for, with that of the token.

        Raises:
            HttpProblem: Another value is given for it.
        """
        if self.label is None:
            return {**given}
        key, value = self.label
        if given.get(key, value) != value:
            raise HttpProblem(403, "other-label", f"{key}: this token is of {key}={value}. Leave it out.")
        return {**given, key: value}

    def check_fields(self, **given: object) -> None:
        """Refuse fields that only a service may give, since others trust what they say.

        Args:
            given: Values by the names of the fields; None and empty ones are not given.
        Raises:
            HttpProblem: A token of a session gives one.
        """
        named = [name for name, value in given.items() if value] if self.session_id is not None else []
        if named:
            detail = (
                f"{', '.join(named)}: a token of a session cannot give this. Leave it out, or let a service send it."
            )
            raise HttpProblem(403, "not-for-session-tokens", detail)

    def name_caller(self, by: str | None) -> str | None:
        """The name under which an action is kept: the subject of a session's token, or what a service says.

        Raises:
            HttpProblem: A token of a session gives another name than its own.
        """
        if self.session_id is None:
            return by
        if by not in (None, self.subject):
            raise HttpProblem(403, "other-subject", f"by: this token is of {self.subject!r}. Leave it out.")
        return self.subject

    def name_sender(self, by: str | None) -> str | None:
        """Under whom a message that is sent is kept. None: it is nobody's own.

        Raises:
            HttpProblem: A token of a session gives another name than its own.
        """
        named = self.name_caller(by)
        return named if self.session_id is None else self.person or None

    def name_owner(self, scope: Scope | None) -> str | None:
        """The one whose messages it may change. None: anybody's, by this scope.

        Raises:
            HttpProblem: It may change its bearer's own, and nobody has said who that is.
        """
        if scope is None or self.has(scope):
            return None
        if not self.person:
            detail = "This token may change messages of its subject, and it has none: have it made with a subject."
            raise HttpProblem(403, "no-subject", detail)
        return self.person

    def may_answer(self, kind: RequestKind, to: str | None) -> bool:
        """Whether it may answer a request of this kind to this addressee, in a session that it may reach.

        A service may answer any. A token of a session answers what is addressed to its `answer_to`; to nobody in
        particular, with `chat` questions alone, with `answer` also approvals. Results come from services.
        """
        if self.session_id is None:
            return self.has(Scope.ANSWER)
        if not self.scopes & {Scope.ANSWER, Scope.CHAT}:
            return False
        if to:
            return to == self.answer_to
        of_anybody = {RequestKind.QUESTION}
        if self.has(Scope.ANSWER):
            of_anybody.add(RequestKind.APPROVAL)
        return kind in of_anybody


NOTHING: Final = Access()
"""The access of a request that needs no token but the one in its path."""


class AccessRules:
    """Finds out what a request may do."""

    def __init__(self, settings: Settings) -> None:
        """
        Raises:
            SettingsError: `http_token_secrets` cannot be read.
        """
        self._tokens = read_tokens(settings.http_token_secrets)
        self._origins = settings.allowed_origins

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
        return Access(scopes=frozenset({Scope.ADMIN}))

    async def _access_by(self, token: str, client: AsyncAgentClient) -> Access:
        for digest, access in self._tokens:
            if hmac.compare_digest(digest, _digest(token)):
                return access
        try:
            claims = await client.read_session_token(token)
        except (InvalidToken, ConfigurationError):
            raise _unauthorized("This token is not known, or its time is over.") from None
        return Access(
            scopes=frozenset(Scope(scope) for scope in claims.scopes),
            session_id=claims.session_id,
            answer_to=claims.answer_to,
            subject=claims.subject or claims.answer_to or f"session {claims.session_id}",
            person=claims.subject,
        )

    def _check_local(self, request: Request) -> None:
        """Without tokens only programs of this machine may ask, and no page of another site in its browser.

        A proxy on this machine would make all its callers programs of this machine. It tells by headers of its own, or
        by HTTP/1.0, in which nginx asks when it is not told otherwise.
        """
        if request.scope["http_version"] == "1.0" or any(name in _PROXY_HEADERS for name in request.headers):
            raise _unauthorized(
                "Without tokens nobody may ask through a proxy, since everybody would be an operator. "
                "Set CELERY_AGENTS_HTTP_TOKEN_SECRETS."
            )
        if request.client is None or not is_loopback(request.client.host):
            raise _unauthorized("Without tokens only this machine may ask. Set CELERY_AGENTS_HTTP_TOKEN_SECRETS.")
        host = request.headers.get("host", "")  # not that of the URL, which is the server's where this is malformed
        if not _LOCAL_HOST.fullmatch(host):
            raise HttpProblem(403, "foreign-host", f"Without tokens the host must be localhost, not {host[:100]!r}.")
        origin = request.headers.get("origin")
        own = f"{request.url.scheme}://{host}"
        site = "same-origin" if request.method in _SAFE_METHODS else request.headers.get("sec-fetch-site", "none")
        is_foreign = origin not in (None, own) or site not in ("same-origin", "none")
        if is_foreign and origin not in self._origins:
            raise HttpProblem(
                403, "foreign-origin", "Pages of this origin may not ask. Set CELERY_AGENTS_HTTP_ORIGINS."
            )


def read_tokens(text: str | None) -> tuple[tuple[bytes, Access], ...]:
    """Read the setting `http_token_secrets`: digests of tokens with what they allow.

    Raises:
        SettingsError: An entry has no scopes, an unknown one, no label behind its second colon, or too short a token.
            No token is in the message.
    """
    found: list[tuple[bytes, Access]] = []
    entries = [entry.strip() for entry in (text or "").split(",") if entry.strip()]
    for number, entry in enumerate(entries, 1):
        token, _, allowed = entry.partition(":")
        names, is_bound, label = allowed.partition(":")
        place = f"CELERY_AGENTS_HTTP_TOKEN_SECRETS: entry {number}"
        if len(token) < _SHORTEST_TOKEN:
            raise SettingsError(
                f"{place} has a token shorter than {_SHORTEST_TOKEN} characters; `openssl rand -hex 32`."
            )
        try:
            scopes = frozenset(_SERVER_SCOPES[_SERVER_SCOPES.index(Scope(name.strip()))] for name in names.split("+"))
        except ValueError:
            known = ", ".join(scope.value for scope in _SERVER_SCOPES)
            raise SettingsError(f"{place} needs scopes: write <token>:<scope>+<scope>, of {known}.") from None
        bound = _read_label(place, label, scopes) if is_bound else None
        digest, access = _digest(token), Access(scopes=scopes, label=bound)
        if dict(found).get(digest, access) != access:  # the first entry alone would hold
            raise SettingsError(f"{place} has the token of another entry, which allows something else: give one entry.")
        found.append((digest, access))
    return tuple(found)


def _read_label(place: str, text: str, scopes: Collection[Scope]) -> tuple[str, str]:
    key, _, value = text.partition("=")
    if Scope.ADMIN in scopes:
        raise SettingsError(f"{place} has the scope admin, which concerns all sessions: leave out its label.")
    try:
        ((key, value),) = check_labels({key: value}).items()
    except InvalidInput as error:
        raise SettingsError(f"{place} needs a label: write <token>:<scopes>:<key>=<value>; {error}") from None
    return key, value


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _other_session() -> HttpProblem:
    return HttpProblem(403, "other-session", "This token is for one session, and reaches nothing else.")


def _unauthorized(detail: str) -> HttpProblem:
    return HttpProblem(401, "missing-token", detail, headers={"WWW-Authenticate": "Bearer"})


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
