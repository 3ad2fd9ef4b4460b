"""The searches of the models that the test suite has no time for."""

from __future__ import annotations

from typing import Any, Final

from model.budgets.explore import EXPLORER as BUDGETS
from model.children.explore import EXPLORER as CHILDREN
from model.command_line import Explorer
from model.holders.explore import EXPLORER as HOLDERS
from model.jobs.explore import EXPLORER as JOBS
from model.limits.explore import EXPLORER as LIMITS
from model.messages.explore import EXPLORER as MESSAGES
from model.replicas.explore import EXPLORER as REPLICAS
from model.rewind.explore import EXPLORER as REWIND
from model.waiting.explore import EXPLORER as WAITING

from support.verdict import Verdict

EXPLORERS: Final[tuple[Explorer[Any, Any], ...]] = (
    WAITING, CHILDREN, BUDGETS, LIMITS, HOLDERS, REPLICAS, MESSAGES, REWIND, JOBS,
)  # fmt: skip


def search_models(*, limit: int | None = None) -> Verdict:
    """Search the larger configurations of the models, or up to `limit` states of each."""
    verdict = Verdict()
    for explorer in EXPLORERS:
        for name, config in explorer.large.items():
            found = explorer.explore(config, limit=limit)
            what = f"{explorer.name}, {name}: {found.counterexample or 'not searched to its end'}"
            verdict.expect(found.complete and found.counterexample is None, "model", what)
            verdict.counts["states"] += found.states
    return verdict
