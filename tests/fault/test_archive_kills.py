"""kill -9 at each point of moving, restoring and deleting, with SQLite and with a real PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault.real.archive import MET, POINTS, kill_archive, outlive_mark, pause_mover

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]
COUNTS = (*(f"killed_{point}" for point in (*POINTS, "a3")), "messages", "deleted", "effects")


def test_sessions_are_in_one_place_whoever_is_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    verdict = kill_archive(tmp_path / "lab", url, 1, 3, sessions=10, probability=1, timeout=120)
    print(verdict)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(COUNTS), str(verdict)


def test_a_slow_worker_removes_no_session_that_was_changed_meanwhile(tmp_path: Path) -> None:
    verdict = pause_mover(tmp_path / "lab", f"sqlite:///{tmp_path}/history.db", ("message",))
    print(verdict)
    assert not verdict.violations, str(verdict)


def test_a_move_is_finished_when_its_mark_has_gone(tmp_path: Path) -> None:
    verdict = outlive_mark(tmp_path / "lab", f"sqlite:///{tmp_path}/history.db")
    print(verdict)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(("left_pending",)), str(verdict)


@pytest.mark.long
def test_many_sessions_are_in_one_place_whoever_is_killed(tmp_path: Path, archive_url: str) -> None:
    verdict = kill_archive(
        tmp_path / "lab", archive_url, 10, 3, sessions=2_000, probability=0.2, timeout=1_000, met=MET
    )
    print(verdict)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous((*COUNTS, *MET, "restored_only")), str(verdict)


@pytest.mark.long
def test_slow_workers_remove_no_session_that_was_changed_meanwhile(tmp_path: Path, archive_url: str) -> None:
    verdict = pause_mover(tmp_path / "lab", archive_url)
    print(verdict)
    assert not verdict.violations, str(verdict)
