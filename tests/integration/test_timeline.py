"""The timeline of real sessions: a real Redis, workers that are killed, people who answer, children, failing models."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from celery_agents import Approve, AsyncAgentClient
from celery_agents.tasks.observability.timeline.values import Span, TimelineStep
from celery_agents.worker.errors import InvalidInput, SessionNotFound

from support.agents import call, plan
from support.lab import Lab
from support.model_agents import KEY_NAME, PROVIDER_URL
from support.provider import Provider
from support.serve_process import ServeProcess
from support.tree_agents import delegate
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]

SECRET = "not-a-secret-but-long-enough"
ADMIN = "token-of-admin-0123456789"
ENV = {
    "CELERY_AGENTS_TOKEN_SECRET": SECRET,
    "CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{ADMIN}:admin",
}


def step_of(lab: Lab, session: str, number: int, **options: Any) -> TimelineStep:
    return next(step for step in lab.client.timeline(session, **options).steps if step.number == number)


def spans(step: TimelineStep, kind: str) -> list[Span]:
    return [span for span in step.spans if span.kind == kind]


CLOCKS_MS = 50
"""Times of events are Redis's, those of calls the worker's estimate of them."""


def check_times(lab: Lab, session: str) -> None:
    """Each span has a beginning before its end, within the execution, and an id of its own."""
    timeline = lab.client.timeline(session, data=True)
    assert timeline.submitted_at is not None
    all_spans = [span for step in timeline.steps for span in step.spans]
    assert len({span.id for span in all_spans}) == len(all_spans)
    for span in all_spans:
        assert timeline.submitted_at.timestamp() - 0.2 <= span.start_ms / 1000, span
        assert span.end_ms is None or span.start_ms <= span.end_ms, span
        assert span.parent is None or span.parent in {each.id for each in all_spans}, span


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("timeline") / "lab", agents="support.tree_agents", env=ENV) as started:
        yield started


@pytest.fixture(scope="module")
def story(lab: Lab) -> str:
    """A session whose worker is killed in a tool, that asks a person, and starts a child; it has ended."""
    first = lab.worker()
    steps = [
        [call("keyed", work="killed", gate="killed")],
        [call("approved_unsafe", work="asked")],
        [delegate(plan([call("pure", work="below")], answer="from below"))],
    ]
    job = lab.client.submit("node", plan(*steps), session_id="story")
    wait_until(lambda: any(each.get("work") == "killed" for each in lab.ledger.entries()), "the call has begun", 30)
    running = step_of(lab, "story", 1)
    assert (running.status, [span.name for span in spans(running, "tool")]) == ("running", ["keyed"])
    first.kill()
    wait_until(lambda: step_of(lab, "story", 1).status == "due", "its lease is over", 20)
    (ghost,) = spans(step_of(lab, "story", 1), "lost")
    assert (ghost.parent, ghost.end_ms) == ("1.t0", None)
    lab.ledger.open("killed")
    lab.worker()
    wait_until(lambda: bool(lab.client.requests("story").requests), "it asks", 60)
    (open_request,) = spans(step_of(lab, "story", 2), "request")
    assert (open_request.outcome, open_request.note, open_request.end_ms) == ("open", "asked of team", None)
    request = lab.client.requests("story").requests[0].summary.id
    lab.client.answer("story", {request: Approve()}, by="ann", note="fine")
    assert job.result(timeout=60).status == "completed"
    return "story"


def test_a_killed_worker_leaves_a_ghost_and_the_recovery(lab: Lab, story: str) -> None:
    step = step_of(lab, story, 1)
    (ghost,), (tool,), (model,) = spans(step, "lost"), spans(step, "tool"), spans(step, "model")
    assert (step.status, step.attempts) == ("committed", 2)
    assert (ghost.parent, ghost.name, ghost.outcome, tool.outcome) == (tool.id, "keyed", "lost", "ok")
    assert ghost.end_ms is not None
    assert model.end_ms is not None
    assert model.end_ms <= ghost.start_ms < ghost.end_ms <= tool.start_ms + CLOCKS_MS
    lost, went_on = ghost.note.removeprefix("attempt 1, lost with worker "), step.worker
    assert lost != went_on
    assert lost in str(step_of(lab, story, 1, data=True))
    check_times(lab, story)


def test_an_approval_says_who_answered(lab: Lab, story: str) -> None:
    step = step_of(lab, story, 2, data=True)
    (request,), (tool,) = spans(step, "request"), spans(step, "tool")
    assert (request.parent, request.outcome, request.note) == (tool.id, "answered", "approved by ann: fine")
    assert request.end_ms is not None
    assert request.end_ms <= tool.start_ms + CLOCKS_MS
    assert tool.data is not None
    assert [each["by"] for each in tool.data["resolutions"]] == ["ann"]
    assert (tool.data["effect"], tool.data["args"]["work"]) == ("unsafe", "asked")
    key = next(each["key"] for each in lab.ledger.entries() if each.get("work") == "asked")
    assert tool.data["key"] == key, "the key that the service got"


def test_a_child_is_a_span_of_its_call(lab: Lab, story: str) -> None:
    (child,) = spans(step_of(lab, story, 3), "child")
    (session,) = lab.client.store.trees.members(story)
    assert (child.session, child.name, child.outcome) == (session, "node", "ok")
    below = lab.client.timeline(session)
    assert (below.status, len(below.steps)) == ("completed", 2)
    assert below.submitted_at is not None
    assert below.ended_at is not None
    assert child.end_ms is not None
    assert child.start_ms <= below.submitted_at.timestamp() * 1000 + 100
    assert below.ended_at.timestamp() * 1000 <= child.end_ms + 100


def test_it_is_read_in_pages_and_by_async_clients(lab: Lab, story: str) -> None:
    whole = lab.client.timeline(story)
    page = asyncio.run(AsyncAgentClient.of(lab.client).timeline(story, first_step=2, limit=2))
    assert page.next_step == 4
    assert page.steps == whole.steps[1:3]
    for wrong in ({"first_step": 0}, {"limit": 0}, {"limit": 1001}, {"limit": True}):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            lab.client.timeline(story, **wrong)  # type: ignore[arg-type]
    with pytest.raises(SessionNotFound):
        lab.client.timeline("no-such-session")


def test_http_gives_the_same_to_those_who_may_read(lab: Lab, story: str, tmp_path: Path) -> None:
    process = ServeProcess(tmp_path / "serve", lab.store_url, ENV)
    process.start()
    with process.http(ADMIN) as http:
        path = f"/v1/sessions/{story}/timeline"
        found = http.get(path).json()
        assert [step["number"] for step in found["steps"]] == [1, 2, 3, 4]
        ids = [span["id"] for step in found["steps"] for span in step["spans"]]
        assert ids == [span.id for step in lab.client.timeline(story).steps for span in step.spans]
        assert all(span["data"] is None for step in found["steps"] for span in step["spans"])
        page = http.get(path, params={"first_step": 2, "limit": 1, "data": "true"}).json()
        assert (len(page["steps"]), page["next_step"], page["total_steps"]) == (1, 3, 4)
        assert any(span["data"] for span in page["steps"][0]["spans"])
        for wrong in ({"first_step": 0}, {"limit": 1001}, {"data": "perhaps"}, {"from": 1}):
            refused = http.get(path, params=wrong)
            assert refused.status_code == 422, wrong
            assert next(iter(wrong)) in refused.json()["detail"]
        check_tokens(http, process, story, path)
    process.end()


def check_tokens(http: httpx.Client, process: ServeProcess, story: str, path: str) -> None:
    """A token with the scope chat does not get it, one with the scope read does."""
    for scope, status in (("chat", 403), ("read", 200)):
        token = http.post(f"/v1/sessions/{story}/tokens", json={"scopes": [scope]}).json()["token"]
        with process.http(token) as bearer:
            assert bearer.get(path).status_code == status, scope


def test_failed_model_calls_and_a_delay_of_a_real_provider(tmp_path: Path, provider: Provider) -> None:
    env = {
        PROVIDER_URL: provider.base_url, KEY_NAME: "sk-not-a-key", "CELERY_AGENTS_DRIVER_ATTEMPTS": "2",
        "CELERY_AGENTS_RETRY_DELAY_SECONDS": "0.2", "CELERY_AGENTS_RETRY_LATER_SECONDS": "1",
    }  # fmt: skip
    provider.plan("back again", faults=[{"fault": "status", "code": 500, "turn": 0, "times": 3}])
    with Lab(tmp_path / "outage", agents="support.model_agents", env=env) as lab:
        lab.worker()
        job = lab.client.submit("model", "hello")
        assert job.result(timeout=60).final_response == "back again"
        step = step_of(lab, job.session_id, 1)
        kinds = [span.kind.value for span in step.spans if span.kind != "queue"]
        assert kinds == ["lost", "provider", "lost", "delay", "lost", "provider", "model"]
        failed = spans(step, "lost")
        assert all(span.outcome == "void" and "500" in span.note for span in failed)
        (model,), (delay,) = spans(step, "model"), spans(step, "delay")
        assert (step.model, step.finish_reason) == (model.name, "stop")
        assert model.tokens == step.tokens
        assert (step.tokens or 0) > 0
        assert "HTTP 500" in delay.note
        ends = [span.end_ms for span in step.spans if span.kind != "queue"]
        starts = [span.start_ms for span in step.spans if span.kind != "queue"]
        assert all(end is not None and end <= start + 50 for end, start in zip(ends, starts[1:], strict=False))
        check_times(lab, job.session_id)
