"""The state at each committed step is what its commit has stored, whatever was changed afterwards, on every store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_agents.worker.errors import InvalidInput, NotKept, SessionNotFound
from celery_agents.worker.store.database import Database
from celery_agents.worker.store.sessions.past_reads import StepAddress

from support.random_past import Past
from support.store import Bench

pytestmark = pytest.mark.leaves_keys("executions go on")

ONCE = ("redis",)
AGAIN = ("redis in fibers", "memory", "fakeredis", "cluster")
"""Databases on which shorter random executions run, and the two hundred steps in the long form: they differ in how they are asked."""


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 6))])
def test_the_state_of_every_step_is_what_its_commit_has_stored(bench: Bench, seed: int) -> None:
    past = Past(bench, seed)
    for _ in range(3):
        steps = past.dice.randrange(2, 8)
        for number in range(1, steps + 1):
            past.random_step(number, final=number == steps)
            if past.dice.random() < 0.3:
                past.act()
        past.check()
        bench.execution = bench.message("next").execution_id
    past.check()


@pytest.mark.parametrize(
    "database", [*ONCE, *(pytest.param(each, marks=pytest.mark.long) for each in AGAIN)], indirect=True
)
def test_two_hundred_steps_with_any_changes_in_between(database: Database) -> None:
    past = Past(Bench(database), seed=7)
    past.bench.submit()
    for number in range(1, 201):
        past.random_step(number)
        if past.dice.random() < 0.2:
            past.act()
    past.check()


def test_nothing_is_kept_where_nothing_changes(bench: Bench) -> None:
    past = Past(bench, 0)
    past.price = 0.125
    for number in range(1, 6):
        past.step(number)
    keys = bench.store.context.keys(bench.session)
    assert not bench.database("EXISTS", keys.old_values)
    past.check()
    past.step(6, lambda state: state.with_metadata("a", None))
    assert bench.database("HGETALL", keys.old_values) == [b"metadata/a:1.5", b""]
    past.check()


def test_a_step_that_does_not_exist_is_named(bench: Bench) -> None:
    past = Past(bench, 0)
    with pytest.raises(InvalidInput, match="has 0 committed steps"):
        bench.store.sessions.state_at(bench.session, StepAddress(1))
    past.step(1)
    with pytest.raises(InvalidInput, match="has 1 committed steps"):
        bench.store.sessions.state_at(bench.session, StepAddress(2))
    with pytest.raises(InvalidInput, match="no such execution"):
        bench.store.sessions.state_at(bench.session, StepAddress(1, "another"))
    with pytest.raises(SessionNotFound):
        bench.store.sessions.state_at("nothing", StepAddress(1))


def test_the_oldest_values_make_room_and_are_named(database: Database) -> None:
    past = Past(Bench(database, history_bytes=5_000), 0)
    past.bench.submit()
    for number in range(1, 21):
        past.step(number, lambda state, n=number: state.with_metadata("large", f"{n}:" + "x" * 1000))
    keys = past.bench.store.context.keys(past.bench.session)
    assert sum(map(len, past.bench.database("HGETALL", keys.old_values))) < 6_500
    kept = [f"{past.bench.execution}:{number}" for number in range(18, 21)]
    past.check(*kept)
    with pytest.raises(NotKept, match="'metadata/large' of step 3 is not kept") as caught:
        past.check(f"{past.bench.execution}:3")
    assert (caught.value.name, caught.value.step) == ("metadata/large", 3)


def test_a_value_beyond_the_bound_is_not_kept_and_fails_nothing(database: Database) -> None:
    past = Past(Bench(database, history_bytes=500), 0)
    past.bench.submit()
    past.step(1, lambda state: state.with_metadata("large", "x" * 1000))
    past.step(2, lambda state: state.with_metadata("large", "small"))
    past.step(3)
    past.check(*[f"{past.bench.execution}:{number}" for number in (2, 3)])
    with pytest.raises(NotKept, match="metadata/large"):
        past.check(f"{past.bench.execution}:1")


def test_steps_before_an_upgrade_are_refused_in_words(bench: Bench) -> None:
    past = Past(bench, 0)
    past.step(1)
    keys = bench.store.context.keys(bench.session)
    bench.database("HDEL", keys.session, "past")  # as an earlier version has left it
    bench.store = bench.another()
    with pytest.raises(NotKept, match="version of this package that kept no old values"):
        past.check(f"{bench.execution}:1")
    past.step(2)
    past.step(3, lambda state: state.with_system_prompt("another"))
    past.check(f"{bench.execution}:2", f"{bench.execution}:3")
    with pytest.raises(NotKept, match="from step 2 of its execution 1 on"):
        past.check(f"{bench.execution}:1")


def test_a_save_by_an_earlier_version_in_between_begins_a_new_past(bench: Bench) -> None:
    past = Past(bench, 0)
    past.step(1, lambda state: state.with_metadata("a", 1))
    past.step(2, lambda state: state.with_metadata("a", 2))
    keys = bench.store.context.keys(bench.session)
    known = bench.database("HGET", keys.session, "past")
    past.step(3, lambda state: state.with_metadata("a", 3))
    bench.database("HSET", keys.session, "past", known)  # it leaves the field as it was
    bench.store = bench.another()
    past.step(4)
    past.check(f"{bench.execution}:4")
    for number in (1, 2, 3):
        with pytest.raises(NotKept):
            past.check(f"{bench.execution}:{number}")


def test_without_a_bound_nothing_is_written(database: Database) -> None:
    past = Past(Bench(database, history_bytes=0), 0)
    past.bench.submit()
    past.step(1, lambda state: state.with_metadata("a", 1))
    past.step(2, lambda state: state.with_metadata("a", 2))
    keys = past.bench.store.context.keys(past.bench.session)
    assert not past.bench.database("EXISTS", keys.old_values)
    assert past.bench.database("HGET", keys.session, "past") is None
    with pytest.raises(NotKept, match="is 0"):
        past.check(f"{past.bench.execution}:1")


def test_a_clear_and_a_deletion_remove_old_values_and_an_end_gives_them_a_life(database: Database) -> None:
    past = Past(Bench(database), 0)
    bench, keys = past.bench, past.bench.store.context.keys(past.bench.session)
    bench.submit()
    past.step(1, lambda state: state.with_metadata("a", 1))
    past.step(2, lambda state: state.with_metadata("a", 2))
    assert bench.database("PTTL", keys.old_values) == -1
    past.step(3, final=True)
    assert bench.database("PTTL", keys.old_values) > 0
    stored = bench.store.sessions.load(bench.session)
    bench.store.sessions.save(bench.session, replace(stored, state=stored.state.without_conversation()))
    assert not bench.database("EXISTS", keys.old_values)
    with pytest.raises(InvalidInput, match="no execution"):
        bench.store.sessions.state_at(bench.session, StepAddress(1))
    bench.execution = bench.message("again").execution_id
    past.saved.clear()
    past.step(1, lambda state: state.with_metadata("a", 3))
    past.step(2, lambda state: state.with_metadata("a", 4), final=True)
    past.check()
    assert bench.database("EXISTS", keys.old_values)
    bench.store.sessions.delete(bench.session)
    assert not bench.database("EXISTS", keys.old_values)


def test_a_save_between_two_reads_makes_the_read_begin_again(bench: Bench) -> None:
    past = Past(bench, 0)
    past.step(1, lambda state: state.with_metadata("a", 1))
    bench.spy.before("past.lists", lambda: past.step(2, lambda state: state.with_metadata("a", 2)))
    past.check(f"{bench.execution}:1")
