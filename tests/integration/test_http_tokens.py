"""What the token of a session may do over HTTP: what it is for, and nothing that others trust."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from support.addressed_agents import ADDRESSED_TOOLS
from support.agents import call, plan
from support.lab import Lab
from support.serve_process import ServeProcess, parse_events
from support.tree_agents import delegate
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]

ADMIN = "token-of-admin-0123456789"
SERVER = {scope: f"token-of-{scope}-0123456789" for scope in ("submit", "read", "answer", "stop")}
ENV = {"CELERY_AGENTS_TOKEN_SECRET": "not-a-secret-but-long-enough"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    agents = "support.addressed_agents,support.agents,support.tree_agents"
    with Lab(tmp_path_factory.mktemp("tokens") / "lab", agents=agents, env=ENV) as started:
        started.worker()
        yield started


@pytest.fixture(scope="module")
def served(lab: Lab) -> Iterator[ServeProcess]:
    tokens = ",".join(f"{token}:{scope}" for scope, token in {**SERVER, "admin": ADMIN}.items())
    process = ServeProcess(lab.directory / "serve", lab.store_url, {**ENV, "CELERY_AGENTS_HTTP_TOKEN_SECRETS": tokens})
    process.start()
    yield process
    process.end()


@pytest.fixture
def http(served: ServeProcess) -> Iterator[httpx.Client]:
    with served.http(ADMIN) as client:
        yield client


def waiting(http: httpx.Client, *names: str) -> tuple[str, dict[str, str]]:
    """A session that waits for these calls, and the ids of their requests by the names of the tools."""
    message = plan([call(name, work=name) for name in names], answer="it is done")
    job = http.post("/v1/agents/addressed/jobs", json={"message": message, "metadata": {"customer": "acme"}}).json()
    path = f"/v1/sessions/{job['session_id']}"
    wait_until(lambda: http.get(path).json()["status"] == "waiting", "it waits", 30)
    return job["session_id"], {each["tool"]: each["id"] for each in http.get(f"{path}/requests").json()["requests"]}


def token_for(http: httpx.Client, session: str, *scopes: str, **names: str) -> str:
    made = http.post(f"/v1/sessions/{session}/tokens", json={"scopes": scopes, **names})
    assert made.status_code == 201, made.text
    return made.json()["token"]


def answer_to(name: str) -> dict[str, Any]:
    if name == "later":
        return {"complete": {"found": 1}}
    return {"answer": {"word": "yes"}} if name.startswith("question") else {"approve": True}


ANYBODYS = {"question_to_anybody"}
MAY_ANSWER = [
    (("chat",), None, ANYBODYS),
    (("chat",), "customer", ANYBODYS | {"question_to_customer", "approved_by_customer"}),
    (("answer", "submit", "read"), None, ANYBODYS | {"approved_by_anybody"}),
    (("answer",), "customer", ANYBODYS | {"approved_by_anybody", "question_to_customer", "approved_by_customer"}),
    (("read", "submit", "stop"), "customer", set[str]()),
]


@pytest.mark.parametrize(("scopes", "to", "allowed"), MAY_ANSWER)
def test_a_sessions_token_answers_what_is_for_its_bearer_and_nothing_else(
    served: ServeProcess, http: httpx.Client, lab: Lab, scopes: tuple[str, ...], to: str | None, allowed: set[str]
) -> None:
    names = [each.name for each in ADDRESSED_TOOLS]
    session, requests = waiting(http, *names)
    path = f"/v1/sessions/{session}"
    token = token_for(http, session, *scopes, **({"answer_to": to} if to else {}))
    with served.http(token) as bearer:
        if scopes == ("chat",):
            listed = bearer.get(f"{path}/requests").json()["requests"]
            assert {each["tool"] for each in listed} == allowed
            for name, request in requests.items():
                assert bearer.get(f"{path}/requests/{request}").status_code == (200 if name in allowed else 403)
        for name in sorted(set(names) - allowed):
            for key in (requests[name], call_id_of(http, path, requests[name])):
                body = {"answers": {key: answer_to(name)}}
                refused = bearer.post(f"{path}/answers", json=body)
                assert refused.status_code == 403, (name, refused.text)
            mixed = {requests[each]: answer_to(each) for each in [name, *allowed]}
            assert bearer.post(f"{path}/answers", json={"answers": mixed}).status_code == 403
        for name in allowed:
            done = bearer.post(f"{path}/answers", json={"answers": {requests[name]: answer_to(name)}})
            assert done.status_code == 200, done.text
    left = {each["tool"] for each in http.get(f"{path}/requests").json()["requests"]}
    assert left == set(names) - allowed
    http.post(f"{path}/stop", json={})


def call_id_of(http: httpx.Client, path: str, request: str) -> str:
    return http.get(f"{path}/requests/{request}").json()["call_id"]


def test_sessions_are_labelled_by_services_and_found_by_what_is_known_of_them(
    http: httpx.Client, served: ServeProcess
) -> None:
    body = {"message": plan(answer="A needle in the hay"), "labels": {"customer": "42", "tier": "gold"}}
    session = http.post("/v1/agents/planned/jobs", params={"wait": 30}, json=body).json()["session_id"]

    def found(**query: object) -> list[str]:
        reply = http.get("/v1/sessions", params={"label": "customer=42", **query})  # type: ignore[dict-item]
        assert reply.status_code == 200, reply.text
        return [each["session_id"] for each in reply.json()["sessions"]]

    assert http.get(f"/v1/sessions/{session}").json()["labels"] == {"customer": "42", "tier": "gold"}
    assert found() == found(label=["customer=42", "tier=gold"]) == found(text="NEEDLE", status="completed") == [session]
    assert found(label=["customer=42", "tier=tin"]) == found(error="x") == found(waits_for="approval") == []
    now = datetime.now(UTC)
    assert found(since=(now - timedelta(hours=1)).isoformat(), until=now.isoformat()) == [session]
    assert found(until=(now - timedelta(hours=1)).isoformat()) == []
    changed = http.post(f"/v1/sessions/{session}/labels", json={"labels": {"customer": None, "team": "blue"}})
    assert changed.json() == {"labels": {"tier": "gold", "team": "blue"}}
    assert found() == []
    for query in (
        {"label": "customer"},
        {"label": "=42"},
        {"label": "x=" + "y" * 129},
        {"label": ["a=1", "a=2"]},
        {"waits_for": "child"},
        {"text": " "},
    ):
        assert http.get("/v1/sessions", params=query).status_code == 422, query  # type: ignore[arg-type]
    for labels in ({"a=b": "1"}, {"a": ""}, {"a": "x\ny"}, {"a": 7}, {str(number): "v" for number in range(17)}):
        assert http.post(f"/v1/sessions/{session}/labels", json={"labels": labels}).status_code == 422, labels
    again = http.post("/v1/agents/planned/jobs", json={"message": "x", "session_id": session, "labels": {"a": "1"}})
    assert (again.status_code, "label()" in again.json()["detail"]) == (422, True)
    with served.http(token_for(http, session, "submit", "read")) as bearer:
        assert bearer.post(f"/v1/sessions/{session}/labels", json={"labels": {"customer": "7"}}).status_code == 403
        assert bearer.post("/v1/erasures", json={"label": {"team": "blue"}}).status_code == 403
    assert http.get(f"/v1/sessions/{session}").json()["labels"] == {"tier": "gold", "team": "blue"}
    assert http.post("/v1/erasures", json={"label": {}}).status_code == 422
    erased = http.post("/v1/erasures", json={"label": {"team": "blue"}, "timeout_seconds": 20})
    assert erased.json() == {"sessions": [session], "dead_entries": 0, "left": {}}


def test_a_sessions_token_takes_back_the_approvals_that_it_could_give(served: ServeProcess, http: httpx.Client) -> None:
    names = ("approved_by_anybody", "approved_by_customer", "approved_by_managers", "question_to_managers")
    steps = [[call(name, work=name) for name in names], [call("question_to_managers", work="later")]]
    session = http.post("/v1/agents/addressed/jobs", json={"message": plan(*steps)}).json()["session_id"]
    path = f"/v1/sessions/{session}"

    def asked() -> dict[str, str]:
        return {each["tool"]: each["id"] for each in http.get(f"{path}/requests").json()["requests"]}

    wait_until(lambda: len(asked()) == len(names), "it asks", 30)
    first = asked()
    approvals = {first[name]: {"approve": True} for name in names[:3]}
    assert http.post(f"{path}/answers", json={"answers": approvals, "remember": "session"}).status_code == 200
    http.post(f"{path}/answers", json={"answers": {first[names[3]]: answer_to("question")}})
    wait_until(lambda: list(asked()) == ["question_to_managers"] and asked() != first, "the next step asks", 30)
    grants = {each["tool"]: each["id"] for each in http.get(f"{path}/grants").json()["grants"]}
    assert set(grants) == set(names[:3])
    with served.http(token_for(http, session, "answer", answer_to="customer")) as bearer:
        refused = bearer.delete(f"{path}/grants/{grants['approved_by_managers']}")
        assert (refused.status_code, refused.json()["type"].rpartition(":")[2]) == (403, "other-addressee")
        for name in names[:2]:
            assert bearer.delete(f"{path}/grants/{grants[name]}").status_code == 204
        assert bearer.delete(f"{path}/grants/none").status_code == 422
    with served.http(SERVER["answer"]) as service:
        assert service.delete(f"{path}/grants/{grants['approved_by_managers']}").status_code == 204
    http.post(f"{path}/stop", json={})


def test_a_service_answers_any_request(served: ServeProcess, http: httpx.Client) -> None:
    names = [each.name for each in ADDRESSED_TOOLS]
    session, requests = waiting(http, *names)
    with served.http(SERVER["answer"]) as service:
        answers = {requests[name]: answer_to(name) for name in names}
        done = service.post(f"/v1/sessions/{session}/answers", json={"answers": answers, "by": "somebody@shop"})
        assert done.status_code == 200, done.text
    wait_until(lambda: http.get(f"/v1/sessions/{session}").json()["status"] == "completed", "it is done", 30)


@pytest.mark.parametrize(
    ("names", "subject"),
    [
        ({"answer_to": "customer", "subject": "jo"}, "jo"),
        pytest.param({"answer_to": "customer"}, "customer", marks=pytest.mark.long),
        pytest.param({}, None, marks=pytest.mark.long),
    ],
)
def test_what_a_sessions_token_does_is_kept_under_its_subject(
    served: ServeProcess, http: httpx.Client, names: dict[str, str], subject: str | None
) -> None:
    session, requests = waiting(http, "question_to_anybody", "approved_by_managers")
    path = f"/v1/sessions/{session}"
    own = subject or f"session {session}"
    body = {"answers": {requests["question_to_anybody"]: answer_to("question")}}
    with served.http(token_for(http, session, "chat", "stop", "submit", **names)) as bearer:
        for verb, given in (
            ("answers", body),
            ("stop", {}),
            ("suspend", {"reason": "x"}),
            ("resume", {}),
            ("retry", {}),
        ):
            forged = bearer.post(f"{path}/{verb}", json={**given, "by": "manager"})
            assert forged.status_code == 403, (verb, forged.text)
        assert bearer.post(f"{path}/answers", json=body).status_code == 200
        shown = http.get(f"{path}/requests/{requests['question_to_anybody']}").json()
        assert shown["answer"]["by"] == own
        assert bearer.post(f"{path}/stop", json={"by": own}).status_code in (200, 202)


def test_a_chat_changes_its_own_messages_and_no_others(served: ServeProcess, http: httpx.Client) -> None:
    session, _ = waiting(http, "approved_by_managers")
    path = f"/v1/sessions/{session}"
    names = {"jo": {"subject": "jo"}, "ada": {"subject": "ada", "answer_to": "customer"}}
    names |= {"one": {}, "other": {}, "role": {"answer_to": "customer"}, "like a role": {"subject": "customer"}}
    names |= {"like nobody": {"subject": f"session {session}"}}
    tokens = {name: token_for(http, session, "chat", **given) for name, given in names.items()}

    def ask(name: str, method: str, below: str, body: Any = None) -> httpx.Response:
        with served.http(tokens.get(name, ADMIN)) as bearer:
            return bearer.request(method, path + below, json=body)

    said = {
        name: ask(name, "POST", "/messages", {"message": name, "when": "queue"}).json()["operation_id"]
        for name in [*names, "service"]
    }
    for bearer in names:
        for sender, message in said.items():
            if bearer == sender and bearer in ("jo", "ada", "like a role", "like nobody"):
                continue
            for method, below, body in (("DELETE", "", None), ("PUT", "/mode", {"when": "steer"})):
                refused = ask(bearer, method, f"/messages/{message}{below}", body)
                assert refused.status_code == 403, (bearer, sender, refused.text)
                kind = "no-subject" if bearer in ("one", "other", "role") else "message-not-own"
                assert refused.json()["type"].endswith(kind), refused.text
    assert [each["by"] for each in http.get(f"{path}/queue").json()["messages"]] == [
        "jo", "ada", "", "", "", "customer", f"session {session}", ""
    ]  # fmt: skip
    forged = ask("jo", "POST", "/messages", {"message": "x", "by": "ada"})
    assert (forged.status_code, forged.json()["type"].endswith("other-subject")) == (403, True)
    assert ask("jo", "DELETE", f"/messages/{said['ada']}?by=ada").status_code == 403
    assert ask("jo", "DELETE", f"/messages/{said['ada']}?own=ada").status_code == 422
    assert ask("jo", "PUT", f"/messages/{said['jo']}/mode", {"when": "interrupt"}).status_code == 403, "needs stop"
    assert ask("jo", "PUT", f"/messages/{said['jo']}/mode", {"when": "steer"}).json() == {"placed": "joins"}
    assert ask("jo", "DELETE", f"/messages/{said['jo']}").json() == {"changed": True}
    tokens["jo"] = token_for(http, session, "chat", "stop", subject="jo")
    again = ask("jo", "POST", "/messages", {"message": "not that", "when": "queue"}).json()["operation_id"]
    assert ask("jo", "PUT", f"/messages/{again}/mode", {"when": "interrupt"}).json() == {"placed": "joins"}
    assert ask("jo", "PUT", f"/messages/{said['ada']}/mode", {"when": "interrupt"}).status_code == 403
    for_jo = ask("service", "POST", "/messages", {"message": "y", "when": "queue", "by": "jo"}).json()["operation_id"]
    assert ask("jo", "DELETE", f"/messages/{for_jo}").json() == {"changed": True}
    tokens["submit"] = token_for(http, session, "submit")
    assert ask("submit", "DELETE", f"/messages/{said['one']}").json() == {"changed": True}
    http.post(f"{path}/stop", json={"clear_queue": True})


def test_a_stop_takes_no_messages_of_others_back_and_shows_no_result_to_who_may_not_read(
    served: ServeProcess, http: httpx.Client
) -> None:
    session, _ = waiting(http, "approved_by_managers")
    path = f"/v1/sessions/{session}"
    http.post(f"{path}/messages", json={"message": "by a service", "when": "queue"})
    tokens = [SERVER["stop"], token_for(http, session, "stop"), token_for(http, session, "chat", "stop", subject="jo")]
    for token in tokens:
        with served.http(token) as bearer:
            refused = bearer.post(f"{path}/stop", json={"clear_queue": True})
            assert (refused.status_code, refused.json()["type"].rpartition(":")[2]) == (403, "missing-scope")
            assert "'submit'" in refused.json()["detail"]
    with served.http(tokens[-1]) as bearer:
        stopped = bearer.post(f"{path}/stop", json={})
        assert (stopped.status_code, stopped.json()) == (200, {"stopped": True, "result": None})
    assert [each["text"] for each in http.get(f"{path}/queue").json()["messages"]] == ["by a service"]
    with served.http(token_for(http, session, "submit", "stop")) as bearer:
        assert bearer.post(f"{path}/stop", json={"clear_queue": True}).status_code == 200
    assert http.get(f"{path}/queue").json()["messages"] == []


TRUSTED = [
    ("PUT", "/metadata/customer", {"value": "umbrella"}),
    ("POST", "/messages", {"message": "x", "budget": {"max_steps": 1000}}),
    ("POST", "/messages", {"message": "x", "webhook": "https://example.com/"}),
    ("POST", "/messages", {"message": "x", "request_webhook": "https://example.com/"}),
    ("POST", "/retry", {"budget": {"max_steps": 1000}}),
    ("POST", "/fork", {}),
    ("PUT", "/system-prompt", {"prompt": "x"}),
    ("PUT", "/model", {"model": "openai:x"}),
    ("POST", "/tokens", {"scopes": ["chat"]}),
    ("POST", "/clear", {}),
    ("DELETE", "", None),
]


@pytest.mark.parametrize("scopes", [("chat",), ("submit", "read", "answer", "stop", "chat")])
def test_a_sessions_token_writes_nothing_that_others_trust(
    served: ServeProcess, http: httpx.Client, scopes: tuple[str, ...]
) -> None:
    session, _ = waiting(http, "approved_by_managers")
    path = f"/v1/sessions/{session}"
    before = http.get(f"{path}/state").json()["state"]
    with served.http(token_for(http, session, *scopes)) as bearer:
        for method, below, body in TRUSTED:
            refused = bearer.request(method, path + below, json=body)
            assert refused.status_code == 403, (method, below, refused.text)
        jobs = {"message": "x", "session_id": session, "metadata": {"customer": "umbrella"}}
        assert bearer.post("/v1/agents/addressed/jobs", json=jobs).status_code == 403
    assert http.get(f"{path}/state").json()["state"] == before
    http.post(f"{path}/stop", json={})


def test_a_chat_sees_its_conversation_as_text_and_its_events_without_their_causes(
    served: ServeProcess, http: httpx.Client
) -> None:
    session, requests = waiting(http, "approved_by_managers", "question_to_customer")
    path = f"/v1/sessions/{session}"
    http.put(f"{path}/system-prompt", json={"prompt": "the secret prompt"})
    http.post(f"{path}/labels", json={"labels": {"tier": "to be watched"}})
    answers = {requests["approved_by_managers"]: {"approve": True}}
    http.post(f"{path}/answers", json={"answers": answers, "by": "a manager's name"})
    with served.http(token_for(http, session, "chat", answer_to="customer")) as bearer:
        header = bearer.get(path).json()
        assert (header["reason"], header["labels"]) == ("", {})
        answers = {requests["question_to_customer"]: {"answer": {"word": "yes"}}}
        assert bearer.post(f"{path}/answers", json={"answers": answers}).status_code == 200
        wait_until(lambda: bearer.get(path).json()["status"] == "completed", "it is done", 30)
        sent = bearer.post(f"{path}/messages", params={"wait": 20}, json={"message": plan(answer="again")})
        assert (sent.status_code, sent.json()["status"], sent.json()["result"]) == (200, "completed", None)
        messages = bearer.get(f"{path}/messages").json()
        assert messages["total"] == len(messages["messages"]) == 4
        assert [set(each) for each in messages["messages"]] == [{"role", "content"}] * 4
        assert [each["role"] for each in messages["messages"]] == ["user", "assistant"] * 2
        for live in ("true", "false"):
            with bearer.stream("GET", f"{path}/events", params={"until": "end", "live": live}) as response:
                events = parse_events(response.iter_lines())
            everything = json.dumps([each for _, _, each in events])
            for hidden in ("a manager's name", "approved_by_managers", "the secret prompt", "tokens"):
                assert hidden not in everything
            opened = [each["data"] for _, kind, each in events if kind == "request_opened"]
            assert sorted(map(bool, opened)) == [False, True]
            assert next(each["tool"] for each in opened if each) == "question_to_customer"
        document = http.get("/openapi.json").json()["paths"]
        for template, methods in document.items():
            for method, operation in methods.items():
                description = operation.get("description", "")
                if "{session_id}" in template and "`chat`" not in description:
                    concrete = re.sub(r"{\w+}", "x", template.replace("{session_id}", session))
                    assert bearer.request(method.upper(), concrete, json={}).status_code == 403, (method, template)


def test_a_token_does_not_reach_a_session_whose_name_only_begins_like_its_own(
    served: ServeProcess, http: httpx.Client
) -> None:
    for name in ("user-1", "user-12", "user-1-2"):
        http.post("/v1/agents/planned/jobs", params={"wait": 30}, json={"message": plan(), "session_id": name})
    with served.http(token_for(http, "user-1", "read", "submit", "chat")) as bearer:
        assert bearer.get("/v1/sessions/user-1").status_code == 200
        for other in ("user-12", "user-1-2", "user-"):
            for below in ("", "/messages", "/events", "/requests"):
                assert bearer.get(f"/v1/sessions/{other}{below}").status_code == 403, (other, below)
            assert bearer.post(f"/v1/sessions/{other}/messages", json={"message": "x"}).status_code == 403


# --- forks ------------------------------------------------------------------------------------------------------------


def test_forks_are_an_operators_and_the_token_of_the_root_does_not_reach_them(
    served: ServeProcess, http: httpx.Client
) -> None:
    job = http.post("/v1/agents/planned/jobs", params={"wait": 30}, json={"message": plan(answer="x")}).json()
    session = job["session_id"]
    path = f"/v1/sessions/{session}"
    for token in (*SERVER.values(), token_for(http, session, "submit", "read", "answer", "stop", "chat")):
        with served.http(token) as other:
            assert other.post(f"{path}/fork").status_code == 403
    fork = http.post(f"{path}/fork").json()["session_id"]
    again = http.post(f"/v1/sessions/{fork}/fork").json()["session_id"]
    assert fork.startswith(f"{session}.")
    with served.http(token_for(http, session, "read", "submit", "chat")) as bearer:
        for each in (fork, again, f"{session}.{'0' * 32}", f"{session}.not-an-id"):
            assert bearer.get(f"/v1/sessions/{each}").status_code in (403, 422), each
            assert bearer.post(f"/v1/sessions/{each}/messages", json={"message": plan()}).status_code in (403, 422)
            body = {"threadId": each, "runId": "x", "messages": []}
            assert bearer.post("/agui/planned", json=body).status_code in (403, 422)
    with served.http(token_for(http, fork, "read")) as bearer:
        assert bearer.get(f"/v1/sessions/{fork}").status_code == 200
        assert bearer.get(path).status_code == 403


def test_a_fork_outlives_its_source_and_is_deleted_by_its_own_delete(http: httpx.Client) -> None:
    job = http.post("/v1/agents/planned/jobs", params={"wait": 30}, json={"message": plan(answer="x")}).json()
    path = f"/v1/sessions/{job['session_id']}"
    fork = f"/v1/sessions/{http.post(f'{path}/fork').json()['session_id']}"
    assert http.delete(path).status_code == 204
    assert http.get(f"{fork}/messages").json()["total"] > 0
    assert http.get(fork).json()["forked_from"] == job["session_id"]
    assert http.delete(fork).status_code == 204
    assert http.get(fork).status_code == 410


def test_the_token_of_a_root_reaches_the_sessions_that_it_has_started(served: ServeProcess, http: httpx.Client) -> None:
    message = plan([delegate(plan(answer="by the child"))])
    job = http.post("/v1/agents/node/jobs", params={"wait": 30}, json={"message": message}).json()
    tree = http.get(f"/v1/sessions/{job['session_id']}/tree").json()
    children = [each["session_id"] for each in tree["children"]]
    assert children, tree
    with served.http(token_for(http, job["session_id"], "read")) as bearer:
        assert bearer.get(f"/v1/sessions/{children[0]}").status_code == 200
        grandchild = http.post(f"/v1/sessions/{children[0]}/fork").json()["session_id"]
        assert bearer.get(f"/v1/sessions/{grandchild}").status_code == 403


def test_the_token_of_a_child_or_a_fork_reaches_what_that_has_started_and_nothing_above(
    served: ServeProcess, http: httpx.Client
) -> None:
    asking = plan([delegate(plan([call("approved_unsafe", work="a")]))])
    root = http.post("/v1/agents/node/jobs", json={"message": plan([delegate(asking)])}).json()["session_id"]
    asked = {"kind": "approval"}
    wait_until(lambda: http.get(f"/v1/sessions/{root}/requests", params=asked).json()["requests"], "it asks", 30)
    (child,) = http.get(f"/v1/sessions/{root}/tree").json()["children"]
    (below,) = child["children"]
    own = f"/v1/sessions/{child['session_id']}"
    for session, said in ((root, "to the root"), (child["session_id"], "to the child")):
        http.post(f"/v1/sessions/{session}/messages", json={"message": said})
    with served.http(token_for(http, child["session_id"], "read", "submit", "answer")) as bearer:
        assert bearer.get(f"/v1/sessions/{below['session_id']}").status_code == 200
        assert bearer.get(f"/v1/sessions/{root}").status_code == 403
        (listed,) = bearer.get(f"{own}/requests", params=asked).json()["requests"]
        (shown,) = http.get(f"{own}/requests", params=asked).json()["requests"]
        assert [each["text"] for each in shown["messages"]] == ["to the root", "to the child"]
        request = f"/v1/sessions/{below['session_id']}/requests/{listed['id']}"
        for found in (listed, bearer.get(request).json()):
            assert [each["text"] for each in found["messages"]] == ["", "to the child"]
            assert found["newest_message"] == 2
        body = {"threadId": child["session_id"], "runId": "x", "messages": [], "tools": [], "context": [], "state": {}}
        run = bearer.post("/agui/node", json={**body, "forwardedProps": {}})
        assert (run.status_code, "to the root" in run.text, "to the child" in run.text) == (200, False, True), run.text
    fork = http.post(f"/v1/sessions/{root}/fork").json()["session_id"]
    message = {"message": plan([delegate(plan(answer="by the child of the fork"))])}
    assert http.post(f"/v1/sessions/{fork}/messages", params={"wait": 30}, json=message).json()["status"] == "completed"
    (started,) = http.get(f"/v1/sessions/{fork}/tree").json()["children"]
    with served.http(token_for(http, fork, "read")) as bearer:
        assert bearer.get(f"/v1/sessions/{started['session_id']}").status_code == 200
        assert bearer.get(f"/v1/sessions/{below['session_id']}").status_code == 403
    http.post(f"/v1/sessions/{root}/stop", json={})


# --- numbers, dates and hosts -----------------------------------------------------------------------------------------

NUMBERS = ["1e400", "-1e400", "NaN", "Infinity", "-1", "1e308", "9" * 400, "0", "1e-320", '"x"', "[]"]
DATES = [
    "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00Z", "2026-02-30T00:00:00Z",
    "2026-01-01T00:00:00", "99999999999999999999", "-1", "1e400", "2026-01-01T00:00:00+23:59", "",
]  # fmt: skip


def fields(
    schema: dict[str, Any], schemas: dict[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """The fields of numbers and dates of a body, by their paths."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    for kind in schema.get("anyOf", [schema]):
        if "$ref" in kind:
            yield from fields(kind, schemas, path)
        elif kind.get("format") == "date-time":
            yield path, "date"
        elif kind.get("type") in ("number", "integer"):
            yield path, "number"
        for name, each in kind.get("properties", {}).items():
            if len(path) < 3:
                yield from fields(each, schemas, (*path, name))


FILLED = {
    "message": '"x"', "reason": '"x"', "scopes": '["read"]', "value": "1", "prompt": '"x"', "model": '"openai:x"',
    "answers": '{"x": {"approve": true}}', "answer": '{"approve": true}', "snapshot": "{}", "threadId": '"x"',
    "runId": '"x"', "messages": "[]",
}  # fmt: skip


def test_no_number_and_no_date_of_any_operation_is_an_error_of_the_server(
    http: httpx.Client, served: ServeProcess
) -> None:
    job = http.post("/v1/agents/planned/jobs", params={"wait": 30}, json={"message": plan(answer="x")}).json()
    document = http.get("/openapi.json").json()
    schemas, tried = document["components"]["schemas"], 0
    for template, methods in document["paths"].items():
        for method, operation in methods.items():
            place = re.sub(r"{\w+}", "x", template.replace("{session_id}", job["session_id"]))
            place = place.replace("/agents/x/", "/agents/nobody/")
            content = operation.get("requestBody", {}).get("content", {})
            body = content.get("application/json", {}).get("schema", {})
            required = resolve(body, schemas).get("required", [])
            for path, kind in fields(body, schemas):
                for value in NUMBERS if kind == "number" else [json.dumps(each) for each in DATES] + NUMBERS:
                    filled = {name: FILLED[name] for name in required if name in FILLED}
                    text = value
                    for name in reversed(path[1:]):
                        text = f'{{"{name}": {text}}}'
                    written = ", ".join(f'"{name}": {each}' for name, each in {**filled, path[0]: text}.items())
                    headers = {"Content-Type": "application/json"}
                    response = http.request(method, place, content=f"{{{written}}}", headers=headers)
                    assert response.status_code < 500, (method, template, path, value, response.text)
                    tried += 1
                    if value in ("1e400", "-1e400", "NaN", "Infinity"):
                        refused = (400, 401, 422) if "{token}" in template else (400, 422)  # a token is read first
                        assert response.status_code in refused, (method, template, path, value, response.text)
            for each in operation["parameters"]:
                if each["in"] != "query" or operation["operationId"] in ("follow_events", "run_agent"):
                    continue
                kinds = {kind for _, kind in fields(each["schema"], schemas)}
                for value in (*(NUMBERS if kinds else ()), *(DATES if "date" in kinds else ())):
                    response = http.request(method, place, params={each["name"]: value}, content=b"")
                    assert response.status_code < 500, (method, template, each["name"], value, response.text)
                    tried += 1
    assert tried > 400
    named = http.post("/v1/agents/planned/jobs", content='{"message": "x", "delay_seconds": 1e400}', headers=headers)
    assert (named.status_code, "delay_seconds" in named.json()["detail"]) == (422, True)
    assert "Traceback" not in served.text()


def resolve(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    return schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e400", "9" * 5_000, "[[NaN]]", "1" * 400])
def test_numbers_within_values_are_finite(http: httpx.Client, value: str) -> None:
    headers = {"Content-Type": "application/json"}
    body = f'{{"message": "x", "metadata": {{"a": {value}}}}}'
    response = http.post("/v1/agents/nobody/jobs", content=body, headers=headers)
    assert response.status_code < 500, response.text
    if response.status_code == 202:
        assert http.get(f"/v1/sessions/{response.json()['session_id']}/state").status_code == 200


def test_no_reply_names_the_host_that_the_caller_has_written(served: ServeProcess) -> None:
    with served.http() as nobody:
        host = {"Host": "evil.example"}
        for path in ("/v1/answers/ca1.token.x/", "/v1/agents/", "/v1/sessions/x/", "/", "/openapi.json/", "//"):
            response = nobody.get(path, headers=host)
            assert response.status_code in (200, 401, 404), path
            assert "evil.example" not in response.text + str(response.headers), path


PROXIED = [
    {"X-Forwarded-For": "203.0.113.7"}, {"Forwarded": "for=203.0.113.7"}, {"X-Real-IP": "203.0.113.7"}, {"Via": "1.1 a"},
    {"X-Forwarded-Proto": "https"}, {"X-Forwarded-Host": "localhost"}, {"CF-Connecting-IP": "203.0.113.7"},
]  # fmt: skip


def test_without_tokens_nobody_asks_through_a_proxy_on_this_machine(lab: Lab) -> None:
    process = ServeProcess(lab.directory / "open", lab.store_url)
    process.start()
    try:
        with process.http() as http:
            assert http.get("/v1/agents").status_code == 200
            for headers in PROXIED:
                refused = http.get("/v1/agents", headers=headers)
                assert refused.status_code == 401, headers
                assert "CELERY_AGENTS_HTTP_TOKEN_SECRETS" in refused.json()["detail"]
        import socket

        with socket.create_connection(("127.0.0.1", process.port), timeout=10) as plain:  # as nginx asks by default
            plain.sendall(f"GET /v1/agents HTTP/1.0\r\nHost: 127.0.0.1:{process.port}\r\n\r\n".encode())
            assert plain.recv(100).split()[1] == b"401"
    finally:
        process.end()


def test_a_scope_of_browsers_is_none_of_a_service(lab: Lab) -> None:
    from celery_agents.config.settings import SettingsError
    from celery_agents.tasks.http.access import read_tokens

    with pytest.raises(SettingsError, match="submit, read, answer, stop, admin"):
        read_tokens("long-enough-0123456789:chat")
