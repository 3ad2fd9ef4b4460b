"""Streams whose workers are killed: a small version of what the campaign does a thousand times."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault.real.live import kill_writers

pytestmark = [pytest.mark.long, pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]


def test_each_reader_of_streams_under_kills_has_the_stored_history(tmp_path: Path) -> None:
    verdict = kill_writers(tmp_path / "lab", 12, seed=1, kill_seconds=2.0)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(("kills", "pieces", "returns", "steps seen while written")), str(verdict)
