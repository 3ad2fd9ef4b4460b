"""kill -9 of workers whose agents have capabilities or children: nothing is lost or doubled, however long it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault.real import capable, children, smart

pytestmark = [pytest.mark.long, pytest.mark.timeout(420), pytest.mark.slow]


def test_a_worker_killed_anywhere_loses_and_doubles_no_part_of_a_run(tmp_path: Path) -> None:
    verdict = capable.kill_capable(tmp_path / "lab", 1, 7, timeout=350)
    assert not verdict.violations, str(verdict)
    wanted = (*(f"killed_{point}" for point in capable.POINTS), "results_given_again", "ended_by_terminal_tool")
    assert not verdict.vacuous(wanted)


def test_a_worker_killed_anywhere_pays_no_model_call_twice_and_keeps_every_part_of_a_long_task(tmp_path: Path) -> None:
    verdict = smart.kill_smart(tmp_path / "lab", 1, 11, timeout=350)
    assert not verdict.violations, str(verdict)
    wanted = (*(f"killed_{point}" for point in smart.POINTS), "auxiliary_calls", "summaries", "archived_results")
    assert not verdict.vacuous(wanted)


def test_a_tree_spends_no_more_than_its_budget_and_the_calls_in_flight(tmp_path: Path) -> None:
    verdict = children.spend(tmp_path / "lab", 2, 5, kills=2, timeout=350)
    assert not verdict.violations, str(verdict)
    assert verdict.counts["kills"] == 2
    assert verdict.counts["trees"] >= 2
    assert verdict.counts["children_made_late"]
