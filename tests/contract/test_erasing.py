"""Erasing, whoever damages or restores sessions meanwhile: each is erased or named, and none stays for another."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_agents.worker.errors import SessionNotFound
from celery_agents.worker.store.archiving.moving import MoveOutcome
from celery_agents.worker.store.keys import SessionKeys

from support.archive_lab import ArchiveLab
from support.store import Bench
from support.store_client import StoreClient

pytestmark = pytest.mark.leaves_keys("a key of another type stays, with what its session has")

LABELS = {"user": "42"}
Damage = Callable[[SessionKeys], tuple[Any, ...]]

FIELDS: dict[str, Damage] = {
    "version": lambda keys: ("HSET", keys.session, "version", "x"),
    "status": lambda keys: ("HSET", keys.session, "status", b"\xff"),
    "labels": lambda keys: ("HSET", keys.session, "labels", "{"),
    "head": lambda keys: ("HSET", keys.session, "head", "{"),
    "step": lambda keys: ("HSET", keys.ctl, "step", "x"),
    "phase": lambda keys: ("HSET", keys.ctl, "phase", b"\xff"),
}
TYPES: dict[str, Damage] = {
    "the session is a text": lambda keys: ("SET", keys.session, "x"),
    "its control fields are a text": lambda keys: ("SET", keys.ctl, "x"),
}


def erase_with_one_damaged(bench: Bench, damage: Damage, *, has_ended: bool) -> tuple[set[str], set[str]]:
    """What an erasure has erased and named of three sessions, of which the second is damaged."""
    names = ["first", "damaged", "last"]
    for bench.session in names:
        bench.execution = f"e-{bench.session}"
        bench.submit(labels=LABELS)
        if has_ended:
            bench.commit(bench.claim(), final=True)
    bench.database(*damage(bench.store.context.keys("damaged")))
    found = StoreClient(bench.store).erase(label=LABELS, timeout=0.2)
    assert {header.session_id for header in bench.store.sessions.headers_of(names)} == set(found.left)
    return set(found.sessions), set(found.left)


@pytest.mark.parametrize("damage", FIELDS.values(), ids=FIELDS)
def test_a_session_with_a_damaged_field_is_erased_when_it_has_ended(bench: Bench, damage: Damage) -> None:
    assert erase_with_one_damaged(bench, damage, has_ended=True) == ({"first", "damaged", "last"}, set())


@pytest.mark.parametrize("damage", FIELDS.values(), ids=FIELDS)
def test_one_that_runs_and_cannot_be_stopped_is_named(bench: Bench, damage: Damage) -> None:
    assert erase_with_one_damaged(bench, damage, has_ended=False) == ({"first", "last"}, {"damaged"})


@pytest.mark.parametrize("has_ended", [True, False])
@pytest.mark.parametrize("damage", TYPES.values(), ids=TYPES)
def test_one_whose_key_is_of_another_type_is_named(bench: Bench, damage: Damage, has_ended: bool) -> None:
    assert erase_with_one_damaged(bench, damage, has_ended=has_ended) == ({"first", "last"}, {"damaged"})


def test_a_session_that_is_restored_while_its_label_is_erased_is_erased_too(lab: ArchiveLab) -> None:
    name = lab.session
    for trips in range(100):
        lab.bench.session = f"{name}-{trips}"
        lab.end(labels={"customer": "42"})
        assert lab.move() is MoveOutcome.MOVED
        lab.bench.spy.after(trips, lambda: lab.store.archived and lab.store.archived.restore(lab.session))
        StoreClient(lab.store).erase(label={"customer": "42"})
        was_restored, lab.bench.spy.after_trips = lab.bench.spy.after_trips is None, None
        with pytest.raises(SessionNotFound):
            lab.store.sessions.header(lab.session)
        if not was_restored:
            assert trips > 5
            return
    raise AssertionError("it has no end")


class WithOneThatGoesOn(StoreClient):
    """The same, where what runs below one session does not end in time."""

    def delete(self, session_id: str, **options: Any) -> bool:
        if session_id == "goes-on":
            raise TimeoutError("1 sessions of the tree have not ended yet")
        return super().delete(session_id, **options)


def test_a_session_below_which_something_goes_on_keeps_no_other_from_its_deletion(bench: Bench) -> None:
    for bench.session in ("first", "goes-on", "last"):
        bench.execution = f"e-{bench.session}"
        bench.submit()
        bench.commit(bench.claim(), final=True)
    before = datetime.now(UTC) + timedelta(days=1)
    assert list(WithOneThatGoesOn(bench.store).delete_all(before=before)) == ["last", "first"]


def test_one_that_goes_on_since_it_was_listed_is_not_deleted(bench: Bench) -> None:
    for bench.session in ("first", "last"):
        bench.execution = f"e-{bench.session}"
        bench.submit()
        bench.commit(bench.claim(), final=True)
    deleted = StoreClient(bench.store).delete_all(before=datetime.now(UTC) + timedelta(days=1))
    assert next(deleted) == "last"
    bench.session = "first"
    going_on = bench.message("go on").execution_id
    assert list(deleted) == []
    assert bench.store.sessions.header("first").execution_id == going_on
