"""kill -9 of workers at every crash point, while messages of every mode are on their way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fault.real.deliveries import FUSED, MODES, SEPARATE, kill_deliveries

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:no worker has registered"),
]


def met(points: Sequence[str]) -> Iterator[str]:
    """The counts that show that each mode has met each point, and that a message of each mode was delivered."""
    yield from ("kills", "refused", *(f"sent_{mode}" for mode in MODES))
    yield from (f"{mode}_{point}" for mode in MODES for point in points)


def test_a_message_of_each_mode_is_delivered_once_while_workers_die(tmp_path: Path) -> None:
    verdict = kill_deliveries(tmp_path / "lab", 1, 1, points=("c5", "c7"), timeout=60)
    print(verdict)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(("kills", *(f"sent_{mode}" for mode in MODES[:3]))), str(verdict)


@pytest.mark.long
def test_messages_of_each_mode_are_delivered_once_at_every_crash_point(tmp_path: Path) -> None:
    verdict = kill_deliveries(tmp_path / "lab", 10, 2, points=FUSED, timeout=600)
    print(verdict)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(met(FUSED)), str(verdict)


@pytest.mark.long
def test_messages_of_each_mode_are_delivered_once_around_the_publication(tmp_path: Path) -> None:
    verdict = kill_deliveries(tmp_path / "lab", 10, 3, points=SEPARATE, separate=True, timeout=300)
    print(verdict)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(met(SEPARATE)), str(verdict)
