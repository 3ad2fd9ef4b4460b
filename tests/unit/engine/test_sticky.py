"""Sessions that stay with their worker: the commit claims the next step, whose task the worker takes from itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_agents import Agent
from celery_agents.config.settings import Settings
from celery_agents.testing import CallTool, script
from celery_agents.worker.engine import Done, NothingToDo, StepRunner, TakenOver
from celery_agents.worker.engine.sticky import StickySessions
from celery_agents.worker.errors import StoreUnavailable
from celery_agents.worker.store import NotClaimedReason, StepRef
from celery_agents.worker.tools import tool

from support.engine import Bench


@tool(effect="pure")
def look() -> str:
    """Look something up."""
    return "seen"


looker = Agent("looker", driver=script(*[CallTool("look")] * 4, "done"), tools=[look])


class Post:
    """Takes what a worker delivers to itself."""

    def __init__(self, runner: StepRunner) -> None:
        self.refs: list[StepRef] = []
        self.takes = True
        self.fails = False
        self.is_full = False
        self._runner = runner
        runner.sticky.enable(self)

    def has_room(self) -> bool:
        return not self.is_full

    def deliver(self, ref: StepRef, now_ms: int) -> bool:
        if self.fails:
            raise LookupError("a callback of the project's")
        if self.takes:
            self.refs.append(ref)
        return self.takes

    def run(self) -> Any:
        """The step that was delivered last."""
        ref = self.refs.pop()
        return self._runner.run_step(ref)


def let_wait(runner: StepRunner, messages: int | None) -> None:
    """A queue with so many messages, whenever the worker asks."""
    stays_until = runner.sticky.stays_until
    runner.sticky.stays_until = lambda _, *, others: stays_until(messages, others=others)  # type: ignore[method-assign]


@pytest.fixture
def new_bench(new_bench: Callable[..., Bench]) -> Callable[..., Bench]:
    def make(*, messages: int | None = 0, **settings: Any) -> Bench:
        bench = new_bench(looker, **settings)
        let_wait(bench.runner, messages)
        return bench

    return make


def test_a_session_stays_and_its_steps_are_tasks_of_their_own(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench()
    post = Post(bench.runner)
    session = bench.submit()
    outcomes = [bench.step(session)]
    while post.refs:
        outcomes.append(post.run())
    assert [outcome.ref.step for outcome in outcomes] == [1, 2, 3, 4, 5]
    assert all(isinstance(outcome, Done) and outcome.publish is None for outcome in outcomes)
    assert bench.record(session).status == "completed"


def test_a_step_that_stays_is_this_workers_while_it_waits(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench()
    Post(bench.runner)
    session = bench.submit()
    bench.step(session)
    other = bench.step(session, bench.another_worker(looker, name="other"))
    assert other == NothingToDo(other.ref, NotClaimedReason.BUSY)


def test_a_step_that_was_kept_for_longer_than_its_lease_is_carried_on(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench()
    post = Post(bench.runner)
    bench.step(bench.submit())
    bench.clock.go_on(bench.settings.lease_seconds + 1)
    assert isinstance(post.run(), Done)


def test_a_step_that_another_worker_took_meanwhile_is_left_to_it(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench()
    post = Post(bench.runner)
    session = bench.submit()
    bench.step(session)
    bench.clock.go_on(bench.settings.lease_seconds + 1)
    outcome = bench.step(session, bench.another_worker(looker, name="other"))
    assert isinstance(outcome, Done)
    assert post.run() == TakenOver(StepRef(session, outcome.ref.execution_id, 2))
    assert bench.execution(session).step_count == 2


def test_what_a_worker_cannot_deliver_to_itself_is_carried_on_in_the_same_task(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench()
    post = Post(bench.runner)
    session = bench.submit()
    post.takes = False
    first = bench.step(session)
    assert (first.ref.step, isinstance(first, Done) and first.next) == (2, bench.due(session))
    post.takes = True
    bench.step(session)
    assert post.refs == [], "for a minute nobody stays"
    bench.clock.go_on(61.0)
    bench.step(session)
    assert [ref.step for ref in post.refs] == [5]


def test_a_delivery_that_raises_is_one_that_failed(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench()
    post = Post(bench.runner)
    post.fails = True
    first = bench.step(bench.submit())
    assert (first.ref.step, isinstance(first, Done)) == (2, True)
    assert bench.runner.sticky.take(StepRef(first.ref.session_id, first.ref.execution_id, 2)) is None


def test_an_execution_that_was_retried_stays_as_well(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench()
    post = Post(bench.runner)
    session = bench.submit()
    bench.step(session)
    bench.stop(session)
    assert isinstance(post.run(), Done)
    bench.retry(session)
    bench.step(session)
    (kept,) = post.refs
    assert kept.retries == 1
    outcome = post.run()
    assert isinstance(outcome, Done)
    assert (outcome.ref.step, bench.state(session).step_count) == (kept.step, kept.step)


def test_a_lost_reply_to_a_commit_that_claims_the_next_step_gives_it_to_the_queue(
    new_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = new_bench()
    post = Post(bench.runner)
    session = bench.submit()
    bench.step(session)
    database = bench.store.context.database
    attempt = database.compare_and_apply

    def lose(point: str, *rest: Any) -> Any:
        attempt(point, *rest)
        monkeypatch.undo()
        raise StoreUnavailable(point)

    monkeypatch.setattr(database, "compare_and_apply", lose)
    outcome = post.run()
    assert isinstance(outcome, Done)
    assert outcome.publish == bench.due(session)
    assert outcome.publish is not None
    assert outcome.publish.step == 3
    assert isinstance(bench.step(session, bench.another_worker(looker, name="other")), Done)


def test_nobody_stays_in_a_full_worker_or_while_a_suspect_waits(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench()
    post = Post(bench.runner)
    post.is_full = True
    assert bench.step(bench.submit()).publish is not None
    post.is_full = False
    bench.step(bench.submit())
    with bench.runner._lock.exclusive(1.0):
        closed = bench.runner._lock.is_closed
    assert (closed, bench.runner._lock.is_closed, len(post.refs)) == (True, False, 1)


def test_tasks_that_never_come_leave_nothing_behind(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench(concurrency=2)
    Post(bench.runner)
    for _ in range(10):
        bench.step(bench.submit())
    assert len(bench.runner.sticky._claims) == 4


@pytest.mark.parametrize(
    ("messages", "settings"),
    [(None, {}), (2, {"concurrency": 2}), (0, {"sticky_seconds": 0.0})],
    ids=["unknown queue", "more wait than it has slots", "switched off"],
)
def test_a_session_goes_through_the_queue(
    new_bench: Callable[..., Bench], messages: int | None, settings: dict[str, Any]
) -> None:
    bench = new_bench(messages=messages, **settings)
    post = Post(bench.runner)
    outcome = bench.step(bench.submit())
    assert isinstance(outcome, Done)
    assert outcome.publish is not None
    assert post.refs == []


def test_after_its_time_a_session_goes_through_the_queue(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench(sticky_seconds=3.0)
    post = Post(bench.runner)
    bench.step(bench.submit())
    bench.clock.go_on(2.0)
    assert post.run().publish is None
    bench.clock.go_on(1.0)
    assert post.run().publish is not None


def test_a_worker_that_drains_keeps_no_session_and_finishes_what_it_kept(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench()
    post = Post(bench.runner)
    bench.step(bench.submit())
    bench.runner.draining = True
    last = post.run()
    assert isinstance(last, Done)
    assert last.publish is not None


def test_slots_that_others_use_are_not_free() -> None:
    sticky = StickySessions(Settings.build(concurrency=5, sticky_seconds=1.0), monotonic=lambda: 100.0)
    assert [sticky.stays_until(1, others=others) for others in (0, 3, 4, 9)] == [101.0, 101.0, 100.0, 100.0]
