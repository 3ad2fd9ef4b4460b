"""kill -9 of workers and clients while sessions move to the archive and come back, with messages and deletions meanwhile."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from celery_agents import AgentClient, Job
from celery_agents.worker.errors import ActionRefused, SessionNotFound
from celery_agents.worker.state import Role

from support.agents import call, plan
from support.lab import Lab, Supervisor, wait_while_feeding
from support.processes import TESTS
from support.verdict import Verdict
from support.wait import wait_until

POINTS: Final = ("a0", "a1", "a2", "a4")
"""Where workers are killed; clients are at a3."""
ENVIRONMENT: Final = {
    "CELERY_AGENTS_ARCHIVE_AFTER_SECONDS": "0.2",
    "CELERY_AGENTS_ARCHIVE_PER_SECOND": "1000",
    "CELERY_AGENTS_ARCHIVE_SETTLE_SECONDS": "0.3",
}
_CLIENT: Final = """
import sys
from celery_agents import AgentClient
from celery_agents.config.settings import Settings
from celery_agents.worker import crash_points
crash_points.arm("a3:1:1")
AgentClient(settings=Settings.from_environment()).send_message(sys.argv[1], sys.argv[2], idempotency_key=sys.argv[3])
"""


class _Traffic:
    """Sessions of clients: what they were sent, what is deleted, and what was found wrong meanwhile."""

    def __init__(self, lab: Lab, url: str, chance: random.Random, most: int) -> None:
        self.lab, self.url, self.chance, self.most = lab, url, chance, most
        self.sent: dict[str, list[str]] = {}
        self.jobs: dict[str, Job] = {}
        self.deleted: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._numbers = itertools.count()

    @property
    def client(self) -> AgentClient:
        return self.lab.client

    def feed(self) -> None:
        """One thing that a client does, and a look at some sessions."""
        for name in self.chance.sample(sorted(self.sent), min(2, len(self.sent))):
            self._look(name)
        idle = [name for name in self.sent if name not in self.deleted and self._has_ended(name)]
        if len(self.sent) - len(self.deleted) < self.most or not idle:
            self._submit()
            return
        archived = [each for each in idle if is_archived(self.lab, each)]
        if not archived and self.chance.random() < 0.8:
            time.sleep(0.05)  # a session that is never idle never moves
            return
        name, dice = self.chance.choice(archived or idle), self.chance.random()
        if dice < 0.1:
            self._delete(name)
        elif dice < 0.15 and archived:
            self._send_and_die(name)
        else:
            self._send(name)

    def in_flight(self) -> int:
        """Executions that have not ended."""
        return sum(not self._has_ended(name) for name in self.sent)

    def _has_ended(self, name: str) -> bool:
        if name in self.deleted:
            return True
        return self.client.store.sessions.outcome(name, self.jobs[name].execution_id) is not None

    def _message(self, name: str) -> str:
        tool = self.chance.choice(("keyed", "unsafe"))
        return plan([call(tool, work=f"{name}.{next(self._numbers)}")], answer=f"of {name}")

    def _submit(self) -> None:
        name = f"s{next(self._numbers)}"
        text = self._message(name)
        job = self.client.submit("planned", text, session_id=name, idempotency_key=name, labels={"all": "1"})
        self.sent[name], self.jobs[name] = [text], job
        self.counts["sessions"] += 1

    def _send(self, name: str, text: str = "", key: str = "") -> None:
        text = text or self._message(name)
        self.jobs[name] = self.client.send_message(name, text, idempotency_key=key or f"{name}.{next(self._numbers)}")
        self.sent[name].append(text)
        self.counts["messages"] += 1

    def _send_and_die(self, name: str) -> None:
        """A client that is killed when it has restored the session; it sends the same message again afterwards."""
        text, key = self._message(name), f"{name}.{next(self._numbers)}"
        env = {"CELERY_AGENTS_REDIS_URL": self.lab.store_url, "CELERY_AGENTS_ARCHIVE_URL": self.url}
        command = [sys.executable, "-c", _CLIENT, name, text, key]
        done = subprocess.run(command, env={**os.environ, **env, "PYTHONPATH": str(TESTS)}, check=False)
        self.counts["killed_a3"] += done.returncode == -9
        self._send(name, text, key)

    def _delete(self, name: str) -> None:
        try:
            self.client.delete(name, timeout=20)
        except (ActionRefused, TimeoutError) as error:
            self.problems.append(f"{name} cannot be deleted: {error}")
            return
        self.deleted.add(name)
        self.counts["deleted"] += 1

    def _look(self, name: str) -> None:
        try:
            self.client.header(name)
        except SessionNotFound as error:
            if name not in self.deleted:
                self.problems.append(f"{name} is in neither place: {error}")
        else:
            if name in self.deleted:
                self.problems.append(f"{name} was deleted, and is there")


def kill_archive(
    directory: Path, url: str, rounds: int, seed: int, *, sessions: int, timeout: float, in_flight: int = 6
) -> Verdict:
    """Kill the worker that moves sessions at each point so many times, and clients that restore them."""
    chance = random.Random(seed)
    plans = [f"{point}:0.2:{chance.randrange(10**9)}" for point in POINTS * rounds]
    chance.shuffle(plans)
    with Lab(directory, env={**ENVIRONMENT, "CELERY_AGENTS_ARCHIVE_URL": url}) as lab:
        traffic = _Traffic(lab, url, chance, sessions)
        with Supervisor(lab, list(plans), 2) as supervisor:
            lab.client.wait_for_agent("planned")
            wait_while_feeding(
                lambda: supervisor.done and bool(traffic.counts["killed_a3"]),
                traffic.feed,
                in_flight=traffic.in_flight,
                most=in_flight,
                timeout=timeout,
                why="every crash plan has killed its worker",
            )
            wait_until(lambda: not traffic.in_flight(), "all executions have ended", 90)
            live = sorted(set(traffic.sent) - traffic.deleted)
            wait_until(lambda: all(is_archived(lab, each) for each in live), "all sessions are archived", 90)
            wait_until(lambda: not _outbox(lab), "all deletions have reached the archive", 60)
        verdict = _judge(lab, traffic, live)
        for problem in (*supervisor.problems, *traffic.problems):
            verdict.expect(False, "lab", problem)
        for death in supervisor.deaths:
            if death.crash:
                verdict.counts[f"killed_{death.crash.partition(':')[0]}"] += 1
                verdict.expect(death.code == -9, "workers", f"ended with {death.code} at {death.crash}")
    return verdict


def is_archived(lab: Lab, name: str) -> bool:
    found: Any = lab.redis.hmget(lab.client.store.context.keys(name).session, "version", "archived")
    return found[0] is None and found[1] is not None


def _outbox(lab: Lab) -> int:
    return sum(int(lab.redis.zcard(shard.archive)) for shard in lab.client.store.context.shards)  # type: ignore[arg-type]


def _judge(lab: Lab, traffic: _Traffic, live: list[str]) -> Verdict:
    """None lost, none doubled, none in neither place; no effect twice; nothing left of what was deleted."""
    verdict = Verdict(counts=Counter(traffic.counts))
    effects = Counter(entry["key"] for entry in lab.ledger.entries() if entry.get("effect") and "work" in entry)
    listed = Counter(header.session_id for header in lab.client.list(label={"all": "1"}))
    verdict.expect(
        listed == Counter(live), "list", f"{listed - Counter(live)} too many, {Counter(live) - listed} missing"
    )
    for name in live:
        said = [m.content for m in lab.client.show(name).state.store.section().messages if m.role is Role.USER]
        verdict.expect(said == traffic.sent[name], "A2", f"{name} was sent {traffic.sent[name]} and has {said}")
    for key, count in effects.items():
        verdict.expect(count == 1, "I3", f"{count} effects of {key}")
    verdict.counts["effects"] = len(effects)
    archived = lab.client.archive_status()
    verdict.expect(archived.sessions == len(live), "A3", f"{archived} for {len(live)} sessions")
    verdict.expect(archived.pending == 0, "A4", f"{archived.pending} rows are pending")
    left = [str(key) for key in lab.redis.scan_iter("ca:{*}:s:*") if str(key).count(":") > 3]
    left = [key for key in left if ":j:" not in key]  # of committed steps, for a minute
    verdict.expect(not left, "keys", f"left in Redis: {left[:10]}")
    return verdict
