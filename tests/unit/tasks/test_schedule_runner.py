"""Carrying on the schedules that are due: one that cannot be carried on here holds up no other."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from celery_agents.config.settings import Settings
from celery_agents.flow import Schedule
from celery_agents.tasks.housekeeping.schedules import ScheduleRunner
from celery_agents.worker.store import Store
from celery_agents.worker.store.clock import RedisClock
from celery_agents.worker.store.context import Publisher
from celery_agents.worker.store.memory.database import MemoryDatabase

from support.lua_scripts import SCRIPTS


class Due:
    """Schedules of which a slot has come, in a store in memory, and a client that notes what is submitted."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.database = MemoryDatabase(scripts=SCRIPTS)
        self.store = Store(self.database, Settings.build(), clock=RedisClock(), publisher=Publisher())
        self.store.context.check_shards()
        self.shard = self.store.context.shards[0]
        client: Any = SimpleNamespace(submit=self._submit, close=lambda: None)
        self.runner = ScheduleRunner(self.store, lambda: client)

    def _submit(self, agent: str, message: str, **given: Any) -> Any:
        self.submitted.append(message)
        return SimpleNamespace(session_id="s")

    def add(self, name: str, *, late_ms: int, **stored: str) -> None:
        """Set a schedule whose slot has come so long ago, and change fields of it behind the checks."""
        self.store.flow.set_schedule(Schedule(name, cron="0 0 * * * *", agent="report", message=name))
        found = self.store.flow.schedule(name)
        assert found is not None
        slot_ms = self.store.context.now_ms("test") - late_ms
        facts = json.loads(found.changed(slot_ms=slot_ms).to_json())
        facts["schedule"] |= stored
        write = ("HSET", self.shard.schedules, name, json.dumps(facts).encode())
        self.database.pipeline("test", [write, ("ZADD", self.shard.scheduled, slot_ms, name)])

    def run(self) -> None:
        self.runner.are_due = True
        self.runner.run_due()


@pytest.mark.parametrize("stored", [{"zone": "Mars/Base"}, {"cron": "every day"}, {"message": "{unknown}"}], ids=str)
def test_a_schedule_that_cannot_be_carried_on_here_holds_up_no_other(
    stored: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """A worker of another version has set it, or one whose machine knows its time zone."""
    due = Due()
    due.add("strange", late_ms=5000, **stored)
    due.add("fine", late_ms=1000)
    with caplog.at_level(logging.WARNING):
        due.run()
    assert due.submitted == ["fine"]
    assert [each.message.partition(":")[0] for each in caplog.records] == ["schedule strange is tried again in 5 s"]
    assert due.store.flow.due_schedules() == []
