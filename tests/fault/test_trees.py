"""Simulated trees of agents hold I14 and I15, and every mutant of their rules is found.

A failing seed is replayed by `cd tests && python -m fault.sim.trees --seed N`.
"""

from __future__ import annotations

import pytest

from fault.sim.tree_mutants import TREE_MUTANTS, hunt
from fault.sim.trees import search

SEEDS = 25
MUTANT_SEEDS = 100

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_no_simulated_tree_breaks_an_invariant() -> None:
    verdict = search(0, SEEDS)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(("worker died", "reply lost", "passed w4", "passed w5", "beyond half of the budget"))


@pytest.mark.long
@pytest.mark.parametrize("name", TREE_MUTANTS)
def test_a_mutant_of_the_rules_about_children_is_found(name: str) -> None:
    assert hunt(TREE_MUTANTS[name], MUTANT_SEEDS) is not None
