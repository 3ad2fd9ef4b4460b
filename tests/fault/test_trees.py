"""Simulated trees of agents hold I14 and I15, and every mutant of their rules is found.

A failing seed is replayed by `cd tests && python -m fault.sim.trees --seed N`.
"""

from __future__ import annotations

import pytest

from fault.sim.tree_mutants import TREE_MUTANTS, hunt
from fault.sim.trees import search

SEEDS = 25
MUTANT_SEEDS = 100
SEEN = (
    "worker died", "reply lost", "passed w4", "passed w5", "beyond half of the budget",
    "children made after others had ended", "children refused",
)  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_no_simulated_tree_breaks_an_invariant() -> None:
    verdict = search(0, SEEDS)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(SEEN)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_no_tree_of_a_thousand_spends_beyond_its_budget_and_the_calls_in_flight() -> None:
    verdict = search(0, 1_000)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(SEEN)
    assert verdict.counts["trees"] == 1_000


@pytest.mark.long
@pytest.mark.parametrize("name", TREE_MUTANTS)
def test_a_mutant_of_the_rules_about_children_is_found(name: str) -> None:
    assert hunt(TREE_MUTANTS[name], MUTANT_SEEDS) is not None
