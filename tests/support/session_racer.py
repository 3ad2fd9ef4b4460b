"""One of two processes that save the same versions of a session: `session_racer.py REDIS_URL FOLDER SESSION TRIES`.

For each version both load it, meet in Redis, and save. FOLDER: of a file store; "-": the session is in Redis. Prints how
often this one won, and how often it met a conflict that named both versions.
"""

from __future__ import annotations

import json
import sys
import time

import redis

from celery_agents import AgentClient
from celery_agents.worker.errors import SessionConflict
from celery_agents.worker.session import FileSessionStore, SessionRepository, WriteMetadata


def main(url: str, folder: str, session_id: str, tries: int) -> None:
    """Race."""
    told = {"wins": 0, "conflicts": 0}
    with AgentClient(url) as client, redis.Redis.from_url(url) as meeting:
        repository = SessionRepository(client.session_store() if folder == "-" else FileSessionStore(folder))
        for version in range(1, tries + 1):
            loaded = repository.load(session_id)
            while loaded.version < version:
                loaded = repository.load(session_id)
            _meet(meeting, f"race:{session_id}:{version}")
            try:
                repository.save(WriteMetadata("version", version).execute_on(loaded))
                told["wins"] += 1
            except SessionConflict as conflict:
                told["conflicts"] += (conflict.expected, conflict.stored) == (version, version + 1)
    print(json.dumps(told))


def _meet(server: redis.Redis, place: str) -> None:
    """Wait for the other process."""
    server.incr(place)
    server.expire(place, 60)
    while int(server.get(place) or 0) < 2:  # type: ignore[arg-type]
        time.sleep(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
