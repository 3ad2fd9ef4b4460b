"""kill -9 of real workers; the campaign does the same more often."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault.real import children, waiting
from fault.real.kills import combinations, kill_everywhere

pytestmark = [pytest.mark.alone, pytest.mark.timeout(400), pytest.mark.slow]


def test_a_worker_killed_at_a_few_points_costs_seconds_and_nothing_else(tmp_path: Path) -> None:
    points = ("c3", "c5")
    verdict = kill_everywhere(tmp_path / "lab", 1, 5, separate=False, timeout=300, points=points)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(f"killed_{p}_{tool}" for p, tool in combinations(separate=False, points=points))


@pytest.mark.long
def test_a_worker_killed_anywhere_costs_seconds_and_nothing_else(tmp_path: Path) -> None:
    verdict = kill_everywhere(tmp_path / "lab", 1, 5, separate=False, timeout=300)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(f"killed_{point}_{tool}" for point, tool in combinations(separate=False))


@pytest.mark.long
def test_a_worker_killed_around_the_publication_costs_seconds_and_nothing_else(tmp_path: Path) -> None:
    verdict = kill_everywhere(tmp_path / "lab", 1, 5, separate=True, timeout=300, points=("c8", "c9"))
    assert not verdict.violations, str(verdict)
    assert verdict.counts["kills"] == 10


@pytest.mark.long
def test_a_worker_killed_around_a_wait_costs_seconds_and_nothing_else(tmp_path: Path) -> None:
    verdict = waiting.kill_waiting(tmp_path / "lab", 1, 5, timeout=300)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(f"killed_{point}_{tool}" for point, tool in waiting.combinations())
    assert verdict.counts["approved_calls"] > verdict.counts["edited_calls"] > 0


@pytest.mark.long
def test_a_worker_killed_around_children_costs_seconds_and_nothing_else(tmp_path: Path) -> None:
    verdict = children.kill_trees(tmp_path / "lab", 1, 5, timeout=300)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(f"killed_{point}_delegate" for point in children.POINTS)
