"""What the pool changes of the worker around it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.concurrency.thread import TaskPool as ThreadsPool

from celery_agents.tasks.greenlets import EventsByTheWorkersLoop, TaskPool


def consumer(pool: Any, dispatcher: Any) -> Any:
    return SimpleNamespace(pool=pool, event_dispatcher=dispatcher, app=Celery(set_as_current=False))


@pytest.mark.parametrize(("kind", "leaves_it"), [(TaskPool, True), (ThreadsPool, False)])
def test_no_step_sends_the_events_of_others(kind: type[Any], leaves_it: bool) -> None:
    sent: list[int] = []
    app = Celery(set_as_current=False)
    dispatcher: Any = app.events.Dispatcher(None, enabled=False, buffer_group=["task"], on_send_buffered=lambda: None)
    dispatcher.enabled, dispatcher.flush = True, lambda: sent.append(1)
    parent = consumer(kind(limit=1), dispatcher)
    EventsByTheWorkersLoop(parent).start(parent)
    for _ in range(100):
        dispatcher.send("task-started", uuid="1")
    assert (not sent) is leaves_it


def test_a_worker_without_events_starts() -> None:
    parent = consumer(TaskPool(limit=1), None)
    EventsByTheWorkersLoop(parent).start(parent)
