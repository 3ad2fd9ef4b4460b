"""kill -9 of clients, workers and Redis while sessions are rewound and forked."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault.real.rewinds import DEATHS, DEATHS_ALONE, rewind_under_fire

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
COUNTS = (
    "clients_killed",
    "workers_killed",
    "redis_kill",
    "sent_again_by_others",
    "rewinds",
    "returns",
    "forks",
    "execution_stopped",
)


def test_a_rewind_happens_once_whoever_is_killed(tmp_path: Path) -> None:
    verdict = rewind_under_fire(
        tmp_path / "lab", 1, sessions=2, rounds=2, deaths=2, workers=2, redis_faults=1, timeout=90
    )
    print(verdict)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(COUNTS), str(verdict)


@pytest.mark.long
@pytest.mark.parametrize("append_only", ["always", "everysec"])
def test_many_rewinds_happen_once_whoever_is_killed(tmp_path: Path, append_only: str) -> None:
    verdict = rewind_under_fire(
        tmp_path / "lab", 2, sessions=6, rounds=12, deaths=12, workers=24, redis_faults=6, append_only=append_only,
        timeout=600,
    )  # fmt: skip
    print(verdict)
    assert not verdict.violations, str(verdict)
    killed = [f"killed_{death}" for death in (*DEATHS, *DEATHS_ALONE)]
    assert not verdict.vacuous((*COUNTS, *killed, "rewinds_refused", "forks_that_went_on", "redis_stop")), str(verdict)
