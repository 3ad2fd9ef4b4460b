"""Who may do what over HTTP: tokens of services, tokens of sessions, and programs of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from celery_agents.config.settings import Settings, SettingsError
from celery_agents.tasks.client.verbs import Scope
from celery_agents.tasks.http.access import Access, AccessRules, is_loopback, read_tokens
from celery_agents.tasks.http.problems import HttpProblem
from celery_agents.worker.requests import TokenClaims, TokenPurpose, TokenSigner
from celery_agents.worker.state.execution.requests import RequestKind

SIGNER = TokenSigner("not-a-secret-but-long-enough")
READER = "token-of-16-char"
TOKENS = f"{READER}:read, another-token-of-ours:submit + answer,"
CHILD, GRANDCHILD, FORK = (f"s.{each * 32}" for each in "abc")
PARENTS = {CHILD: "s", GRANDCHILD: CHILD}
SESSION = Access(scopes=frozenset({Scope.READ, Scope.SUBMIT}), session_id="s", answer_to="desk", subject="ada")


class Client:
    """What access asks of a client: to read tokens, and to find a session's parent."""

    async def read_session_token(self, token: str) -> TokenClaims:
        return SIGNER.read(token, TokenPurpose.SESSION, 0)

    async def run(self, call: Callable[[Any], Any]) -> Any:
        def link(session_id: str) -> Any:
            parent = PARENTS.get(session_id)
            return None if parent is None else SimpleNamespace(session_id=parent)

        return call(SimpleNamespace(store=SimpleNamespace(trees=SimpleNamespace(link=link))))


def access_of(tokens: str | None = None, *, origins: str = "", peer: str | None = "127.0.0.1", **more: Any) -> Access:
    """The access of a request with these headers."""
    headers = {"host": "localhost:8000", **more.pop("headers", {})}
    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": "/v1/sessions",
        "query_string": b"", "server": ("localhost", 8000), "client": None if peer is None else (peer, 5),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()], **more,
    }  # fmt: skip
    rules = AccessRules(Settings.build(http_token_secrets=tokens, http_origins=origins))
    client: Any = Client()
    return asyncio.run(rules.access_of(Request(scope), client))


def refused(act: Callable[[], Any]) -> tuple[int, str]:
    with pytest.raises(HttpProblem) as problem:
        act()
    return problem.value.status, problem.value.kind


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


# --- tokens -------------------------------------------------------------------------------------------------------


def test_a_token_of_the_setting_has_its_scopes() -> None:
    assert access_of(TOKENS, headers=bearer(READER)) == Access(scopes=frozenset({Scope.READ}))
    found = access_of(TOKENS, headers={"authorization": "bearer  another-token-of-ours "})
    assert (found.scopes, found.session_id) == ({Scope.SUBMIT, Scope.ANSWER}, None)


def test_a_token_of_a_session_has_what_it_says() -> None:
    claims = TokenClaims(
        session_id="s", request_id="", purpose=TokenPurpose.SESSION, scopes=("chat",), answer_to="desk", subject="ada"
    )
    expected = Access(scopes=frozenset({Scope.CHAT}), session_id="s", answer_to="desk", subject="ada", person="ada")
    for tokens in (TOKENS, None):
        assert access_of(tokens, headers=bearer(SIGNER.sign(claims)), peer="10.0.0.1") == expected
    unnamed = TokenClaims(session_id="s", request_id="", purpose=TokenPurpose.SESSION)
    assert access_of(headers=bearer(SIGNER.sign(unnamed))).subject == "session s"


@pytest.mark.parametrize(
    "headers", [{}, bearer("no-token-of-ours"), bearer(""), bearer("ca1.a.b"), {"authorization": f"Basic {READER}"}]
)
def test_where_there_are_tokens_each_request_needs_one(headers: dict[str, str]) -> None:
    with pytest.raises(HttpProblem) as problem:
        access_of(TOKENS, headers=headers)
    assert (problem.value.status, problem.value.kind) == (401, "missing-token")
    assert problem.value.headers == {"WWW-Authenticate": "Bearer"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a-short-token-15:read,b", "entry 2 has a token shorter than 16 characters"),
        ("a-token-of-15-c:read", "entry 1 has a token shorter"),
        (f"{READER}:read,{READER}", "entry 2 needs scopes: write .*, of submit, read, answer, stop, admin"),
        (f"{READER}:read+write", "entry 1 needs scopes"),
        (f"{READER}:chat", "entry 1 needs scopes"),
        (f"{READER}:read:", "entry 1 needs a label: write"),
        (f"{READER}:read:customer", "entry 1 needs a label"),
        (f"{READER}:read,{READER}:admin", "entry 2 has the token of another entry, which allows something else"),
        (f"{READER}:read:customer=a,{READER}:read:customer=b", "entry 2 has the token of another entry"),
        (f"{READER}:read+admin:customer=acme", "has the scope admin, which concerns all sessions"),
    ],
)
def test_a_setting_that_cannot_be_read_is_refused_without_its_tokens(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as wrong:
        read_tokens(text)
    assert READER not in str(wrong.value)


def test_a_token_that_is_given_twice_with_the_same_rights_is_one_token() -> None:
    assert read_tokens(f"{READER}:read,{READER}:read") == read_tokens(f"{READER}:read") * 2


def test_a_token_of_a_label_reaches_its_sessions_and_nothing_that_concerns_all() -> None:
    access = access_of(f"{READER}:read+submit:customer=acme", headers=bearer(READER))
    assert access == Access(scopes=frozenset({Scope.READ, Scope.SUBMIT}), label=("customer", "acme"))
    assert not access.is_visitor
    access.check(Scope.READ, "s")
    access.check(Scope.READ, None, for_label=True)
    assert refused(lambda: access.check(Scope.READ, None)) == (403, "other-label")
    assert refused(lambda: access.check(Scope.STOP, "s")) == (403, "missing-scope")
    assert access.bind_labels({"team": "a"}) == {"team": "a", "customer": "acme"}
    assert access.bind_labels({"customer": "acme"}) == {"customer": "acme"}
    for other in ("bolt", None):
        assert refused(lambda other=other: access.bind_labels({"customer": other})) == (403, "other-label")
    assert Access().bind_labels({"customer": "bolt"}) == {"customer": "bolt"}


# --- without tokens -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        {}, {"peer": "::1"}, {"peer": "127.8.0.1"},
        {"headers": {"host": "127.0.0.1"}}, {"headers": {"host": "[::1]:8000"}}, {"headers": {"host": "LocalHost"}},
        {"headers": {"origin": "http://localhost:8000"}},
        {"headers": {"sec-fetch-site": "cross-site"}},
        {"headers": {"sec-fetch-site": "none"}, "method": "POST"},
        {"headers": {"sec-fetch-site": "same-origin", "origin": "http://localhost:8000"}, "method": "POST"},
        {"headers": {"sec-fetch-site": "cross-site", "origin": "https://ours.example"}, "method": "POST"},
    ],
)  # fmt: skip
def test_a_program_of_this_machine_is_an_operator(request_: dict[str, Any]) -> None:
    assert access_of(origins="https://ours.example/", **request_) == Access(scopes=frozenset({Scope.ADMIN}))


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"http_version": "1.0"}, (401, "missing-token")),
        ({"headers": {"x-forwarded-for": "127.0.0.1"}}, (401, "missing-token")),
        ({"peer": "10.0.0.1"}, (401, "missing-token")),
        ({"peer": None}, (401, "missing-token")),
        ({"headers": {"host": "evil.example"}}, (403, "foreign-host")),
        ({"headers": {"host": "a{b}.evil.example:8000"}}, (403, "foreign-host")),
        ({"headers": {"host": "localhost:8000@evil.example"}}, (403, "foreign-host")),
        ({"headers": {"host": "localhost.evil.example"}}, (403, "foreign-host")),
        ({"headers": {"origin": "https://evil.example"}}, (403, "foreign-origin")),
        ({"headers": {"sec-fetch-site": "cross-site"}, "method": "POST"}, (403, "foreign-origin")),
        ({"headers": {"sec-fetch-site": "same-site"}, "method": "DELETE"}, (403, "foreign-origin")),
    ],
)
def test_others_are_refused_where_there_are_no_tokens(request_: dict[str, Any], problem: tuple[int, str]) -> None:
    assert refused(lambda: access_of(**request_)) == problem


def test_a_long_host_is_cut_in_the_problem() -> None:
    with pytest.raises(HttpProblem) as problem:
        access_of(headers={"host": "h" * 200})
    assert f"'{'h' * 100}'" in problem.value.detail


@pytest.mark.parametrize(
    ("host", "is_own"),
    [("127.0.0.1", True), ("[::1]", True), ("localhost", True), ("10.0.0.1", False), ("example.com", False)],
)
def test_which_addresses_are_of_this_machine(host: str, is_own: bool) -> None:
    assert is_loopback(host) is is_own


# --- rights -------------------------------------------------------------------------------------------------------


def test_a_scope_allows_itself_admin_allows_all_and_chat_what_chats_need() -> None:
    reader, operator = Access(scopes=frozenset({Scope.READ})), Access(scopes=frozenset({Scope.ADMIN}))
    chat = Access(scopes=frozenset({Scope.CHAT}), session_id="s")
    reader.check(Scope.READ, None)
    operator.check(Scope.STOP, "anything")
    chat.check(Scope.READ, "s", for_chat=True)
    for act in (
        lambda: reader.check(Scope.STOP, "s"),
        lambda: reader.check(Scope.STOP, "s", for_chat=True),
        lambda: chat.check(Scope.READ, "s"),
    ):
        assert refused(act) == (403, "missing-scope")


def test_a_sessions_token_reaches_its_session_and_what_it_has_started() -> None:
    client: Any = Client()
    for inside in ("s", CHILD):
        SESSION.check(Scope.READ, inside)
    for outside in (None, "t", "s2"):
        assert refused(lambda outside=outside: SESSION.check(Scope.READ, outside)) == (403, "other-session")
    for inside in ("s", CHILD, GRANDCHILD):
        asyncio.run(SESSION.check_place(inside, client))
    for outside in (None, FORK, "foreign"):
        assert refused(lambda outside=outside: asyncio.run(SESSION.check_place(outside, client)))[1] == (
            "other-session"
        )
    asyncio.run(Access(scopes=frozenset({Scope.READ})).check_place("foreign", client))
    of_child = Access(scopes=frozenset({Scope.READ}), session_id=CHILD)
    for inside in (CHILD, GRANDCHILD):
        of_child.check(Scope.READ, inside)
        asyncio.run(of_child.check_place(inside, client))
    for outside in ("s", FORK):
        assert refused(lambda outside=outside: asyncio.run(of_child.check_place(outside, client)))[1] == "other-session"


def test_what_others_trust_comes_from_services() -> None:
    service = Access(scopes=frozenset({Scope.SUBMIT}))
    service.check_fields(metadata={"a": 1})
    assert (service.name_caller("bob"), service.name_caller(None)) == ("bob", None)
    SESSION.check_fields(metadata=None, callback="")
    assert (SESSION.name_caller(None), SESSION.name_caller("ada")) == ("ada", "ada")
    assert refused(lambda: SESSION.check_fields(metadata={"a": 1})) == (403, "not-for-session-tokens")
    assert refused(lambda: SESSION.name_caller("bob")) == (403, "other-subject")


def test_a_message_is_of_the_person_who_got_the_token_of_a_session() -> None:
    service = Access(scopes=frozenset({Scope.SUBMIT}))
    assert (service.name_sender("bob"), service.name_sender(None)) == ("bob", None)
    of_ada = replace(SESSION, person="ada")
    assert (of_ada.name_sender(None), of_ada.name_sender("ada")) == ("ada", "ada")
    assert SESSION.name_sender(None) is None, "its maker has not said who that is"
    for access in (of_ada, SESSION):
        assert refused(lambda access=access: access.name_sender("bob")) == (403, "other-subject")


def test_whose_messages_may_be_changed() -> None:
    of_ada = replace(SESSION, person="ada")
    assert of_ada.name_owner(Scope.STOP) == "ada"
    for anybodys in (None, Scope.SUBMIT):
        assert of_ada.name_owner(anybodys) is None
    assert refused(lambda: SESSION.name_owner(Scope.STOP)) == (403, "no-subject")


def test_the_share_of_memory_grows_with_the_rights() -> None:
    scopes = frozenset({Scope.READ})
    assert [
        each.memory_share for each in (Access(), SESSION, Access(scopes=scopes), Access(scopes=scopes | {Scope.ADMIN}))
    ] == [0.5, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("scopes", "own", "kind", "to", "may"),
    [
        ({Scope.ANSWER}, None, RequestKind.EXTERNAL, "desk", True),
        ({Scope.ADMIN}, None, RequestKind.APPROVAL, None, True),
        ({Scope.READ}, None, RequestKind.QUESTION, None, False),
        ({Scope.READ}, "s", RequestKind.QUESTION, None, False),
        ({Scope.CHAT}, "s", RequestKind.QUESTION, None, True),
        ({Scope.CHAT}, "s", RequestKind.APPROVAL, None, False),
        ({Scope.CHAT}, "s", RequestKind.APPROVAL, "desk", True),
        ({Scope.CHAT}, "s", RequestKind.QUESTION, "others", False),
        ({Scope.ANSWER}, "s", RequestKind.APPROVAL, None, True),
        ({Scope.ANSWER}, "s", RequestKind.QUESTION, "", True),
        ({Scope.ANSWER}, "s", RequestKind.EXTERNAL, None, False),
    ],
)
def test_who_may_answer(scopes: set[Scope], own: str | None, kind: RequestKind, to: str | None, may: bool) -> None:
    access = Access(scopes=frozenset(scopes), session_id=own, answer_to=own and "desk")
    assert access.may_answer(kind, to) is may
