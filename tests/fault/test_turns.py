"""No step that waits for its turn is forgotten or published for nothing, whatever happens to those who take them."""

from __future__ import annotations

from typing import Any

import pytest

from fault.sim.turns import MUTANTS, explore, explore_apart


@pytest.mark.parametrize("play", [explore, explore_apart], ids=["one Redis", "a broker of its own"])
@pytest.mark.parametrize("every", [797, pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_in_every_interleaving_each_step_is_run(every: int, play: Any) -> None:
    count = 0
    for strikes, violations in play(every):
        assert violations == [], strikes
        count += 1
    print(f"{count} interleavings")
    assert count > 20_000 / every


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[mutant](monkeypatch)
    assert any(violations for _, violations in explore())
