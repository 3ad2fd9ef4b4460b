"""kill -9 of real workers; the campaign does the same more often."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault.real.kills import kill_everywhere

pytestmark = [pytest.mark.alone, pytest.mark.timeout(400), pytest.mark.slow]


@pytest.mark.parametrize("separate", [False, True], ids=["fused", "separate"])
def test_a_worker_killed_anywhere_costs_seconds_and_nothing_else(tmp_path: Path, separate: bool) -> None:
    verdict = kill_everywhere(tmp_path / "lab", 1, 5, separate=separate, timeout=300)
    print(verdict)
    assert not verdict.violations, str(verdict)
    assert max(verdict.recoveries) <= 10
