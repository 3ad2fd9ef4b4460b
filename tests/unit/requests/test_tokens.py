"""Signed tokens: the same claims give the same token, and nothing but what was signed is accepted."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.requests import InvalidToken, TokenClaims, TokenPurpose, TokenSigner

SIGNER = TokenSigner("not-a-secret-but-long-enough")
CLAIMS = TokenClaims(session_id="s1", request_id="r1", purpose=TokenPurpose.ANSWER, expires_at_ms=1000)


def test_a_token_says_what_was_signed_and_is_the_same_each_time() -> None:
    token = SIGNER.sign(CLAIMS)
    assert SIGNER.read(token, TokenPurpose.ANSWER, 999) == CLAIMS
    assert SIGNER.sign(CLAIMS) == token


def test_each_claim_of_a_session_comes_back_and_changes_the_token() -> None:
    least = TokenClaims(session_id="s1", request_id="", purpose=TokenPurpose.SESSION)
    full = replace(least, expires_at_ms=9, scopes=("read", "answer"), answer_to="", subject="ada")
    for claims in (least, replace(least, answer_to="desk"), full):
        assert SIGNER.read(SIGNER.sign(claims), TokenPurpose.SESSION, 8) == claims


def test_a_token_of_an_earlier_worker_is_the_same() -> None:
    """Tokens are stored nowhere: all versions make the same of the same claims."""
    claims = replace(CLAIMS, scopes=("read",), answer_to="desk", subject="ada")
    body = base64.urlsafe_b64decode(SIGNER.sign(claims).split(".")[1] + "==")
    assert body == b'{"a":"desk","c":["read"],"e":1000,"p":"answer","r":"r1","s":"s1","u":"ada"}'


def test_a_token_ends_at_its_time_and_one_without_a_time_does_not() -> None:
    with pytest.raises(InvalidToken, match=r"^token: its time is over; ask for another one\.$"):
        SIGNER.read(SIGNER.sign(CLAIMS), TokenPurpose.ANSWER, 1000)
    endless = TokenClaims(session_id="s1", request_id="r1", purpose=TokenPurpose.COMPLETE)
    assert SIGNER.read(SIGNER.sign(endless), TokenPurpose.COMPLETE, 2**50) == endless


def test_a_token_serves_its_purpose_only() -> None:
    with pytest.raises(InvalidToken, match=r"client\.complete"):
        SIGNER.read(SIGNER.sign(CLAIMS), TokenPurpose.COMPLETE, 0)


def test_a_token_of_another_secret_or_with_any_character_changed_is_refused() -> None:
    token = SIGNER.sign(CLAIMS)
    with pytest.raises(InvalidToken):
        TokenSigner("another-secret-as-long").read(token, TokenPurpose.ANSWER, 0)
    for place in range(len(token) - 1):  # the last character of base64 holds bits that mean nothing
        other = "A" if token[place] != "A" else "B"
        with pytest.raises(InvalidToken) as refused:
            SIGNER.read(token[:place] + other + token[place + 1 :], TokenPurpose.ANSWER, 0)
        assert token not in str(refused.value)


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "ca1..",
        "ca1.e30.",
        "é.é.é",
        "ca1.\ud800.e30",
        "x" * 5000,
        f"{SIGNER.sign(CLAIMS)}*",
        7,
        None,
        b"ca1.a.b",
    ],
)
def test_what_is_no_token_is_refused_and_not_shown(token: object) -> None:
    with pytest.raises(InvalidToken) as refused:
        SIGNER.read(token, TokenPurpose.ANSWER, 0)  # type: ignore[arg-type]
    assert refused.value.field == "token"


def test_a_token_has_8_000_characters_at_most() -> None:
    def of_length(characters: int) -> str:
        return SIGNER.sign(replace(CLAIMS, session_id="s" * characters))

    longest = next(n for n in range(6_000) if len(of_length(n + 1)) > 8_000)
    assert len(of_length(longest)) == 8_000
    assert SIGNER.read(of_length(longest), TokenPurpose.ANSWER, 0).session_id == "s" * longest
    with pytest.raises(InvalidToken, match="as it was handed out"):
        SIGNER.read(of_length(longest + 1), TokenPurpose.ANSWER, 0)


def test_without_a_secret_tokens_are_refused_with_advice() -> None:
    for act in (
        lambda: TokenSigner(None).sign(CLAIMS),
        lambda: TokenSigner(None).read("a.b.c", TokenPurpose.ANSWER, 0),
    ):
        with pytest.raises(ConfigurationError, match="CELERY_AGENTS_TOKEN_SECRET"):
            act()
