"""Parts that grow, on every store: what is new is written, and every reader finds the whole list."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from celery_agents.worker.engine import operation_transition
from celery_agents.worker.state import AgentState, ListPart, PartItem, PartScope
from celery_agents.worker.store import Claimed, NextState, Snapshot, Store

from support.store import Bench, an_operation, step_transition

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")

Change = Callable[[AgentState], AgentState]


class Entry(PartItem):
    text: str


class Log(ListPart[Entry]):
    part_name = "log"


class Facts(ListPart[Entry]):
    part_name = "facts"
    scope = PartScope.SESSION


def _commit(store: Store, claimed: Claimed, change: Change, *, final: bool = False) -> Any:
    step = step_transition(claimed, final=final)

    def transition(snapshot: Snapshot) -> NextState:
        return step(replace(snapshot, state=change(snapshot.state)))

    return store.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=False)


def _adding(count: int) -> Change:
    def change(state: AgentState) -> AgentState:
        items = [Entry(text=f"entry {n}") for n in range(count)]
        return state.with_part(state.part(Log).append(*items)).with_part(state.part(Facts).append(*items))

    return change


def _claim(bench: Bench, store: Store, step: int) -> Claimed:
    claimed = store.steps.claim(bench.ref(step), uuid.uuid4().hex, "worker", alone=True)
    assert isinstance(claimed, Claimed), claimed
    return claimed


def test_one_item_more_of_a_thousand_is_written_alone(bench: Bench) -> None:
    _commit(bench.store, bench.claim(), _adding(1000))
    claimed = bench.claim(2)
    bench.spy.sent.clear()
    _commit(bench.store, claimed, lambda state: state.with_part(state.part(Log).append(Entry(text="new"))))
    pushed = [c for _, commands in bench.spy.sent for c in commands if c[0] == "RPUSH" and ":p:" in str(c[1])]
    assert [(str(c[1]).split(":p:")[1], c[2:]) for c in pushed] == [("log.x:0", (b'{"text":"new"}',))]
    state = bench.store.sessions.load(bench.session).state
    assert (len(state.part(Log)), len(state.part(Facts)), state.part(Log)[-1].text) == (1001, 1000, "new")


def test_a_worker_that_holds_nothing_and_one_that_is_behind_read_the_whole_list(bench: Bench) -> None:
    behind, cold = bench.another(), bench.another()
    _commit(behind, _claim(bench, behind, 1), _adding(3))
    _commit(bench.store, _claim(bench, bench.store, 2), _adding(2))
    assert len(_claim(bench, behind, 3).loaded.state.part(Log)) == 5
    bench.end_lease(_claim_again(bench, behind).claim)
    assert len(_claim(bench, cold, 3).loaded.state.part(Facts)) == 5


def _claim_again(bench: Bench, store: Store) -> Claimed:
    current = bench.database("HGET", store.context.keys(bench.session).ctl, "claim").decode()
    claimed = store.steps.claim(bench.ref(3), current, "worker", alone=True)
    assert isinstance(claimed, Claimed)
    return claimed


def test_a_replaced_list_is_read_as_replaced_by_a_worker_that_holds_the_former_one(bench: Bench) -> None:
    other = bench.another()
    _commit(other, _claim(bench, other, 1), _adding(3))
    _commit(bench.store, _claim(bench, bench.store, 2), lambda s: s.with_part(Log([Entry(text="only")])))
    assert [entry.text for entry in _claim(bench, other, 3).loaded.state.part(Log)] == ["only"]
    assert not _exists(bench, "log.x", 0)


def test_lists_of_an_execution_are_gone_with_the_next_one_and_those_of_the_session_stay(bench: Bench) -> None:
    _commit(bench.store, bench.claim(), _adding(2), final=True)
    assert bench.database("PTTL", bench.store.context.keys(bench.session).part("facts", 0)) > 0
    bench.store.sessions.act(bench.session, an_operation("more"), operation_transition)
    state = bench.store.sessions.load(bench.session).state
    assert (len(state.part(Log)), len(state.part(Facts))) == (0, 2)
    assert not _exists(bench, "log.x", 0)
    assert bench.database("PTTL", bench.store.context.keys(bench.session).part("facts", 0)) == -1


def _exists(bench: Bench, name: str, generation: int) -> bool:
    return bool(bench.database("EXISTS", bench.store.context.keys(bench.session).part(name, generation)))


def test_the_first_auxiliary_answer_stored_under_a_key_wins_and_is_read_with_the_next_claim(bench: Bench) -> None:
    claimed = bench.claim()
    assert bench.store.steps.record_auxiliary(claimed.claim, "sum", b"first") == b"first"
    assert bench.store.steps.record_auxiliary(claimed.claim, "sum", b"second") == b"first"
    assert bench.store.steps.record_auxiliary(claimed.claim, "s", b"other") == b"other"
    bench.end_lease(claimed.claim)
    journal = bench.claim().loaded.journal
    assert dict(journal.auxiliary) == {"sum": b"first", "s": b"other"}
    assert journal.was_paid_for
    assert not journal.holds_something
