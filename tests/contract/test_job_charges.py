"""Sessions that are charged for jobs which no step waited for, on every store."""

from __future__ import annotations

import pytest

from celery_agents.worker.archive.rows import CostBy
from celery_agents.worker.errors import SessionNotFound, StateUnreadable
from celery_agents.worker.state import InferenceResponse, InferenceUsage
from celery_agents.worker.store.archiving.moving import MoveOutcome
from celery_agents.worker.store.steps.provider_jobs import JobEntry

from support.archive_lab import ArchiveLab
from support.store import Bench

ANSWERED = InferenceResponse(usage=InferenceUsage(input=10, requests=1), cost=0.25)


def indexed(bench: Bench) -> JobEntry:
    """A job of the present execution, in the index."""
    entry = JobEntry(
        id="job", handle="{}", key="ca-1", session_id=bench.session, execution_id=bench.execution, step=1, job=0,
        agent="a", model="m", window="8h", since_ms=1, due_ms=2,
    )  # fmt: skip
    bench.database("HSET", bench.shard.jobs, entry.id, entry.to_json())
    return entry


def places(bench: Bench) -> list[int]:
    return [bench.database("HLEN", key) for key in (bench.shard.jobs, bench.shard.old_jobs)]


def charge(bench: Bench, entry: JobEntry, answered: InferenceResponse = ANSWERED) -> None:
    bench.store.sessions.charge_job(bench.session, entry, answered)


def cost_of_state(bench: Bench) -> float | None:
    execution = bench.store.sessions.load(bench.session).state.execution
    return None if execution is None else execution.cost


@pytest.mark.parametrize("lost", ["", "charge.read", "charge.exec"])
def test_an_execution_that_has_ended_is_charged_once(bench: Bench, lost: str) -> None:
    bench.submit()
    bench.commit(bench.claim(), final=True)
    entry = indexed(bench)
    if lost:
        bench.spy.lose(lost)
    for _ in range(2):
        charge(bench, entry)
        record = bench.store.sessions.record(bench.session, bench.execution)
        assert record is not None
        assert (record.cost, cost_of_state(bench)) == (0.25, 0.25)
        assert places(bench) == [0, 1]
    assert bench.another().sessions.load(bench.session).state == bench.store.sessions.load(bench.session).state


def test_who_charges_it_in_between_counts(bench: Bench) -> None:
    bench.submit()
    bench.commit(bench.claim(), final=True)
    entry = indexed(bench)
    bench.spy.before("charge.exec", lambda: bench.another().sessions.charge_job(bench.session, entry, ANSWERED))
    charge(bench, entry)
    assert cost_of_state(bench) == 0.25


def test_a_step_that_is_committed_in_between_stays(bench: Bench) -> None:
    bench.submit()
    claimed, entry = bench.claim(), indexed(bench)
    bench.spy.before("charge.exec", lambda: bench.commit(claimed, final=True))
    charge(bench, entry)
    record = bench.store.sessions.record(bench.session, bench.execution)
    assert record is not None
    assert (record.step_count, record.cost) == (1, 0.25)


def test_one_that_had_answered_nothing_changes_no_session(bench: Bench) -> None:
    bench.submit()
    entry, version = indexed(bench), bench.store.sessions.header(bench.session).version
    charge(bench, entry, InferenceResponse(cost=0.0))
    assert (bench.store.sessions.header(bench.session).version, places(bench)) == (version, [0, 1])


def test_an_execution_that_is_not_kept_is_not_charged(bench: Bench) -> None:
    bench.submit()
    entry = indexed(bench)
    charge(bench, entry.model_copy(update={"execution_id": "another"}))
    assert (cost_of_state(bench), places(bench)) == (None, [0, 1])


def test_a_session_that_is_gone_or_damaged_is_said(bench: Bench) -> None:
    bench.submit()
    entry = indexed(bench)
    with pytest.raises(SessionNotFound):
        bench.store.sessions.charge_job("gone", entry, ANSWERED)
    bench.commit(bench.claim(), final=True)
    bench.database("HSET", bench.store.context.keys(bench.session).session, f"e:{bench.execution}", b"{")
    with pytest.raises(StateUnreadable):
        charge(bench, entry)
    assert places(bench) == [1, 0]


@pytest.mark.leaves_keys("sessions that ended stay until the archive has them")
def test_a_session_in_the_archive_comes_back_and_is_charged(lab: ArchiveLab) -> None:
    lab.end()
    entry = indexed(lab.bench)
    assert lab.move() is MoveOutcome.MOVED
    lab.store.sessions.charge_job(lab.session, entry, ANSWERED)
    lab.store.sessions.charge_job(lab.session, entry, ANSWERED)
    assert cost_of_state(lab.bench) == 0.25
    assert lab.move() is MoveOutcome.MOVED
    assert lab.store.sessions.summaries([lab.session])[lab.session].cost == 0.25
    assert sum(each.cost for each in lab.archive.costs(CostBy.AGENT)) == 0.25


def test_a_job_that_a_worker_puts_back_is_not_charged_again(bench: Bench) -> None:
    """The worker has slept before it has stored the id; the provider's copy is still there."""
    bench.submit()
    bench.commit(bench.claim(), final=True)
    for _ in range(2):
        charge(bench, indexed(bench))
        assert (cost_of_state(bench), places(bench)) == (0.25, [0, 1])
