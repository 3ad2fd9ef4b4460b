"""The protocol holds in every interleaving of the model, and breaking any rule of it is noticed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from model.events import EVENTS, IMPOSSIBLE
from model.explore import configurations, explore
from model.mutants import CAUGHT, HARMLESS_WITH_A_TRUSTED_CLOCK, hunt
from model.protocol_model import successors
from model.values import Config, Mutant

PAGE = Path(__file__).resolve().parents[2] / "docs" / "model.md"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_protocol_holds_in_every_interleaving_and_everything_rare_is_reached() -> None:
    seen: set[str] = set()
    states = 0
    for name, config in configurations(faults=1):
        search = explore(config)
        assert search.complete, name
        assert search.counterexample is None, f"{name}\n{search.counterexample}"
        seen |= search.events
        states += search.states
    # A search that never reaches a crash point or a rare answer proves nothing about it.
    assert seen == set(EVENTS) - IMPOSSIBLE
    counted = f"{states:,}".replace(",", " ")
    assert f"# {counted} states, as in the test suite" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("mutant", list(Mutant), ids=lambda mutant: mutant.name.lower())
def test_a_mutant_is_caught_with_a_shortest_counterexample(mutant: Mutant) -> None:
    counterexample = hunt(mutant).counterexample
    assert counterexample is not None, f"{mutant.value}: nothing noticed it"
    print(counterexample)
    assert counterexample.broken.split(":")[0] == CAUGHT[mutant][1]


@pytest.mark.long  # the suite searches configurations without mutants above
@pytest.mark.parametrize("mutant", list(Mutant), ids=lambda mutant: mutant.name.lower())
def test_what_catches_a_mutant_holds_without_it(mutant: Mutant) -> None:
    config, _ = CAUGHT[mutant]
    assert explore(config._replace(faults=min(config.faults, 2))).counterexample is None


@pytest.mark.parametrize("mutant", HARMLESS_WITH_A_TRUSTED_CLOCK, ids=lambda mutant: mutant.name.lower())
def test_a_trusted_clock_would_hide_a_journal_that_is_read_without_being_watched(mutant: Mutant) -> None:
    config, _ = CAUGHT[mutant]
    search = explore(config._replace(mutant=mutant, clock=True))
    assert search.complete
    assert search.counterexample is None


def test_a_counterexample_can_be_followed_move_by_move() -> None:
    config = CAUGHT[Mutant.RERUN_UNSAFE][0]._replace(mutant=Mutant.RERUN_UNSAFE)
    counterexample = explore(config).counterexample
    assert counterexample is not None
    for (_, _, before), (event, who, after) in pairwise(counterexample.steps):
        assert (event, who, after) in list(successors(before, config))
    assert counterexample.steps[-1][2].ghost.effects == (2, 0)
    assert str(counterexample).count("runs the tool: the effect happens") == 2


def test_a_search_that_was_cut_short_does_not_claim_to_be_complete() -> None:
    search = explore(Config(), limit=100)
    assert not search.complete
    assert "not finished" in str(search)


def test_the_page_counts_the_mutants() -> None:
    assert f"each of {len(Mutant)} mutants" in PAGE.read_text(encoding="utf-8")
