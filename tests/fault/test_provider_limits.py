"""Limits, outages and pauses with real workers, a real Redis and a provider that counts; the campaign does it at length."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_agents.worker.flow.values import Pause, ProviderLimit

from fault.real import limits
from fault.real.limits import MODELS, Stage, judge_limits, judge_outage, stage
from support.provider import calls, tool_call
from support.wait import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]


def passed(verdict: Any) -> None:
    assert not verdict.violations, str(verdict)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_limit_that_nobody_knows_is_learned_at_the_cost_of_what_is_in_flight(tmp_path: Path) -> None:
    passed(judge_limits("unknown", limits.unknown(tmp_path / "lab", 60), is_busy=True))


def test_a_provider_that_counts_by_the_clock_is_used_up(tmp_path: Path) -> None:
    passed(judge_limits("by_the_clock", limits.by_the_clock(tmp_path / "lab", 150), is_busy=True))


def test_a_limit_that_is_set_is_used_up_and_never_passed(tmp_path: Path) -> None:
    passed(judge_limits("configured", limits.configured(tmp_path / "lab", 60), is_busy=True))


def test_a_limit_changes_and_workers_die_meanwhile(tmp_path: Path) -> None:
    played = limits.killed_and_changed(tmp_path / "lab", 120)
    passed(played.judge("killed_and_changed"))
    most = played.ideal * limits.LONGEST_SHARE + 2 + limits.BUSY_SECONDS
    assert played.seconds < most, "a lease that ends is not the limit's"


def test_two_models_of_a_group_have_a_limit_each(tmp_path: Path) -> None:
    passed(judge_limits("two_models", limits.two_models(tmp_path / "lab", 60), is_busy=True))


@pytest.mark.parametrize("headers", ["openai", "anthropic"])
def test_headers_tell_the_limit_before_anything_is_refused(tmp_path: Path, headers: str) -> None:
    """80 of 240 a minute at once: what is left is told when it is half of that, and the last 20 wait for it."""
    with stage(tmp_path / "lab") as played:
        played.plan(limits={"requests": 80, "seconds": 20.0, "headers": headers})
        played.submit(100)
        found = played.wait(20 / 4 + 1)
        passed(found.judge("headers"))
        assert not found.refusals
        (bucket,) = played.lab.client.store.flow.buckets()
        assert [(each.per_minute, each.source) for each in bucket.learned] == [(240, "header")]


@pytest.mark.parametrize("retry_after", ["ms", "date", None])
def test_a_refusal_names_the_limit_in_its_text(tmp_path: Path, retry_after: str | None) -> None:
    with stage(tmp_path / "lab") as played:
        played.plan(limits={"requests": 5, "text": True, "retry_after": retry_after})
        played.submit(40)
        found = played.wait(40 / 5 + 2)
        passed(found.judge("text"))
        assert len(found.breaches) <= 2, "the first one names the limit"
        (bucket,) = played.lab.client.store.flow.buckets()
        assert [(each.per_minute, each.source) for each in bucket.learned] == [(300, "text")]


def test_tokens_a_minute_are_kept(tmp_path: Path) -> None:
    """100 a second; a request and its answer are about 40 of them."""
    with stage(tmp_path / "lab") as played:
        played.plan(limits=None)
        played.lab.client.store.flow.set_value(ProviderLimit(MODELS[0], tpm=6_000))
        played.submit(40)
        found = played.wait(20)
        passed(found.judge("tokens"))
        spent = [(entry["at"], entry["answer"]["usage"]["total_tokens"]) for entry in found.entries]
        seconds = spent[-1][0] - spent[0][0]
        total = sum(tokens for _, tokens in spent)
        in_flight = limits.WORKERS * limits.SLOTS * max(tokens for _, tokens in spent)
        assert total <= 100 * (seconds + 1) + in_flight
        assert seconds > 0.6 * total / 100, "the limit was what they waited for"


# --- outages ----------------------------------------------------------------------------------------------------------


def test_an_outage_is_found_out_by_one_request_at_a_time_and_counts_nothing(tmp_path: Path) -> None:
    passed(judge_outage(limits.outage(tmp_path / "lab", 60, 15.0)))


def test_another_model_answers_while_the_first_is_away(tmp_path: Path) -> None:
    with stage(tmp_path / "lab") as played:
        played.plan(limits=None, outage={"seconds": 600, "model": MODELS[0].partition(":")[2]})
        played.submit(60, "backed")
        found = played.wait(20)
        passed(found.judge("fallback"))
        assert found.seconds < 20
        asked = [entry["request"]["model"] for entry in found.entries if entry["billed"]]
        assert set(asked) == {MODELS[1].partition(":")[2]}
        assert len(found.refusals) <= 3 * limits.SLOTS, "most jobs do not ask the first at all"


# --- pauses -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", workers=1) as made:
        made.provider.plan("done")
        yield made


def pause(played: Stage, **what: Any) -> Pause:
    (kind, name), *more = what.items()
    made = Pause(kind, name, reason="the bank is down", by="ops", **dict(more))  # pyright: ignore[reportArgumentType]
    played.lab.client.store.flow.pause(made)
    time.sleep(0.3)  # the worker hears of it
    return made


def unpause(played: Stage, made: Pause) -> None:
    """As `client.unpause` does."""
    played.lab.client.store.flow.unpause(made.kind, made.name)
    played.lab.client.store.flow.bring_forward(made.field)


def wait_until_put_off(played: Stage, job: Any, reason: str) -> None:
    def told() -> bool:
        events = played.lab.client.store.sessions.events(job.session_id)
        return any(event.type == "step_delayed" and reason in event.data["reason"] for event in events)

    wait_until(told, "the step is put off", 10)


def test_what_a_pause_holds_goes_on_within_five_seconds_of_its_end(played: Stage) -> None:
    asked = 0
    for what in ({"agent": "first"}, {"queue": ""}, {"model": MODELS[0]}, {"provider": "openai"}):
        made = pause(played, **what)
        jobs = [played.lab.client.submit("first", "hello") for _ in range(20)]
        for job in jobs:
            wait_until_put_off(played, job, "paused by ops since")
        assert len(played.provider.ledger()) == asked
        began = time.monotonic()
        unpause(played, made)
        assert [job.result(timeout=5).final_response for job in jobs] == ["done"] * 20
        assert time.monotonic() - began < 5
        asked += 20


def test_a_pause_ends_at_its_time(played: Stage) -> None:
    pause(played, agent="first", until=datetime.now(UTC) + timedelta(seconds=3))
    job = played.lab.client.submit("first", "hello")
    wait_until_put_off(played, job, "; until")
    assert job.result(timeout=8).final_response == "done"


def test_a_paused_tool_waits_the_others_run_and_nothing_happens_twice(played: Stage) -> None:
    both = calls(tool_call("refund", {"order": "17"}), tool_call("note", {"text": "asked"}))
    played.provider.plan(both, "done")
    made = pause(played, tool="refund")
    job = played.lab.client.submit("desk", "hello")
    wait_until_put_off(played, job, "tool refund paused by ops")
    assert len(played.lab.ledger.entries()) == 1, "the other call has run"
    unpause(played, made)
    assert job.result(timeout=5).final_response == "done"
    assert len(played.lab.ledger.entries()) == 2
    assert len(played.provider.ledger()) == 2, "the model was not asked again for what it had said"


def test_a_model_reads_why_a_tool_is_paused(played: Stage) -> None:
    played.provider.plan(calls(tool_call("refund", {"order": "17"})), "sorry")
    pause(played, tool="refund", tell=True)
    assert played.lab.client.submit("desk", "hello").result(timeout=10).final_response == "sorry"
    assert "the bank is down" in played.provider.ledger()[-1]["request"]["messages"][-1]["content"]
    assert not played.lab.ledger.entries()


def test_a_stop_passes_every_pause(played: Stage) -> None:
    played.provider.plan(calls(tool_call("refund", {"order": "17"})), "done")
    pause(played, tool="refund")
    begun = played.lab.client.submit("desk", "hello")
    wait_until_put_off(played, begun, "tool refund paused")
    pause(played, provider="openai")
    waiting = played.lab.client.submit("desk", "hello")
    wait_until_put_off(played, waiting, "provider openai paused")
    for job in (begun, waiting):
        played.lab.client.stop(job.session_id)
        assert job.result(timeout=5).status == "stopped"
    assert not played.lab.ledger.entries()
    assert len(played.provider.ledger()) == 1


def test_a_worker_that_starts_begins_nothing_that_is_paused(played: Stage) -> None:
    made = pause(played, agent="first")
    played.lab.workers[0].terminate()
    played.lab.workers[0].wait(20)
    job = played.lab.client.submit("first", "hello")
    played.lab.worker()
    wait_until_put_off(played, job, "agent first paused")
    assert not played.provider.ledger()
    unpause(played, made)
    assert job.result(timeout=5).final_response == "done"


def test_steps_of_a_prefork_worker_are_paused_too(tmp_path: Path) -> None:
    with stage(tmp_path / "lab", workers=0) as played:
        played.provider.plan("done")
        played.lab.worker(CELERY_AGENTS_POOL="prefork", CELERY_AGENTS_CONCURRENCY="2")
        assert played.lab.client.submit("first", "hello").result(timeout=20).final_response == "done"
        made = pause(played, agent="first")
        job = played.lab.client.submit("first", "hello")
        wait_until_put_off(played, job, "agent first paused")
        unpause(played, made)
        assert job.result(timeout=10).final_response == "done"
