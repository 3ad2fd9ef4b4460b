"""No cap is passed and no call is forgotten, whatever happens to those who spend."""

from __future__ import annotations

import pytest

from fault.sim.caps import MUTANTS, explore


@pytest.mark.parametrize("every", [23, pytest.param(1, marks=pytest.mark.long)])
def test_in_every_interleaving_a_cap_holds_and_counts_what_is_charged(every: int) -> None:
    count = 0
    for strikes, violations in explore(every):
        assert violations == [], strikes
        count += 1
    print(f"{count} interleavings")
    assert count > 3_000 / every


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[mutant](monkeypatch)
    assert any(violations for _, violations in explore())
