"""kill -9 of workers at every crash point, while answers are waited for at a provider that has a book of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault.real.provider_jobs import POINTS, kill_jobs

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:no worker has registered"),
]


def test_each_answer_is_paid_once_while_workers_die(tmp_path: Path) -> None:
    verdict = kill_jobs(tmp_path, ("within_8h",), 1, 1, points=("p0", "p1", "p2", "c2"), timeout=90)
    print(verdict)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(("within_8h_jobs", "kills_p0", "kills_p1", "kills_p2", "kills_c2")), str(verdict)


@pytest.mark.long
def test_each_answer_is_paid_once_at_every_crash_point(tmp_path: Path) -> None:
    agents = ("within_8h", "within_24h", "claude", "chat")
    verdict = kill_jobs(tmp_path, agents, 12, 2, timeout=800)
    print(verdict)
    assert not verdict.violations, str(verdict)
    met = (*(f"{agent}_jobs" for agent in agents), *(f"kills_{point}" for point in POINTS))
    assert not verdict.vacuous(met), str(verdict)


@pytest.mark.long
def test_each_answer_is_paid_once_while_redis_dies_too(tmp_path: Path) -> None:
    agents = ("within_8h", "within_24h", "claude", "chat")
    verdict = kill_jobs(tmp_path, agents, 3, 3, redis_kills=12, timeout=800)
    print(verdict)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous((*(f"{agent}_jobs" for agent in agents), "redis_kills")), str(verdict)
