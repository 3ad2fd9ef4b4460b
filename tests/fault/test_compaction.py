"""Compaction against a provider; the campaign does the same for a thousand steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault.real.long_task import compact

pytestmark = [pytest.mark.timeout(300)]


def test_each_request_of_a_long_task_has_valid_pairs_and_stays_under_its_limit(tmp_path: Path) -> None:
    verdict = compact(tmp_path / "lab", 30, timeout=200)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(("summaries", "archived_results"))
    assert verdict.counts["requests"] == 31
