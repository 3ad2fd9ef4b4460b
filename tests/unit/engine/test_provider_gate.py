"""Limits, pauses and breakers as a worker keeps them: who may not go is put off, and nothing of it is counted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.engine import Done, NothingToDo, RetryLater
from celery_agents.worker.errors import PutOff
from celery_agents.worker.flow.values import ModelEndpoint, ProviderFacts, ProviderLimit
from celery_agents.worker.hooks import Hook, HookPoint
from celery_agents.worker.state import InferenceResponse, ToolCall
from celery_agents.worker.store import StepRef
from celery_agents.worker.tools import tool

from support.asking_providers import USAGE, CountedDriver, agent_of, refused
from support.engine import Bench, WorkerDied

NewBench = Callable[..., Bench]
BUCKET = ModelEndpoint("openai:a", "http://provider", "~key")


def put_off(outcome: object) -> RetryLater:
    assert isinstance(outcome, RetryLater), outcome
    return outcome


def counted(bench: Bench, session: str) -> tuple[int, int]:
    """Attempts and delays of the step that is due."""
    keys = bench.store.context.keys(session)
    ((attempts, delays),) = bench.store.context.database.pipeline("test", [("HMGET", keys.ctl, "attempts", "delays")])
    return int(attempts or 0), int(delays or 0)


def set_limit(bench: Bench, **limits: Any) -> None:
    bench.store.flow.set_value(ProviderLimit("openai:a", **limits))
    bench.gate.refresh()
    bench.store.flow.bring_forward(BUCKET.digest)


def flow_keys(bench: Bench) -> list[str]:
    return [key for key in bench.key_names() if key.startswith(("ca:flow", "ca:rate"))]


# --- nothing set, nothing learned -------------------------------------------------------------------------------------


def test_without_a_limit_nothing_is_written_or_reserved(new_bench: NewBench) -> None:
    driver = CountedDriver()
    bench = new_bench(agent_of(driver))
    assert bench.ran().status == "completed"
    assert flow_keys(bench) == []
    assert not bench.gate.waits


def test_a_driver_that_asks_no_provider_is_not_told_to_observe(new_bench: NewBench) -> None:
    asked: list[Any] = []
    bench = new_bench(Agent("own", driver=lambda state: asked.append(state) or "done"))
    set_limit(bench, rpm=0)
    assert bench.ran().status == "completed"


# --- pauses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "what", [{"agent": "asking"}, {"queue": ""}, {"model": "openai:a"}, {"provider": "openai"}], ids=str
)
def test_a_paused_step_asks_nothing_counts_nothing_and_comes_back(new_bench: NewBench, what: dict[str, str]) -> None:
    driver = CountedDriver()
    bench = new_bench(agent_of(driver))
    made = bench.pause(**what)
    session = bench.submit()
    outcome = put_off(bench.step(session))
    assert "paused by ops since" in outcome.reason
    assert "the bank is down" in outcome.reason
    assert counted(bench, session) == (0, 0)
    assert not driver.asked
    bench.unpause(made)
    assert isinstance(bench.step(session), Done)
    assert bench.record(session).final_response == "openai:a: done"
    assert bench.gate.waits == {(made.name, "paused"): 1}


def test_a_pause_of_something_else_holds_nothing(new_bench: NewBench) -> None:
    bench = new_bench(agent_of(CountedDriver(), queue="gpu"))
    for what in ({"agent": "other"}, {"queue": ""}, {"queue": "cpu"}, {"model": "openai:b"}, {"tool": "asking"}):
        bench.pause(**what)
    assert bench.ran().status == "completed"


def test_a_step_of_a_named_queue_is_paused_by_it(new_bench: NewBench) -> None:
    bench = new_bench(agent_of(CountedDriver(), queue="gpu"))
    bench.pause(queue="gpu")
    assert "queue gpu paused" in put_off(bench.step(bench.submit())).reason


def test_a_pause_ends_at_its_time(new_bench: NewBench) -> None:
    bench = new_bench(agent_of(CountedDriver()))
    bench.pause(agent="asking", until=bench.clock.now + timedelta(seconds=30))
    session = bench.submit()
    assert put_off(bench.step(session)).seconds == 30
    bench.clock.go_on(31)
    assert isinstance(bench.step(session), Done)


def test_a_pause_without_an_end_is_looked_at_again(new_bench: NewBench) -> None:
    bench = new_bench(agent_of(CountedDriver()))
    bench.pause(agent="asking")
    assert put_off(bench.step(bench.submit())).seconds == 900


def test_a_stop_passes_a_pause_and_begins_nothing(new_bench: NewBench) -> None:
    def stopped_and_lost() -> object:
        bench.stop(session)
        raise WorkerDied

    driver = CountedDriver(answers={"openai:a": [stopped_and_lost]})
    bench = new_bench(agent_of(driver))
    session, other = bench.submit(), bench.submit()
    bench.worker_died(session)
    bench.pause(agent="asking")
    assert isinstance(bench.step(session), Done), "it is claimed, to be ended"
    bench.step(other)
    bench.stop(other)
    assert [bench.record(each).status for each in (session, other)] == ["stopped", "stopped"]
    assert len(driver.asked) == 1


def test_a_step_that_was_just_being_put_off_is_brought_forward_too(new_bench: NewBench) -> None:
    """Its worker looked before the pause ended, and gave the claim back after the others had been brought forward."""
    bench = new_bench(agent_of(CountedDriver()))
    made = bench.pause(agent="asking")
    bench.store.flow.unpause(made.kind, made.name)
    late = bench.submit()
    ref = bench.due(late)
    assert ref is not None
    claimed: Any = bench.store.steps.claim(ref, "late", "worker", alone=True)
    bench.store.steps.release(claimed.claim, delay_ms=900_000, give_back=True, reason="paused", put_off=made.field)
    assert isinstance(bench.step(late), Done)


def test_a_pause_that_has_ended_unheard_holds_nothing(new_bench: NewBench) -> None:
    bench = new_bench(agent_of(CountedDriver()))
    made = bench.pause(agent="asking")
    bench.store.flow.unpause(made.kind, made.name)
    assert bench.gate.view.pauses, "the worker has not heard of it"
    assert bench.ran().status == "completed"


# --- tools ------------------------------------------------------------------------------------------------------------


class Desk:
    """An agent that calls two tools at once, and what they have done."""

    def __init__(self) -> None:
        self.done: list[str] = []

        @tool(effect="unsafe")
        def refund(order: str) -> str:
            """Refund an order."""
            self.done.append(f"refund {order}")
            return "refunded"

        @tool(effect="unsafe")
        def note(text: str) -> str:
            """Note something."""
            self.done.append(f"note {text}")
            return "noted"

        calls = (
            ToolCall(id="1", name="refund", args={"order": "17"}),
            ToolCall(id="2", name="note", args={"text": "asked"}),
        )
        self.driver = CountedDriver(answers={"openai:a": [InferenceResponse(tool_calls=calls), "done"]})
        self.agent = agent_of(self.driver, tools=[refund, note])


def test_the_other_calls_run_and_the_step_waits_for_the_paused_one(new_bench: NewBench) -> None:
    desk = Desk()
    bench = new_bench(desk.agent)
    made = bench.pause(tool="refund")
    session = bench.submit()
    assert "tool refund paused by ops" in put_off(bench.step(session)).reason
    assert desk.done == ["note asked"]
    assert counted(bench, session) == (0, 0)
    bench.clock.go_on(901)
    put_off(bench.step(session))
    assert desk.done == ["note asked"], "a result is kept"
    bench.unpause(made)
    bench.run(session)
    assert desk.done == ["note asked", "refund 17"]
    assert len(desk.driver.asked) == 2, "the model is not asked again for what it had said"
    assert bench.record(session).status == "completed"


def test_the_model_reads_why_a_tool_is_paused(new_bench: NewBench) -> None:
    desk = Desk()
    bench = new_bench(desk.agent)
    bench.pause(tool="refund", tell=True)
    session = bench.submit()
    bench.run(session)
    assert bench.record(session).status == "completed"
    assert desk.done == ["note asked"]
    told = desk.driver.asked[-1].messages[-2].content
    assert "the bank is down" in told


def test_a_stop_passes_a_paused_tool(new_bench: NewBench) -> None:
    desk = Desk()
    bench = new_bench(desk.agent)
    bench.pause(tool="refund")
    session = bench.submit()
    bench.step(session)
    bench.stop(session)
    bench.run(session)
    assert bench.record(session).status == "stopped"
    assert desk.done == ["note asked"]
    outcomes = [each.outcome for each in bench.execution(session).last_step.tool_executions]  # type: ignore[union-attr]
    assert outcomes == ["not_run", "ok"]


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_limit_of_zero_holds_everything_until_it_is_raised(new_bench: NewBench) -> None:
    driver = CountedDriver()
    bench = new_bench(agent_of(driver))
    set_limit(bench, rpm=0)
    session = bench.submit()
    assert "the limit of openai:a is 0 requests a minute" in put_off(bench.step(session)).reason
    assert counted(bench, session) == (0, 0)
    set_limit(bench, rpm=60)
    assert isinstance(bench.step(session), Done)
    assert bench.gate.waits["openai:a", "zero"] == 1


def test_a_limit_that_was_raised_unheard_holds_nothing(new_bench: NewBench) -> None:
    """The step was brought forward before its worker had heard of the new limit."""
    bench = new_bench(agent_of(CountedDriver()))
    set_limit(bench, rpm=0)
    bench.store.flow.set_value(ProviderLimit("openai:a", rpm=60))
    assert bench.ran().status == "completed"


def test_a_limit_that_was_raised_unheard_counts_from_the_first_request(new_bench: NewBench) -> None:
    bench = new_bench(agent_of(CountedDriver()), retry_delay_max_seconds=0.5)
    set_limit(bench, rpm=0)
    bench.store.flow.set_value(ProviderLimit("openai:a", rpm=6))
    assert isinstance(bench.step(bench.submit()), Done)
    assert "openai:a allows 6 requests a minute" in put_off(bench.step(bench.submit())).reason


def test_who_may_not_go_is_told_the_limit_and_the_time(new_bench: NewBench) -> None:
    driver = CountedDriver()
    bench = new_bench(agent_of(driver), retry_delay_max_seconds=0.5)
    set_limit(bench, rpm=6)
    sessions = [bench.submit() for _ in range(3)]
    outcomes = [bench.step(session) for session in sessions]
    assert isinstance(outcomes[0], Done)
    assert len(driver.asked) == 1
    first, second = (put_off(outcome) for outcome in outcomes[1:])
    assert "openai:a allows 6 requests a minute (as it was set); free at" in first.reason
    assert 8 < first.seconds <= 10 < second.seconds, "one after another"
    bench.clock.go_on(10.1)
    assert isinstance(bench.step(sessions[1]), Done)
    assert isinstance(bench.step(sessions[2]), NothingToDo), "its appointment is later"


def test_tokens_are_settled_by_what_was_used(new_bench: NewBench) -> None:
    """An answer of 6 000 tokens, where 6 000 a minute are allowed: the next request waits about a minute."""
    driver = CountedDriver(facts={"openai:a": ProviderFacts(used={"tokens": 6000, "input_tokens": 6000})})
    bench = new_bench(agent_of(driver), retry_delay_max_seconds=0.5)
    set_limit(bench, tpm=6000)
    assert isinstance(bench.step(bench.submit()), Done)
    outcome = put_off(bench.step(bench.submit()))
    assert "6 000 tokens a minute" in outcome.reason
    assert outcome.seconds > 50


def test_the_group_of_an_agent_is_the_bucket_of_its_requests(new_bench: NewBench) -> None:
    agents = [agent_of(CountedDriver(), name=name, provider_group="team") for name in ("one", "two")]
    bench = new_bench(*agents, retry_delay_max_seconds=0.5)
    bench.store.flow.set_value(ProviderLimit("openai:a", rpm=6, group="team"))
    bench.gate.refresh()
    assert isinstance(bench.step(bench.submit(agent=agents[0])), Done)
    put_off(bench.step(bench.submit(agent=agents[1])))


# --- learning ---------------------------------------------------------------------------------------------------------


def test_a_refusal_is_known_to_every_session(new_bench: NewBench) -> None:
    driver = CountedDriver(answers={"openai:a": ["done", refused(retry_after=30), "done"]})
    bench = new_bench(agent_of(driver), retry_delay_max_seconds=2.0)
    bench.run(bench.submit())
    refused_session, other = bench.submit(), bench.submit()
    assert "openai:a asked to wait until" in put_off(bench.step(refused_session)).reason
    assert counted(bench, refused_session) == (0, 0)
    put_off(bench.step(other))
    assert len(driver.asked) == 2, "the other session asks nothing"
    assert bench.gate.refused == {"openai:a": 1}
    told = [event.type for event in bench.store.sessions.events(refused_session)]
    assert "model_call_failed" in told
    bench.clock.go_on(40)
    assert isinstance(bench.step(refused_session), Done)


def test_headers_are_told_to_the_fleet_when_little_is_left(new_bench: NewBench) -> None:
    driver = CountedDriver(facts={"openai:a": ProviderFacts(limits={"requests": 100}, remaining={"requests": 51})})
    bench = new_bench(agent_of(driver))
    bench.run(bench.submit())
    assert flow_keys(bench) == []
    driver.facts["openai:a"] = ProviderFacts(limits={"requests": 100}, remaining={"requests": 49})
    bench.run(bench.submit())
    assert bench.gate.view.must_reserve(BUCKET)
    (status,) = bench.store.flow.buckets()
    assert [(each.per_minute, each.source) for each in status.learned] == [(100, "header")]


def test_a_quota_puts_off_and_does_not_fail(new_bench: NewBench) -> None:
    driver = CountedDriver(answers={"openai:a": [refused("quota"), "done"]})
    bench = new_bench(agent_of(driver))
    session = bench.submit()
    outcome = put_off(bench.step(session))
    assert "the quota of its key is used up" in outcome.reason
    assert counted(bench, session) == (0, 0)
    assert len(driver.asked) == 1
    bench.store.flow.unpause("model", "openai:a")
    bench.gate.refresh()
    bench.store.flow.bring_forward(BUCKET.digest)
    assert isinstance(bench.step(session), Done)


def test_a_refusal_that_says_nothing_of_limits_fails_as_before(new_bench: NewBench) -> None:
    bench = new_bench(agent_of(CountedDriver(answers={"openai:a": [refused("rejected")]})))
    assert bench.ran().status == "failed"
    assert flow_keys(bench) == []


# --- outages ----------------------------------------------------------------------------------------------------------


def open_breaker(bench: Bench, driver: CountedDriver) -> list[str]:
    """Sessions that have found the provider away, so that its breaker is open."""
    driver.answers["openai:a"] = [refused("unavailable")]
    sessions = [bench.submit() for _ in range(3)]
    for session in sessions:
        bench.step(session)
    (status,) = bench.store.flow.buckets()
    assert status.away_since_ms > 0
    return sessions


@pytest.fixture
def away(new_bench: NewBench) -> tuple[Bench, CountedDriver, list[str]]:
    driver = CountedDriver()
    bench = new_bench(agent_of(driver), driver_attempts=2, retry_delay_max_seconds=0.5)
    sessions = open_breaker(bench, driver)
    driver.asked.clear()
    return bench, driver, sessions


Away = tuple[Bench, CountedDriver, list[str]]


def test_an_outage_is_no_attempt(away: Away) -> None:
    bench, driver, sessions = away
    other = bench.submit()
    assert "openai:a is away since" in put_off(bench.step(other)).reason
    assert not driver.asked
    assert counted(bench, other) == (0, 0)
    assert counted(bench, sessions[-1]) == (0, 0), "the one that found it out"


def test_one_request_at_a_time_finds_out_whether_it_is_back(away: Away) -> None:
    bench, driver, _ = away
    bench.clock.go_on(6)
    for _ in range(3):
        put_off(bench.step(bench.submit()))
    assert len(driver.asked) == 1


def test_all_come_back_when_it_does(away: Away) -> None:
    bench, driver, sessions = away
    waiting = [bench.submit() for _ in range(5)]
    for session in waiting:
        put_off(bench.step(session))
    bench.clock.go_on(6)
    driver.answers["openai:a"] = ["done"]
    published: list[StepRef] = []
    bench.keeper.publish = published.append
    assert isinstance(bench.step(bench.submit()), Done)
    assert waiting[-1] in {ref.session_id for ref in published}, "at once, without the sweep"
    assert all(bench.due(session) is not None for session in (*waiting, *sessions))
    for session in waiting:
        assert isinstance(bench.step(session), Done)


def test_the_next_model_answers_meanwhile(new_bench: NewBench) -> None:
    driver = CountedDriver()
    agent = agent_of(driver, "openai:a", "anthropic:b")
    bench = new_bench(agent, driver_attempts=2, retry_delay_max_seconds=0.5)
    open_breaker(bench, driver)
    driver.asked.clear()
    assert bench.ran().final_response == "anthropic:b: done"
    assert driver.models == ["anthropic:b"]


def test_a_judge_that_may_not_ask_puts_its_step_off(new_bench: NewBench) -> None:
    raised: list[BaseException] = []

    def judge(context: Any) -> Any:
        try:
            return context.ask_model("judge", "Is this right?") and context
        except PutOff as error:
            raised.append(error)
            raise

    driver = CountedDriver()
    bench = new_bench(agent_of(driver, hooks=[Hook(HookPoint.BEFORE_STEP, judge)]))
    bench.pause(model="openai:a")
    session = bench.submit()
    assert "model openai:a paused" in put_off(bench.step(session)).reason
    assert len(raised) == 1
    assert counted(bench, session) == (0, 0)
    assert not driver.asked


def test_the_usage_of_the_driver_is_the_estimate_of_the_next_request(new_bench: NewBench) -> None:
    """Nothing is known of the first request, so it costs nothing; the second one costs what the first has used."""
    used = {"input_tokens": float(USAGE.input), "output_tokens": float(USAGE.output), "tokens": 120.0}
    driver = CountedDriver(facts={"openai:a": ProviderFacts(used=used)})  # type: ignore[arg-type]
    bench = new_bench(agent_of(driver), retry_delay_max_seconds=0.5)
    bench.run(bench.submit())
    set_limit(bench, tpm=60)
    put_off_or_done = bench.step(bench.submit())
    assert isinstance(put_off_or_done, Done)
    assert "60 tokens a minute" in put_off(bench.step(bench.submit())).reason
