"""What the token of a label may do over HTTP: what concerns its own sessions, by every operation there is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from celery_agents.tasks.http.app import ENDPOINTS
from celery_agents.tasks.http.endpoints import Endpoint

from support.agents import call, plan
from support.lab import Lab
from support.serve_process import ServeProcess
from support.tree_agents import delegate

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]

ADMIN = "token-of-admin-0123456789"
TOKENS = {name: f"token-of-{name}-0123456789" for name in ("acme", "bolt")}
ALLOWED = "submit+read+answer+stop"
ENV = {
    "CELERY_AGENTS_TOKEN_SECRET": "not-a-secret-but-long-enough",
    "CELERY_AGENTS_HTTP_TOKEN_SECRETS": ",".join(
        (f"{ADMIN}:admin", *(f"{token}:{ALLOWED}:customer={name}" for name, token in TOKENS.items()))
    ),
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("labels") / "lab", agents="support.tree_agents", env=ENV) as started:
        started.worker()
        yield started


@pytest.fixture(scope="module")
def served(lab: Lab) -> Iterator[ServeProcess]:
    with ServeProcess(lab.directory / "serve", lab.store_url, ENV) as process:
        yield process


@pytest.fixture(scope="module")
def acme(served: ServeProcess) -> Iterator[httpx.Client]:
    with served.http(TOKENS["acme"]) as client:
        yield client


@pytest.fixture(scope="module")
def bolt(served: ServeProcess) -> Iterator[httpx.Client]:
    with served.http(TOKENS["bolt"]) as client:
        yield client


def submit(client: httpx.Client, message: str = "", **fields: Any) -> str:
    body = {"message": message or plan(answer="done"), **fields}
    made = client.post("/v1/agents/node/jobs", params={"wait": 30}, json=body)
    assert made.status_code in (200, 202), made.text
    return made.json()["session_id"]


def test_what_it_submits_has_its_label_and_is_all_that_it_lists(acme: httpx.Client, bolt: httpx.Client) -> None:
    mine = submit(acme)
    labelled = submit(acme, labels={"customer": "acme", "team": "a"})
    other = submit(bolt)
    assert acme.get(f"/v1/sessions/{mine}").json()["labels"] == {"customer": "acme"}
    assert {each["session_id"] for each in acme.get("/v1/sessions").json()["sessions"]} >= {mine, labelled}
    assert other not in acme.get("/v1/sessions").text
    found = acme.get("/v1/sessions", params={"label": "team=a"}).json()["sessions"]
    assert [each["session_id"] for each in found] == [labelled]
    for refused in (
        acme.get("/v1/sessions", params={"label": "customer=bolt"}),
        acme.post("/v1/agents/node/jobs", json={"message": "m", "labels": {"customer": "bolt"}}),
        acme.post(
            "/v1/agents/node/jobs",
            json={"message": "m", "debounce": {"key": "k", "quiet_seconds": 1, "at_most_seconds": 2}},
        ),
        acme.post(f"/v1/sessions/{mine}/labels", json={"labels": {"customer": "bolt"}}),
        acme.post(f"/v1/sessions/{mine}/labels", json={"labels": {"customer": None}}),
    ):
        assert (refused.status_code, "other-label" in refused.text) == (403, True), refused.text
    assert acme.post(f"/v1/sessions/{mine}/labels", json={"labels": {"team": "b"}}).status_code == 200
    assert acme.get(f"/v1/sessions/{mine}").json()["labels"] == {"customer": "acme", "team": "b"}


def test_it_names_sessions_of_its_own_and_no_others(acme: httpx.Client, bolt: httpx.Client) -> None:
    submit(acme, session_id="named-by-acme")
    submit(acme, session_id="named-by-acme", message=plan(answer="again"))
    taken = bolt.post("/v1/agents/node/jobs", json={"message": "m", "session_id": "named-by-acme"})
    assert taken.status_code == 404, "it is told nothing of it"
    assert bolt.get("/v1/sessions/named-by-acme").status_code == 404
    assert bolt.get("/v1/sessions/nobodys").status_code == 404


def test_a_deleted_session_is_not_found_since_nothing_says_whose_it_was(
    lab: Lab, acme: httpx.Client, bolt: httpx.Client
) -> None:
    gone = submit(acme, session_id="deleted-of-acme")
    assert lab.client.delete(gone)
    for caller in (acme, bolt):
        for asked in (
            caller.get(f"/v1/sessions/{gone}"),
            caller.get(f"/v1/sessions/{gone}/events"),
            caller.post(f"/v1/sessions/{gone}/messages", json={"message": "m"}),
            caller.post("/v1/agents/node/jobs", json={"message": "m", "session_id": gone}),
        ):
            assert (asked.status_code, "deleted" in asked.json()["title"]) == (404, False), asked.text


def test_its_idempotency_keys_are_its_own(acme: httpx.Client, bolt: httpx.Client) -> None:
    def made(client: httpx.Client, answer: str) -> httpx.Response:
        body, headers = {"message": plan(answer=answer)}, {"Idempotency-Key": "order-1"}
        return client.post("/v1/agents/node/jobs", json=body, headers=headers, params={"wait": 30})

    first, again, others = made(acme, "mine"), made(acme, "mine"), made(bolt, "its")
    assert [each.status_code for each in (first, again, others)] == [200] * 3, others.text
    assert first.json()["execution_id"] == again.json()["execution_id"]
    assert others.json()["result"]["final_response"] == "its"
    assert made(acme, "another").status_code == 422
    body = {"message": plan(answer="x")}
    assert acme.post("/v1/agents/node/jobs", json=body, headers={"Idempotency-Key": "k" * 513}).status_code == 422


def test_it_reaches_the_children_of_its_sessions(acme: httpx.Client, bolt: httpx.Client) -> None:
    parent = submit(acme, plan([delegate(plan(answer="below"))]))
    (child,) = acme.get(f"/v1/sessions/{parent}/tree").json()["children"]
    path = f"/v1/sessions/{child['session_id']}"
    assert acme.get(path).status_code == 200
    assert bolt.get(path).status_code == 404


def test_a_fork_with_other_labels_and_its_children_are_anothers(
    lab: Lab, served: ServeProcess, acme: httpx.Client, bolt: httpx.Client
) -> None:
    source = submit(acme)
    with served.http(ADMIN) as admin:
        path = f"/v1/sessions/{source}/fork"
        other, nobodys = (
            admin.post(path, json={"labels": labels}).json()["session_id"] for labels in ({"customer": "bolt"}, {})
        )
    sent = bolt.post(
        f"/v1/sessions/{other}/messages", params={"wait": 30}, json={"message": plan([delegate(plan(answer="below"))])}
    )
    assert sent.json()["status"] == "completed", sent.text
    (child,) = bolt.get(f"/v1/sessions/{other}/tree").json()["children"]
    for session in (other, child["session_id"]):
        assert bolt.get(f"/v1/sessions/{session}").status_code == 200
        assert acme.get(f"/v1/sessions/{session}").status_code == 404
    assert [each.get(f"/v1/sessions/{nobodys}").status_code for each in (acme, bolt)] == [404, 404]
    spent = {each.name: each.executions for each in lab.client.costs(by="label:customer").sums}
    whole = lab.client.costs().total.executions
    assert sum(spent.values()) == whole
    lab.client.label(other, {"customer": "cone"})
    assert {each.name: each.executions for each in lab.client.costs(by="label:customer").sums}["cone"] == 2


def test_a_session_without_the_label_is_nobodys(lab: Lab, acme: httpx.Client) -> None:
    job = lab.client.submit("node", plan(answer="done"))
    assert acme.get(f"/v1/sessions/{job.session_id}").status_code == 404


@pytest.mark.parametrize("kind", [pytest.param("label", marks=pytest.mark.long), "session"])
def test_a_stream_ends_when_its_token_does_not_reach_the_session_any_more(
    lab: Lab, served: ServeProcess, acme: httpx.Client, kind: str
) -> None:
    session = submit(acme)
    token = TOKENS["acme"]
    if kind == "session":
        token = lab.client.session_token(session, scopes=["read"], ttl=timedelta(seconds=2))
    with served.http(token) as reader, reader.stream("GET", f"/v1/sessions/{session}/events", timeout=60) as events:
        assert events.status_code == 200
        lines = events.iter_lines()
        next(each for each in lines if "execution_completed" in each)
        if kind == "label":
            lab.client.label(session, {"customer": "bolt"})
        pings = 0
        for each in lines:
            pings += each.startswith(": ping")
            assert pings < 4, "the stream goes on"


OPERATIONS = [each for each in ENDPOINTS if each.scope is not None]


@pytest.mark.parametrize("endpoint", OPERATIONS, ids=lambda each: f"{each.method} {each.path}")
def test_no_operation_reaches_what_is_not_its_own(endpoint: Endpoint, acme: httpx.Client, bolt: httpx.Client) -> None:
    """Each one is asked with a body that it refuses where it does not refuse the caller before."""
    session = submit(bolt, plan([call("pure", work="w")], answer="done"), session_id="of-bolt-alone")
    names = ("agent", "request_id", "execution_id", "step", "name", "message_id", "operation_id", "grant_id", "key")
    path = endpoint.path.replace("{session_id}", session)
    for name in names:
        path = path.replace("{" + name + "}", "1")
    answer = acme.request(endpoint.method, path.partition("{")[0], json=None if endpoint.method == "GET" else {"x": 1})
    if endpoint.for_label:
        assert "of-bolt-alone" not in answer.text
    else:
        assert answer.status_code in (403, 404), answer.text
        assert answer.status_code == 403 or "{session_id}" in endpoint.path


def test_what_concerns_all_sessions_is_refused(acme: httpx.Client) -> None:
    for path in ("/v1/workers", "/v1/requests", "/v1/waiting", "/v1/limits", "/v1/shares", "/v1/caps"):
        refused = acme.get(path)
        assert refused.status_code == 403, path
        assert "customer=acme alone" in refused.json()["detail"], refused.text
