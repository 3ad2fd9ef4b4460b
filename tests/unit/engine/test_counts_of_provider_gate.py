"""What a worker counts of its requests to a provider, what it expects of the next one, and what it tells the fleet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import InferenceRequest
from celery_agents.worker.engine import Done
from celery_agents.worker.engine.leases import CallInterrupted, Interruption
from celery_agents.worker.engine.provider_gate import Call
from celery_agents.worker.engine.run import Run
from celery_agents.worker.errors import DriverError, PutOff, StoreUnavailable, UnusableAnswer
from celery_agents.worker.flow.values import BucketStatus, ModelEndpoint, ProviderFacts, ProviderLimit
from celery_agents.worker.state import InferenceResponse, InferenceUsage, LLMConfig, Message, ToolCall
from celery_agents.worker.store.flow.records import Settlement
from celery_agents.worker.tools import tool

from support.asking_providers import CountedDriver, agent_of, refused
from support.claimed_runs import claim_run
from support.engine import Bench

NewBench = Callable[..., Bench]


class Asking:
    """The gate of a worker, asked as the engine asks it, for as many sessions as a test needs."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.gate = bench, bench.gate
        self.driver = cast("CountedDriver", bench.agents[0].answering)
        self.run = self.new_run()

    def new_run(self) -> Run:
        """The claimed step of a further session."""
        return claim_run(self.bench)[0]

    def begin(self, run: Run | None = None, model: str | None = None, text: str = "", timeout: float = 600.0) -> Call:
        settings = None if model is None else LLMConfig(model=model)
        run = run or self.run
        request = InferenceRequest(
            run.state, "s", "e", 1, timeout=timeout, settings=settings, replaced_messages=(Message.user(text),)
        )
        call = self.gate.begin(run, request)
        assert call is not None
        return call

    def end(self, call: Call, run: Run | None = None, **facts: Any) -> Settlement:
        """Answer a request that is settled."""
        call.observe(ProviderFacts(**facts))
        settlement = self.gate.settle(run or self.run, call)
        assert settlement is not None
        return settlement

    def answered(self, **facts: Any) -> Settlement:
        return self.end(self.begin(), **facts)

    def limit(self, **limits: float) -> None:
        self.bench.store.flow.set_value(ProviderLimit("openai:a", **limits))
        self.gate.refresh()

    @property
    def bucket(self) -> BucketStatus:
        (status,) = self.bench.store.flow.buckets()
        return status

    def go_on(self, seconds: float) -> None:
        self.bench.clock.go_on(seconds)


def looking() -> Agent:
    @tool(effect="pure")
    def look() -> str:
        """Look."""
        return "seen"

    return agent_of(CountedDriver(), tools=[look])


@pytest.fixture
def asking(new_bench: NewBench) -> Asking:
    """A gate whose requests are all reserved, and of which none has to wait."""
    found = Asking(new_bench(looking(), retry_delay_max_seconds=2.0, sweep_seconds=1.0))
    found.limit(rpm=1e9)
    return found


# --- calls -----------------------------------------------------------------------------------------------------------


def test_a_worker_tells_its_calls_that_ended_within_the_last_minute(asking: Asking) -> None:
    told: list[int] = []
    for pause in (0.0, 30.0, 30.0, 0.5, 29.6):
        asking.go_on(pause)
        told.append(asking.answered().counts.last_minute)
    assert told == [1, 2, 3, 3, 3], "one of a minute ago counts still"


def test_a_worker_is_busy_from_its_first_request_until_none_was_in_flight_for_five_seconds(asking: Asking) -> None:
    told: list[tuple[int, float]] = []
    for pause in (0.0, 5.0, 5.1, 1.0):
        asking.go_on(pause)
        call = asking.begin()
        asking.go_on(2.0)
        counts = asking.end(call).counts
        told.append((counts.accepted, counts.busy_seconds))
    assert told == [(1, 2.0), (2, pytest.approx(9.0)), (1, pytest.approx(2.0)), (2, pytest.approx(5.0))]


def test_a_worker_is_busy_as_long_as_a_request_is_in_flight(asking: Asking) -> None:
    asking.answered()
    long_one = asking.begin()
    for _ in range(2):
        asking.go_on(10.0)
        short_one = asking.end(asking.begin()).counts
    assert (short_one.accepted, short_one.busy_seconds) == (3, 20.0)
    last = asking.end(long_one).counts
    assert (last.accepted, last.busy_seconds) == (4, 20.0)
    asking.go_on(5.1)
    assert asking.answered().counts.accepted == 1, "then it was idle"


def test_each_endpoint_is_counted_by_itself(asking: Asking) -> None:
    asking.bench.store.flow.set_value(ProviderLimit("openai:b", rpm=1e9))
    asking.gate.refresh()
    asking.answered(used={"input_tokens": 500})
    assert asking.end(asking.begin(model="openai:b")).counts.accepted == 1
    reservation = asking.begin(model="openai:b").reservation
    assert reservation is not None
    assert reservation.cost["input_tokens"] == 0


def fail(asking: Asking, runs: list[Run], kind: str = "unavailable") -> bool:
    """A request that fails, of each session in turn; whether its failure says that the provider is away."""
    runs.append(runs.pop(0))
    error = refused(kind)
    asking.gate.fail(runs[0], asking.begin(runs[0]), error)
    return error.is_limited


def test_ten_failures_in_a_row_are_an_outage_at_any_load(asking: Asking) -> None:
    """Half of the calls of a minute have to fail, of three sessions; or a worker has seen nothing but failures."""
    runs = [asking.new_run() for _ in range(3)]
    for _ in range(40):
        asking.answered()
    assert [fail(asking, runs) for _ in range(10)] == [False] * 9 + [True]
    assert asking.bucket.away_since_ms == asking.bench.clock.now_ms()


@pytest.mark.parametrize("kind", ["", "rejected"])
def test_an_answer_ends_a_row_of_failures(asking: Asking, kind: str) -> None:
    """A request that is refused as a wrong one was answered, too."""
    runs = [asking.new_run() for _ in range(3)]
    for _ in range(40):
        asking.answered()
    assert not any(fail(asking, runs) for _ in range(9))
    _ = fail(asking, runs, kind) if kind else asking.answered()
    assert [fail(asking, runs) for _ in range(10)] == [False] * 9 + [True]


def test_what_fails_on_our_side_is_no_answer_and_no_failure_of_the_provider(asking: Asking) -> None:
    runs = [asking.new_run() for _ in range(3)]
    for _ in range(40):
        asking.answered()
    for _ in range(9):
        fail(asking, runs)
    asking.gate.fail(asking.run, asking.begin(), CallInterrupted())
    assert fail(asking, runs), "the tenth in a row"


# --- what a request is expected to cost ------------------------------------------------------------------------------


def cost_of(call: Call) -> tuple[float, float, float]:
    """Tokens, those of the input, and those of the output that were reserved."""
    assert call.reservation is not None
    cost = call.reservation.cost
    assert cost["requests"] == 1
    return cost["tokens"], cost["input_tokens"], cost["output_tokens"]


def test_the_first_request_is_expected_to_read_a_token_of_each_four_characters(asking: Asking) -> None:
    assert cost_of(asking.begin(text="x" * 400)) == (100, 100, 0)


def test_a_request_is_expected_to_cost_what_others_did_the_newest_most(asking: Asking) -> None:
    asking.answered(used={"input_tokens": 1_000, "output_tokens": 100})
    assert cost_of(asking.begin(text="x" * 400)) == (1_100, 1_000, 100)
    asking.answered(used={"input_tokens": 2_000, "output_tokens": 50})
    assert cost_of(asking.begin()) == (1_290, 1_200, 90), "by a fifth of the difference"
    asking.answered()
    assert cost_of(asking.begin()) == (1_290, 1_200, 90), "an answer that tells nothing changes nothing"


def test_a_session_is_expected_to_read_what_its_last_request_did(asking: Asking) -> None:
    asking.answered(used={"input_tokens": 1_000, "output_tokens": 100})
    usage = InferenceUsage(input=7, cache_read=30, cache_write=400, output=9, requests=1)
    calls = (ToolCall(id="1", name="look", args={}),)
    asking.driver.answers["openai:a"] = [InferenceResponse(tool_calls=calls, usage=usage)]
    session = asking.bench.submit()
    assert isinstance(asking.bench.step(session), Done)
    assert cost_of(asking.begin(claim_run(asking.bench, session)[0])) == (537, 437, 100)


def test_a_reservation_lasts_as_long_as_its_request_may_take(asking: Asking) -> None:
    asking.begin(timeout=7.5)
    asking.go_on(7.4)
    assert asking.bucket.in_flight == 1
    asking.go_on(0.2)
    assert asking.bucket.in_flight == 0


# --- what the fleet is told ------------------------------------------------------------------------------------------


def test_what_an_answer_tells_in_pieces_is_told_together(asking: Asking) -> None:
    call = asking.begin()
    call.observe(ProviderFacts(limits={"requests": 10}, remaining={"requests": 9}, used={"tokens": 5}))
    call.observe(ProviderFacts(limits={"tokens": 99}, reset_seconds={"tokens": 3.0}))
    settlement = asking.end(call, retry_after=1.0)
    assert settlement.facts == ProviderFacts(
        limits={"requests": 10, "tokens": 99}, remaining={"requests": 9}, reset_seconds={"tokens": 3.0},
        used={"tokens": 5}, retry_after=1.0,
    )  # fmt: skip
    assert settlement.used == {"requests": 1, "tokens": 5}


def test_an_answer_that_tells_no_usage_is_charged_as_it_was_reserved(asking: Asking) -> None:
    assert asking.answered().used is None


@pytest.fixture
def unlimited(new_bench: NewBench) -> Asking:
    return Asking(new_bench(looking()))


@pytest.mark.parametrize(("left", "is_told"), [({"requests": 50}, False), ({"requests": 49}, True), ({}, False)])
def test_the_fleet_hears_of_a_limit_of_which_less_than_half_is_left(
    unlimited: Asking, left: Any, is_told: bool
) -> None:
    call = unlimited.begin()
    assert call.reservation is None
    call.observe(ProviderFacts(limits={"requests": 100}, remaining=left))
    settlement = unlimited.gate.settle(unlimited.run, call)
    assert (settlement is not None) == is_told
    if settlement is not None:
        assert settlement.reservation.at_ms == 0, "it was sent without one"
        assert unlimited.gate.finish(settlement) is not None
        assert [each.per_minute for each in unlimited.bucket.learned] == [100]


def test_an_answer_counts_for_a_bucket_that_learned_something_meanwhile(unlimited: Asking) -> None:
    early = unlimited.begin()
    unlimited.gate.fail(unlimited.run, unlimited.begin(), refused(retry_after=1.0))
    assert unlimited.gate.settle(unlimited.run, early) is not None


@pytest.mark.parametrize(
    ("kind", "counted", "is_limited"),
    [
        ("rate_limit", 1, True),
        ("quota", 1, True),
        ("overloaded", 1, False),
        ("timeout", 1, False),
        ("rejected", 0, False),
    ],
)
def test_a_failure_is_counted_where_it_says_something_of_the_provider(
    unlimited: Asking, kind: str, counted: int, is_limited: bool
) -> None:
    error = refused(kind)
    unlimited.gate.fail(unlimited.run, unlimited.begin(), error)
    assert unlimited.gate.refused["openai:a"] == counted
    assert error.is_limited == is_limited


def test_the_reservation_of_a_request_that_was_rejected_is_given_back(asking: Asking) -> None:
    asking.gate.fail(asking.run, asking.begin(), refused("rejected"))
    assert asking.bucket.in_flight == 0
    assert asking.bucket.learned == ()


def test_an_answer_that_cannot_be_used_says_nothing_of_limits(unlimited: Asking) -> None:
    error = UnusableAnswer("no JSON")
    unlimited.gate.fail(unlimited.run, unlimited.begin(), error)
    assert unlimited.bench.store.flow.buckets() == []
    assert not unlimited.gate.refused


@pytest.mark.parametrize(
    ("facts", "error", "learned", "until_ms"),
    [
        (ProviderFacts(), refused(retry_after=20.0, limits={"requests": 30}), (30, "text"), 20_000),
        (ProviderFacts(limits={"requests": 40}), refused(retry_after=20.0), (40, "header"), 20_000),
        (
            ProviderFacts(limits={"requests": 40}, retry_after=9.0),
            refused(retry_after=20.0, limits={"requests": 30}), (40, "header"), 20_000,
        ),
        (ProviderFacts(limits={"requests": 40}, retry_after=9.0), refused(), (40, "header"), 9_000),
    ],
)  # fmt: skip
def test_a_refusal_teaches_what_its_headers_say_else_its_text(
    unlimited: Asking, facts: ProviderFacts, error: DriverError, learned: tuple[float, str], until_ms: int
) -> None:
    call = unlimited.begin()
    call.observe(facts)
    unlimited.gate.fail(unlimited.run, call, error)
    assert [(each.per_minute, each.source) for each in unlimited.bucket.learned] == [learned]
    assert unlimited.bucket.not_before_ms - unlimited.bench.clock.now_ms() == until_ms


def test_a_quota_that_the_headers_name_is_one_whatever_the_status_says(unlimited: Asking) -> None:
    call = unlimited.begin()
    call.observe(ProviderFacts(kind="quota"))
    error = refused("rate_limit")
    unlimited.gate.fail(unlimited.run, call, error)
    assert unlimited.bucket.why == "quota"
    with pytest.raises(PutOff, match="the quota of its key is used up"):
        unlimited.begin()


# --- who has to wait --------------------------------------------------------------------------------------------------


def test_a_request_waits_in_its_slot_for_what_is_free_soon(asking: Asking) -> None:
    asking.limit(rpm=60)
    asking.begin()
    run, lease = claim_run(asking.bench)
    assert asking.begin(run).reservation is not None
    assert lease.waited == [1.0], "one a second"
    assert asking.gate.waits == {("openai:a", "rate"): 1}


@pytest.mark.parametrize(("sweep_seconds", "early"), [(1.0, 1.0), (5.0, 2.0)])
def test_a_request_that_is_put_off_comes_back_a_little_early(
    new_bench: NewBench, sweep_seconds: float, early: float
) -> None:
    """The sweep looks once in a while, and what is left then is waited for exactly, in the slot."""
    asking = Asking(new_bench(looking(), retry_delay_max_seconds=2.0, sweep_seconds=sweep_seconds))
    asking.limit(rpm=6)
    asking.begin()
    run, lease = claim_run(asking.bench)
    with pytest.raises(PutOff, match="openai:a allows 6 requests a minute") as put_off:
        asking.begin(run)
    assert put_off.value.seconds == 10.0 - early
    assert lease.waited == []


def test_the_waits_in_a_slot_are_together_no_longer_than_the_longest_delay(new_bench: NewBench) -> None:
    """After a refusal few are in flight at a time; a request asks again each tenth of a second."""
    asking = Asking(new_bench(looking(), retry_delay_max_seconds=0.35))
    asking.limit(rpm=1e9)
    asking.begin()
    asking.gate.fail(asking.run, asking.begin(), refused(retry_after=0.0))
    run, lease = claim_run(asking.bench)
    with pytest.raises(PutOff, match="openai:a has just refused requests") as put_off:
        asking.begin(run)
    assert lease.waited == [pytest.approx(0.1)] * 3
    assert put_off.value.seconds == 0.0
    assert asking.gate.waits == {("openai:a", "window"): 4}


def test_a_request_whose_wait_is_interrupted_is_not_made(asking: Asking) -> None:
    asking.limit(rpm=60)
    asking.begin()
    run, lease = claim_run(asking.bench)
    lease.interrupts_waits = True
    with pytest.raises(CallInterrupted):
        asking.begin(run)
    assert len(lease.waited) == 1


# --- while Redis is away ------------------------------------------------------------------------------------------------


def away(calls: list[str], then: Callable[[], object] = lambda: None) -> Any:
    def ask(*args: Any, **kwargs: Any) -> Any:
        calls.append("asked")
        then()
        raise StoreUnavailable("Redis is away")

    return ask


def test_an_interrupted_step_does_not_wait_for_redis_to_make_a_request(asking: Asking) -> None:
    calls: list[str] = []
    run, lease = claim_run(asking.bench)
    flow = asking.bench.store.flow
    flow.reserve = away(calls, lambda: lease.interrupt(Interruption.DRAIN, 0.0))  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        asking.begin(run)
    assert calls == ["asked"]


def test_a_settlement_that_redis_does_not_take_fails_no_step(asking: Asking) -> None:
    calls: list[str] = []
    call, failed = asking.begin(), asking.begin()
    asking.bench.store.flow.settle = away(calls)  # type: ignore[method-assign]
    assert asking.gate.finish(asking.end(call)) is None
    error = refused()
    asking.gate.fail(asking.run, failed, error)
    assert not error.is_limited, "nothing of it is known to the fleet"
    assert calls == ["asked"] * 2
    assert asking.gate.finish(None) is None


# --- endpoints ---------------------------------------------------------------------------------------------------------


def test_the_endpoint_of_a_model_is_found_once_among_a_thousand_models(unlimited: Asking) -> None:
    """A client is made to find it; sessions may name any models, and those of a day must not fill a worker's memory."""
    found: list[str] = []
    driver = unlimited.driver
    endpoint = driver.endpoint

    def counted(settings: LLMConfig | None = None) -> ModelEndpoint | None:
        found.append(driver.model_of(settings))
        return endpoint(settings)

    driver.__dict__["endpoint"] = counted
    kept = unlimited.begin(model="openai:0")
    for number in range(1, 1_000):
        unlimited.gate.settle(unlimited.run, unlimited.begin(model=f"openai:{number}"))
    unlimited.begin(model="openai:0")
    assert len(found) == 1_000
    unlimited.begin(model="openai:1000")
    unlimited.begin(model="openai:0")
    assert found[1_000:] == ["openai:1000", "openai:0"]
    assert unlimited.begin(model="openai:0").load is kept.load, "what is in flight is counted still"
    assert unlimited.begin(model="openai:7").load is not kept.load
