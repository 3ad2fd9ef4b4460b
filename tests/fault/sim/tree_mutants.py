"""Mutants of what the product does about children: each breaks one rule, and the simulated trees find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from celery_agents.worker.engine import applied_step, charges, child_calls, children
from celery_agents.worker.engine.children import Children
from celery_agents.worker.store.children import ending
from celery_agents.worker.store.steps import commits, waits

from .trees import run_trees


@dataclass(frozen=True)
class TreeMutant:
    """A rule that is broken.

    Attributes:
        breaks: The beginning of the violation that shows it.
        target, name, replacement: The attribute that is replaced while the mutant lives.
        first_seed: Where the hunt begins, so that it is short.
    """

    breaks: str
    target: Any
    name: str
    replacement: Callable[..., Any]
    first_seed: int = 0

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Replace the attribute."""
        with mock.patch.object(self.target, self.name, self.replacement):
            yield


def _leave_reservations(run: Any, request: Any, *, reserved: bool) -> Any:
    del reserved
    return charges.used_by(run, request, reserved=False)


def _charge_nothing(run: Any, execution: Any, *, reserved: bool = False) -> Any:
    del run, reserved
    return execution


def _charge_twice(run: Any, execution: Any, *, reserved: bool = False) -> Any:
    once = charges.charge_children(run, execution, reserved=reserved)
    return charges.charge_children(run, once, reserved=reserved)


def _tell_nobody(*_: Any) -> Any:
    return ending.WakeUp([])


def _wait_for_one_more(plan: Any, opened: Any) -> Any:
    return ("rest", len(opened)) if plan.waits_for_all else ()


TREE_MUTANTS: dict[str, TreeMutant] = {
    "siblings get the same money": TreeMutant("I15", child_calls, "used_by", _leave_reservations),
    "children are not charged": TreeMutant("I15", applied_step, "charge_children", _charge_nothing),
    "children are charged twice": TreeMutant("I15", applied_step, "charge_children", _charge_twice),
    "children are made whatever is left": TreeMutant("I15", children, "cover", lambda budget, left: budget),
    "the end of a child wakes nobody": TreeMutant("I13", commits, "answer_parent", _tell_nobody),
    "the last end wakes nobody": TreeMutant("I13", waits, "remaining_ends_field", _wait_for_one_more),
    "an end leaves its children at work": TreeMutant("I14", Children, "stop_unwanted", lambda self, run: run, 25),
}


def hunt(mutant: TreeMutant, seeds: int) -> int | None:
    """The first of so many seeds that finds a mutant by what it breaks; None when none does."""
    with mutant.alive():
        for verdict in run_trees(range(mutant.first_seed, mutant.first_seed + seeds), turns=1500):
            if any(each.startswith(mutant.breaks) for each in verdict.violations):
                return verdict.seed
    return None
