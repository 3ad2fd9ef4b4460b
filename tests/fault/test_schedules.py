"""Each slot of a schedule is submitted once, whatever happens to the workers that submit it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault.real.schedules import kill_while_scheduled
from fault.sim.schedules import MUTANTS, explore


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.long)])
def test_in_every_interleaving_a_slot_is_submitted_once_and_an_edit_stays(every: int) -> None:
    count = 0
    for strikes, violations in explore(every):
        assert violations == [], strikes
        count += 1
    print(f"{count} interleavings")
    assert count > 5_000 / every


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[mutant](monkeypatch)
    assert any(violations for _, violations in explore())


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_each_slot_has_one_effect_whoever_is_killed(tmp_path: Path) -> None:
    verdict = kill_while_scheduled(tmp_path / "lab", 12, 3, probability=0.5, redis_kills=1)
    print(verdict)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(("slots", "killed_s0", "killed_s1", "killed_anywhere")), str(verdict)
