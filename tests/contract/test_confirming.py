"""What leaves Redis is confirmed first; without a confirmation nothing leaves, and asking again does nothing twice."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from celery_agents.worker.engine import retry_transition, stop_transition
from celery_agents.worker.errors import NotConfirmed, StoreUnavailable
from celery_agents.worker.flow.values import Pause, ProviderLimit, limit_field
from celery_agents.worker.store import Claimed, Store
from celery_agents.worker.store.confirming import Confirmer
from celery_agents.worker.store.context import Publisher
from celery_agents.worker.store.database import USED_PRIMARIES, Command, Confirmation, Database

from support.store import Bench, SpyDatabase, step_transition
from support.wait import wait_until

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")

CONFIRMED = Confirmation(acknowledged=1, connected=1, is_primary=True, primary="id")
MISSING = replace(CONFIRMED, acknowledged=0)


class ReplicatedSpy(SpyDatabase):
    """Says of its replicas what a test has set, and that its connections led to the primary `used`."""

    def __init__(self, inner: Database) -> None:
        super().__init__(inner)
        self.says: Confirmation | Exception = CONFIRMED
        self.used = "id"
        self.asked = 0
        self.dropped = 0
        self.gate: threading.Event | None = None

    def confirm(self, commands: Sequence[Command]) -> Confirmation:
        self.asked += 1
        if self.gate is not None:
            assert self.gate.wait(10)
        *writes, (wait, *_) = commands
        assert wait == "WAIT"
        assert self.inner.pipeline("confirm", writes)[-1] == 1, "a write goes before it"
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def drop_connections(self, key: str) -> None:
        self.dropped += 1

    def _note(self, point: str, commands: Sequence[Command]) -> None:
        super()._note(point, commands)
        if (used := USED_PRIMARIES.get()) is not None:
            used.add(self.used)


class ReplicatedBench(Bench):
    """A store whose actions and begin records are confirmed."""

    def __init__(self, database: Database, **settings: Any) -> None:
        self.replicated = ReplicatedSpy(database)
        super().__init__(database, replicas=1, **settings)

    def another(self) -> Store:
        self.spy = self.replicated
        return Store(
            self.spy,
            self.settings,
            clock=self.clock,
            publisher=Publisher(),
            confirmer=Confirmer(self.replicated, self.settings, list),
            confirms_actions=True,
        )


@pytest.fixture(params=["as expected", "the long way"])
def bench(request: pytest.FixtureRequest, database: Database) -> ReplicatedBench:
    found = ReplicatedBench(database) if request.param == "as expected" else ReplicatedBench(database, cache_bytes=0)
    found.submit()
    return found


def end(bench: Bench, step: int = 1, *, failed: bool = False) -> None:
    claimed = bench.claim(step)
    transition = step_transition(claimed, final=not failed, failed=failed)
    bench.store.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=False)


ACTIONS: dict[str, tuple[Callable[[Bench], object], Callable[[Bench], object]]] = {
    "submit": (lambda bench: None, lambda bench: bench.submit("another")),
    "message": (lambda bench: None, lambda bench: bench.message("hello", "op")),
    "stop": (
        lambda bench: None,
        lambda bench: bench.store.sessions.stop(bench.session, bench.execution, stop_transition),
    ),
    "suspend": (lambda bench: None, lambda bench: bench.store.sessions.suspend(bench.session, reason="", by="")),
    "resume": (
        lambda bench: bench.store.sessions.suspend(bench.session, reason="", by=""),
        lambda bench: bench.store.sessions.resume(bench.session, by=""),
    ),
    "retry": (
        lambda bench: end(bench, failed=True),
        lambda bench: bench.store.sessions.retry(bench.session, retry_transition(None, None)),
    ),
    "delete": (end, lambda bench: bench.store.sessions.delete(bench.session)),
    "fork": (end, lambda bench: bench.store.sessions.fork(bench.session, f"{bench.session}.{uuid.uuid4().hex}")),
    "limit": (lambda bench: None, lambda bench: bench.store.flow.set_value(ProviderLimit(model="model", rpm=1))),
    "no limit": (lambda bench: None, lambda bench: bench.store.flow.remove_value(limit_field("model", None))),
    "pause": (
        lambda bench: None,
        lambda bench: bench.store.flow.pause(Pause(kind="agent", name="agent", reason="why")),
    ),
    "no pause": (lambda bench: None, lambda bench: bench.store.flow.unpause("agent", "agent")),
}


@pytest.mark.parametrize("name", list(ACTIONS))
def test_an_action_is_acknowledged_when_it_is_confirmed(bench: ReplicatedBench, name: str) -> None:
    prepare, act = ACTIONS[name]
    prepare(bench)
    asked = bench.replicated.asked
    bench.replicated.says = MISSING
    with pytest.raises(NotConfirmed):
        act(bench)
    assert bench.replicated.asked == asked + 1
    bench.replicated.says = CONFIRMED
    if name not in ("retry", "fork"):  # asked again, these are refused: it runs, or is there, by now
        act(bench)
        assert bench.replicated.asked == asked + 2, "what was applied before is confirmed, too"


def test_the_engine_confirms_no_action_of_its_own(bench: ReplicatedBench) -> None:
    worker = Store(
        bench.spy, bench.settings, clock=bench.clock, publisher=Publisher(), confirmer=bench.store.context.confirmer
    )
    bench.replicated.says = MISSING
    worker.sessions.stop(bench.session, bench.execution, stop_transition)


def begin(bench: Bench, claimed: Claimed, *, again: Sequence[int] = ()) -> Any:
    return bench.store.steps.begin_calls(claimed.claim, {0: 1000}, claimed.claim.now_ms, again=again)


def record(bench: Bench) -> bytes | None:
    return bench.database("HGET", bench.journal(bench.ref()), "t0:s")


def test_a_call_that_is_not_confirmed_does_not_begin_and_leaves_no_record(bench: ReplicatedBench) -> None:
    claimed = bench.claim()
    for trouble in (MISSING, StoreUnavailable("no answer")):
        bench.replicated.says = trouble
        with pytest.raises(NotConfirmed):
            begin(bench, claimed)
        assert record(bench) is None
    bench.replicated.says = CONFIRMED
    assert begin(bench, claimed).own == {0}
    assert record(bench) is not None


def test_a_call_that_an_earlier_claim_began_keeps_its_record(bench: ReplicatedBench) -> None:
    claimed = bench.claim()
    begin(bench, claimed)
    bench.end_lease(claimed.claim)
    second = bench.claim()
    bench.replicated.says = MISSING
    with pytest.raises(NotConfirmed):
        begin(bench, second, again=[0])
    assert record(bench) is not None, "it may have happened"


def test_calls_of_others_need_no_confirmation(bench: ReplicatedBench) -> None:
    claimed = bench.claim()
    begin(bench, claimed)
    bench.end_lease(claimed.claim)
    asked = bench.replicated.asked
    assert not begin(bench, bench.claim()).own
    assert bench.replicated.asked == asked


def safe(bench: Bench) -> int:
    mark = bench.database("HGET", bench.store.context.keys(bench.session).session, "safe") or b"0"
    return int(mark.split()[0])


def test_an_end_is_safe_when_it_is_confirmed_and_its_readers_wait_for_nothing(bench: ReplicatedBench) -> None:
    bench.commit(bench.claim())
    assert safe(bench) == 0, "the execution goes on"
    bench.commit(bench.claim(2), final=True)
    assert safe(bench) == bench.store.sessions.header(bench.session).version
    bench.replicated.says = MISSING
    asked = bench.replicated.asked
    assert bench.store.sessions.header(bench.session).confirmed is True
    result = bench.store.sessions.outcome(bench.session, bench.execution)
    assert result is not None
    assert bench.replicated.asked == asked


def test_an_end_that_is_not_confirmed_is_given_to_no_program(bench: ReplicatedBench) -> None:
    bench.replicated.says = MISSING
    end(bench)
    assert safe(bench) == 0
    with pytest.raises(NotConfirmed):
        bench.store.sessions.outcome(bench.session, bench.execution)
    assert bench.store.sessions.header(bench.session).confirmed is False
    bench.replicated.says = CONFIRMED
    assert bench.store.sessions.outcome(bench.session, bench.execution) is not None


def test_what_is_read_without_waiting_says_whether_its_end_is_confirmed(bench: ReplicatedBench) -> None:
    def confirmed() -> bool | None:
        (listed,) = [each for each in bench.store.sessions.headers(limit=10)[0] if each.session_id == bench.session]
        assert listed == bench.store.sessions.header(bench.session)
        return listed.confirmed

    assert confirmed() is None, "it has not ended"
    end(bench, failed=True)
    assert confirmed() is True
    bench.store.sessions.label(bench.session, {"team": "a"})
    assert confirmed() is True, "the end is the same"
    bench.store.sessions.retry(bench.session, retry_transition(None, None))
    assert confirmed() is None
    bench.replicated.says = MISSING
    end(bench, 2)
    assert confirmed() is False, "another end of the same execution"


def test_an_execution_that_a_client_stops_is_safe_when_the_stop_is_confirmed(bench: ReplicatedBench) -> None:
    bench.store.sessions.stop(bench.session, bench.execution, stop_transition)
    header = bench.store.sessions.header(bench.session)
    assert (header.status, header.confirmed, safe(bench)) == ("stopped", True, header.version)


def test_the_mark_of_an_earlier_version_is_none(bench: ReplicatedBench) -> None:
    end(bench)
    bench.execution = bench.message("next").execution_id
    bench.replicated.says = MISSING
    end(bench)
    with pytest.raises(NotConfirmed):
        bench.store.sessions.outcome(bench.session, bench.execution)


def test_no_mark_is_written_to_a_session_that_is_gone(bench: ReplicatedBench) -> None:
    def delete() -> None:
        other = Store(bench.spy.inner, bench.settings, clock=bench.clock, publisher=Publisher())
        other.sessions.delete(bench.session)

    bench.spy.before("commit.safe", delete)
    end(bench)
    session = bench.store.context.keys(bench.session).session
    assert bench.database("HGETALL", session)[::2] == [b"created"]


@pytest.mark.parametrize(
    ("says", "sentence"),
    [
        (MISSING, "0 of 1 replicas have it"),
        (replace(CONFIRMED, is_primary=False), "no primary any more"),
        (replace(CONFIRMED, connected=2, acknowledged=2), "2 replicas are connected, and there are to be at most 1"),
        (replace(CONFIRMED, primary="other"), "another server is primary by now"),
        (replace(CONFIRMED, primary=""), "tells no replication id"),
    ],
    ids=["missing", "demoted", "foreign", "another primary", "no id"],
)
def test_what_does_not_count(bench: ReplicatedBench, says: Confirmation, sentence: str) -> None:
    bench.replicated.says = says
    with pytest.raises(NotConfirmed, match=sentence):
        bench.message("hello")
    assert bench.replicated.dropped == (says.primary == "other")


def test_a_connection_that_knew_no_primary_confirms_nothing(bench: ReplicatedBench) -> None:
    confirmer = bench.store.context.confirmer
    assert confirmer is not None
    with pytest.raises(NotConfirmed):
        confirmer.confirm(bench.store.context.shards[0], set())


def test_who_comes_meanwhile_shares_the_next_confirmation(bench: ReplicatedBench) -> None:
    confirmer = bench.store.context.confirmer
    assert confirmer is not None
    asked, shard = bench.replicated.asked, bench.store.context.shards[0]
    bench.replicated.gate = threading.Event()
    ended: list[str] = []

    def confirm(name: str) -> None:
        confirmer.confirm(shard, {"id"})
        ended.append(name)

    threads = [threading.Thread(target=confirm, args=(str(number),)) for number in range(6)]
    threads[0].start()
    wait_until(lambda: bench.replicated.asked == asked + 1, "the first one asks", 5)
    for thread in threads[1:]:
        thread.start()
    wait_until(
        lambda: len(confirmer._rounds[confirmer._database.place(shard.confirm)]._waiting) == 5, "the others wait", 5
    )
    bench.replicated.gate.set()
    for thread in threads:
        thread.join(10)
    assert len(ended) == 6
    assert bench.replicated.asked == asked + 2


def test_a_confirmation_that_fails_fails_for_all_that_wait_and_the_next_one_asks_again(bench: ReplicatedBench) -> None:
    bench.replicated.says = StoreUnavailable("no answer")
    with pytest.raises(StoreUnavailable):
        bench.message("hello", "op")
    bench.replicated.says = CONFIRMED
    assert bench.message("hello", "op").outcome == "again"


def test_without_replicas_nothing_is_asked(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    bench.commit(bench.claim(), final=True)
    assert bench.store.context.confirmer is None
    assert safe(bench) == 0
    assert not {"confirm", "commit.safe"} & set(bench.spy.points)
