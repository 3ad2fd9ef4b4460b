"""The commands of the models: search their configurations, and show how each mutant is caught."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from .search import C, Rules, S, Search, search

M = TypeVar("M", bound=StrEnum)


@dataclass(frozen=True)
class Explorer(Generic[S, C]):
    """A model with its configurations, each by its name.

    Attributes:
        name: The package of the model in `tests/model`.
        small: What the test suite searches.
        large: More than the test suite has time for, searched by `make faults`. None: the small ones again.
    """

    name: str
    rules: Rules[S, C]
    small: Mapping[str, C]
    large: Mapping[str, C] = field(default_factory=dict[str, C])

    def explore(self, config: C, *, limit: int | None = None) -> Search[S, C]:
        """Search one configuration, or up to `limit` of its states."""
        return search(self.rules, config, limit=limit)

    def configurations(self, *, large: bool = False) -> Iterator[tuple[str, C]]:
        """The configurations of a whole run, each with its name."""
        yield from ((large and self.large) or self.small).items()

    def hunt(self, mutant: Any, caught: Mapping[Any, tuple[Any, str]]) -> Search[S, C]:
        """Search where the mutant must be caught."""
        config, _ = caught[mutant]
        return self.explore(config._replace(mutant=mutant))

    def show_searches(self, arguments: list[str] | None = None) -> int:
        """Search, print, and say by the exit code whether everything holds."""
        parser = argparse.ArgumentParser(
            prog=f"python -m model.{self.name}.explore",
            description=f"Search every interleaving of the model of {self.name}.",
        )
        parser.add_argument("--large", action="store_true", help="the configurations that make faults searches")
        parser.add_argument("--faults", type=int, help="faults of all kinds together, in place of each configuration's")
        parser.add_argument("--limit", type=int, help="most states of one configuration")
        options = parser.parse_args(arguments)
        chosen: list[tuple[str, Any]] = [*self.configurations(large=options.large)]
        if options.faults is not None:
            chosen = [(name, config._replace(faults=options.faults)) for name, config in chosen]
        return show_searches((name, self.explore(config, limit=options.limit)) for name, config in chosen)

    def show_mutants(self, caught: Mapping[M, tuple[C, str]], arguments: list[str] | None = None) -> int:
        """Print how each mutant is caught; 1 when one is not."""
        return show_mutants(f"model.{self.name}.mutants", caught, lambda mutant: self.hunt(mutant, caught), arguments)


def show_searches(searches: Iterable[tuple[str, Search[Any, Any]]]) -> int:
    """Print searches, each with its name, while they are made; 1 at the first that finds something broken."""
    total = 0
    for name, found in searches:
        total += found.states
        print(f"{name}: {found}", flush=True)
        if found.counterexample:
            print(found.counterexample)
            return 1
    print(f"{total} states")
    return 0


def show_mutants(
    program: str, caught: Mapping[M, Any], hunt: Callable[[M], Search[Any, Any]], arguments: list[str] | None
) -> int:
    """Print how each mutant is caught; 1 when one is not."""
    by_name = {mutant.name.lower(): mutant for mutant in caught}
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description="Show how each mutant is caught.")
    parser.add_argument("mutants", nargs="*", metavar="MUTANT", help=f"one or more of {', '.join(by_name)}")
    chosen = parser.parse_args(arguments).mutants
    unknown = sorted(set(chosen) - set(by_name))
    if unknown:
        parser.error(f"unknown mutant: {', '.join(unknown)}")
    survivors: list[M] = []
    for mutant in (by_name[name] for name in chosen or by_name):
        found = hunt(mutant)
        print(f"{mutant.name.lower()}: {mutant.value}")
        print(found.counterexample or f"SURVIVED {found}", end="\n\n", flush=True)
        if found.counterexample is None:
            survivors.append(mutant)
    return int(bool(survivors))
