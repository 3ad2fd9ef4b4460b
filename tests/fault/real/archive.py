"""kill -9 of workers and clients while sessions move to the archive and come back, and a mover that is slow."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from celery_agents.worker.state import Role

from .archive_traffic import GONE, TREATMENTS, Traffic
from support.http_service import Entry
from support.lab import Lab, Supervisor
from support.verdict import Verdict
from support.wait import wait_until

POINTS: Final = ("a0", "a1", "a2", "a4")
"""Where workers are killed; clients are at a3."""
MET: Final = tuple(f"met_{point}_{what}" for point in ("a0", "a1", "a2") for what in TREATMENTS)
"""Counts of what a session met that a worker had in its hands when it was killed, at each point of a move."""
ENVIRONMENT: Final = {
    "CELERY_AGENTS_ARCHIVE_AFTER_SECONDS": "0.2",
    "CELERY_AGENTS_ARCHIVE_PER_SECOND": "1000",
    "CELERY_AGENTS_ARCHIVE_SETTLE_SECONDS": "0.3",
}
_PAUSE_SECONDS: Final = 2.0
_IN_FLIGHT: Final = 8


def kill_archive(
    directory: Path, url: str, rounds: int, seed: int, *, sessions: int, probability: float, timeout: float,
    met: Sequence[str] = (),
) -> Verdict:  # fmt: skip
    """Kill the worker that moves sessions at each point, and clients that restore them.

    Args:
        rounds: So many kills at each point.
        probability: Of a kill when a worker passes its point.
        met: Of `MET`: more workers are killed until each of these has been met.
    """
    chance = random.Random(seed)
    plans = [f"{point}:{probability}:{chance.randrange(10**9)}" for point in POINTS * rounds]
    chance.shuffle(plans)
    with Lab(directory, env={**ENVIRONMENT, "CELERY_AGENTS_ARCHIVE_URL": url}) as lab:
        traffic = Traffic(lab, url, chance, killed_clients=rounds)
        with Supervisor(lab, list(plans), 2) as supervisor:
            lab.client.wait_for_agent("planned")
            deadline = time.monotonic() + timeout
            _run_traffic(traffic, supervisor, sessions, deadline)
            while missing := [name for name in met if not traffic.counts[name]]:
                supervisor.plans.append(f"{missing[0].split('_')[1]}:1:1")
                _run_traffic(traffic, supervisor, sessions, deadline)
            _wait_for_rest(traffic)
        verdict = _judge(traffic)
        for problem in supervisor.problems:
            verdict.expect(False, "lab", problem)
        for death in supervisor.deaths:
            if death.crash:
                verdict.counts[f"killed_{death.crash.partition(':')[0]}"] += 1
                verdict.expect(death.code == -9, "workers", f"ended with {death.code} at {death.crash}")
    return verdict


def _run_traffic(traffic: Traffic, supervisor: Supervisor, sessions: int, deadline: float) -> None:
    """Let clients do what they do until each has done it and each plan has killed its worker."""
    rests = False
    while not (rests and supervisor.done and len(supervisor.deaths) == traffic.deaths):
        assert time.monotonic() < deadline, f"not at its end in time: {traffic.counts} {supervisor.active}"
        running = traffic.in_flight()
        for death in supervisor.deaths[traffic.deaths :]:
            traffic.deaths += 1
            traffic.meet(death.crash.partition(":")[0])
        _hand_over(traffic, supervisor)
        traffic.look()
        for _ in range(_IN_FLIGHT - running):
            if len(supervisor.deaths) > traffic.deaths:
                break  # what it has left behind is looked for before another worker mends it
            if len(traffic.sessions) < sessions:
                traffic.submit()
            elif not traffic.take_turn():
                break
        rests = len(traffic.sessions) >= sessions and not running and not traffic.has_turns()
        if rests and not supervisor.done:
            traffic.feed_plans(supervisor.active)
        time.sleep(0.02)


def _hand_over(traffic: Traffic, supervisor: Supervisor) -> None:
    """Kill the worker that moves sessions when it has no crash plan, so that one with a plan takes its place."""
    if not supervisor.active and not supervisor.plans:
        return
    holder = str(traffic.lab.redis.get(traffic.client.store.context.shards[0].sweeper) or "")
    for worker in supervisor.unarmed:
        if f"-{worker.pid}-" in holder:
            worker.kill()
            traffic.counts["killed_anywhere"] += 1


def pause_mover(directory: Path, url: str, treatments: Sequence[str] = TREATMENTS) -> Verdict:
    """Stop a worker when it has stored a row. Meanwhile the session gets a message, is deleted, or is moved by another."""
    with Lab(directory, env={**ENVIRONMENT, "CELERY_AGENTS_ARCHIVE_URL": url}) as lab:
        traffic = Traffic(lab, url, random.Random(1), killed_clients=0)
        for treatment in treatments:
            slow = lab.worker(crash=f"a0:1:1:stop={_PAUSE_SECONDS:g}")
            session = traffic.submit("rest")
            wait_until(lambda slow=slow: _is_stopped(slow.pid), "a worker has stopped in a move", 60)
            assert not traffic.in_flight()
            traffic.treat(session, treatment)
            other = lab.worker()
            wait_until(lambda slow=slow: not _is_stopped(slow.pid), "it goes on", 30)
            _wait_for_rest(traffic)
            for worker in (slow, other):
                worker.end(patience=0.0)
            traffic.counts[f"paused_{treatment}"] += 1
        return _judge(traffic)


def outlive_mark(directory: Path, url: str) -> Verdict:
    """Kill a worker at a2; the next one comes when the life of the mark is over, and Redis holds nothing of the session."""
    lives = {"CELERY_AGENTS_RETENTION_SECONDS": "2"}
    with Lab(directory, env={**ENVIRONMENT, **lives, "CELERY_AGENTS_ARCHIVE_URL": url}) as lab:
        traffic = Traffic(lab, url, random.Random(1), killed_clients=0)
        killed = lab.worker(crash="a2:1:1")
        session = traffic.submit("rest")
        wait_until(lambda: not killed.alive, "the worker is killed at a2", 60)
        wait_until(lambda: traffic.places([session])[0] == GONE, "the mark's life is over", 30)
        pending = lab.client.archive_status().pending
        lab.worker()
        wait_until(lambda: not lab.client.archive_status().pending, "its row is valid", 30)
        verdict = _judge(traffic, marks_stay=False)
        verdict.counts["left_pending"] += pending
        return verdict


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _wait_for_rest(traffic: Traffic) -> None:
    """Wait until all sessions are in the archive, and all deletions have reached it."""
    wait_until(lambda: not traffic.in_flight(), "all executions have ended", 90)
    wait_until(lambda: all(each.is_archived for each in traffic.places(traffic.live)), "all have moved", 90)
    wait_until(lambda: not traffic.outbox(), "all deletions have reached the archive", 60)


def _judge(traffic: Traffic, *, marks_stay: bool = True) -> Verdict:
    """None lost, none doubled, none in neither place; no effect twice; nothing left of what was deleted."""
    lab, live = traffic.lab, [each.name for each in traffic.live]
    verdict = Verdict(counts=Counter(traffic.counts))
    for problem in traffic.problems:
        verdict.expect(False, "A1", problem)
    listed = Counter(header.session_id for header in lab.client.list(label={"all": "1"}))
    verdict.expect(
        listed == Counter(live), "list", f"{listed - Counter(live)} too many, {Counter(live) - listed} missing"
    )
    for each in traffic.live:
        said = [m.content for m in lab.client.show(each.name).state.store.section().messages if m.role is Role.USER]
        verdict.expect(said == each.sent, "A2", f"{each.name} was sent {each.sent} and has {said}")
    _judge_effects(verdict, traffic, lab.ledger.entries())
    archived = lab.client.archive_status()
    verdict.expect(archived.sessions == len(live), "A3", f"{archived} for {len(live)} sessions")
    verdict.expect(archived.pending == 0, "A4", f"{archived.pending} rows are pending")
    places = zip(traffic.live, traffic.places(traffic.live), strict=True)
    endless = [each.name for each, place in places if not place.lives and (marks_stay or place != GONE)]
    verdict.expect(not endless, "A5", f"marks without a life: {endless[:10]}")
    left = [str(key) for key in lab.redis.scan_iter("ca:{*}:s:*") if str(key).count(":") > 3]
    left = [key for key in left if ":j:" not in key]  # of committed steps, for a minute
    verdict.expect(not left, "keys", f"left in Redis: {left[:10]}")
    verdict.counts["rows"] = archived.sessions
    return verdict


def _judge_effects(verdict: Verdict, traffic: Traffic, entries: Sequence[Entry]) -> None:
    """Each message had its effect once, and nothing ran again that had ended before its session moved or was restored."""
    works = Counter(entry["work"] for entry in entries if entry.get("effect") and "work" in entry)
    for work, count in works.items():
        verdict.expect(count == 1, "I3", f"{count} effects of {work}")
    for each in traffic.live:
        calls = [json.loads(text)["steps"][0][0] for text in each.sent]
        missing = {each["arguments"]["work"] for each in calls if each["tool"] == "keyed"} - set(works)
        verdict.expect(not missing, "A2", f"{each.name} lacks the effects {missing}")
    for entry in entries:
        execution = entry.get("execution") or entry["key"].split(":")[1]
        late = entry["at"] > traffic.ended.get(execution, entry["at"])
        verdict.expect(not late, "I5", f"{entry['key']} ran when its execution had ended")
    verdict.counts["effects"] = len(works)
