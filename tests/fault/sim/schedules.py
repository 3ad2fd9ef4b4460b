"""Schedules in every interleaving: a worker is killed, overtaken or loses a reply at each of its round trips.

The product's own code runs on the database in memory. The submits go into a ledger that knows idempotency keys, as
sessions do.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from celery_agents.config.settings import Settings
from celery_agents.flow import Schedule
from celery_agents.tasks.client import schedules as client_schedules
from celery_agents.tasks.housekeeping import schedules as housekeeping
from celery_agents.tasks.housekeeping.schedules import ScheduleRunner
from celery_agents.worker.errors import StoreUnavailable
from celery_agents.worker.flow.slots import settle
from celery_agents.worker.store import Store
from celery_agents.worker.store.clock import RedisClock
from celery_agents.worker.store.context import Publisher
from celery_agents.worker.store.flow import schedules as stored
from celery_agents.worker.store.memory.database import MemoryDatabase

from .strikes import Killed, Strike, StrikingDatabase, explore_worlds
from support.lua_scripts import SCRIPTS

NAME: Final = "each-second"
SLOTS: Final = 2
ACTS: Final = ("kill", "lose", "overtake", "edit", "edit time", "remove")


def made(message: str = "first {slot}", cron: str = "* * * * * *") -> Schedule:
    return Schedule(NAME, cron=cron, agent="report", message=message, session="log", overlap="queue", missed=100)


@dataclass
class World:
    """One schedule of which two slots have come, workers, and a ledger of submits.

    Attributes:
        ledger: What was submitted, by idempotency key: the message of the first submit.
        submits: How often each message was submitted under a key that was new.
        violations: What must not happen.
    """

    ledger: dict[str, str] = field(default_factory=dict[str, str])
    submits: Counter[str] = field(default_factory=Counter[str])
    violations: list[str] = field(default_factory=list[str])
    edited: str = ""
    retimed: bool = False
    removed: bool = False

    def __post_init__(self) -> None:
        self.memory = MemoryDatabase(scripts=SCRIPTS)
        self.struck = StrikingDatabase(self.memory)
        self.store, self.other = self._store(self.struck), self._store(self.memory)
        flow = self.other.flow
        flow.set_schedule(made())
        status = flow.schedule(NAME)
        assert status is not None
        assert status.slot_ms is not None
        self.first_ms = status.slot_ms - SLOTS * 1000
        shard = self.other.context.shards[0]
        raw = status.changed(slot_ms=self.first_ms).to_json()
        self.memory.pipeline(
            "test", [("HSET", shard.schedules, NAME, raw), ("ZADD", shard.scheduled, self.first_ms, NAME)]
        )

    def _store(self, database: Any) -> Store:
        made_store = Store(database, Settings.build(), clock=RedisClock(), publisher=Publisher())
        made_store.context.check_shards()
        return made_store

    def runner(self, store: Store) -> ScheduleRunner:
        client: Any = SimpleNamespace(submit=self._submit, close=lambda: None)
        found = ScheduleRunner(store, lambda: client)
        found.are_due = True
        return found

    def _submit(self, agent: str, message: str, **given: Any) -> Any:
        del agent
        if self.is_struck:
            self.struck.pipeline("submit", [("EXISTS", "submit")])
        key = given["idempotency_key"]
        if key not in self.ledger:
            self.ledger[key] = message
            self.submits[message.partition(" ")[2]] += 1
        if self.is_struck:
            self.struck.pipeline("submitted", [("EXISTS", "submit")])
        return SimpleNamespace(session_id="log")

    is_struck = False

    def act(self, name: str) -> None:
        """Let something happen at this moment."""
        flow, was_struck, self.is_struck = self.other.flow, self.is_struck, False
        try:
            if name == "kill":
                raise Killed
            if name == "lose":
                raise StoreUnavailable("the reply was lost")
            if name == "overtake":
                self.runner(self.other).run_due()
            if name.startswith("edit") and not self.removed:
                self.edited, self.retimed = name, self.retimed or name == "edit time"
                flow.set_schedule(made("second {slot}", "* * * * * *" if name == "edit" else "0 0 1 1 *"))
            if name == "remove":
                flow.remove_schedule(NAME)
                self.removed = True
        finally:
            self.is_struck = was_struck

    def play(self, strikes: Sequence[Strike]) -> int:
        """Let a worker run while things happen at its round trips, and then others until nothing is due.

        Returns:
            How many round trips the worker has made.
        """
        self.struck.begin(strikes, self.act)
        self.is_struck = True
        with contextlib.suppress(Killed, StoreUnavailable):
            self.runner(self.store).run_due()
        self.is_struck = False
        trips = len(self.struck.sent)
        shard = self.other.context.shards[0]
        self.memory.pipeline("test", [("ZADD", shard.scheduled, "XX", 1, NAME)])  # a worker comes back to it
        self.runner(self.other).run_due()
        self._judge()
        return trips

    def _judge(self) -> None:
        doubled = [slot for slot, count in self.submits.items() if count > 1]
        if doubled:
            self.violations.append(f"submitted twice: {doubled}")
        status = self.other.flow.schedule(NAME)
        if (status is None) != self.removed:
            self.violations.append("it is gone" if status is None else "it is there again")
        if status is not None and self.edited and not status.schedule.message.startswith("second"):
            self.violations.append("the edit was undone")
        if self.removed or self.retimed:
            return  # slots that had not begun are none of it any more
        slots = (made().message_of(self.first_ms + n * 1000).partition(" ")[2] for n in range(SLOTS))
        if missing := [slot for slot in slots if slot not in self.submits]:
            self.violations.append(f"never submitted: {missing}")
        if status is not None and status.taken is not None:
            self.violations.append("a taken slot is left")


explore = partial(explore_worlds, World, ACTS)


def _unguarded(patch: Any) -> None:
    def change(self: Any, due: Any, status: Any, look_ms: Any) -> Any:
        shard, name, raw = self._context.shards[0], status.schedule.name, status.to_json()
        writes = [("HSET", shard.schedules, name, raw), ("ZADD", shard.scheduled, look_ms or 0, name)]
        self._context.database.transaction("schedules.change", writes)
        return stored.replace(due, raw=raw, status=status)

    patch.setattr(stored.ScheduleVerbs, "change_schedule", change)


def _any_key(patch: Any) -> None:
    numbers = itertools.count()
    patch.setattr(housekeeping, "slot_key", lambda name, slot_ms: f"{next(numbers)}")


def _noted_before(patch: Any) -> None:
    advance = ScheduleRunner._advance

    def early(self: Any, due: Any) -> Any:
        if due.status.taken is None:
            return advance(self, due)
        settled = settle(due.status, due.now_ms, session_id="log")
        changed = self._change(due, settled, housekeeping.look_at_ms(settled, due.now_ms))
        if changed is not None:
            slot = due.status.taken
            client_schedules.submit_slot(self._client, NAME, slot, housekeeping.slot_key(NAME, slot.slot_ms))
        return changed

    patch.setattr(ScheduleRunner, "_advance", early)


def _edit_forgets(patch: Any) -> None:
    again = stored._next_revision
    patch.setattr(stored, "_next_revision", lambda old, new, now: again(old, new, now).changed(taken=None, waiting=()))


def _edit_restarts(patch: Any) -> None:
    again = stored._next_revision
    patch.setattr(
        stored, "_next_revision",
        lambda old, new, now: again(old, new, now).changed(slot_ms=next(new.slots_after(now))),
    )  # fmt: skip


def _from_now(patch: Any) -> None:
    decide = housekeeping.decide

    def late(status: Any, now_ms: int, is_active: Any) -> Any:
        found = decide(status, now_ms, is_active)
        return found.changed(waiting=(), slot_ms=next(status.schedule.slots_after(now_ms)))

    patch.setattr(housekeeping, "decide", late)


MUTANTS: Final[dict[str, Callable[[Any], None]]] = {
    "a change is written whatever is stored": _unguarded,
    "each submit has a key of its own": _any_key,
    "a slot is noted before it is submitted": _noted_before,
    "an edit forgets what was taken": _edit_forgets,
    "an edit begins with the next slot": _edit_restarts,
    "the next slot follows from now": _from_now,
}
