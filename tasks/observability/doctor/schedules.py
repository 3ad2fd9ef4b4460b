"""Checks of schedules: those that reach nobody, are late, were refused, or were taken out of the code."""

from __future__ import annotations

from collections.abc import Iterator

from ....worker.flow.schedules import ScheduleStatus
from ....worker.flow.slots import LATE_MS
from ....worker.moments import moment
from ...client.provider_notes import find_unknown_agent
from .findings import Finding, Installation


def check_schedules(installation: Installation) -> Iterator[Finding]:
    """Schedules of agents that no live worker has, that are late, that were refused, and that the code has no more."""
    found = installation.store.flow.schedules()
    now_ms = installation.store.housekeeping.now_ms() if found else 0
    deployed = {name for facts in installation.workers.values() for name in facts["schedules"]}
    for status in found:
        schedule = status.schedule
        problems = list(_problems(status, now_ms))
        for note in find_unknown_agent(schedule.agent, installation.store.registry):
            problems.append((note, "start a worker with the agent, or correct the name"))
        if status.deployed and installation.workers and schedule.name not in deployed:
            advice = f"if it is not wanted: celery-agents schedules remove {schedule.name}"
            problems.append(("it was deployed with an agent, and no live worker has it in its code", advice))
        for what, advice in problems:
            yield Finding.warn("schedule", f"{schedule.name}: {what}", advice)
        if not problems:
            assert status.slot_ms is not None
            begins = moment(schedule.begin_ms(status.slot_ms)).isoformat()
            yield Finding.ok("schedule", f"{schedule.name}: {schedule.cron} {schedule.zone}, next {begins}")


def _problems(status: ScheduleStatus, now_ms: int) -> Iterator[tuple[str, str]]:
    schedule, last = status.schedule, status.last
    if status.slot_ms is None:
        yield "it has no slot any more", f"remove it: celery-agents schedules remove {schedule.name}"
    elif schedule.begin_ms(status.slot_ms) < now_ms - LATE_MS:
        late = round((now_ms - schedule.begin_ms(status.slot_ms)) / 1000)
        yield f"its slot is {late} s late", "start a worker; if one is alive, look at its log for 'schedule'"
    if last is not None and last.refused:
        yield f"its last slot was refused: {last.refused}", "correct what refused it; the next slot tries again"
    if status.waiting:
        advice = "its work takes longer than its interval: look at that session, or set overlap to skip"
        yield f"{len(status.waiting)} slots wait for the end of the one before", advice
