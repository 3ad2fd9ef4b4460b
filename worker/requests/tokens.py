"""Signed tokens: each lets its bearer do one thing without other credentials, such as answer one request.

A token is `ca1.<claims>.<signature>`: the claims as JSON, and their HMAC-SHA256 under the setting `token_secret`, both
in base64url without padding. It holds no secret, is stored nowhere, and the same claims always give the same token: a
worker that takes a step over hands out the token that the first worker did.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, cast

from ..errors import ConfigurationError, InvalidInput

_VERSION: Final = "ca1"
_MAX_CHARS: Final = 8_000


class InvalidToken(InvalidInput):
    """A token that was forged, changed, made for something else, or whose time is over. It is never shown."""

    def __init__(self, advice: str) -> None:
        super().__init__("token", str, advice)
        self.args = (f"token: {advice}",)


class TokenPurpose(StrEnum):
    """The things a token allows."""

    ANSWER = "answer"
    """Answer one approval or question, as a person may."""

    COMPLETE = "complete"
    """Complete or fail one call whose result comes later, as a service may."""

    SESSION = "session"
    """Use the HTTP interface for one session, as a browser may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenClaims:
    """The statement that a token makes.

    Attributes:
        session_id: The session that asks.
        request_id: The one request that the token answers; "" in a token of a session.
        purpose: The way in which it may be answered.
        expires_at_ms: When the token ends (Redis ms). None: with the request.
        scopes: What the bearer of a session's token may do.
        answer_to: The addressee whose requests the bearer of a session's token may answer. None: no addressee's.
        subject: Who bears a session's token; "" where its maker has not said.
    """

    session_id: str
    request_id: str
    purpose: TokenPurpose
    expires_at_ms: int | None = None
    scopes: tuple[str, ...] = ()
    answer_to: str | None = None
    subject: str = ""


class TokenSigner:
    """Makes and reads tokens under one secret."""

    def __init__(self, secret: str | None) -> None:
        """
        Args:
            secret: The setting `token_secret`. None: making and reading tokens is refused.
        """
        self._secret = secret

    @property
    def is_ready(self) -> bool:
        """Whether there is a secret to sign with."""
        return self._secret is not None

    def sign(self, claims: TokenClaims) -> str:
        """Make the token of these claims.

        Raises:
            ConfigurationError: The setting `token_secret` is missing.
        """
        values: dict[str, Any] = {"s": claims.session_id, "r": claims.request_id, "p": claims.purpose.value}
        if claims.expires_at_ms is not None:
            values["e"] = claims.expires_at_ms
        if claims.scopes:
            values["c"] = list(claims.scopes)
        if claims.answer_to is not None:
            values["a"] = claims.answer_to
        if claims.subject:
            values["u"] = claims.subject
        text = json.dumps(values, separators=(",", ":"), sort_keys=True).encode()
        signed = f"{_VERSION}.{_encode(text)}"
        return f"{signed}.{_encode(self._signature(signed))}"

    def read(self, token: str, purpose: TokenPurpose, now_ms: int) -> TokenClaims:
        """Check a token and return its claims.

        Args:
            now_ms: Redis's time.
        Raises:
            InvalidToken: It is malformed, forged, for another purpose, or its time is over.
            ConfigurationError: The setting `token_secret` is missing.
        """
        if not isinstance(token, str) or not token.isascii() or len(token) > _MAX_CHARS:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidToken("give the token as it was handed out.")
        signed, _, signature = token.rpartition(".")
        if not hmac.compare_digest(_decode(signature), self._signature(signed)):
            raise InvalidToken("it was not signed with this installation's token_secret, or was changed.")
        claims = _read_claims(signed)
        if claims.purpose is not purpose:
            advice = (
                f"it is a token to {claims.purpose.value}, and one to {purpose.value} is needed: client.complete and "
                "client.fail take completion tokens, client.answer_by_token those of a request."
            )
            raise InvalidToken(advice)
        if claims.expires_at_ms is not None and claims.expires_at_ms <= now_ms:
            raise InvalidToken("its time is over; ask for another one.")
        return claims

    def _signature(self, signed: str) -> bytes:
        if self._secret is None:
            raise ConfigurationError(
                "tokens need the setting token_secret; set CELERY_AGENTS_TOKEN_SECRET to the same random text of 16 "
                "characters or more for all workers and clients, as `openssl rand -hex 32` prints it"
            )
        # The prefix keeps a signature of anything else under the same secret from being one of a token.
        return hmac.new(self._secret.encode(), f"celery-agents token {signed}".encode(), hashlib.sha256).digest()


def _read_claims(signed: str) -> TokenClaims:
    version, _, text = signed.partition(".")
    if version != _VERSION:
        raise InvalidToken("it is of another version of this package.")
    values = cast("dict[str, Any]", json.loads(_decode(text)))
    return TokenClaims(
        session_id=values["s"],
        request_id=values["r"],
        purpose=TokenPurpose(values["p"]),
        expires_at_ms=values.get("e"),
        scopes=tuple(values.get("c", ())),
        answer_to=values.get("a"),
        subject=values.get("u", ""),
    )


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError, ValueError):
        return b""
