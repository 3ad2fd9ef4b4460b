"""`GET /v1/waiting`: real sessions of a real worker, each counted by what it waits for."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from celery_agents import AsyncAgentClient
from celery_agents.tasks.observability.waiting_counts import WaitingFor

from support.agents import call, plan
from support.lab import Lab
from support.serve_process import ServeProcess
from support.tree_agents import delegate
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]

READER, SUBMITTER = "token-of-read-0123456789", "token-of-submit-0123456789"
ENV = {
    "CELERY_AGENTS_TOKEN_SECRET": "not-a-secret-but-long-enough",
    "CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{READER}:read,{SUBMITTER}:submit",
}


def test_each_session_is_counted_by_what_it_waits_for(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", agents="support.waiting_agents,support.tree_agents", env=ENV) as lab:
        lab.worker(CELERY_AGENTS_CONCURRENCY="2")
        client = lab.client
        client.submit("asking", plan([call("approved_unsafe", work="a")]))
        client.submit("asking", plan([call("later_keyed", work="b")]))
        below = plan([call("keyed", work="c", gate="c")])
        client.submit("node", plan([delegate(below)]))
        client.submit("node", plan(), start_at=datetime.now(UTC) + timedelta(hours=1))
        client.submit("nobody", plan())
        settled = {"person": 1, "service": 1, "child": 1, "running": 1, "delay": 1, "no_worker": 1}

        def counts() -> dict[str, int]:
            return {each.reason.value: each.count for each in client.waiting().reasons if each.count}

        wait_until(lambda: counts() == settled, "all wait for what they wait for", 40, details=lambda: str(counts()))
        held = client.submit("asking", plan([call("keyed", work="d", gate="d")]))
        wait_until(lambda: counts() == {**settled, "running": 2}, "both slots are taken", 20)
        queued = client.submit("asking", plan())
        assert counts() == {**settled, "running": 2, "queue": 1}
        client.suspend(queued.session_id, reason="a look")
        assert counts() == {**settled, "running": 2, "held": 1}
        ref = lab.client.store.sessions.step_facts(held.session_id)
        assert ref.claimed

        process = ServeProcess(tmp_path / "serve", lab.store_url, ENV)
        process.start()
        with process.http(READER) as http:
            found = http.get("/v1/waiting").json()
            assert [each["reason"] for each in found["reasons"]] == [each.value for each in WaitingFor]
            assert {each["reason"]: each["count"] for each in found["reasons"] if each["count"]} == counts()
            assert (found["total"], found["counted"], found["is_complete"]) == (8, 8, True)
            assert found["reasons"][0]["sentence"] == "2 run on a worker"
            one = http.get("/v1/waiting", params={"agent": "nobody"}).json()
            assert [each["reason"] for each in one["reasons"] if each["count"]] == ["no_worker"]
            assert http.get("/v1/waiting", params={"agents": "x"}).status_code == 422
        with process.http(SUBMITTER) as http:
            assert http.get("/v1/waiting").status_code == 403
        process.end()
        mine = asyncio.run(AsyncAgentClient.of(client).waiting(agent="node"))
        assert {each.reason.value: each.count for each in mine.reasons if each.count} == {
            "child": 1, "running": 1, "delay": 1,
        }  # fmt: skip
        lab.ledger.open("c")
        lab.ledger.open("d")
