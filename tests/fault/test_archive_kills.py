"""kill -9 at each point of moving, restoring and deleting, with SQLite and with a real PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault.real.archive import POINTS, kill_archive

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
KILLED = [f"killed_{point}" for point in (*POINTS, "a3")]


@pytest.mark.long  # how soon each point is reached depends on how often a session is idle: minutes on two cores
def test_sessions_are_in_one_place_whoever_is_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    verdict = kill_archive(tmp_path / "lab", url, 1, 3, sessions=6, timeout=200)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous((*KILLED, "messages", "deleted", "effects")), str(verdict)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_many_sessions_are_in_one_place_whoever_is_killed(tmp_path: Path, archive_url: str, seed: int) -> None:
    verdict = kill_archive(tmp_path / "lab", archive_url, 3, seed, sessions=20, timeout=800)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous((*KILLED, "messages", "deleted", "effects")), str(verdict)
