"""Limits hold in every interleaving of their model, and breaking any rule of it is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from model.limits.events import EVENTS, IMPOSSIBLE
from model.limits.explore import configurations, explore
from model.limits.mutants import CAUGHT, hunt
from model.limits.values import Mutant

PAGE = Path(__file__).resolve().parents[2] / "docs" / "model.md"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_limits_hold_in_every_interleaving_and_everything_rare_is_reached() -> None:
    seen: set[str] = set()
    states = 0
    for name, config in configurations():
        search = explore(config)
        assert search.complete, name
        assert search.counterexample is None, f"{name}\n{search.counterexample}"
        seen |= search.events
        states += search.states
    # A search that never reaches a crash point or a rare answer proves nothing about it.
    assert seen == set(EVENTS) - IMPOSSIBLE
    counted = f"{states:,}".replace(",", " ")
    assert f"# {counted} states of limits, as in the test suite" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("mutant", list(Mutant), ids=lambda mutant: mutant.name.lower())
def test_a_mutant_of_limits_is_caught_with_a_shortest_counterexample(mutant: Mutant) -> None:
    counterexample = hunt(mutant).counterexample
    assert counterexample is not None, f"{mutant.value}: nothing noticed it"
    print(counterexample)
    assert counterexample.broken.split(":")[0] == CAUGHT[mutant][1]


@pytest.mark.parametrize("mutant", list(Mutant), ids=lambda mutant: mutant.name.lower())
def test_what_catches_a_mutant_of_limits_holds_without_it(mutant: Mutant) -> None:
    config, _ = CAUGHT[mutant]
    assert explore(config).counterexample is None


def test_the_page_counts_the_mutants_of_limits() -> None:
    assert f"each of {len(Mutant)} mutants of limits" in PAGE.read_text(encoding="utf-8")
