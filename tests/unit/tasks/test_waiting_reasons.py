"""Every reason for which a session waits is a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from celery_agents.tasks.observability.waiting_reasons import RULES, WaitingSession, ending_reason
from celery_agents.worker.store import Event, Header, SessionState, StepFacts
from celery_agents.worker.store.memory.database import MemoryDatabase

from support.store import Bench, step_transition

NOW = 1_790_000_000_000
IDLE = {"agents": {"a": "h"}, "slots": 2, "running": 0, "draining": False}


def why(workers: dict[str, Any] | None = None, events: tuple[Event, ...] = (), **facts: Any) -> str:
    known: dict[str, Any] = {
        "execution_id": "e", "step": 3, "phase": "run", "claimed": False, "worker": "", "lease_ms": None,
        "attempts": 0, "delays": 0, "not_before_ms": 0, "due_ms": NOW + 4_000, "reason": "", "now_ms": NOW,
        "is_stopping": False,
    }  # fmt: skip
    header = Header(
        session_id="s", agent="a", status=SessionState.IN_PROGRESS, execution_id="e", step=3, version=1,
        created_ms=NOW, updated_ms=NOW,
    )  # fmt: skip
    session = WaitingSession(
        header=header,
        step=StepFacts(**{**known, **facts}),
        events=events,
        workers={"w1": IDLE} if workers is None else workers,
    )
    return next(reason for rule in RULES if (reason := rule(session)))


def event(kind: str, **data: Any) -> Event:
    return Event(id="1-0", type=kind, at_ms=NOW, session_id="s", execution_id="e", step=3, data=data)


@pytest.mark.parametrize(
    ("said", "given"),
    [
        ("it is parked: no live worker offers it; mend the cause", {
            "phase": "parked", "events": (event("parked", reason="no live worker offers it"),)}),
        ("it waits for the answer of a person or a child", {"phase": "wait"}),
        ("step 3 runs on worker w1", {"claimed": True, "worker": "w1", "lease_ms": 5_000}),
        ("worker w1 is gone or cut off; another one takes the step over within 4 s", {
            "claimed": True, "worker": "w1"}),
        ("worker w1 was not heard of for 4 s; another one takes the step over 2 s from now", {
            "claimed": True, "worker": "w1", "lease_ms": 2_000, "workers": {"w1": {**IDLE, "lease_ms": 6_000}}}),
        ("worker w1 was asked to stop it", {
            "claimed": True, "worker": "w1", "lease_ms": 5_000, "is_stopping": True}),
        ("step 3 waits for the provider, next try in 7 s (", {
            "claimed": True, "worker": "w1", "lease_ms": 5_000,
            "events": (event("model_call_failed", message="it failed (HTTP 500).", next_try_ms=NOW + 7_000),)}),
        ("step 3 runs on worker w1", {
            "claimed": True, "worker": "w1", "lease_ms": 5_000,
            "events": (event("model_call_failed", message="it failed", next_try_ms=NOW - 1),)}),
        ("step 3 was delayed, next try in 15 s (", {
            "delays": 2, "not_before_ms": NOW + 15_000, "reason": "rate_limit: slow down"}),
        ("step 3 begins in 60 s (", {"not_before_ms": NOW + 60_000}),
        ("no worker is alive; start one", {"workers": {}}),
        ("no live worker offers agent 'a'", {"workers": {"w2": {**IDLE, "agents": {"b": "h"}}}}),
        ("it waits for a slot: 4 of 4 are busy", {
            "workers": {"w1": {**IDLE, "running": 2}, "w2": {**IDLE, "running": 2}}}),
        ("every worker that offers its agent is ending", {"workers": {"w1": {**IDLE, "draining": True}}}),
        ("step 3 waits for a worker to take its message; it is looked at again in 4 s", {}),
    ],
)  # fmt: skip
def test_a_session_says_why_it_waits(said: str, given: dict[str, Any]) -> None:
    assert said in why(**given)


@pytest.mark.parametrize("moment", [float("inf"), float("nan"), 10**30, -(10**30), "soon", None, [], {}])
def test_an_event_with_an_odd_time_gives_no_reason_and_ends_no_listing(moment: object) -> None:
    damaged = (event("model_call_failed", message="x", next_try_ms=moment),)
    assert why(claimed=True, worker="w1", lease_ms=5_000, events=damaged) == "step 3 runs on worker w1"


def test_what_has_failed_says_why_and_what_was_completed_says_nothing() -> None:
    bench = Bench(MemoryDatabase())
    for session, failed in (("failed", True), ("done", False)):
        bench.session, bench.execution = session, f"e-{session}"
        bench.submit()
        claimed = bench.claim()
        transition = step_transition(claimed, final=True, failed=failed)
        bench.store.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=False)
    found = {name: ending_reason(bench.store, bench.store.sessions.header(name)) for name in ("failed", "done")}
    assert found == {"failed": "broken", "done": ""}
