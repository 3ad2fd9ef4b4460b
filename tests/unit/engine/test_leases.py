"""The keeper of leases: when a call may begin, when a step is interrupted, and when its step goes to another worker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import ScriptedDriver
from celery_agents.worker.engine import LeaseKeeper
from celery_agents.worker.engine.leases import ActiveLease, Interruption
from celery_agents.worker.errors import StoreFull, StoreUnavailable
from celery_agents.worker.store import Claimed, StepRef

from support.engine import Bench
from support.wait import wait_until

LEASE = 10.0


class Keeping:
    """A keeper, with the lease of a step that it keeps.

    Attributes:
        published: The steps that the keeper gave to other workers.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.published: list[StepRef] = []
        self.keeper = LeaseKeeper(
            bench.store, bench.settings, publish=self.published.append, monotonic=bench.clock.monotonic
        )
        self.ref = bench.due(bench.submit())
        self.lease = self.claim(seconds=1000.0)

    def claim(self, seconds: float) -> ActiveLease:
        assert self.ref is not None
        claimed = self.bench.store.steps.claim(self.ref, "claim", "worker", alone=True)
        assert isinstance(claimed, Claimed), claimed
        return self.keeper.keep(claimed.claim, seconds, self.bench.clock.monotonic())

    def go_on(self, seconds: float) -> None:
        self.bench.clock.go_on(seconds)

    def lose(self) -> None:
        """Another worker takes the step over."""
        self.go_on(LEASE + self.bench.settings.lease_grace_seconds + 0.1)
        taken = self.bench.store.steps.claim(self.lease.claim.ref, "another", "another worker", alone=True)
        assert isinstance(taken, Claimed), taken


@pytest.fixture
def kept(new_bench: Callable[..., Bench]) -> Iterator[Keeping]:
    keeping = Keeping(new_bench(Agent("a", driver=ScriptedDriver(["x"])), lease_seconds=LEASE, lease_renew_seconds=2))
    yield keeping
    keeping.keeper.close()


# --- when a call may begin -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("passed", "may_begin"), [(0.0, True), (7.4, True), (7.5, False), (9.9, False), (14.9, False)])
def test_a_call_begins_within_three_quarters_of_a_lease(kept: Keeping, passed: float, may_begin: bool) -> None:
    kept.go_on(passed)
    assert kept.keeper.is_fresh(kept.lease) is may_begin


def test_a_lease_that_is_renewed_is_fresh_again(kept: Keeping) -> None:
    kept.go_on(9.0)
    assert kept.keeper.confirm(kept.lease)
    kept.go_on(7.4)
    assert kept.keeper.is_fresh(kept.lease)


def test_the_age_of_a_lease_counts_from_the_sending_of_its_claim(kept: Keeping) -> None:
    lease = kept.keeper.keep(kept.lease.claim, 1000.0, kept.bench.clock.monotonic() - 7.5)
    assert not kept.keeper.is_fresh(lease)


def test_no_call_begins_after_an_interruption(kept: Keeping) -> None:
    kept.lease.interrupt(Interruption.CANCEL, kept.bench.clock.monotonic())
    assert not kept.keeper.is_fresh(kept.lease)
    assert not kept.keeper.confirm(kept.lease)


def test_no_call_begins_at_the_deadline(kept: Keeping) -> None:
    kept.lease.deadline = kept.bench.clock.monotonic() + 5.0
    kept.go_on(5.0)
    assert not kept.keeper.is_fresh(kept.lease)
    assert kept.lease.interruption is Interruption.DEADLINE


def test_a_call_may_take_until_the_deadline_or_the_end_of_the_budget(kept: Keeping) -> None:
    now = kept.bench.clock.monotonic()
    kept.lease.deadline = now + 30.0
    assert kept.keeper.time_left(kept.lease) == kept.keeper.remaining(kept.lease) == 30.0
    kept.lease.budget_ends = now + 20.0
    assert (kept.keeper.time_left(kept.lease), kept.keeper.remaining(kept.lease)) == (20.0, 30.0)
    kept.go_on(40.0)
    assert (kept.keeper.time_left(kept.lease), kept.keeper.remaining(kept.lease)) == (0.0, 0.0)


# --- rounds ----------------------------------------------------------------------------------------------------------


def test_rounds_keep_a_claim_alive(kept: Keeping) -> None:
    for _ in range(10):
        kept.go_on(LEASE * 0.9)
        kept.keeper.tick()
    assert kept.lease.interruption is None
    assert kept.keeper.is_fresh(kept.lease)


def test_a_round_interrupts_a_step_that_was_taken_over(kept: Keeping) -> None:
    kept.lose()
    kept.keeper.tick()
    assert kept.lease.interruption is Interruption.LOST


def test_a_lost_claim_stays_lost(kept: Keeping) -> None:
    kept.lose()
    kept.keeper.tick()
    kept.lease.interrupt(Interruption.CANCEL, kept.bench.clock.monotonic())
    kept.keeper.tick()
    assert kept.lease.interruption is Interruption.LOST


def test_a_round_brings_a_stop(kept: Keeping) -> None:
    kept.bench.stop(kept.lease.claim.ref.session_id)
    kept.keeper.tick()
    assert kept.lease.interruption is Interruption.CANCEL


def test_a_claim_that_is_woken_is_interrupted_alone(kept: Keeping) -> None:
    kept.keeper.wake("another claim")
    assert kept.lease.interruption is None
    kept.keeper.wake(kept.lease.claim.id)
    assert kept.lease.interruption is Interruption.CANCEL


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ("deadline", Interruption.DEADLINE),
        ("budget_ends", Interruption.LIMIT),
        ("call_deadline", Interruption.CALL),
    ],
)
def test_a_round_interrupts_when_a_time_is_over(kept: Keeping, field: str, why: Interruption) -> None:
    setattr(kept.lease, field, kept.bench.clock.monotonic() + 5.0)
    kept.go_on(4.9)
    kept.keeper.tick()
    assert kept.lease.interruption is None
    kept.go_on(0.1)
    kept.keeper.tick()
    assert kept.lease.interruption is why


def test_a_lease_that_was_dropped_is_not_renewed(kept: Keeping) -> None:
    kept.keeper.drop(kept.lease)
    assert kept.keeper.running == 0
    kept.lose()
    kept.keeper.tick()
    assert kept.lease.interruption is None


@pytest.mark.parametrize(
    ("first", "second", "stays"),
    [
        (Interruption.CANCEL, Interruption.DEADLINE, Interruption.CANCEL),
        (Interruption.CALL, Interruption.DEADLINE, Interruption.DEADLINE),
        (Interruption.DRAIN, Interruption.CALL, Interruption.DRAIN),
        (Interruption.DEADLINE, Interruption.LOST, Interruption.LOST),
        (Interruption.LOST, Interruption.DRAIN, Interruption.LOST),
    ],
)
def test_the_first_reason_stays_unless_it_was_a_late_function_or_the_claim_is_lost(
    kept: Keeping, first: Interruption, second: Interruption, stays: Interruption
) -> None:
    kept.lease.interrupt(first, 5.0)
    kept.lease.interrupt(second, 7.0)
    assert kept.lease.interruption is stays
    assert kept.lease.interrupted_at == (5.0 if stays is first else 7.0)


def test_a_late_function_is_late_since_the_first_round_that_found_it(kept: Keeping) -> None:
    block(kept, call_deadline=kept.bench.clock.monotonic() + 5.0)
    kept.go_on(5.0)
    for _ in range(3):
        kept.keeper.tick()
        kept.go_on(0.25)
    kept.keeper.tick()
    assert kept.keeper.abandoned == 1


def test_only_a_late_function_is_forgiven_when_it_returns(kept: Keeping) -> None:
    for why, stays in ((Interruption.CALL, None), (Interruption.CANCEL, Interruption.CANCEL)):
        kept.lease.interrupt(why, 5.0)
        kept.lease.end_call()
        assert kept.lease.interruption is stays


def test_all_steps_are_interrupted_when_the_worker_drains(kept: Keeping) -> None:
    other = kept.keeper.keep(kept.lease.claim, 1000.0, kept.bench.clock.monotonic())
    kept.keeper.interrupt_all(Interruption.DRAIN)
    assert {kept.lease.interruption, other.interruption} == {Interruption.DRAIN}
    assert kept.keeper.running == 2


def test_what_waits_for_an_interruption_is_called_once(kept: Keeping) -> None:
    called: list[str] = []
    kept.lease.on_interrupt(lambda: called.append("before"))
    kept.lease.interrupt(Interruption.CANCEL, 5.0)
    kept.lease.interrupt(Interruption.LOST, 6.0)
    assert called == ["before"]
    kept.lease.on_interrupt(lambda: called.append("after"))
    assert called == ["before", "after"]


def test_a_sleep_ends_with_the_interruption(kept: Keeping) -> None:
    assert not kept.lease.wait(0.001, by_cut=True)
    kept.lease.interrupt(Interruption.CANCEL, 5.0)
    assert kept.lease.wait(60.0, by_cut=False)


def test_a_message_that_interrupts_ends_the_sleeps_that_it_is_to_end(kept: Keeping) -> None:
    called: list[str] = []
    kept.lease.on_cut(lambda: called.append("before"))
    kept.lease.cut()
    kept.lease.cut()
    kept.lease.on_cut(lambda: called.append("after"))
    assert called == ["before", "after"]
    assert kept.lease.wait(60.0, by_cut=True)
    assert not kept.lease.wait(0.001, by_cut=False)
    assert kept.lease.interruption is None


# --- the thread --------------------------------------------------------------------------------------------------------


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "celery-agents-leases"]


def test_a_started_keeper_renews_by_itself_until_it_is_closed(new_bench: Callable[..., Bench]) -> None:
    kept = Keeping(new_bench(Agent("a", driver=ScriptedDriver(["x"])), lease_seconds=LEASE, lease_renew_seconds=0.02))
    kept.keeper.start()
    kept.keeper.start()
    (thread,) = threads()
    assert thread.daemon, "a worker whose main thread has ended must not stay"
    kept.go_on(5.0)
    now = kept.bench.clock.monotonic()
    wait_until(lambda: kept.lease.renewed_at == now, "a renewal")
    kept.keeper.close()
    assert threads() == []


def test_a_stop_that_a_client_asks_for_is_heard_between_two_rounds(new_bench: Callable[..., Bench]) -> None:
    """And a function that does not react to it has half a second, not the time until the next round."""
    kept = Keeping(new_bench(Agent("a", driver=ScriptedDriver(["x"])), lease_seconds=900.0, lease_renew_seconds=300.0))
    kept.keeper.start()
    block(kept)
    kept.go_on(1.0)
    kept.keeper.wake(kept.lease.claim.id)
    assert kept.lease.interruption is Interruption.CANCEL
    wait_until(lambda: kept.lease.renewed_at == kept.bench.clock.monotonic(), "a round at once")
    kept.go_on(0.5)
    wait_until(lambda: kept.published, "the step to be given away")
    kept.keeper.close()


def test_a_round_that_fails_ends_no_further_one(new_bench: Callable[..., Bench]) -> None:
    kept = Keeping(new_bench(Agent("a", driver=ScriptedDriver(["x"])), lease_seconds=LEASE, lease_renew_seconds=0.02))

    def fail(ref: StepRef) -> None:
        kept.published.append(ref)
        raise OSError("the broker is away")

    kept.keeper.publish = fail
    block(kept)
    kept.lease.interrupt(Interruption.DRAIN, kept.bench.clock.monotonic())
    kept.go_on(0.5)
    other = kept.keeper.keep(kept.lease.claim, 5.0, kept.bench.clock.monotonic())
    kept.keeper.start()
    wait_until(lambda: kept.published, "the round that fails")
    kept.go_on(5.0)
    wait_until(lambda: other.interruption, "a further round")
    kept.keeper.close()


# --- plain functions that do not react ---------------------------------------------------------------------------------


def block(kept: Keeping, **changes: Any) -> None:
    """A plain function begins in the step's own thread."""
    kept.lease.blocked_since = kept.bench.clock.monotonic()
    for name, value in changes.items():
        setattr(kept.lease, name, value)


def test_a_function_that_goes_on_after_its_deadline_loses_its_step(kept: Keeping) -> None:
    given_up: list[str] = []
    block(kept, call_deadline=kept.bench.clock.monotonic() + 5.0, on_give_up=lambda: given_up.append("given up"))
    kept.go_on(5.0)
    kept.keeper.tick()
    assert (kept.keeper.abandoned, kept.published) == (0, [])
    kept.go_on(0.4)
    kept.keeper.tick()
    assert (kept.keeper.abandoned, kept.published) == (0, [])
    kept.go_on(0.1)
    kept.keeper.tick()
    assert (kept.keeper.abandoned, kept.published, given_up) == (1, [kept.lease.claim.ref], ["given up"])


@pytest.mark.parametrize("why", [Interruption.DEADLINE, Interruption.CANCEL, Interruption.DRAIN])
def test_a_step_that_hangs_elsewhere_is_given_away_after_as_long_as_a_lease(kept: Keeping, why: Interruption) -> None:
    """As in a hook: nothing tells the keeper that it may be waited for."""
    told: list[str] = []
    kept.lease.on_overtime = lambda: told.append("the answer is there")
    kept.lease.interrupt(why, kept.bench.clock.monotonic())
    kept.go_on(LEASE - 0.1)
    kept.keeper.tick()
    assert (kept.keeper.abandoned, kept.published) == (0, [])
    kept.go_on(0.1)
    kept.keeper.tick()
    assert (kept.keeper.abandoned, kept.published, told) == (1, [kept.lease.claim.ref], [])
    kept.keeper.drop(kept.lease)
    assert kept.keeper.abandoned == 0


def test_a_step_that_was_interrupted_before_an_outage_of_the_store_has_its_time_behind_it(kept: Keeping) -> None:
    """It may have an answer in memory, which it writes as soon as the store is there again."""
    kept.lease.interrupt(Interruption.CANCEL, kept.bench.clock.monotonic())
    kept.keeper.tick()
    kept.go_on(3 * LEASE)
    kept.keeper.tick()
    kept.go_on(LEASE - 0.1)
    kept.keeper.tick()
    assert (kept.keeper.abandoned, kept.published) == (0, [])
    kept.go_on(0.1)
    kept.keeper.tick()
    assert (kept.keeper.abandoned, kept.published) == (1, [kept.lease.claim.ref])


def test_an_abandoned_step_is_counted_until_it_ends(kept: Keeping) -> None:
    abandoned: list[str] = []
    block(kept, on_abandon=lambda: abandoned.append("told"))
    kept.lease.interrupt(Interruption.DRAIN, kept.bench.clock.monotonic())
    kept.go_on(0.5)
    kept.keeper.tick()
    kept.keeper.tick()
    assert (kept.keeper.abandoned, abandoned, len(kept.published)) == (1, ["told"], 1)
    kept.keeper.drop(kept.lease)
    assert kept.keeper.abandoned == 0


def test_a_function_that_returns_in_its_last_moment_keeps_its_step(kept: Keeping) -> None:
    block(kept, call_deadline=kept.bench.clock.monotonic() + 5.0)
    kept.go_on(5.0)
    kept.keeper.tick()
    kept.lease.end_call()
    kept.go_on(0.5)
    kept.keeper.tick()
    assert (kept.keeper.abandoned, kept.lease.interruption) == (0, None)


def test_the_step_of_another_worker_is_not_given_away(kept: Keeping) -> None:
    block(kept)
    kept.lose()
    kept.keeper.tick()
    kept.go_on(0.5)
    kept.keeper.tick()
    assert (kept.keeper.abandoned, kept.published) == (1, [])


def test_an_attempt_that_used_up_its_time_counts(kept: Keeping) -> None:
    block(kept, deadline=kept.bench.clock.monotonic() + 5.0)
    kept.go_on(5.0)
    kept.keeper.tick()
    kept.go_on(0.5)
    kept.keeper.tick()
    kept.go_on(timedelta(minutes=1).total_seconds())
    claimed = kept.bench.store.steps.claim(kept.lease.claim.ref, "next", "worker", alone=True)
    assert isinstance(claimed, Claimed)
    assert claimed.loaded.attempts == 2


def test_a_step_that_is_not_blocked_reacts_by_itself(kept: Keeping) -> None:
    kept.lease.interrupt(Interruption.DRAIN, kept.bench.clock.monotonic())
    kept.go_on(5.0)
    kept.keeper.tick()
    assert (kept.keeper.abandoned, kept.published) == (0, [])


def test_a_function_that_nothing_interrupts_may_take_its_time(kept: Keeping) -> None:
    block(kept)
    kept.go_on(5.0)
    kept.keeper.tick()
    assert (kept.keeper.abandoned, kept.published) == (0, [])


def test_only_a_late_function_tells_its_tool_that_it_was_given_up(kept: Keeping) -> None:
    given_up: list[str] = []
    block(kept, on_give_up=lambda: given_up.append("given up"))
    kept.lease.interrupt(Interruption.DRAIN, kept.bench.clock.monotonic())
    kept.go_on(0.5)
    kept.keeper.tick()
    assert (len(kept.published), given_up) == (1, [])


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreFull("full")], ids=lambda each: type(each).__name__)
def test_a_late_step_is_given_away_by_a_later_round_where_the_store_refuses_what_comes_before(
    kept: Keeping, error: Exception
) -> None:
    told: list[str] = []

    def tell() -> None:
        told.append("late")
        if len(told) == 1:
            raise error

    block(kept, on_overtime=tell)
    kept.lease.interrupt(Interruption.DEADLINE, kept.bench.clock.monotonic())
    kept.go_on(0.5)
    kept.keeper.tick()
    assert (kept.keeper.abandoned, kept.published, told) == (1, [], ["late"])
    for _ in range(3):  # else another worker would take it and ask the model again
        kept.go_on(LEASE - 1)
        kept.keeper.tick()
    assert (kept.keeper.abandoned, kept.published, told) == (1, [kept.lease.claim.ref], ["late", "late"])


def test_an_attempt_that_a_draining_worker_gives_back_does_not_count(kept: Keeping) -> None:
    block(kept)
    kept.lease.interrupt(Interruption.DRAIN, kept.bench.clock.monotonic())
    kept.go_on(0.5)
    kept.keeper.tick()
    claimed = kept.bench.store.steps.claim(kept.lease.claim.ref, "next", "worker", alone=True)
    assert isinstance(claimed, Claimed)
    assert claimed.loaded.attempts == 1


def test_abandoned_calls_and_steps_are_counted_together(kept: Keeping) -> None:
    call: Future[None] = Future()
    kept.keeper.abandon(call, kept.bench.clock.monotonic())
    block(kept)
    kept.lease.interrupt(Interruption.DRAIN, kept.bench.clock.monotonic())
    kept.go_on(0.5)
    kept.keeper.tick()
    assert kept.keeper.abandoned == 2
    call.set_result(None)
    assert kept.keeper.abandoned == 1


def test_a_function_that_was_interrupted_is_overdue_when_its_own_time_is_over(kept: Keeping) -> None:
    block(kept, deadline=kept.bench.clock.monotonic() + 100.0)
    kept.lose()
    kept.keeper.tick()
    kept.go_on(0.5)
    kept.keeper.tick()
    assert (kept.keeper.abandoned, kept.keeper.overdue) == (1, 0), "it may still return"
    kept.go_on(100.0)
    assert kept.keeper.overdue == 1
    kept.keeper.drop(kept.lease)
    assert kept.keeper.overdue == 0


def test_a_call_that_its_step_has_left_is_overdue_when_its_own_time_is_over(kept: Keeping) -> None:
    call: Future[None] = Future()
    kept.keeper.abandon(call, kept.bench.clock.monotonic() + 5.0)
    kept.go_on(4.9)
    assert (kept.keeper.abandoned, kept.keeper.overdue) == (1, 0)
    kept.go_on(0.1)
    assert kept.keeper.overdue == 1
    call.set_result(None)
    assert kept.keeper.overdue == 0
