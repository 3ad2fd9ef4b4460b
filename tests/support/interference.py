"""A table of all that may have happened to a step before a worker claims it, for tests of the claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from celery_agents.worker.engine import operation_transition, stop_transition
from celery_agents.worker.store import StepRef

from .store import Bench, an_operation

Interference = Callable[[Bench, StepRef], object]


def _control(bench: Bench, name: str, value: int) -> object:
    return bench.database("HSET", bench.store.context.keys(bench.session).ctl, name, value)


# Done by another process, which shares nothing with the claiming one.
ELSEWHERE: Final[Mapping[str, Interference]] = {
    "claimed": lambda bench, ref: bench.another().steps.claim(ref, "rival", "other", alone=True),
    "message": lambda bench, ref: bench.another().sessions.act(
        bench.session, an_operation("joined"), operation_transition
    ),
    "stop": lambda bench, ref: bench.another().sessions.stop(bench.session, None, stop_transition),
    "journal": lambda bench, ref: bench.database("HSET", bench.journal(ref), "llm", "x"),
    "attempts": lambda bench, ref: _control(bench, "attempts", 1),
    "delayed": lambda bench, ref: _control(bench, "not_before", 9),
    "started": lambda bench, ref: _control(bench, "started", 9),
    "gone": lambda bench, ref: bench.database("DEL", bench.store.context.keys(bench.session).session),
}

# Done by the claiming process itself, where it makes a difference what it knows of it.
HERE: Final[Mapping[str, Interference]] = {
    "claimed": ELSEWHERE["claimed"],
    "message": lambda bench, ref: bench.message("joined"),
    "stop": lambda bench, ref: bench.store.sessions.stop(bench.session, None, stop_transition),
    "journal": ELSEWHERE["journal"],
    "attempts": ELSEWHERE["attempts"],
    "delayed": ELSEWHERE["delayed"],
}


def behind(bench: Bench, steps: int | None) -> StepRef:
    """The step that is due, for a process that has missed so many; None: for one that has never seen the session."""
    bench.submit()
    bench.commit(bench.claim())
    for missed in range(steps or 0):
        bench.step_elsewhere(2 + missed)
    if steps is None:
        bench.store = bench.another()
    return bench.ref(2 + (steps or 0))
