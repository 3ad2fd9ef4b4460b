"""kill -9 of the workers that submit the messages of schedules, and of Redis: an outside ledger has each slot once."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Final

from celery_agents.flow import Schedule

from support.agents import call, plan
from support.lab import Lab, Supervisor
from support.verdict import Verdict
from support.wait import wait_until

POINTS: Final = ("s0", "s1")
SCHEDULES: Final = 4
"""Each has a slot every so many seconds, so that together there is one each second."""
_KILLED_EVERY: Final = (0.5, 2.5)
_LEFT_SECONDS: Final = 60.0


def kill_while_scheduled(
    directory: Path, seconds: float, seed: int, *, probability: float, redis_kills: int
) -> Verdict:
    """Kill workers at their points and at any time, and Redis, while there is a slot each second.

    Args:
        probability: Of a kill when a worker passes one of its points.
    """
    chance = random.Random(seed)
    plans = [f"{point}:{probability}:{chance.randrange(10**9)}" for point in POINTS * round(1 + seconds / 20)]
    chance.shuffle(plans)
    with Lab(directory, redis_options={"append_only": "always"}) as lab, Supervisor(lab, plans, 3) as supervisor:
        lab.client.wait_for_agent("planned")
        firsts = _begin(lab)
        _run(lab, supervisor, chance, seconds, redis_kills)
        ends = {name: _next_slot(lab, name) for name in firsts}
        wait_until(lambda: _is_caught_up(lab, ends), "the slots until now are submitted", _LEFT_SECONDS)
        supervisor.plans.clear()
        for name in firsts:
            lab.client.schedules.remove(name)
        pages = lambda: [*lab.client.list(status="pending"), *lab.client.list(status="in_progress")]  # noqa: E731
        wait_until(lambda: not pages(), "what they began has ended", _LEFT_SECONDS)
        return _judge(lab, supervisor, firsts, ends)


def _begin(lab: Lab) -> dict[str, int]:
    """Set the schedules, each with a session for each slot or with one for all, and give their first slots."""
    text = plan([call("keyed", work="SLOT")]).replace("{", "{{").replace("}", "}}").replace("SLOT", "{name} {slot}")
    for number in range(SCHEDULES):
        lab.client.schedules.set(
            Schedule(
                f"every-{number}", cron=f"{number}/{SCHEDULES} * * * * *", agent="planned", message=text,
                session="log" if number == 0 else None, overlap="queue", missed=100,
            )
        )  # fmt: skip
    return {f"every-{number}": _next_slot(lab, f"every-{number}") for number in range(SCHEDULES)}


def _next_slot(lab: Lab, name: str) -> int:
    status = lab.client.schedules.get(name)
    assert status is not None
    assert status.slot_ms is not None
    return status.slot_ms


def _run(lab: Lab, supervisor: Supervisor, chance: random.Random, seconds: float, redis_kills: int) -> None:
    """Kill for so many seconds, and on until workers have died at each point and elsewhere."""
    ends = time.monotonic() + seconds
    kills = sorted(ends - seconds * chance.uniform(0.1, 0.9) for _ in range(redis_kills))
    while (missing := {*POINTS, ""} - _met(supervisor)) or time.monotonic() < ends:
        assert time.monotonic() < ends + _LEFT_SECONDS, f"nobody was killed at {missing}"
        time.sleep(chance.uniform(*_KILLED_EVERY))
        if kills and time.monotonic() > kills[0]:
            kills.pop(0)
            lab.server.kill()
            lab.server.start()
        elif supervisor.unarmed and chance.random() < 0.5:
            chance.choice(supervisor.unarmed).kill()


def _met(supervisor: Supervisor) -> set[str]:
    """The points at which workers have died; an empty text is elsewhere."""
    return {death.crash.partition(":")[0] for death in supervisor.deaths}


def _is_caught_up(lab: Lab, ends: dict[str, int]) -> bool:
    found = {each.schedule.name: each for each in lab.client.schedules.list()}
    return all(
        (found[name].slot_ms or 0) > end and not found[name].waiting and found[name].taken is None
        for name, end in ends.items()
    )


def _judge(lab: Lab, supervisor: Supervisor, firsts: dict[str, int], ends: dict[str, int]) -> Verdict:
    """Each slot has had its effect once, in one execution."""
    verdict = Verdict()
    executions = Counter[str]()
    for work, _ in {(entry["work"], entry["execution"]) for entry in lab.ledger.entries() if entry["kind"] == "effect"}:
        executions[work] += 1
    for name, first in firsts.items():
        slots = range(first, ends[name] + 1, SCHEDULES * 1000)
        shown = Schedule(name, cron="* * * * *", agent="planned", message="{name} {slot}")
        for slot in slots:
            count = executions[shown.message_of(slot)]
            verdict.expect(count == 1, name, f"{count} executions of {shown.message_of(slot)}")
        verdict.counts["slots"] += len(slots)
    verdict.counts["doubled"] += sum(count > 1 for count in executions.values())
    for death in supervisor.deaths:
        point = death.crash.partition(":")[0] or "anywhere"
        verdict.counts[f"killed_{point}"] += 1
        verdict.expect(death.code == -9, "workers", f"ended with {death.code} at {death.crash}")
    return verdict
