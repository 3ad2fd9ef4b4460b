"""Listing sessions by status: the same as the listing of all, at the price of those that have the status."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence

import pytest

from celery_agents.tasks.client.inputs import STATUSES
from celery_agents.tasks.client.listing import INDEXES, Filter, iterate_headers, read_page
from celery_agents.worker.engine import stop_transition
from celery_agents.worker.store import StepRef
from celery_agents.worker.store.database import Command, Database
from celery_agents.worker.store.sessions.past_reads import StepAddress

from support.asking import a_request, ask, header, now_ms
from support.store import Bench, step_transition

pytestmark = pytest.mark.leaves_keys("executions wait, run and are parked")


@pytest.fixture
def bench(database: Database) -> Bench:
    """A store with sessions of every status, and some of them twice."""
    found = Bench(database)
    for number, status in enumerate(
        ("pending", "in_progress", "waiting", "completed", "stopped", "failed", "parked", "idle") * 2
    ):
        found.session, found.execution = f"s{number}", f"e{number}"
        found.submit(queue=None if status == "pending" and number else "")
        make(found, status)
    return found


def make(bench: Bench, status: str) -> None:
    """Bring a new session to a status."""
    if status == "in_progress":
        bench.commit(bench.claim())
    elif status == "waiting":
        ask(bench, a_request(bench))
    elif status == "completed":
        bench.commit(bench.claim(), final=True)
    elif status == "stopped":
        bench.store.sessions.stop(bench.session, None, stop_transition)
    elif status == "failed":
        claimed = bench.claim()
        transition = step_transition(claimed, final=True, failed=True)
        bench.store.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=False)
    elif status == "parked":
        bench.store.steps.park(StepRef(bench.session, bench.execution, 1), "broken")
    elif status == "idle":
        bench.commit(bench.claim(), final=True)
        past = bench.store.sessions.state_at(bench.session, StepAddress(1, bench.execution))
        bench.store.sessions.rewind(bench.session, past, "1", version=header(bench).version, by="ann")


def listed(bench: Bench, status: str | None, limit: int = 100) -> list[str]:
    page = read_page(bench.store, Filter(status=status), limit, None)
    return [header.session_id for header in page]


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_each_status_lists_the_sessions_that_have_it_in_the_order_of_all(bench: Bench, limit: int) -> None:
    everything = list(iterate_headers(bench.store, Filter()))
    assert len(everything) == 16
    seen: set[str] = set()
    for status in STATUSES:
        expected = [header.session_id for header in everything if header.status == status]
        assert listed(bench, status, limit) == expected, status
        assert status == "unreadable" or len(expected) == 2, status
        seen.update(expected)
    assert seen == {header.session_id for header in everything}


@pytest.mark.parametrize("status", ["pending", "in_progress", "waiting", "failed"])
def test_an_indexed_status_does_not_read_the_sessions_without_it(bench: Bench, status: str) -> None:
    assert INDEXES[status]
    bench.spy.sent.clear()
    assert len(listed(bench, status)) == 2
    touched = {str(command[1]) for _, commands in bench.spy.sent for command in commands}
    idle = [f"s{number}" for number in range(16) if number % 8 in (3, 4, 6, 7)]  # completed, stopped, parked, idle
    assert not [key for key in touched if any(key.endswith((f":s:{name}", f":s:{name}:ctl")) for name in idle)]


def test_times_bound_a_listing_by_status_too(bench: Bench) -> None:
    everything = list(iterate_headers(bench.store, Filter()))
    middle = everything[len(everything) // 2].updated_ms
    for status in STATUSES:
        for oldest, newest in ((middle, None), (None, middle), (middle, middle)):
            found = iterate_headers(bench.store, Filter(status=status, oldest_ms=oldest, newest_ms=newest))
            expected = [
                header.session_id
                for header in everything
                if header.status == status
                and (oldest is None or header.updated_ms >= oldest)
                and (newest is None or header.updated_ms <= newest)
            ]
            assert [header.session_id for header in found] == expected


def copy_session(bench: Bench, names: Sequence[str]) -> None:
    """Write the bench's session once more under each name, each a millisecond later in the listing, and due with it."""
    stored = bench.database("HGETALL", bench.store.context.keys(bench.session).session)
    at_ms, due = round(float(bench.database("ZSCORE", bench.shard.sessions, bench.session))), bench.due()
    writes: dict[str, list[Command]] = defaultdict(list)
    for number, name in enumerate(names, 1):
        keys = bench.store.context.keys(name)
        writes[keys.shard.prefix] += [
            ("HSET", keys.session, *stored, "updated", at_ms + number),
            ("ZADD", keys.shard.sessions, at_ms + number, name),
            ("ZADD", keys.shard.due, due, name),
        ]
    for commands in writes.values():
        bench.spy.inner.pipeline("test", commands)


def test_a_rare_status_or_agent_is_found_behind_thousands_of_others(database: Database) -> None:
    bench = Bench(database)
    bench.session, bench.execution = "old", "e"
    bench.submit(agent="rare")
    make(bench, "parked")
    bench.session, bench.execution = "s0", "e0"
    bench.submit(queue=None)
    copy_session(bench, [f"s{number}" for number in range(1, 2_100)])
    assert listed(bench, "parked") == ["old"]
    rare = Filter(agent="rare")
    assert [header.session_id for header in read_page(bench.store, rare, 50, None)] == ["old"]
    page = read_page(bench.store, Filter(status="pending"), 50, None)
    assert len(page.items) == 50
    assert len({header.session_id for header in page}) == 2_100


def test_pages_end_between_the_children_that_one_step_has_made(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    root, family = bench.session, [f"{bench.session}.{number:032x}" for number in range(70)]
    shard = bench.store.context.keys(root).shard
    (at_ms,) = {header.updated_ms for header in iterate_headers(bench.store, Filter())}
    stored = bench.database("HGETALL", bench.store.context.keys(root).session)
    for child in family:
        bench.database("HSET", bench.store.context.keys(child).session, *stored)
        bench.database("ZADD", shard.sessions, at_ms, child)
    everything = Filter()
    page = read_page(bench.store, everything, 30, None)
    assert page.cursor is not None
    assert len(page.cursor) < 200
    assert sorted(header.session_id for header in page) == sorted([root, *family])


def test_a_session_that_changes_while_its_page_is_read_does_not_bring_the_pages_before_it_again(bench: Bench) -> None:
    everything = [header.session_id for header in iterate_headers(bench.store, Filter())]
    keys = bench.store.context.keys(everything[3])

    def change() -> None:
        bench.database("HSET", keys.session, "updated", now_ms(bench) + 60_000)
        bench.database("ZADD", keys.shard.sessions, now_ms(bench) + 60_000, everything[3])

    bench.spy.before("headers", change)
    assert [header.session_id for header in read_page(bench.store, Filter(), 4, None)] == everything


def test_an_unreadable_session_is_listed_at_the_time_at_which_it_was_updated(bench: Bench) -> None:
    everything = [(header.session_id, header.updated_ms) for header in iterate_headers(bench.store, Filter())]
    bench.database("HSET", bench.store.context.keys(everything[5][0]).session, "version", "x")
    assert [
        (header.session_id, header.updated_ms) for header in read_page(bench.store, Filter(), 2, None)
    ] == everything


def test_a_summary_counts_tokens_of_all_kinds_and_damaged_ones_are_not_known(bench: Bench) -> None:
    key = bench.store.context.keys("s3").session
    head = json.loads(bench.database("HGET", key, "head"))

    def tokens(usage: object) -> tuple[int | None, int]:
        head["state"]["execution"]["usage"] = usage
        bench.database("HSET", key, "head", json.dumps(head).encode())
        found = bench.store.sessions.summaries(["s3"])["s3"]
        return found.tokens, found.steps

    assert bench.store.sessions.summaries(["s3"])["s3"].tokens == 0
    kinds = {"input": 1, "output": 20, "cache_write": 300, "cache_read": 4_000, "reasoning": 50_000, "requests": 7}
    assert tokens(kinds) == (54_321, 1)
    for damaged in ([], "many", {"input": "x"}, {"output": -1}, None):
        assert tokens(damaged) == (None, 1), damaged
