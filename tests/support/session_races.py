"""Two processes, or two threads, that save the same versions of a session: exactly one wins each time."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

from celery_agents.worker.errors import SessionConflict
from celery_agents.worker.session import AgentDefinition, SessionFactory, SessionRepository, SessionStore, WriteMetadata

_RACER = Path(__file__).with_name("session_racer.py")


def new_session(store: SessionStore) -> str:
    return SessionRepository(store).create(SessionFactory().create(AgentDefinition(name="planned"))).session_id


def race_processes(url: str, session: str, *, tries: int, folder: str = "-", timeout: float = 600) -> list[int]:
    """Let two processes save each version; how many wins and conflicts there were."""
    command = [sys.executable, str(_RACER), url, folder, session, str(tries)]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [json.loads(racer.communicate(timeout=timeout)[0]) for racer in racers]
    return [sum(each[kind] for each in told) for kind in ("wins", "conflicts")]


def race_threads(store: SessionStore, session: str, *, tries: int) -> list[int]:
    """Let two threads save each version; how many wins and conflicts there were."""
    told, meeting, repository = [0, 0], threading.Barrier(2), SessionRepository(store)

    def run() -> None:
        for version in range(1, tries + 1):
            loaded = repository.load(session)
            meeting.wait(60)
            try:
                repository.save(WriteMetadata("version", version).execute_on(loaded))
                told[0] += 1
            except SessionConflict as conflict:
                told[1] += (conflict.expected, conflict.stored) == (version, version + 1)
            meeting.wait(60)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told
