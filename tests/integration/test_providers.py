"""Limits of providers and pauses as people set them: client, HTTP, commands, doctor, metrics, with a real worker."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import jsonschema
import pytest

from celery_agents import AgentClient, AsyncAgentClient
from celery_agents.flow import ModelEndpoint, Pause, ProviderLimit
from celery_agents.tasks.cli import main
from celery_agents.tasks.observability.doctor.checks import examine
from celery_agents.tasks.observability.waiting_reasons import waiting_reason
from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.store import Claimed, StepRef
from celery_agents.worker.store.flow.records import Refused

from support.agents import call, plan
from support.http_service import ServiceProcess
from support.lab import Lab
from support.model_agents import KEY_NAME, PROVIDER_URL
from support.processes import free_port
from support.provider import Provider
from support.scraping import scraped
from support.serve_process import ServeProcess
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]

MINI, ADMIN, READER = "openai:gpt-5-mini", "token-of-admin-0123456789", "token-of-read-0123456789"
SUBMITTER = "token-of-submit-0123456789"
TOKENS = {"CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{ADMIN}:admin,{READER}:read,{SUBMITTER}:submit+stop+answer"}
PORT = str(free_port())


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("providers")
    with ServiceProcess("support.provider", folder / "provider") as service:
        provider = Provider(service, "user")
        env = {PROVIDER_URL: provider.base_url, KEY_NAME: "sk-not-a-key", "CELERY_AGENTS_METRICS_PORT": PORT}
        with Lab(folder / "lab", agents="support.agents,support.limited_agents", env=env) as started:
            started.worker()
            started.client.wait_for_agent("first")
            yield started


@pytest.fixture
def client(lab: Lab) -> Iterator[AgentClient]:
    """A client of a fleet of which nothing is limited or paused, before and after."""
    yield lab.client
    for each in lab.client.pauses():
        lab.client.unpause(**{each.kind: each.name})
    for status in lab.client.limits.list():
        if status.limit is not None:
            lab.client.limits.remove(status.limit.model, status.limit.group)


@pytest.fixture(scope="module")
def served(lab: Lab) -> Iterator[ServeProcess]:
    with ServeProcess(lab.directory / "serve", lab.store_url, TOKENS) as process:
        yield process


def reason_of(client: AgentClient, session: str) -> str:
    return waiting_reason(client.store, client.header(session))


def counts(client: AgentClient) -> dict[str, int]:
    return {each.reason.value: each.count for each in client.waiting().reasons if each.count}


def findings(client: AgentClient, name: str) -> list[tuple[str, str, str]]:
    return [(each.level.value, each.what, each.advice) for each in examine(client.settings) if each.name == name]


def work_of(lab: Lab) -> list[Any]:
    return [entry["work"] for entry in lab.ledger.entries() if "work" in entry]


def command(lab: Lab, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process."""
    place = () if "--redis-url" in arguments else ("--redis-url", lab.store_url)
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([*arguments, *place])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


# --- pauses -----------------------------------------------------------------------------------------------------------


def test_the_bank_is_down_and_refunds_wait_while_other_calls_run(lab: Lab, client: AgentClient) -> None:
    assert client.pause(tool="keyed", reason="the bank is down", by="ops") == ()
    job = client.submit("planned", plan([call("keyed_async", work="look"), call("keyed", work="pay")]))
    wait_until(lambda: counts(client) == {"paused": 1}, "it waits for the end of the pause", 30)
    assert "look" in work_of(lab)
    reason = reason_of(client, job.session_id)
    for part in ("step 1 waits, next try", "tool keyed", "paused by ops since", "the bank is down"):
        assert part in reason, reason
    assert client.store.sessions.step_facts(job.session_id).delays == 0, "it counts as no delay"
    ((level, what, advice),) = findings(client, "paused")
    assert level == "warn"
    assert "the bank is down" in what
    assert "celery-agents unpause" in advice
    (put_off,) = findings(client, "steps put off")
    assert put_off[1].startswith("1 wait")

    (stored,) = client.pauses()
    assert (stored.kind, stored.name, stored.by) == ("tool", "keyed", "ops")
    assert client.unpause(tool="keyed") is True
    assert job.result(timeout=20).status == "completed"
    assert work_of(lab).count("pay") == 1
    assert (client.pauses(), client.unpause(tool="keyed")) == ((), False)


@pytest.mark.parametrize("named", [{"agent": "planned"}, {"queue": "default"}], ids=str)
def test_a_paused_agent_begins_nothing_and_a_stop_passes(lab: Lab, client: AgentClient, named: dict[str, str]) -> None:
    client.pause(**named, reason="a look at its prompt")  # pyright: ignore[reportArgumentType]
    # A second later: the worker hears of the pause while it may already take what is submitted in this moment.
    due = {"delay": timedelta(seconds=1)}
    waits, stopped = (client.submit("planned", plan([call("keyed", work=f"begun {named}")]), **due) for _ in range(2))
    wait_until(lambda: counts(client) == {"paused": 2}, "both wait", 30, details=lambda: str(counts(client)))
    ended = client.stop(stopped.session_id)
    assert ended is not None
    assert ended.status == "stopped"
    assert f"begun {named}" not in work_of(lab)
    client.unpause(**named)
    assert waits.result(timeout=20).status == "completed"


def test_a_pause_with_an_end_ends_by_itself(client: AgentClient) -> None:
    client.pause(agent="planned", reason="a moment", until=datetime.now(UTC) + timedelta(seconds=2))
    ((level, what, _),) = findings(client, "paused")
    assert level == "ok"
    assert "; until" in what
    assert client.submit("planned", plan()).result(timeout=30).status == "completed"
    assert client.pauses() == ()


def test_what_a_pause_held_is_held_by_the_one_that_replaces_it(lab: Lab, client: AgentClient) -> None:
    client.pause(tool="keyed", reason="the bank is down")
    ends, told = (client.submit("planned", plan([call("keyed", work=f"replaced {n}")])) for n in range(2))
    wait_until(lambda: counts(client) == {"paused": 2}, "both wait", 30, details=lambda: str(counts(client)))
    client.pause(tool="keyed", reason="until tonight", until=datetime.now(UTC) + timedelta(hours=2))
    wait_until(lambda: "until tonight" in reason_of(client, ends.session_id), "it is held by the new one", 30)
    client.pause(tool="keyed", reason="a moment", until=datetime.now(UTC) + timedelta(seconds=2))
    assert ends.result(timeout=20).status == "completed"
    assert told.result(timeout=20).status == "completed"
    client.pause(tool="keyed", reason="the bank is down")
    told = client.submit("planned", plan([call("keyed", work="never told")]))
    wait_until(lambda: counts(client) == {"paused": 1}, "it waits", 30, details=lambda: str(counts(client)))
    client.pause(tool="keyed", reason="it stays down", tell=True)
    assert told.result(timeout=20).status == "completed"
    assert [work_of(lab).count(f"replaced {n}") for n in range(2)] == [1, 1]
    assert "never told" not in work_of(lab)


def test_the_model_reads_of_a_pause_that_it_is_told(lab: Lab, client: AgentClient) -> None:
    client.pause(tool="keyed", reason="the bank is down", tell=True)
    job = client.submit("planned", plan([call("keyed", work="never")]))
    assert job.result(timeout=30).status == "completed"
    (execution,) = client.show(job.session_id).state.steps[0].tool_executions
    assert "the bank is down" in str(execution.value or execution.error)
    assert "never" not in work_of(lab)


@pytest.mark.parametrize(
    ("named", "field", "advice"),
    [
        ({"tool": "keyed", "reason": "  "}, "Pause.reason", "say why"),
        ({"tool": "keyed", "reason": "x" * 501}, "Pause.reason", "1 to 500"),
        ({"reason": "x"}, "Pause", "exactly one of"),
        ({"tool": "keyed", "agent": "first", "reason": "x"}, "Pause", "exactly one of"),
        ({"agent": "first", "reason": "x", "tell": True}, "Pause.tell", "only a tool's"),
        ({"agent": "", "reason": "x"}, "Pause.agent", "give the name"),
        ({"agent": "first", "reason": "x", "until": datetime(2020, 1, 1, tzinfo=UTC)}, "until", "a time to come"),
        ({"agent": "first", "reason": "x", "until": datetime(2030, 1, 1)}, "until", "timezone"),  # noqa: DTZ001
        ({"agent": "first", "reason": "x", "by": ""}, "by", "1 to 200"),
    ],
    ids=str,
)
def test_a_pause_that_cannot_be_meant_is_refused(
    client: AgentClient, named: dict[str, Any], field: str, advice: str
) -> None:
    with pytest.raises(InvalidInput, match=advice) as refused:
        client.pause(**named)
    assert refused.value.field == field
    assert client.pauses() == ()


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_limit_of_zero_says_what_it_does_and_one_that_is_raised_lets_its_jobs_go(client: AgentClient) -> None:
    (note,) = client.limits.set(ProviderLimit(MINI, rpm=0), by="ops")
    assert "0 admits no request" in note
    wait_until(lambda: findings(client, "provider") != [], "it is stored", 5)
    job = client.submit("first", "hello")
    wait_until(lambda: counts(client) == {"provider": 1}, "it waits", 30, details=lambda: str(counts(client)))
    assert f"the limit of {MINI} is 0 requests a minute" in reason_of(client, job.session_id)
    held = [each for each in findings(client, "provider") if each[0] == "warn"]
    assert "takes no request" in held[0][1]
    assert "celery-agents limits" in held[0][2]
    series = scraped(int(PORT))
    key = 'endpoint="{}",group="{}",model="openai:gpt-5-mini"'
    buckets = [each for each in client.limits.list() if each.bucket.endpoint]
    (key,) = {key.format(each.bucket.endpoint, each.bucket.group) for each in buckets}
    assert series[f'celery_agents_provider_held{{{key},why="closed"}}'] == 1
    assert series[f'celery_agents_provider_held{{{key},why="away"}}'] == 0
    assert series[f'celery_agents_provider_limit{{counts="requests",{key},source="set"}}'] == 0
    assert series[f'celery_agents_provider_waits_total{{model="{MINI}",reason="zero"}}'] >= 1

    assert client.limits.set(ProviderLimit(MINI, rpm=6000)) == ()
    assert job.result(timeout=20).status == "completed"
    assert client.store.sessions.step_facts(job.session_id).attempts == 0
    set_last = client.limits.get(MINI)
    assert set_last is not None
    assert set_last.per_minute == {"requests": 6000}
    assert client.limits.get(MINI, "team-a") is None
    assert (client.limits.remove(MINI), client.limits.remove(MINI), client.limits.get(MINI)) == (True, False, None)


def test_a_limit_that_nothing_uses_is_said_when_it_is_set_and_by_doctor(client: AgentClient) -> None:
    (model,) = client.limits.set(ProviderLimit("openai:gpt-5-mimi", rpm=5))
    assert model == "model: no live worker has openai:gpt-5-mimi; they have openai:gpt-5-mini, openai:gpt-5-nano."
    (group,) = client.limits.set(ProviderLimit(MINI, rpm=5, group="team-z"))
    assert group == "group: no live worker has team-z; they have team-a."
    assert client.limits.set(ProviderLimit(MINI, rpm=5, group="~1f0c9a2b")) == (), "a key is known by its digest alone"
    told = [what for level, what, _ in findings(client, "limit") if level == "warn"]
    assert [model in each or group in each for each in told] == [True, True]
    assert {each.bucket.model for each in client.limits.list()} >= {"openai:gpt-5-mimi"}
    (note,) = client.pause(agent="unknown", reason="x")
    assert note.startswith("agent: no live worker has unknown; they have ")
    assert client.pause(provider="openai", reason="x") == ()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "ProviderLimit"),
        ({"rpm": -1}, "ProviderLimit.rpm"),
        ({"rpm": float("nan")}, "ProviderLimit.rpm"),
        ({"tpm": float("inf")}, "ProviderLimit.tpm"),
        ({"rpm": "many"}, "ProviderLimit.rpm"),
        ({"rpm": 1, "group": "a|b"}, "ProviderLimit.group"),
        ({"rpm": 1, "model": " "}, "ProviderLimit.model"),
    ],
    ids=str,
)
def test_what_is_no_limit_is_refused(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        ProviderLimit(**{"model": MINI, **given})
    assert refused.value.field == field


def test_the_client_takes_limits_alone(client: AgentClient) -> None:
    pause: Any = Pause("tool", "keyed", reason="x")
    with pytest.raises(InvalidInput, match="ProviderLimit") as refused:
        client.limits.set(pause)
    assert refused.value.field == "limit"


def test_a_service_on_asyncio_has_the_same(client: AgentClient) -> None:
    async def service() -> None:
        mine = AsyncAgentClient.of(client)
        assert await mine.limits.set(ProviderLimit(MINI, tpm=9000, group="~1f0c9a2b"), by="ops") == ()
        assert getattr(await mine.limits.get(MINI, "~1f0c9a2b"), "tpm", None) == 9000
        assert [each.limit.by for each in await mine.limits.list() if each.limit is not None] == ["ops"]
        assert await mine.limits.remove(MINI, "~1f0c9a2b")
        assert await mine.pause(tool="keyed", reason="x") == ()
        assert [each.name for each in await mine.pauses()] == ["keyed"]
        assert await mine.unpause(tool="keyed")

    asyncio.run(service())


# --- HTTP -------------------------------------------------------------------------------------------------------------


def test_limits_and_pauses_over_http_by_their_scopes(served: ServeProcess, client: AgentClient) -> None:
    limit, pause = {"limit": {"model": MINI, "rpm": 60}, "by": "ops"}, {"tool": "keyed", "reason": "the bank is down"}
    with served.http(READER) as http:
        assert http.put("/v1/limits", json=limit).status_code == 403
        assert http.post("/v1/pauses", json=pause).status_code == 403
        assert http.delete("/v1/limits", params={"model": MINI}).status_code == 403
        assert http.delete("/v1/pauses", params={"tool": "keyed"}).status_code == 403
        assert http.get("/v1/pauses").json() == {"pauses": []}
    with served.http(SUBMITTER) as http:
        assert (http.get("/v1/limits").status_code, http.get("/v1/pauses").status_code) == (403, 403)
    with served.http(ADMIN) as http:
        assert http.put("/v1/limits", json=limit).json() == {"notes": []}
        (found,) = [each for each in http.get("/v1/limits").json()["limits"] if each["limit"] and each["model"] == MINI]
        assert (found["state"], found["limit"]["rpm"], found["limit"]["tpm"]) == ("open", 60, None)
        assert found["limit"]["by"] == "ops"
        assert http.delete("/v1/limits", params={"model": MINI}).json() == {"changed": True}
        assert http.delete("/v1/limits", params={"model": MINI}).json() == {"changed": False}
        until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        assert http.post("/v1/pauses", json={**pause, "until": until, "tell": True, "by": "ops"}).json() == {
            "notes": []
        }
        (shown,) = http.get("/v1/pauses").json()["pauses"]
        assert (shown["kind"], shown["name"], shown["by"], shown["tell"]) == ("tool", "keyed", "ops", True)
        assert datetime.fromisoformat(shown["until"]) == datetime.fromisoformat(until)
        assert http.delete("/v1/pauses", params={"tool": "keyed"}).json() == {"changed": True}
        assert http.post("/v1/pauses", json={"queue": "default", "reason": "x"}).json() == {"notes": []}
        assert http.get("/v1/pauses").json()["pauses"][0]["name"] == "default"
        assert http.delete("/v1/pauses", params={"queue": "default"}).json() == {"changed": True}


def test_replies_are_as_the_document_says(served: ServeProcess, client: AgentClient) -> None:
    client.limits.set(ProviderLimit(MINI, rpm=60))
    client.pause(tool="keyed", reason="x")
    with served.http(ADMIN) as http:
        document = http.get("/openapi.json").json()
        for path in ("/v1/limits", "/v1/pauses"):
            described = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
            schema = {**described, "components": document["components"]}
            jsonschema.validate(http.get(path).json(), schema, cls=jsonschema.Draft202012Validator)
    needed = {each["name"]: each["required"] for each in document["paths"]["/v1/limits"]["delete"]["parameters"]}
    assert needed == {"model": True, "group": False}
    limit = document["components"]["schemas"]["ModelLimit"]["properties"]
    assert set(limit) == {"model", "group", "rpm", "tpm", "input_tpm", "output_tpm"}


def test_bad_input_over_http_names_the_field_and_changes_nothing(served: ServeProcess, client: AgentClient) -> None:
    def refused(response: httpx.Response, field: str) -> None:
        assert response.status_code == 422, response.text
        assert field in response.json()["detail"], response.text

    with served.http(ADMIN) as http:
        refused(http.put("/v1/limits", json={"limit": {"rpm": 5}}), "limit.model")
        refused(http.put("/v1/limits", json={"limit": {"model": MINI}}), "at least one of")
        refused(http.put("/v1/limits", json={"limit": {"model": MINI, "rpm": -1}}), "limit.rpm")
        refused(http.put("/v1/limits", json={"limit": {"model": MINI, "rpm": 1, "tokens": 2}}), "limit.tokens")
        refused(http.put("/v1/limits", json={}), "limit")
        refused(http.delete("/v1/limits"), "model")
        refused(http.post("/v1/pauses", json={"tool": "keyed"}), "reason")
        refused(http.post("/v1/pauses", json={"tool": "keyed", "reason": " "}), "Pause.reason")
        refused(http.post("/v1/pauses", json={"reason": "x"}), "exactly one of")
        refused(http.post("/v1/pauses", json={"tool": "a", "agent": "b", "reason": "x"}), "exactly one of")
        refused(http.post("/v1/pauses", json={"tool": "a", "reason": "x", "until": "2020-01-01T00:00:00Z"}), "until")
        refused(http.post("/v1/pauses", json={"tenant": "acme", "reason": "x"}), "tenant")
        refused(http.delete("/v1/pauses"), "exactly one of")
    assert (client.pauses(), [each for each in client.limits.list() if each.limit is not None]) == ((), [])


# --- commands ---------------------------------------------------------------------------------------------------------


def test_commands_set_limits_and_pause(lab: Lab, client: AgentClient) -> None:
    done = command(lab, "limits", "set", MINI, "--rpm", "500", "--tpm", "200000", "--group", "batch", "--by", "ann")
    assert (done.returncode, done.stdout) == (0, "set\n")
    assert done.stderr == "note: group: no live worker has batch; they have team-a.\n"
    shown = command(lab, "limits").stdout
    for part in ("MODEL", MINI, "batch", "500 requests a minute (as it was set)", "200 000 tokens a minute"):
        assert part in shown, shown
    lines = command(lab, "limits", "--json").stdout.splitlines()
    (found,) = [each for each in map(json.loads, lines) if each["limit"]]
    assert (found["limit"]["rpm"], found["limit"]["by"], found["state"]) == (500, "ann", "open")
    assert command(lab, "limits", "remove", MINI).stdout == "no such limit was set\n"
    assert command(lab, "limits", "remove", MINI, "--group", "batch", "--json").stdout == '{"changed": true}\n'

    done = command(lab, "pause", "tool", "keyed", "--reason", "the bank is down", "--for", "2h", "--by", "ann")
    assert (done.returncode, done.stdout, done.stderr) == (0, "paused\n", "")
    shown = command(lab, "pauses").stdout
    for part in ("tool keyed paused by ann since", "the bank is down; until"):
        assert part in shown, shown
    assert json.loads(command(lab, "pauses", "--json").stdout)["name"] == "keyed"
    assert command(lab, "unpause", "tool", "keyed").stdout == "unpaused\n"
    assert command(lab, "unpause", "tool", "keyed").stdout == "it was not paused\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["limits", "set", MINI], "set at least one of rpm"),
        (["limits", "set"], "MODEL"),
        (["limits", "list", MINI], "MODEL"),
        (["limits", "remove", MINI, "--rpm", "5"], "go with set"),
        (["limits", "set", MINI, "--rpm", "-1"], "ProviderLimit.rpm"),
        (["limits", "set", MINI, "--rpm", "nan"], "ProviderLimit.rpm"),
        (["limits", "raise", MINI], "raise"),
        (["pause", "tool", "keyed"], "--reason"),
        (["pause", "tool", "keyed", "--reason", ""], "Pause.reason"),
        (["pause", "tenant", "acme", "--reason", "x"], "tenant"),
        (["pause", "agent", "first", "--reason", "x", "--tell"], "Pause.tell"),
        (["unpause", "tool"], "NAME"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_a_wrong_command_is_refused_with_what_is_wrong(
    lab: Lab, words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERY_AGENTS_REDIS_URL", lab.store_url)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_without_redis_the_commands_end_with_3(lab: Lab) -> None:
    for words in (["limits"], ["pauses"], ["unpause", "tool", "keyed"]):
        done = command(lab, *words, "--redis-url", "redis://127.0.0.1:1/0")
        assert (done.returncode, done.stdout) == (3, "")


# --- without a worker ---------------------------------------------------------------------------------------------------


def put_off(client: AgentClient, by: str, bucket: ModelEndpoint | None = None) -> str:
    """A session whose step is put off for an hour."""
    job = client.submit("first", "hello")
    store, ref = client.store, StepRef(job.session_id, job.execution_id, 1)
    claimed = store.steps.claim(ref, "a claim", "a worker", alone=True)
    assert isinstance(claimed, Claimed)
    if bucket is not None:
        limit = ProviderLimit(bucket.model, rpm=0)
        refused = store.flow.reserve(claimed.claim, bucket, limit, call="a", cost={}, lease_ms=1000)
        assert isinstance(refused, Refused)
    store.steps.release(claimed.claim, delay_ms=3_600_000, give_back=True, reason="held", put_off=by)
    assert store.sessions.step_facts(job.session_id).put_off == by
    return job.session_id


def test_a_client_alone_lets_go_what_a_pause_or_a_limit_held(redis_url: str) -> None:
    bucket = ModelEndpoint(MINI, "https://example.com/v1", "team-a")
    with AgentClient(redis_url) as client:

        def is_due(session: str) -> bool:
            facts = client.store.sessions.step_facts(session)
            return (facts.put_off, facts.attempts) == ("", 0) and facts.not_before_ms <= facts.now_ms

        client.pause(tool="keyed", reason="x")
        client.pause(tool="another", reason="x")
        held = [put_off(client, by) for by in ("pause:tool:keyed", "pause:tool:another")]
        client.unpause(tool="keyed")
        assert list(map(is_due, held)) == [True, False]

        client.limits.set(ProviderLimit(MINI, rpm=0))
        limited = put_off(client, bucket.digest, bucket)
        client.limits.set(ProviderLimit(MINI, rpm=5, group="team-b"))
        assert not is_due(limited), "another group's limit has nothing to do with it"
        client.limits.set(ProviderLimit(MINI, rpm=5))
        assert is_due(limited)
        again = put_off(client, bucket.digest, bucket)
        client.limits.remove(MINI)
        assert is_due(again)
        of_quota = put_off(client, bucket.digest, bucket)
        client.unpause(model=MINI)
        assert is_due(of_quota), "a quota counts as raised"
        client.limits.remove(MINI, "team-b")
        client.unpause(tool="another")
        for session in (*held, limited, again, of_quota):
            client.stop(session)
