"""Everything at once: a client does whatever a client can do, in an order that is drawn, while workers and Redis are killed.

Afterwards every limit, pause, cap, hold and queue is lifted and every request answered. Then all has to end in a bounded time, and
the outside ledger and what is stored are judged.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from celery_agents.worker.errors import SessionNotFound
from celery_agents.worker.state import Role
from celery_agents.worker.store import Header

from .everything_clients import MOST, NAMES, Crowd
from support.concurrent_agents import most_at_once
from support.http_service import Entry
from support.lab import Lab
from support.redis_keys import immortal_keys
from support.verdict import Submitted, Verdict, judge_effects, judge_rest
from support.wait import wait_until

WANTED: Final = (*NAMES, "effects", "messages_found", "executions_judged")
_IDLE_SECONDS: Final = 300.0
_ENV: Final = {
    "CELERY_AGENTS_CONCURRENCY": "8",
    # A step whose worker is killed again and again is no poison here.
    "CELERY_AGENTS_ATTEMPTS_LIMIT": "100",
    "CELERY_AGENTS_SUSPECT_ATTEMPTS": "90",
}
_ARCHIVE: Final = {
    "CELERY_AGENTS_ARCHIVE_AFTER_SECONDS": "1",
    "CELERY_AGENTS_ARCHIVE_SETTLE_SECONDS": "2",
    "CELERY_AGENTS_ARCHIVE_PER_SECOND": "200",
}


def play(directory: Path, rounds: int, seed: int, *, seconds: float) -> Verdict:
    """Do everything in so many rounds of so many seconds; by its seed, a round has an archive, or its broker elsewhere."""
    verdict = Verdict()
    for number in range(seed, seed + rounds):
        env = dict(_ENV)
        if number % 2 == 0:
            env |= {**_ARCHIVE, "CELERY_AGENTS_ARCHIVE_URL": f"sqlite:///{directory}/{number}.db"}
        place = directory / str(number)
        always = {"append_only": "always"}
        with Lab(
            place, agents="support.everything_agents", separate=number % 5 == 4, env=env, redis_options=always
        ) as lab:
            verdict.add(_play_round(lab, random.Random(number), seconds))
    return verdict


def _play_round(lab: Lab, chance: random.Random, seconds: float) -> Verdict:
    crowd = Crowd(lab, chance)
    crowd.lift()
    lab.client.wait_for_agent("parent")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # workers that were killed have registered agents, until others have
        crowd.act(seconds)
    lab.client = crowd.client = lab.new_client()  # connections of the old one have died with Redis
    crowd.lift()
    # A session may change between two listings, so that one look misses it.
    wait_until(
        lambda: crowd.rests() and crowd.rests(), "all rests", _IDLE_SECONDS, interval=0.2, details=lambda: _describe(lab)
    )  # fmt: skip
    # What has ended lives on until it is in the archive.
    wait_until(lambda: not immortal_keys(lab.redis), "every key has a time to live", 30)
    _judge(crowd)
    return crowd.verdict


def _describe(lab: Lab) -> str:
    """What stands still."""
    lines = [f"{each.limit.name}: {each.parts}" for each in lab.client.concurrency.list()]
    for status in ("pending", "in_progress", "waiting"):
        for header in list(lab.client.list(status=status))[:3]:
            keys = lab.client.store.context.keys(header.session_id)
            lines.append(f"{header.session_id} {status}: {lab.redis.hgetall(keys.ctl)}")
    return "\n".join(lines)


def _judge(crowd: Crowd) -> None:
    verdict, lab, entries = crowd.verdict, crowd.lab, crowd.lab.ledger.entries()
    judge_rest(verdict, lab.client, lab.redis)
    noted = [entry for entry in entries if "limit" in entry]
    for limit in MOST.keys() - crowd.unlimited:
        ran, most = most_at_once(noted, limit), MOST[limit]
        verdict.expect(ran <= most, "limit", f"{ran} ran at a time under {limit}, of at most {most}")
        verdict.counts["limits_judged"] += 1
    for worker in lab.workers:
        verdict.expect(worker.alive or worker.exit_code == -9, "workers", f"{worker.name} ended: {worker.exit_code}")
    dead = lab.client.store.housekeeping.list_dead(3)
    verdict.expect(not dead, "dead", f"{dead}")
    effects = [entry for entry in entries if entry.get("kind") == "effect" and not _is_late(entry, crowd)]
    _judge_effects(verdict, effects)
    headers = list(lab.client.list())
    _judge_messages(crowd, headers)
    _judge_executions(crowd, headers, effects)


def _is_late(entry: Entry, crowd: Crowd) -> bool:
    """Whether a call that can be looked up was looked up, and run elsewhere, while its worker stood still over it."""
    return entry["tool"] == "looked_up" and entry["repeated"] and entry["pid"] in crowd.stopped


def _judge_effects(verdict: Verdict, effects: Sequence[Entry]) -> None:
    """I3: each call has had its effect once."""
    keys: defaultdict[tuple[str, int, int], set[str]] = defaultdict(set)
    real = Counter[str]()
    for entry in effects:
        keys[entry["execution"], entry["step"], entry["index"]].add(entry["key"])
        real[entry["key"]] += entry["effect"]
        verdict.counts["effects"] += entry["effect"]
    for key, count in real.items():
        verdict.expect(count == 1, "I3", f"{key} had {count} effects")
    for place, found in keys.items():
        verdict.expect(len(found) == 1, "I3", f"the call at {place} had the keys {found}")


def _judge_messages(crowd: Crowd, headers: Sequence[Header]) -> None:
    """Each message that was accepted is in the history of its session, once; what was deleted stays so."""
    verdict, client = crowd.verdict, crowd.client
    found: defaultdict[str, list[str]] = defaultdict(list)
    there = {header.session_id for header in headers}
    for session in sorted(crowd.gone):
        try:
            status = client.header(session).status
        except SessionNotFound:
            status = None
        verdict.expect(status is None and session not in there, "gone", f"{session} was deleted, and is {status}")
    for header in headers:
        verdict.expect(header.status not in ("parked", "unreadable"), "parked", f"{header.session_id}: {header.status}")
        for message in client.show(header.session_id).state.messages:
            if message.role is Role.USER:
                found[message.content.split()[-1]].append(header.session_id)
    for name in filter(_is_named, found):
        # Forks have the messages of their sources.
        once = sum("." not in each for each in found[name]) <= 1 and max(Counter(found[name]).values()) == 1
        verdict.expect(once, "I6", f"message {name} is in {found[name]}")
    for name, session in crowd.said.items():
        if {name, session} & crowd.loose or session in crowd.doubtful:
            continue
        verdict.counts["messages_found"] += 1
        verdict.expect(session in found[name], "I6", f"message {name} of {session} is in {found[name]}")


def _is_named(word: str) -> bool:
    """Whether it is the name of a message of a client; slots of schedules have others, and prompts of children none."""
    return word.startswith("#") and word[1:].isdigit()


def _judge_executions(crowd: Crowd, headers: Sequence[Header], effects: Sequence[Entry]) -> None:
    """I3, I5: each effect is known to the history."""
    made: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in effects:
        made[entry["execution"]].append(entry)
    for header in headers:
        root = header.session_id.partition(".")[0]
        if header.forked_from or root in crowd.loose:
            continue
        execution = crowd.client.show(header.session_id).state.execution
        if execution is not None:
            crowd.verdict.counts["executions_judged"] += 1
            job = Submitted(header.session_id, execution.execution_id, ())
            judge_effects(crowd.verdict, job, execution, made[execution.execution_id])
