"""Each debounced message is in one session, once, whatever happens to its caller."""

from __future__ import annotations

import pytest

from fault.sim.bursts import MUTANTS, explore


@pytest.mark.parametrize("every", [97, pytest.param(3, marks=pytest.mark.long)])
def test_in_every_interleaving_a_message_is_in_one_session_once(every: int) -> None:
    count = 0
    for strikes, violations in explore(every):
        assert violations == [], strikes
        count += 1
    print(f"{count} interleavings")
    assert count > 10_000 / every


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[mutant](monkeypatch)
    assert any(violations for _, violations in explore())
