"""Real processes that write one session's file: two that race, and ones that the kernel kills at a byte.

    python session_writers.py race FOLDER TRIES
    python session_writers.py kill FOLDER

Each prints one line of JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from celery_agents.worker.errors import SessionConflict
from celery_agents.worker.session import (
    AgentDefinition,
    AgentSession,
    FileSessionStore,
    SessionFactory,
    SessionRepository,
    SessionRuntime,
)

WAIT_SECONDS = 120


class MeetAndWrite:
    """An action that waits until the other process has loaded the same version, too."""

    def __init__(self, barrier: Barrier, number: int) -> None:
        self._barrier = barrier
        self._number = number

    def execute_on(self, session: AgentSession) -> AgentSession:
        self._barrier.wait(WAIT_SECONDS)
        return session.with_state(session.state.with_metadata("writer", self._number))


def write_often(folder: str, number: int, tries: int, barrier: Barrier, results: Any) -> None:
    runtime = SessionRuntime(SessionRepository(FileSessionStore(folder)))
    found: list[tuple[int, int] | None] = []
    for _ in range(tries):
        try:
            runtime.execute("s1", MeetAndWrite(barrier, number))
            found.append(None)
        except SessionConflict as error:
            found.append((error.expected, error.stored))
        barrier.wait(WAIT_SECONDS)
    results.put(found)


def race(folder: str, tries: int) -> dict[str, Any]:
    """Let two processes execute an action on each version; how often exactly one won, with both versions told."""
    store = FileSessionStore(folder)
    store.create(SessionFactory().create(AgentDefinition(name="a"), session_id="s1"))
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    writers = [context.Process(target=write_often, args=(folder, n, tries, barrier, results)) for n in range(2)]
    for writer in writers:
        writer.start()
    first, second = results.get(timeout=3600), results.get(timeout=3600)
    for writer in writers:
        writer.join()
    right = 0
    for number, (one, other) in enumerate(zip(first, second, strict=True), start=1):
        lost = [each for each in (one, other) if each is not None]
        right += lost == [(number, number + 1)]
    stored = store.load("s1")
    return {"tries": tries, "right": right, "version": stored.version if stored else None}


def kill(folder: str) -> dict[str, Any]:
    """Kill one process at each byte of a save. The kernel does it, at the write that passes the limit of a file."""
    store = FileSessionStore(folder)
    old = store.create(SessionFactory().create(AgentDefinition(name="a"), session_id="s1"))
    new = old.with_state(old.state.with_user_message("a longer state than the one before"))
    size = (Path(folder) / "s1.json").stat().st_size
    killed = lost = 0
    for limit in range(size):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            store.save(new)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        lost += store.load("s1") != old or store.list_headers().count != 1
    saved = store.save(new)
    return {"bytes": size, "killed": killed, "lost": lost, "saved": store.load("s1") == saved}


if __name__ == "__main__":
    outcome = race(sys.argv[2], int(sys.argv[3])) if sys.argv[1] == "race" else kill(sys.argv[2])
    print(json.dumps(outcome))
