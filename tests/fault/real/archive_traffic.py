"""What clients do while sessions move to the archive and come back, and what they find wrong.

Each session belongs to a group, which says what it meets when it is archived:

    rest        it is left alone
    restore     it gets a message, from some by a client that is killed when it has restored the session (a3)
    delete      it is deleted

What a worker has left behind that was killed in the middle of a move is looked for, and that session gets a message, is deleted or is
left alone, in turn. Where nothing would move, or nothing would be deleted, while a worker waits for its point, a session is
restored or deleted for it: each plan kills, and soon.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from celery_agents import AgentClient
from celery_agents.worker.errors import ActionRefused, SessionNotFound

from support.agents import call, plan
from support.lab import Lab
from support.processes import TESTS

TREATMENTS: Final = ("message", "delete", "rest")
_GROUPS: Final = ("rest", "restore", "rest", "restore", "delete", "rest", "restore", "rest", "restore", "rest")
_CLIENT: Final = """
import sys
from celery_agents import AgentClient
from celery_agents.config.settings import Settings
from celery_agents.worker import crash_points
crash_points.arm("a3:1:1")
AgentClient(settings=Settings.from_environment()).send_message(sys.argv[1], sys.argv[2], idempotency_key=sys.argv[3])
"""


@dataclass
class Session:
    """A session as its client knows it.

    Attributes:
        sent: The messages, in their order.
        execution: Its latest one.
        turns: What its group does with it when it is archived, in this order.
    """

    name: str
    group: str
    execution: str = ""
    sent: list[str] = field(default_factory=list[str])
    turns: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session is.

    Attributes:
        is_hot: It is in Redis, perhaps with the mark of the row that it was restored from.
        lives: It has a life, as the mark has of a session whose move is complete.
    """

    is_hot: bool
    mark: str | None
    lives: bool

    @property
    def is_archived(self) -> bool:
        """Its mark alone is in Redis."""
        return not self.is_hot and self.mark is not None


GONE: Final = Place(is_hot=False, mark=None, lives=False)
"""The place of a session of which Redis holds nothing."""


class Traffic:
    """What clients do, what is found wrong meanwhile, and what was killed.

    Attributes:
        deaths: Workers that have died, and whose sessions were looked for.
    """

    def __init__(self, lab: Lab, url: str, chance: random.Random, *, killed_clients: int) -> None:
        self.lab, self.url, self.chance = lab, url, chance
        self.sessions: dict[str, Session] = {}
        self.deleted: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.deaths = 0
        self.problems: list[str] = []
        self.ended: dict[str, float] = {}
        self._running: dict[str, Session] = {}
        self._clients_to_kill = killed_clients
        self._numbers = itertools.count()
        self._treatments = {point: itertools.cycle(TREATMENTS) for point in ("a0", "a1", "a2")}

    @property
    def client(self) -> AgentClient:
        return self.lab.client

    @property
    def live(self) -> list[Session]:
        """The sessions that were not deleted."""
        return [each for name, each in self.sessions.items() if name not in self.deleted]

    def in_flight(self) -> int:
        """Executions that have not ended."""
        waiting = list(self._running.values())
        with self.lab.redis.pipeline(transaction=False) as pipe:
            for each in waiting:
                pipe.hmget(self._key(each.name), "version", f"e:{each.execution}")
            found = pipe.execute()
        now = time.time()
        for each, (version, record) in zip(waiting, found, strict=True):
            if record is not None or version is None:  # one that was archived has ended
                del self._running[each.name]
                self.ended[each.execution] = now
        return len(self._running)

    def places(self, sessions: Sequence[Session]) -> list[Place]:
        """Where sessions are."""
        with self.lab.redis.pipeline(transaction=False) as pipe:
            for each in sessions:
                pipe.hmget(self._key(each.name), "version", "archived")
                pipe.pttl(self._key(each.name))
            found = pipe.execute()
        return [
            Place(version is not None, mark, life > 0)
            for (version, mark), life in zip(found[::2], found[1::2], strict=True)
        ]

    def _key(self, name: str) -> str:
        return self.client.store.context.keys(name).session

    # --- what clients do ----------------------------------------------------------------------------------------

    def submit(self, group: str = "") -> Session:
        """Submit a session, of the next group or of this one."""
        number = next(self._numbers)
        found = Session(f"s{number}", group or _GROUPS[number % len(_GROUPS)])
        found.turns = {"rest": [], "restore": ["restore"], "delete": ["delete"]}[found.group]
        text = self._message(found)
        job = self.client.submit(
            "planned", text, session_id=found.name, idempotency_key=found.name, labels={"all": "1"}
        )
        self._note_sent(found, text, job.execution_id)
        self.sessions[found.name] = found
        self.counts["sessions"] += 1
        return found

    def has_turns(self) -> bool:
        """Whether a session's group has still something to do with it."""
        return any(each.turns for each in self.live)

    def outbox(self) -> int:
        """Deletions that have not reached the archive."""
        shards = self.client.store.context.shards
        return sum(int(self.lab.redis.zcard(shard.archive)) for shard in shards)  # type: ignore[arg-type]

    def take_turn(self) -> bool:
        """Do what the group of some archived session does with it; False where no session has a turn left."""
        wanted = [each for each in self.live if each.turns and each.name not in self._running]
        for each, place in zip(wanted, self.places(wanted), strict=True):
            if place.is_archived:
                self.treat(each, each.turns.pop(0))
                return True
        return False

    def treat(self, session: Session, what: str) -> None:
        """Leave a session alone, send it a message, restore it by a message, or delete it."""
        if what == "delete":
            self._delete(session)
        elif what == "restore" and self._clients_to_kill:
            self._clients_to_kill -= 1
            self._send_and_die(session)
        elif what != "rest":
            self._send(session, self._message(session), f"{session.name}.{next(self._numbers)}")

    def look(self) -> None:
        """Look for some sessions: each is somewhere, and those that were deleted are nowhere."""
        for name in self.chance.sample(sorted(self.sessions), min(2, len(self.sessions))):
            self.counts["looks"] += 1
            try:
                self.client.header(name)
            except SessionNotFound as error:
                if name not in self.deleted:
                    self.problems.append(f"{name} is in neither place: {error}")
            else:
                if name in self.deleted:
                    self.problems.append(f"{name} was deleted, and is there")

    def _message(self, session: Session) -> str:
        tool = self.chance.choice(("keyed", "unsafe"))
        return plan([call(tool, work=f"{session.name}.{next(self._numbers)}")], answer=f"of {session.name}")

    def _note_sent(self, session: Session, text: str, execution: str) -> None:
        session.sent.append(text)
        session.execution = execution
        self._running[session.name] = session

    def _send(self, session: Session, text: str, key: str) -> None:
        job = self.client.send_message(session.name, text, idempotency_key=key)
        self._note_sent(session, text, job.execution_id)
        self.counts["messages"] += 1

    def _send_and_die(self, session: Session) -> None:
        """A client that is killed when it has restored the session; it sends the same message again afterwards."""
        text, key = self._message(session), f"{session.name}.{next(self._numbers)}"
        env = {"CELERY_AGENTS_REDIS_URL": self.lab.store_url, "CELERY_AGENTS_ARCHIVE_URL": self.url}
        command = [sys.executable, "-c", _CLIENT, session.name, text, key]
        done = subprocess.run(command, env={**os.environ, **env, "PYTHONPATH": str(TESTS)}, check=False)
        self.counts["killed_a3"] += done.returncode == -9
        if self.counts["killed_a3"] % 2:
            self._send(session, text, key)
        else:  # it never comes again, and the session is archived as it was
            self.counts["restored_only"] += 1

    def _delete(self, session: Session) -> None:
        try:
            self.client.delete(session.name, timeout=20)
        except (ActionRefused, TimeoutError) as error:
            self.problems.append(f"{session.name} cannot be deleted: {error}")
            return
        self.deleted.add(session.name)
        self.counts["deleted"] += 1

    # --- what kills leave behind --------------------------------------------------------------------------------

    def meet(self, point: str) -> None:
        """Find what a worker that was killed at this point has left behind, and do the next thing with it."""
        for session in self._left_at(point):
            what = next(self._treatments[point])
            self.treat(session, what)
            self.counts[f"met_{point}_{what}"] += 1
            return

    def _left_at(self, point: str) -> Iterator[Session]:
        """Sessions that are as a worker leaves them that dies at this point of a move."""
        assert self.client.store.archived is not None
        rows = self.client.store.archived.archive.pending(limit=1_000)
        pending = {each.session.key.session_id: each.row.mark for each in rows}
        idle = [each for each in self.live if each.name not in self._running]
        for each, place in zip(idle, self.places(idle), strict=True):
            row = pending.get(each.name)
            is_left = {
                "a0": place.is_hot and row not in (None, place.mark),  # a restored session has the mark of its row
                "a1": place.is_archived and row == place.mark and not place.lives,
                "a2": place.is_archived and row == place.mark and place.lives,
            }
            if is_left.get(point, False):
                yield each

    def feed_plans(self, active: Sequence[str]) -> None:
        """Give workers that wait for their points something to pass them with."""
        idle = [each for each in self.live if each.name not in self._running]
        places = dict(zip((each.name for each in idle), self.places(idle), strict=True))
        if self._running or any(place.is_hot for place in places.values()):
            return  # something will move
        archived = [each for each in idle if each.group == "restore" and places[each.name].is_archived]
        if not archived:
            self.submit("restore")
        elif any(each.startswith("a4") for each in active) and not self.outbox():
            self._delete(archived[0])
        else:
            self.treat(archived[-1], "message")
