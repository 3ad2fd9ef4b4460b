"""The searches of the models that the test suite has no time for."""

from __future__ import annotations

from model.waiting.explore import configurations, explore

from support.verdict import Verdict


def search_waiting() -> Verdict:
    """Search the larger configurations of the waiting model."""
    verdict = Verdict()
    for name, config in configurations(large=True):
        found = explore(config)
        verdict.expect(found.complete and found.counterexample is None, "model", f"{name}: {found.counterexample}")
        verdict.counts["states"] += found.states
    return verdict
