"""Entries that somebody else has damaged: none ends a pass, a listing or a look, and each is named."""

from __future__ import annotations

import uuid

import pytest

from celery_agents.worker.engine import retry_transition, stop_transition
from celery_agents.worker.errors import ConfigurationError, StateUnreadable, StoreUnavailable
from celery_agents.worker.store import EventType, NewEvent, QueueSnapshot, StepRef
from celery_agents.worker.store.database import Database
from celery_agents.worker.store.events import event_commands
from celery_agents.worker.store.keys import callback_note, request_note
from celery_agents.worker.store.session_records import REQUEST_KINDS

from support.store import Bench, step_transition

pytestmark = pytest.mark.leaves_keys("what is damaged stays until somebody has looked at it")

NO_TEXT = b"\xff\xfe-session"
BAD_MEMBERS = [NO_TEXT, b"", b"a b", b"../x", b"\x00", b"x" * 300, "ä".encode()]


def sweep(bench: Bench, queue: QueueSnapshot | None = None) -> tuple[StepRef, ...]:
    return bench.store.housekeeping.sweep(queue or QueueSnapshot()).lost


def reasons(bench: Bench) -> dict[str, str]:
    return {entry["session"]: entry["reason"] for entry in bench.store.housekeeping.list_dead(1000)}


def corrupt(bench: Bench, **fields: object) -> None:
    keys = bench.store.context.keys(bench.session)
    bench.database("HSET", keys.ctl, *(word for pair in fields.items() for word in pair))  # type: ignore[arg-type]


# --- the sweep --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", BAD_MEMBERS)
def test_an_entry_that_is_no_session_does_not_end_a_sweep(bench: Bench, member: bytes) -> None:
    keys = bench.store.context.keys(bench.session)
    bench.database("ZADD", keys.shard.due, 0, member)  # type: ignore[arg-type]
    bench.make_due()
    assert [ref.session_id for ref in sweep(bench)] == [bench.session]
    assert member not in bench.database("ZRANGEBYSCORE", keys.shard.due, "-inf", "+inf")


def test_a_session_whose_id_is_no_text_is_put_to_the_dead_and_the_others_are_swept(bench: Bench) -> None:
    if "Memory" in type(bench.spy.inner).__name__:
        pytest.skip("the keys of the store in memory are texts")
    shard = bench.store.context.keys(bench.session).shard
    ctl = shard.prefix.encode() + b"s:" + NO_TEXT + b":ctl"
    bench.database("HSET", ctl, "execution", "e", "step", 1, "phase", "run")  # type: ignore[arg-type]
    bench.database("ZADD", shard.due, 0, NO_TEXT)  # type: ignore[arg-type]
    bench.make_due()
    assert [ref.session_id for ref in sweep(bench)] == [bench.session]
    assert NO_TEXT not in bench.database("ZRANGEBYSCORE", shard.due, "-inf", "+inf")
    assert "nor its id" in reasons(bench)["\\xff\\xfe-session"]


@pytest.mark.parametrize(
    "fields",
    [
        {"execution": "a b"}, {"execution": "x" * 200}, {"execution": b"\xff"}, {"execution": "e'}"}, {"step": 0}, {"step": -3},
        {"step": 2**40}, {"step": "1e3"}, {"step": "nan"}, {"retries": "x"}, {"retries": -1}, {"retries": "inf"},
        {"legs": "x"}, {"legs": -1}, {"legs": 10**12},
    ],
)  # fmt: skip
def test_a_step_that_no_message_can_name_is_parked_and_not_published_for_ever(
    bench: Bench, fields: dict[str, object]
) -> None:
    corrupt(bench, **fields)
    bench.make_due()
    assert sweep(bench) == ()
    assert "control fields" in reasons(bench)[bench.session]
    assert bench.due() is None


@pytest.mark.parametrize("fields", [{"step": "x"}, {"held": "nan"}, {"retries": "x"}])
def test_a_damaged_session_whose_sweep_has_died_is_parked_by_a_later_one(
    bench: Bench, fields: dict[str, object]
) -> None:
    corrupt(bench, **fields)
    bench.make_due()
    bench.spy.lose("sweep.pass")
    with pytest.raises(StoreUnavailable):
        sweep(bench)
    assert bench.due() is not None
    bench.make_due()
    assert sweep(bench) == ()
    assert "control fields" in reasons(bench)[bench.session]
    assert bench.due() is None


@pytest.mark.parametrize("step", ["\u00b2", "9" * 5_000, "-1", "x"])
def test_a_parked_session_with_garbage_for_its_step_ends_with_the_retention(database: Database, step: str) -> None:
    bench = Bench(database)
    bench.submit()
    bench.store.steps.park(StepRef(bench.session, bench.execution, 1), "for a test")
    keys = bench.store.context.keys(bench.session)
    corrupt(bench, step=step)
    bench.database("ZADD", keys.shard.ending, 1, bench.session)
    bench.store.housekeeping.prune()
    assert bench.database("EXISTS", keys.ctl) == 0


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-7", "1e308", "x", ""])
@pytest.mark.parametrize("field", ["nudges", "published"])
def test_garbage_in_a_number_of_the_sweep_hides_no_step(bench: Bench, field: str, value: str) -> None:
    corrupt(bench, **{"published": 0, field: value})
    bench.make_due()
    oldest = bench.store.housekeeping.now_ms()
    assert [ref.session_id for ref in sweep(bench, QueueSnapshot(oldest_ms=oldest))] == [bench.session]
    due = bench.due()
    assert due is not None
    assert oldest <= due <= oldest + 120_000


def test_a_lease_without_an_end_gets_one(bench: Bench) -> None:
    claim = bench.claim().claim
    lease = bench.store.context.keys(bench.session).shard.lease(claim.id)
    bench.database("PERSIST", lease)
    bench.make_due()
    assert sweep(bench) == ()
    assert 0 < bench.database("PTTL", lease) <= bench.store.context.lease_ms


@pytest.mark.parametrize(
    "fields", [{"step": "x"}, {"attempts": "many"}, {"delays": "1.5"}, {"not_before": "soon"}, {"delayed": 10**30}]
)
def test_control_fields_that_are_no_numbers_park_the_step_with_a_reason(
    bench: Bench, fields: dict[str, object]
) -> None:
    """The engine parks what a claim cannot read; here the part of the store."""
    corrupt(bench, **fields)
    bench.store.steps.park(StepRef(bench.session, bench.execution, 1), "it cannot be read")
    assert reasons(bench)[bench.session] == "it cannot be read"
    assert bench.due() is None


# --- listings, doctor, watch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["inf", "-inf", "1e300"])
def test_an_infinite_time_ends_no_listing_and_no_backlog(bench: Bench, score: str) -> None:
    keys = bench.store.context.keys(bench.session)
    indexes = (keys.shard.sessions, keys.shard.due, keys.shard.delayed, keys.shard.requests)
    for index in indexes:
        bench.database("ZADD", index, float(score), bench.session)
    headers, _ = bench.store.sessions.headers(limit=10)
    assert [header.session_id for header in headers] == [bench.session]
    assert bench.store.housekeeping.backlog()[0] == 1
    assert bench.store.sessions.step_facts(bench.session).step == 1
    assert bench.store.requests.count_open().open == 1
    assert bench.store.housekeeping.list_delayed() == []


def test_an_entry_of_the_delayed_that_is_no_text_hides_no_other(bench: Bench) -> None:
    keys = bench.store.context.keys(bench.session)
    now_ms = bench.store.housekeeping.now_ms()
    bench.database("ZADD", keys.shard.delayed, now_ms + 50_000, NO_TEXT, now_ms + 60_000, bench.session)  # type: ignore[arg-type]
    corrupt(bench, delays=1, not_before=now_ms + 60_000)
    assert [step.session_id for step in bench.store.housekeeping.list_delayed()] == [bench.session]
    # Nor does a session whose keys hold another type.
    bench.database("RPUSH", f"{keys.shard.prefix}s:other:ctl", "x")
    bench.database("ZADD", keys.shard.delayed, now_ms + 40_000, "other")
    assert [step.session_id for step in bench.store.housekeeping.list_delayed()] == [bench.session]


def test_entries_that_are_no_text_are_listed_as_unreadable(bench: Bench) -> None:
    keys = bench.store.context.keys(bench.session)
    bench.database("ZADD", keys.shard.sessions, 5, NO_TEXT)  # type: ignore[arg-type]
    headers, _ = bench.store.sessions.headers(limit=10)
    assert {header.session_id: header.status for header in headers} == {
        bench.session: "pending", "\\xff\\xfe-session": "unreadable",
    }  # fmt: skip


def test_damaged_entries_are_named_with_their_index(bench: Bench) -> None:
    shard = bench.store.context.keys(bench.session).shard
    assert bench.store.housekeeping.bad_entries() == []
    for member in BAD_MEMBERS:
        bench.database("ZADD", shard.due, 5, member)  # type: ignore[arg-type]
    bench.database("ZADD", shard.sessions, float("inf"), bench.session)
    bench.database("ZADD", shard.callbacks, 5, "gibberish")
    found = bench.store.housekeeping.bad_entries()
    assert {(damage.key, damage.entry) for damage in found} >= {
        (shard.due, "\\xff\\xfe-session"), (shard.due, "a b"), (shard.sessions, bench.session), (shard.callbacks, "gibberish"),
    }  # fmt: skip
    assert len(found) == len(BAD_MEMBERS) + 2


NOTES = [callback_note("s1", "e1", "webhook", 0), callback_note("s1", "e1", "task", 12)]
NOTES += [request_note("s1", "e1", kind, ("r1", "op1")) for kind in REQUEST_KINDS]


@pytest.mark.parametrize("note", NOTES)
def test_a_note_of_an_end_or_of_a_request_is_no_damage(bench: Bench, note: str) -> None:
    """A doctor that took a request's note for damage told people to remove it."""
    shard = bench.store.context.keys(bench.session).shard
    bench.database("ZADD", shard.callbacks, 5, note)
    assert bench.store.housekeeping.bad_entries() == []


@pytest.mark.parametrize(
    "note",
    [
        "s1 e1 task", "s1 e1 task 0 more", "s1 e1  0", "s1 e1 request_task r1", "s1 e1 request_task r1 op1 more", " ",
        "s1 e1 request_webhook 0", "../x e1 task 0", "", "s1  task 0", "s1 e1 task ",
    ],
)  # fmt: skip
def test_a_note_that_nobody_can_act_on_is_damage_and_leaves_the_outbox(bench: Bench, note: str) -> None:
    shard = bench.store.context.keys(bench.session).shard
    bench.database("ZADD", shard.callbacks, 5, note)
    assert [damage.entry for damage in bench.store.housekeeping.bad_entries()] == [note]
    assert bench.store.housekeeping.due_callbacks(limit=10, hold_ms=1000) == []
    assert bench.database("ZRANGEBYSCORE", shard.callbacks, "-inf", "+inf") == []


def test_damaged_entries_of_every_index_are_named(bench: Bench) -> None:
    shard = bench.store.context.keys(bench.session).shard
    indexes = [shard.due, shard.delayed, shard.sessions, shard.failed, shard.ending, shard.callbacks, shard.requests]
    indexes.append(shard.unoffered)
    for key in indexes:
        bench.database("ZADD", key, 5, NO_TEXT)  # type: ignore[arg-type]
    assert sorted(damage.key for damage in bench.store.housekeeping.bad_entries()) == sorted(indexes)
    for key in indexes:
        bench.database("DEL", key)
        bench.database("RPUSH", key, "x")
    assert {damage.key for damage in bench.store.housekeeping.wrong_types({})} >= set(indexes)


def test_an_entry_of_the_dead_list_without_reason_is_shown(bench: Bench) -> None:
    shard = bench.store.context.keys(bench.session).shard
    bench.database("XADD", shard.dead, "*", b"\xff", "x")  # type: ignore[arg-type]
    (entry,) = bench.store.housekeeping.list_dead()
    assert (entry["reason"], entry["session"], entry["kind"]) == ("no reason is stored", "", "")


@pytest.mark.parametrize("fields", [("a", "b"), ("type", "x"), ("type", b"\xff", "execution", "", "step", "1", "data", "{}"),
                                    ("type", "x", "execution", "", "step", "one", "data", "{}"),
                                    ("type", "x", "execution", "", "step", "1", "data", "[]"),
                                    ("type", "x", "execution", "", "step", "1", "data", "{")])  # fmt: skip
def test_an_event_that_cannot_be_read_is_shown_as_such_and_the_next_one_follows(
    bench: Bench, fields: tuple[str, ...]
) -> None:
    scope = bench.store.context.session(bench.session)
    bench.database("XADD", scope.keys.events, "*", *fields)
    (good,) = event_commands(scope, [NewEvent(type=EventType.PARKED, execution_id="e", step=1, data={})])
    bench.database(*good)
    found = [event.type for event in bench.store.sessions.events(bench.session)]
    assert found[-2:] == ["unreadable", EventType.PARKED]


def test_a_registry_entry_whose_name_is_no_text_hides_no_worker(database: Database) -> None:
    bench = Bench(database)
    worker = f"w{uuid.uuid4().hex[:8]}"
    bench.store.registry.register(worker, {"slots": 3}, {"agent": "hash"})
    database.pipeline(
        "test", [("HSET", bench.store.context.fleet.workers, NO_TEXT, b"{}"), ("HSET", "ca:agents", NO_TEXT, b"{}")]
    )  # type: ignore[list-item]
    odd = b'{"seen": 9e99, "agents": {"a": [], "\\ud800": "h", "b": "h"}, "turned": "x", "took": 1e999}'
    database.pipeline("test", [("HSET", bench.store.context.fleet.workers, "odd", odd)])
    assert worker in bench.store.registry.workers()
    assert "agent" in bench.store.registry.agents()
    database.pipeline(
        "test",
        [("HDEL", bench.store.context.fleet.workers, NO_TEXT, "odd", worker), ("HDEL", "ca:agents", NO_TEXT, "agent")],
    )  # type: ignore[list-item]


def test_a_callback_with_an_absurd_count_of_attempts_is_given_up_with_a_reason(database: Database) -> None:
    bench = Bench(database)
    bench.submit(notify={"webhook": "https://example.com/ended"})
    claimed = bench.claim()
    transition = step_transition(claimed, final=True, failed=True)
    bench.store.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=False)
    keys = bench.store.context.keys(bench.session)
    bench.database("HSET", keys.session, f"told:{bench.execution}:webhook:0", 10**9)
    assert bench.store.housekeeping.due_callbacks(limit=10, hold_ms=1000) == []
    assert "attempts" in reasons(bench)[bench.session]


@pytest.mark.timeout(30)
def test_of_many_agents_that_nobody_offers_the_others_are_counted_together(bench: Bench) -> None:
    shards = bench.store.context.shards
    for number in range(350):
        bench.database("ZADD", shards[number % len(shards)].unoffered, 0, f"agent{number:03} session")
    found = bench.store.housekeeping.count_unoffered()
    assert (len(found), sum(found.values())) == (101, 350)
    assert found["(other)"] == 250


def test_an_entry_of_the_unoffered_that_is_no_text_does_not_hold_the_count_up(bench: Bench) -> None:
    shard = bench.store.context.keys(bench.session).shard
    for member in (NO_TEXT, b"gone", b" x", b"clerk s1", b"clerk s2"):
        bench.database("ZADD", shard.unoffered, 0, member)  # type: ignore[arg-type]
    found = bench.store.housekeeping.count_unoffered()
    assert found["clerk"] == 2


@pytest.mark.parametrize("index", ["callbacks", "sessions", "due", "failed"])
def test_a_commit_that_finds_an_index_damaged_has_written_nothing(database: Database, index: str) -> None:
    """A script that Redis refuses in the middle leaves what it has written before."""
    bench = Bench(database)
    bench.submit(notify={"webhook": "https://example.com/ended"})
    claimed = bench.claim()
    keys = bench.store.context.keys(bench.session)
    damaged = getattr(keys.shard, index)
    entries = bench.database("ZRANGEBYSCORE", damaged, "-inf", "+inf", "WITHSCORES")
    before = bench.database("HGETALL", keys.session), bench.database("HGETALL", keys.ctl)
    bench.database("DEL", damaged)
    bench.database("SET", damaged, "somebody else's")
    try:
        with pytest.raises(StateUnreadable):
            bench.store.steps.commit(
                claimed.claim,
                claimed.loaded,
                step_transition(claimed, final=True, failed=True),
                results={},
                keep_claim=False,
            )
        assert (bench.database("HGETALL", keys.session), bench.database("HGETALL", keys.ctl)) == before
    finally:
        bench.database("DEL", damaged)
        for name, score in zip(entries[::2], entries[1::2], strict=True):
            bench.database("ZADD", damaged, score, name)
    bench.commit(claimed, final=True)
    assert bench.due() is None


# --- key types --------------------------------------------------------------------------------------------------------


def test_keys_of_another_type_are_named(bench: Bench) -> None:
    shard = bench.store.context.keys(bench.session).shard
    assert bench.store.housekeeping.wrong_types({"queue": "list"}) == []
    for key in (
        shard.due,
        shard.dead,
        shard.callbacks,
        bench.store.context.fleet.shards,
        bench.store.context.fleet.workers,
        "queue",
    ):
        bench.database("DEL", key)
        bench.database("RPUSH" if key != "queue" else "ZADD", key, *(("x",) if key != "queue" else (1.5, "x")))  # type: ignore[arg-type]
    found = {damage.key: damage.what for damage in bench.store.housekeeping.wrong_types({"queue": "list"})}
    assert found.keys() >= {
        shard.due,
        shard.callbacks,
        bench.store.context.fleet.shards,
        bench.store.context.fleet.workers,
        "queue",
    }
    assert found[shard.due] == "it is a list, not a zset"


def test_a_number_of_shards_of_another_type_says_what_to_do(bench: Bench) -> None:
    bench.database("DEL", bench.store.context.fleet.shards)
    bench.database("RPUSH", bench.store.context.fleet.shards, "1")
    with pytest.raises(ConfigurationError, match=r"DEL ca:\S*shards"):
        bench.store.context.check_shards()
    bench.database("DEL", bench.store.context.fleet.shards)


def test_stop_and_retry_of_a_session_with_garbage_say_that_it_cannot_be_read(bench: Bench) -> None:
    from celery_agents.worker.errors import CeleryAgentsError

    corrupt(bench, attempts="many")
    for call in (
        lambda: bench.store.sessions.stop(bench.session, None, stop_transition),
        lambda: bench.store.sessions.retry(bench.session, retry_transition(None)),
    ):
        with pytest.raises(CeleryAgentsError):
            call()


def test_a_shared_key_of_another_type_is_told_from_a_damaged_session(bench: Bench) -> None:
    shard = bench.store.context.keys(bench.session).shard
    bench.store.housekeeping.expect_shared_keys()
    bench.database("RPUSH", shard.failed, "x")
    with pytest.raises(StoreUnavailable, match="failed"):
        bench.store.housekeeping.expect_shared_keys()
    bench.database("DEL", shard.failed)
