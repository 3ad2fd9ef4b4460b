"""Everything that clients can do, at once, in a round of a few seconds; the campaign has long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault.real.everything import play

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_whatever_clients_do_all_ends_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    verdict = play(tmp_path / "lab", 1, 1, seconds=8.0)
    print(verdict)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(("submit", "send", "stop", "limit", "effects", "messages_found")), str(verdict)
