"""The searches of the models that the test suite has no time for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from model.children import explore as children
from model.limits import explore as limits
from model.replicas import explore as replicas
from model.waiting import explore as waiting

from support.verdict import Verdict


def search_models() -> Verdict:
    """Search the larger configurations of the models of waiting, children, limits and replicas."""
    verdict = Verdict()
    _search(verdict, waiting.configurations(large=True), waiting.explore)
    _search(verdict, children.configurations(large=True), children.explore)
    _search(verdict, limits.configurations(large=True), limits.explore)
    _search(verdict, replicas.configurations(large=True), replicas.explore)
    return verdict


def _search(verdict: Verdict, configurations: Iterator[tuple[str, Any]], explore: Callable[[Any], Any]) -> None:
    for name, config in configurations:
        found = explore(config)
        verdict.expect(found.complete and found.counterexample is None, "model", f"{name}: {found.counterexample}")
        verdict.counts["states"] += found.states
