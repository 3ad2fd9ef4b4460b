"""Two writers of one version of a session, on each store of the session runtime."""

from __future__ import annotations

from pathlib import Path

from celery_agents.worker.session import FileSessionStore, InMemorySessionStore

from support.lab import Lab
from support.session_races import new_session, race_processes, race_threads
from support.verdict import Verdict


def race_sessions(directory: Path, tries: int) -> Verdict:
    """Two processes on Redis and on files, two threads in memory: exactly one writer of each version wins."""
    verdict, files = Verdict(), directory / "files"
    with Lab(directory / "lab") as lab:
        redis, in_files, memory = lab.client.session_store(), FileSessionStore(files), InMemorySessionStore()
        found = {
            "redis": race_processes(lab.store_url, new_session(redis), tries=tries, timeout=3600),
            "files": race_processes(lab.store_url, new_session(in_files), tries=tries, folder=str(files), timeout=3600),
            "memory": race_threads(memory, new_session(memory), tries=tries),
        }
    for store, (wins, conflicts) in found.items():
        verdict.expect((wins, conflicts) == (tries, tries), "R3", f"{store}: {wins} wins and {conflicts} conflicts")
        verdict.counts[f"raced_{store}"] += wins
    return verdict
