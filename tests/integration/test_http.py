"""The HTTP interface: a real `serve`, real workers, and a client that knows nothing but HTTP."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from celery_agents import __version__

from support import fork_server
from support.agents import call, plan
from support.lab import Lab
from support.redis_keys import count_entries, session_key
from support.serve_process import ServeProcess, StreamReader, exact, parse_events
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]

SECRET = "not-a-secret-but-long-enough"
TOKENS = {scope: f"token-of-{scope}-0123456789" for scope in ("submit", "read", "answer", "stop", "admin")}
TOKENS["nothing"] = "token-nobody-knows-0123456789"
SETTING = ",".join(f"{token}:{scope}" for scope, token in TOKENS.items() if scope != "nothing")
ENV = {"CELERY_AGENTS_TOKEN_SECRET": SECRET}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(
        tmp_path_factory.mktemp("http") / "lab", agents="support.waiting_agents,support.agents", env=ENV
    ) as started:
        started.worker()
        yield started


@pytest.fixture(scope="module")
def served(lab: Lab) -> Iterator[ServeProcess]:
    env = {**ENV, "CELERY_AGENTS_HTTP_TOKEN_SECRETS": SETTING, "CELERY_AGENTS_HTTP_MAX_STREAMS": "50"}
    process = ServeProcess(lab.directory / "serve", lab.store_url, env)
    process.start()
    yield process
    process.end()


@pytest.fixture
def http(served: ServeProcess) -> Iterator[httpx.Client]:
    with served.http(TOKENS["admin"]) as client:
        yield client


@pytest.fixture(scope="module")
def document(served: ServeProcess) -> dict[str, Any]:
    with served.http(TOKENS["read"]) as client:
        return client.get(client.get("/").json()["described_at"]).json()


def submit(http: httpx.Client, *steps: list[dict[str, Any]], agent: str = "planned", **body: Any) -> dict[str, Any]:
    response = http.post(f"/v1/agents/{agent}/jobs", json={"message": plan(*steps), **body})
    assert response.status_code in (200, 202), response.text  # 200: it has ended before the reply was written
    return response.json()


def waiting(http: httpx.Client, *calls: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """A session that waits, with its open requests."""
    session = submit(http, list(calls), agent="asking")["session_id"]
    wait_until(lambda: http.get(f"/v1/sessions/{session}").json()["status"] == "waiting", "it waits", 30)
    return session, http.get(f"/v1/sessions/{session}/requests").json()["requests"]


def problem(response: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/problem+json")
    found = response.json()
    assert (found["status"], found["type"]) == (status, f"urn:celery-agents:problem:{kind}")
    return found


def ended(http: httpx.Client, session: str) -> dict[str, Any]:
    execution = http.get(f"/v1/sessions/{session}").json()["execution_id"]
    found = http.get(f"/v1/sessions/{session}/executions/{execution}", params={"wait": 30}).json()
    assert found["ended"], found
    return found["result"]


def wait_for_effect(lab: Lab, work: str) -> None:
    wait_until(lambda: any(entry.get("work") == work for entry in lab.ledger.entries()), f"{work} has begun", 20)


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_a_job_is_submitted_waited_for_and_read(http: httpx.Client) -> None:
    response = http.post(
        "/v1/agents/planned/jobs",
        params={"wait": 30},
        json={"message": plan([call("pure", work="a")], answer="it is done"), "metadata": {"ticket": 7}},
    )
    job = response.json()
    assert (response.status_code, job["status"], job["result"]["final_response"]) == (200, "completed", "it is done")
    assert response.headers["location"] == f"/v1/sessions/{job['session_id']}/executions/{job['execution_id']}"
    assert http.get(response.headers["location"]).json()["result"] == job["result"]
    session = http.get(f"/v1/sessions/{job['session_id']}")
    assert session.json()["status"] == "completed"
    assert session.headers["etag"] == f'"{session.json()["version"]}"'
    ways = [f"/v1/sessions/{job['session_id']}/state?whole={each}" for each in ("true", "false")]
    state, outline = (http.get(each).json()["state"] for each in ways)
    assert state["context"]["metadata"] == {"ticket": 7}
    assert {**outline["execution"], "step_executions": state["execution"]["step_executions"]} == state["execution"]
    messages = http.get(f"/v1/sessions/{job['session_id']}/messages").json()
    assert [each["role"] for each in messages["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert http.get(f"/v1/sessions/{job['session_id']}/messages", params={"offset": 3}).json()["total"] == 4
    assert len(http.get(f"/v1/sessions/{job['session_id']}/steps").json()["steps"]) == 2
    listed = http.get("/v1/sessions", params={"status": "completed", "limit": 1000}).json()["sessions"]
    assert job["session_id"] in [each["session_id"] for each in listed]
    assert http.get(f"/v1/sessions/{job['session_id']}/tree").json()["steps"] == 2
    assert http.get("/v1/health").json() == {"ok": True, "version": __version__}
    assert "planned" in http.get("/v1/agents").json()
    assert len(http.get("/v1/workers").json()) == 1


def test_the_same_key_makes_one_job_and_another_content_is_refused(http: httpx.Client, lab: Lab) -> None:
    key = {"Idempotency-Key": "order-4711"}
    body = {"message": plan([call("keyed", work="once by key")])}
    first, again = (http.post("/v1/agents/planned/jobs", json=body, headers=key).json() for _ in range(2))
    assert first["session_id"] == again["session_id"]
    assert first["execution_id"] == again["execution_id"]
    other = http.post("/v1/agents/planned/jobs", json={"message": plan(answer="another")}, headers=key)
    problem(other, 422, "idempotency-mismatch")
    ended(http, first["session_id"])
    assert [entry["work"] for entry in lab.ledger.entries() if entry.get("work") == "once by key"] == ["once by key"]


def test_a_session_is_deleted_and_one_that_changed_meanwhile_is_not(http: httpx.Client) -> None:
    session = submit(http)["session_id"]
    ended(http, session)
    seen = http.get(f"/v1/sessions/{session}").headers["etag"]
    http.put(f"/v1/sessions/{session}/metadata/color", json={"value": "red"})
    path = f"/v1/sessions/{session}"
    changed = problem(http.delete(path, headers={"If-Match": seen}), 412, "precondition-failed")
    assert seen.strip('"') in changed["detail"]
    for wrong in ("12", '"twelve"', 'W/"3"', '"3", "4"'):
        assert "If-Match" in problem(http.delete(path, headers={"If-Match": wrong}), 422, "invalid-input")["detail"]
    now = http.get(path).headers["etag"]
    assert http.delete(path, headers={"If-Match": now}).status_code == 204
    problem(http.get(path), 410, "session-deleted")
    problem(http.post(f"{path}/messages", json={"message": "still there?"}), 410, "session-deleted")
    assert http.delete(path).status_code == 204
    problem(http.delete("/v1/sessions/nobody"), 404, "session-not-found")
    running = submit(http, *[[call("keyed", work=f"deleted by http {number}")] for number in range(50)])["session_id"]
    tag = http.get(f"/v1/sessions/{running}").headers["etag"]
    assert http.delete(f"/v1/sessions/{running}", headers={"If-Match": tag}).status_code in (409, 412)
    assert http.delete(f"/v1/sessions/{running}", headers={"If-Match": "*"}).status_code == 204


def test_a_session_is_forked_and_cleared_as_one_has_seen_it(http: httpx.Client) -> None:
    session = submit(http)["session_id"]
    ended(http, session)
    path = f"/v1/sessions/{session}"
    stale, now = '"1"', http.get(path).headers["etag"]
    for verb in ("fork", "clear"):
        problem(http.post(f"{path}/{verb}", headers={"If-Match": stale}), 412, "precondition-failed")
    made = [http.post(f"{path}/fork", headers={"If-Match": now, "Idempotency-Key": "what if"}) for _ in range(2)]
    assert [each.status_code for each in made] == [201, 201]
    fork = http.get(made[0].headers["location"]).json()
    assert fork["session_id"] == made[1].json()["session_id"]
    assert (fork["forked_from"], fork["status"], fork["session_status"]) == (session, "idle", "active")
    cleared = http.post(f"{path}/clear", headers={"If-Match": now})
    assert cleared.status_code == 204
    assert http.get(path).headers["etag"] == cleared.headers["etag"]
    assert http.get(f"{path}/messages").json()["total"] == 0
    assert http.get(f"{made[0].headers['location']}/messages").json()["total"] > 0


def test_a_waiting_session_goes_on_elsewhere_from_its_snapshot(http: httpx.Client, lab: Lab) -> None:
    session, (asked,) = waiting(http, call("approved_unsafe", work="by the copy alone"))
    path = f"/v1/sessions/{session}"
    taken = http.get(f"{path}/snapshot", params={"tag": "before"})
    assert (taken.json()["tag"], taken.json()["session_id"]) == ("before", session)
    assert taken.headers["etag"] == http.get(path).headers["etag"]
    assert http.delete(path, headers={"If-Match": "*"}).status_code == 204
    problem(http.post("/v1/snapshots", json={"snapshot": taken.json()}), 410, "session-deleted")
    given = {"snapshot": taken.json(), "session_id": f"{session}-copy", "context": {"moved": True}}
    made = http.post("/v1/snapshots", json=given)
    assert made.status_code == 201, made.text
    copy = made.headers["location"]
    problem(http.post("/v1/snapshots", json=given), 409, "session-conflict")
    wait_until(lambda: http.get(copy).json()["status"] == "waiting", "the copy asks again", 30)
    (again,) = http.get(f"{copy}/requests").json()["requests"]
    assert again["text"] == asked["text"]
    assert http.post(f"{copy}/answers", json={"answers": {again["id"]: {"approve": True}}}).status_code == 200
    assert ended(http, f"{session}-copy")["status"] == "completed"
    assert len([each for each in lab.ledger.entries() if each.get("work") == "by the copy alone"]) == 1
    assert http.get(f"{copy}/state").json()["state"]["context"]["metadata"]["moved"] is True
    for wrong in ({}, {"format": "another"}, {**taken.json(), "state": {"version": "x"}}, {**taken.json(), "state": 3}):
        assert (
            "snapshot" in problem(http.post("/v1/snapshots", json={"snapshot": wrong}), 422, "invalid-input")["detail"]
        )


def test_a_conversation_goes_on_and_its_executions_are_listed(http: httpx.Client) -> None:
    session = submit(http, messages=[{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes?"}])[
        "session_id"
    ]
    ended(http, session)
    next_one = http.post(
        f"/v1/sessions/{session}/messages", params={"wait": 30}, json={"message": plan(answer="again")}
    )
    assert next_one.json()["result"]["final_response"] == "again"
    executions = http.get(f"/v1/sessions/{session}/executions").json()["executions"]
    assert [each["final_response"] for each in executions] == ["done", "again"]
    assert http.put(f"/v1/sessions/{session}/metadata/color", json={"value": ["red"]}).status_code == 204
    assert http.put(f"/v1/sessions/{session}/system-prompt", json={"prompt": "be brief"}).status_code == 204
    assert http.put(f"/v1/sessions/{session}/model", json={"model": "openai:gpt-5"}).status_code == 204
    state = http.get(f"/v1/sessions/{session}/state").json()["state"]
    assert (state["context"]["metadata"]["color"], state["context"]["system_prompt"]) == (["red"], "be brief")


def test_a_job_is_stopped_retried_held_and_let_go_on(http: httpx.Client, lab: Lab) -> None:
    session = submit(http, [call("keyed", work="gated", gate="held")])["session_id"]
    wait_for_effect(lab, "gated")
    assert http.post(f"/v1/sessions/{session}/suspend", json={"reason": "a look"}).json() == {"changed": True}
    assert "a look" in http.get(f"/v1/sessions/{session}").json()["reason"]
    assert http.post(f"/v1/sessions/{session}/resume").json() == {"changed": True}
    assert http.post(f"/v1/sessions/{session}/stop", json={"timeout_seconds": 0}).status_code == 202
    lab.ledger.open("held")
    result = ended(http, session)
    assert (result["status"], result["stop_reason"]) == ("stopped", "user_requested")
    again = http.post(f"/v1/sessions/{session}/retry", params={"wait": 30}, json={"budget": {"max_steps": 5}})
    assert again.json()["result"]["status"] == "completed"
    problem(http.post(f"/v1/sessions/{session}/retry"), 409, "action-refused")
    assert http.post(f"/v1/sessions/{session}/stop").json() == {"stopped": False, "result": None}


# --- requests ---------------------------------------------------------------------------------------------------------


def test_requests_are_listed_shown_and_answered(http: httpx.Client, lab: Lab) -> None:
    session, requests = waiting(http, call("approved_unsafe", work="by http"), call("question", work="counted"))
    kinds = {each["kind"]: each for each in requests}
    assert sorted(kinds) == ["approval", "question"]
    shown = http.get(f"/v1/sessions/{session}/requests/{kinds['approval']['id']}").json()
    assert shown["args"] == {"work": "by http"}
    everybody = http.get("/v1/requests", params={"to": "team", "limit": 1000}).json()["requests"]
    assert {each["id"] for each in requests} <= {each["id"] for each in everybody}
    wrong = http.post(
        f"/v1/sessions/{session}/answers", json={"answers": {kinds["question"]["id"]: {"answer": {"count": "x"}}}}
    )
    assert "count" in problem(wrong, 422, "invalid-input")["detail"]
    both = {kinds["approval"]["id"]: {"approve": True}, kinds["question"]["id"]: {"answer": {"count": 3}}}
    body = {"answers": both, "by": "reviewer"}
    assert http.post(f"/v1/sessions/{session}/answers", json=body).json()["outcome"] == "woken"
    assert ended(http, session)["status"] == "completed"
    late = http.post(f"/v1/sessions/{session}/answers", json={"answers": {kinds["approval"]["id"]: {"deny": "late"}}})
    assert "reviewer" in problem(late, 409, "request-not-open")["detail"]
    works = [
        entry["work"] for entry in lab.ledger.entries() if entry["kind"] == "effect" and entry["session"] == session
    ]
    assert sorted(works) == ["by http", "counted"]


def test_a_remembered_approval_is_listed_and_taken_back(http: httpx.Client) -> None:
    session, (request,) = waiting(http, call("approved_keyed", work="first"))
    body = {"answers": {request["id"]: {"approve": True}}, "remember": "session"}
    http.post(f"/v1/sessions/{session}/answers", json=body)
    ended(http, session)
    (grant,) = http.get(f"/v1/sessions/{session}/grants").json()["grants"]
    assert http.delete(f"/v1/sessions/{session}/grants/{grant['id']}").status_code == 204
    assert http.get(f"/v1/sessions/{session}/grants").json() == {"grants": []}
    problem(http.delete(f"/v1/sessions/{session}/grants/{grant['id']}"), 422, "invalid-input")


def test_a_link_answers_its_one_request_once_and_needs_no_other_token(http: httpx.Client, served: ServeProcess) -> None:
    session, requests = waiting(http, call("approved_keyed", work="linked"), call("approved_unsafe", work="other"))
    linked = next(each for each in requests if each["args"]["work"] == "linked")
    made = http.post(f"/v1/sessions/{session}/requests/{linked['id']}/links", json={"ttl_seconds": 60})
    link = made.headers["location"]
    with served.http() as bearer:
        assert bearer.get(link).json()["id"] == linked["id"]
        assert bearer.post(link, json={"answer": {"approve": True}}).status_code == 200
        problem(bearer.post(link, json={"answer": {"deny": "no"}}), 409, "request-not-open")
        problem(bearer.get(f"/v1/sessions/{session}"), 401, "missing-token")
        problem(bearer.get(link[:-3] + "AAA"), 401, "invalid-token")
        problem(bearer.post(link.replace("answers", "completions"), json={"value": 1}), 401, "invalid-token")
    http.post(f"/v1/sessions/{session}/stop")
    assert made.json()["token"] not in served.text()


def test_a_service_brings_the_result_of_a_call(http: httpx.Client, served: ServeProcess, lab: Lab) -> None:
    session, _ = waiting(http, call("later_keyed", work="elsewhere"))
    (token,) = (entry["token"] for entry in lab.ledger.entries() if entry.get("session") == session)
    with served.http() as bearer:
        assert bearer.post(f"/v1/completions/{token}", json={"value": {"found": 2}}).json() == {"outcome": "woken"}
        assert bearer.post(f"/v1/completions/{token}", json={"value": {"found": 2}}).json() == {"outcome": "again"}
        problem(bearer.post(f"/v1/completions/{token}", json={"error": "too late"}), 409, "request-not-open")
    assert ended(http, session)["status"] == "completed"


# --- events -----------------------------------------------------------------------------------------------------------


def stored_ids(lab: Lab, session: str) -> list[str]:
    return [event.id for event in lab.client.store.sessions.events(session)]


def test_readers_see_each_event_once_in_order_whenever_they_come(
    http: httpx.Client, served: ServeProcess, lab: Lab
) -> None:
    session = submit(http, [call("pure", work="a")], [call("keyed", work="b", gate="streamed")])["session_id"]
    path = f"/v1/sessions/{session}/events"
    early = [StreamReader(lambda: served.url, path, TOKENS["read"]) for _ in range(3)]
    for reader in early:
        reader.start()
    wait_until(lambda: all("step_committed" in reader.types for reader in early), "they see the first step", 10)
    lab.ledger.open("streamed")
    late = StreamReader(lambda: served.url, path, TOKENS["read"])
    ended(http, session)
    late.start()
    stored = stored_ids(lab, session)
    for reader in (*early, late):
        reader.join(20)
        assert [each for each, _, _ in reader.events] == stored
        assert reader.types[-1] == "execution_completed"


def test_a_reader_whose_place_is_gone_gets_a_snapshot_and_goes_on(http: httpx.Client, lab: Lab) -> None:
    session = submit(http, [call("pure", work="a")], [call("pure", work="b")])["session_id"]
    ended(http, session)
    stored = stored_ids(lab, session)
    lab.redis.xtrim(session_key(session, ":events"), minid=stored[3], approximate=False)
    with http.stream("GET", f"/v1/sessions/{session}/events", params={"until": "end", "after": stored[0]}) as response:
        found = parse_events(response.iter_lines())
    assert (*found[0][:2], found[0][2]["status"]) == ("", "snapshot", "completed")
    assert [each for each, _, _ in found[1:]] == stored[3:]


def test_a_restart_of_serve_loses_a_reader_nothing(lab: Lab, tmp_path: Path) -> None:
    process = ServeProcess(tmp_path / "serve", lab.store_url, ENV)
    process.start()
    with process.http() as http:
        session = submit(http, [call("pure", work="a")], [call("keyed", work="b", gate="restarted")])["session_id"]
    reader = StreamReader(lambda: process.url, f"/v1/sessions/{session}/events")
    reader.start()
    wait_until(lambda: "step_committed" in reader.types, "it sees the first step", 15)
    process.kill()
    lab.ledger.open("restarted")
    process.start()
    reader.join(30)
    assert reader.connections == 2
    assert [each for each, _, _ in reader.events] == stored_ids(lab, session)
    process.terminate()
    assert process.wait(15) in (0, -15)


def test_too_many_streams_are_refused_and_closed_ones_make_room(http: httpx.Client, served: ServeProcess) -> None:
    session = submit(http)["session_id"]
    ended(http, session)
    path, limit = f"/v1/sessions/{session}/events", 50
    clients = [served.http(TOKENS["read"]) for _ in range(limit)]
    streams = [client.stream("GET", path) for client in clients]
    try:
        for stream in streams:
            assert stream.__enter__().status_code == 200
        problem(http.get(path), 503, "too-many-streams")
    finally:
        for stream, client in zip(streams, clients, strict=True):
            stream.__exit__(None, None, None)
            client.close()

    def is_served() -> bool:
        with http.stream("GET", path) as response:
            return response.status_code == 200

    wait_until(is_served, "there is room again", 20)


# --- bad input --------------------------------------------------------------------------------------------------------

BAD_BODIES = [
    ("{", 400, "malformed-json", "JSON"),
    ("[]", 422, "invalid-input", "body"),
    ("{}", 422, "invalid-input", "message"),
    ('{"message": 7}', 422, "invalid-input", "message"),
    ('{"message": "x", "mesage": "y"}', 422, "invalid-input", "mesage"),
    ('{"message": " "}', 422, "invalid-input", "message"),
    ('{"message": "x", "budget": {"max_steps": -1}}', 422, "invalid-input", "budget.max_steps"),
    ('{"message": "x", "start_at": "2026-01-01T00:00:00"}', 422, "invalid-input", "start_at"),
    ('{"message": "x", "messages": [{"role": "tool", "content": "y"}]}', 422, "invalid-input", "messages[0].role"),
    ('{"message": "x", "session_id": "../etc"}', 422, "invalid-input", "session_id"),
    ('{"message": "x", "webhook": "ftp://x"}', 422, "invalid-input", "webhook"),
]


@pytest.mark.parametrize(("body", "status", "kind", "named"), BAD_BODIES)
def test_a_bad_body_is_refused_with_the_field_and_nothing_is_written(
    http: httpx.Client, lab: Lab, body: str, status: int, kind: str, named: str
) -> None:
    before = count_entries(lab.redis, "sessions")
    response = http.post("/v1/agents/planned/jobs", content=body, headers={"Content-Type": "application/json"})
    assert named in problem(response, status, kind)["detail"]
    assert count_entries(lab.redis, "sessions") == before


def test_other_bad_requests_get_the_right_status(http: httpx.Client, served: ServeProcess) -> None:
    session = submit(http)["session_id"]
    message = json.dumps({"message": plan()})
    form = http.post("/v1/agents/planned/jobs", content=message, headers={"Content-Type": "text/plain"})
    problem(form, 415, "unsupported-media-type")
    problem(http.post("/v1/agents/no agent/jobs", json={"message": "x"}), 422, "invalid-input")
    problem(http.get("/v1/sessions", params={"limit": "many"}), 422, "invalid-input")
    problem(http.get("/v1/sessions", params={"status": "asleep"}), 422, "invalid-input")
    problem(http.get("/v1/sessions", params={"cursor": "zzz"}), 422, "invalid-input")
    problem(http.get("/v1/sessions?limit=1&limit=2"), 422, "invalid-input")
    problem(http.get("/v1/sessions/no-such-session"), 404, "session-not-found")
    problem(http.get(f"/v1/sessions/{session}/requests/nothing"), 404, "request-not-found")
    problem(http.get(f"/v1/sessions/{session}/events", params={"after": "yesterday"}), 422, "invalid-input")
    cursor = {"Last-Event-ID": "x; DROP"}
    problem(http.get(f"/v1/sessions/{session}/events", headers=cursor), 422, "invalid-input")
    problem(http.get("/nowhere"), 404, "not-found")
    problem(http.delete("/v1/agents"), 405, "method-not-allowed")
    problem(http.post("/v1/agents/planned/jobs", json={"message": "x" * 2_100_000}), 413, "body-too-large")

    def chunks() -> Iterator[bytes]:
        yield b'{"message": "'
        for _ in range(30):
            yield b"x" * 100_000

    sent = http.post("/v1/agents/planned/jobs", content=chunks(), headers={"Content-Type": "application/json"})
    problem(sent, 413, "body-too-large")
    problem(http.get("/v1/agents", headers={"X-Long": "x" * 40_000}), 431, "headers-too-large")
    assert served.alive


def test_a_redis_that_is_away_is_a_503_and_the_interface_lives_on(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab") as lab:
        process = ServeProcess(tmp_path / "serve", lab.store_url, {"CELERY_AGENTS_REDIS_TIMEOUT_SECONDS": "1"})
        process.start()
        with process.http() as http:
            assert http.get("/v1/health").status_code == 200
            lab.server.stop()
            problem(http.get("/v1/health"), 503, "store-unavailable")
            lab.server.start()
            wait_until(lambda: http.get("/v1/health").status_code == 200, "it serves again", 20)
        process.end()


# --- access -----------------------------------------------------------------------------------------------------------


def operations(document: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    """Method, path and scope of each operation, by the document."""
    return [
        (method.upper(), path, (re.findall(r"`(\w+)`", operation.get("description", "")) or [None])[0])
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_each_operation_lets_in_its_scope_and_admin_and_nobody_else(
    served: ServeProcess, document: dict[str, Any]
) -> None:
    """Paths of sessions that do not exist, so that whoever is let in changes nothing."""
    refused = {401, 403}
    checked = operations(document)
    assert len(checked) > 25
    for method, path, scope in checked:
        concrete = re.sub(r"{\w+}", "nothing-of-this-name", path)
        for bearer, token in [*TOKENS.items(), ("nobody", "")]:
            body = None if method == "GET" else {}
            with served.http(token or None) as client, client.stream(method, concrete, json=body) as response:
                status = response.status_code
            if scope is None:
                assert status in (401, 404, 422), (method, path)  # the path's token, or its provider, is wrong
            elif bearer in (scope, "admin"):
                assert status not in refused, (method, path, bearer, status)
            else:
                assert status == (401 if bearer in ("nothing", "nobody") else 403), (method, path, bearer, status)


def test_a_job_of_an_agent_that_nobody_has_registered_says_so(http: httpx.Client) -> None:
    job = submit(http, agent="planed")
    assert "no worker has registered agent 'planed' (registered: " in job["notice"]
    assert http.post(f"/v1/sessions/{job['session_id']}/stop", json={}).is_success


def test_a_sessions_token_reaches_its_session_and_nothing_else(
    http: httpx.Client, served: ServeProcess, document: dict[str, Any]
) -> None:
    mine, other = (submit(http)["session_id"] for _ in range(2))
    ended(http, mine)
    made = http.post(f"/v1/sessions/{mine}/tokens", json={"scopes": ["read", "submit", "answer", "stop"]})
    assert made.status_code == 201
    with served.http(made.json()["token"]) as bearer:
        assert bearer.get(f"/v1/sessions/{mine}").status_code == 200
        assert bearer.post(f"/v1/sessions/{mine}/messages", json={"message": plan()}).is_success
        problem(bearer.get(f"/v1/sessions/{mine[:-1]}"), 403, "other-session")
        for method, path, scope in operations(document):
            concrete = re.sub(r"{\w+}", "x", path.replace("{session_id}", other))
            if scope is not None:
                body = {"message": plan(), "session_id": other} if path.endswith("/jobs") else {}
                if path.startswith("/agui/"):
                    body = {"threadId": other, "runId": "x", "messages": []}
                assert bearer.request(method, concrete, json=body).status_code == 403, (method, path)
        problem(bearer.put(f"/v1/sessions/{mine}/system-prompt", json={"prompt": "x"}), 403, "missing-scope")
        problem(bearer.post(f"/v1/sessions/{mine}/tokens", json={"scopes": ["read"]}), 403, "missing-scope")
    short = http.post(f"/v1/sessions/{mine}/tokens", json={"scopes": ["read"], "ttl_seconds": 1}).json()["token"]
    time.sleep(1.1)
    with served.http(short) as bearer:
        problem(bearer.get(f"/v1/sessions/{mine}"), 401, "missing-token")
    problem(http.post(f"/v1/sessions/{mine}/tokens", json={"scopes": ["admin"]}), 422, "invalid-input")
    problem(
        http.post(f"/v1/sessions/{mine}/tokens", json={"scopes": ["read"], "ttl_seconds": 4000}), 422, "invalid-input"
    )


def test_without_tokens_only_this_machine_and_no_foreign_page_may_ask(lab: Lab, tmp_path: Path) -> None:
    process = ServeProcess(tmp_path / "serve", lab.store_url)
    process.start()
    with process.http() as http:
        assert http.get("/v1/agents").status_code == 200
        assert http.get("/v1/agents", headers={"Origin": process.url}).status_code == 200
        problem(http.get("/v1/agents", headers={"Origin": "https://evil.example"}), 403, "foreign-origin")
        problem(http.get("/v1/agents", headers={"Host": "evil.example"}), 403, "foreign-host")
        assert "access-control-allow-origin" not in http.get("/v1/agents").headers
    process.end()


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"CELERY_AGENTS_HTTP_ADDRESS": "0.0.0.0:0"}, "CELERY_AGENTS_HTTP_TOKEN_SECRETS"),
        ({"CELERY_AGENTS_HTTP_ADDRESS": "nowhere"}, "is no address"),
        ({"CELERY_AGENTS_HTTP_TOKEN_SECRETS": "short:read"}, "entry 1"),
        ({"CELERY_AGENTS_HTTP_TOKEN_SECRETS": "long-enough-0123456789:everything"}, "entry 1"),
    ],
)
def test_serve_refuses_to_start_with_wrong_settings(lab: Lab, env: dict[str, str], named: str) -> None:
    import os
    import sys

    command = [sys.executable, "-P", "-m", "celery_agents", "serve"]
    environment = {
        **os.environ,
        "CELERY_AGENTS_REDIS_URL": lab.store_url,
        "CELERY_AGENTS_HTTP_ADDRESS": "127.0.0.1:0",
        **env,
    }
    done = fork_server.run(command, env=environment)
    assert done.returncode == 2, done.stderr
    assert named in done.stderr
    assert "long-enough-0123456789" not in done.stderr


def test_pages_of_named_origins_may_ask(lab: Lab, tmp_path: Path) -> None:
    env = {**ENV, "CELERY_AGENTS_HTTP_TOKEN_SECRETS": SETTING, "CELERY_AGENTS_HTTP_ORIGINS": "https://shop.example"}
    process = ServeProcess(tmp_path / "serve", lab.store_url, env)
    process.start()
    with process.http(TOKENS["read"]) as http:
        preflight = {
            "Origin": "https://shop.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,idempotency-key",
        }
        allowed = http.options("/v1/agents/planned/jobs", headers=preflight)
        assert allowed.headers["access-control-allow-origin"] == "https://shop.example"
        refused = http.options("/v1/agents/planned/jobs", headers={**preflight, "Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in refused.headers
    process.end()


# --- the document -----------------------------------------------------------------------------------------------------


def test_the_document_is_valid_and_replies_are_as_it_says(http: httpx.Client, document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    schemas = exact(document["components"])
    found = [waiting(http, call("approved_keyed", work=work)) for work in ("described", "done")]
    (session, _), (done, (asked,)) = found
    http.post(f"/v1/sessions/{done}/answers", json={"answers": {asked["id"]: {"approve": True}}})
    assert ended(http, done)["status"] == "completed"
    parts = "state messages steps timeline tree executions requests grants snapshot queue trace requests/{request_id}"
    paths = ["/v1/sessions", "/v1/requests", "/v1/waiting", "/v1/health", "/v1/sessions/{session_id}"]
    paths += [f"/v1/sessions/{{session_id}}/{part}" for part in parts.split()]
    for path, (name, (asked,)) in [(path, each) for path in paths for each in found]:
        concrete = path.replace("{session_id}", name).replace("{request_id}", asked["id"])
        response = document["paths"][path]["get"]["responses"]["200"]
        schema = {**response["content"]["application/json"]["schema"], "components": schemas}
        jsonschema.validate(http.get(concrete).json(), schema, cls=jsonschema.Draft202012Validator)
    problem = {"$ref": "#/components/schemas/Problem", "components": schemas}
    jsonschema.validate(http.get("/v1/sessions/nothing").json(), problem)
    http.post(f"/v1/sessions/{session}/stop")
    assert SECRET not in json.dumps(document)
    names = [op["operationId"] for methods in document["paths"].values() for op in methods.values()]
    assert len(names) == len(set(names))
