"""Celery's events of tasks, as Flower hears them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from celery import Celery


@contextlib.contextmanager
def task_events(url: str, event: str) -> Iterator[dict[str, dict[str, Any]]]:
    """The newest event of one type, such as `task-received`, by the id of its task; filled while it is open."""
    found: dict[str, dict[str, Any]] = {}
    is_listening = threading.Event()

    def note(given: dict[str, Any]) -> None:
        found[given["uuid"]] = given

    app = Celery(broker=url, changes={"event_exchange": "celery-agents.events"})
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={event: note})
        receiver.on_iteration = is_listening.set
        thread = threading.Thread(target=receiver.capture, kwargs={"wakeup": False}, daemon=True)
        thread.start()
        assert is_listening.wait(10)
        try:
            yield found
        finally:
            receiver.should_stop = True
            thread.join(15)
