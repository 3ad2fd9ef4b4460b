"""Each model but that of a step holds in every interleaving; breaking any of its rules is noticed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

LARGE = ("holders", "archive", "rewind", "replicas", "waiting", "limits")
"""Models that are searched in the long suite, for their size; their mutants are hunted in each."""

PAGE = Path(__file__).resolve().parents[2] / "docs" / "model.md"
MODELS = ("waiting", "children", "budgets", "limits", "holders", "replicas", "archive", "messages", "rewind", "jobs")


def part(model: str, module: str) -> Any:
    return import_module(f"model.{model}.{module}")


MUTANTS = [
    pytest.param(model, mutant, id=f"{model}-{mutant.name.lower()}")
    for model in MODELS
    for mutant in part(model, "values").Mutant
]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "model", [pytest.param(model, marks=[pytest.mark.long] if model in LARGE else []) for model in MODELS]
)
def test_every_interleaving_holds_and_everything_rare_is_reached(model: str) -> None:
    seen: set[str] = set()
    states = 0
    explorer, events = part(model, "explore").EXPLORER, part(model, "events")
    for name, config in explorer.configurations():
        search = explorer.explore(config)
        assert search.complete, name
        assert search.counterexample is None, f"{name}\n{search.counterexample}"
        seen |= search.events
        states += search.states
    # A search that never reaches a crash point or a rare answer proves nothing about it.
    assert seen == set(events.EVENTS) - events.IMPOSSIBLE
    counted = f"{states:,}".replace(",", " ")
    assert f"# {counted} states of {model}, as in the test suite" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(("model", "mutant"), MUTANTS)
def test_a_mutant_is_caught_with_a_shortest_counterexample(model: str, mutant: Any) -> None:
    caught = part(model, "mutants").CAUGHT
    counterexample = part(model, "explore").EXPLORER.hunt(mutant, caught).counterexample
    assert counterexample is not None, f"{mutant.value}: nothing noticed it"
    print(counterexample)
    assert counterexample.broken.split(":")[0] == caught[mutant][1]


@pytest.mark.long  # the suite searches larger configurations without mutants above
@pytest.mark.parametrize(("model", "mutant"), MUTANTS)
def test_what_catches_a_mutant_holds_without_it(model: str, mutant: Any) -> None:
    config, _ = part(model, "mutants").CAUGHT[mutant]
    assert part(model, "explore").EXPLORER.explore(config).counterexample is None


@pytest.mark.parametrize("model", MODELS)
def test_the_page_counts_the_mutants(model: str) -> None:
    count = len(part(model, "values").Mutant)
    assert f"each of {count} mutants of {model}" in PAGE.read_text(encoding="utf-8")
