"""The command lines that the models share: search configurations, and show how each mutant is caught."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from .search import Search

M = TypeVar("M", bound=StrEnum)


class Configurations(Protocol):
    """The configurations of a model, each with its name."""

    def __call__(self, *, large: bool = False) -> Iterator[tuple[str, Any]]: ...


class Explore(Protocol):
    """Searches one configuration of a model."""

    def __call__(self, config: Any, *, limit: int | None = None) -> Search[Any, Any]: ...


def show_searches(
    program: str, model: str, configurations: Configurations, explore: Explore, arguments: list[str] | None
) -> int:
    """Search, print, and say by the exit code whether everything holds."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=f"Search every interleaving of {model}.")
    parser.add_argument("--large", action="store_true", help="the configurations that make faults searches")
    parser.add_argument("--faults", type=int, help="faults of all kinds together, in place of each configuration's")
    parser.add_argument("--limit", type=int, help="most states of one configuration")
    options = parser.parse_args(arguments)
    total = 0
    for name, config in configurations(large=options.large):
        chosen = config if options.faults is None else config._replace(faults=options.faults)
        found = explore(chosen, limit=options.limit)
        total += found.states
        print(f"{name}: {found}", flush=True)
        if found.counterexample:
            print(found.counterexample)
            return 1
    print(f"{total} states")
    return 0


def show_mutants(
    program: str, model: str, mutants: type[M], hunt: Callable[[M], Search[Any, Any]], arguments: list[str] | None
) -> int:
    """Print how each mutant is caught; 1 when one is not."""
    names = [mutant.name.lower() for mutant in mutants]
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}", description=f"Show how each mutant of {model} is caught."
    )
    parser.add_argument("mutants", nargs="*", metavar="MUTANT", help=f"one or more of {', '.join(names)}")
    chosen = parser.parse_args(arguments).mutants
    unknown = sorted(set(chosen) - set(names))
    if unknown:
        parser.error(f"unknown mutant: {', '.join(unknown)}")
    survivors: list[M] = []
    for mutant in (mutants[name.upper()] for name in chosen or names):
        found = hunt(mutant)
        print(f"{mutant.name.lower()}: {mutant.value}")
        print(found.counterexample or f"SURVIVED {found}", end="\n\n", flush=True)
        if found.counterexample is None:
            survivors.append(mutant)
    return int(bool(survivors))
