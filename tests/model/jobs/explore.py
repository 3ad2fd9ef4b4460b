"""Search every interleaving of the model of jobs: `cd tests && python -m model.jobs.explore --help`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from ..command_line import Explorer
from ..search import Goal, Rules
from .events import EVENTS
from .money import is_settled, money_violations
from .values import CREATED, END, OPEN, RUN, UNKNOWN, Config, Moves, State, canonical, initial
from .worker import moves_of_worker
from .world import moves_of_cleaner, moves_of_client, moves_of_provider, moves_of_time


def successors(state: State, config: Config) -> Moves:
    """Every next state, with the event that leads there."""
    for index in (0, 1):
        yield from moves_of_worker(state, config, index)
    yield from moves_of_provider(state)
    yield from moves_of_cleaner(state, config)
    yield from moves_of_client(state, config)
    yield from moves_of_time(state)


def violations(state: State, config: Config) -> Iterator[str]:
    """The invariants that this state breaks, by name."""
    if any(_is_forgotten(state, job) for job in range(len(state.provider))):
        yield "J1: a job was created, and nothing tells that it may have been"
    if state.paid_twice:
        yield "J2: a job is created although the answer is there or under way"
    if state.cancelled_running:
        yield "J3: a job is cancelled whose step waits for it"
    if state.phase == END and state.answer in state.used:
        yield "J4: an answer is used that was rejected"
    reasons = config.rejected + state.retries + (config.broken - state.broken) + (config.faults - state.faults)
    if len(state.provider) > 1 + reasons:
        yield "J5: more jobs were created than there were rejections, failures, retries and faults"
    if state.charged_twice:
        yield "J9: an answer is charged twice"
    yield from money_violations(state, config)


def _is_forgotten(state: State, job: int) -> bool:
    """Whether no id, no worker, no index and no intention without an id leads to an open job."""
    created = state.provider[job]
    is_known = any(each == job for each, _ in state.index) or any(each.id == job for each in state.jobs)
    is_held = any(worker.at == CREATED and worker.id == job for worker in state.workers)
    entry = state.jobs[created.number] if created.number < len(state.jobs) else None
    is_told = entry is not None and (entry.id == UNKNOWN or entry.id == job)
    return created.status == OPEN and not (is_known or is_held or is_told)


def _rests(state: State, config: Config) -> bool:
    del config
    return state.phase == END


def _is_clean(state: State, config: Config) -> bool:
    del config
    known = {job.id for job in state.jobs} - {UNKNOWN}
    return state.phase == RUN or not any(state.provider[job].status == OPEN for job in known)


def _happens_by_itself(event: str) -> bool:
    by_others = ("fault.", "stop.", "retry.", "provider.broken", "provider.others")
    return not event.startswith(by_others) and not event.endswith("reply lost")


def _happens_without_provider(event: str) -> bool:
    return _happens_by_itself(event) and not event.startswith(("provider.", "time.due"))


def _is_stopped_or_free(state: State, config: Config) -> bool:
    del config
    return state.phase == END or not state.stopped


def _happens_in_cleaning(event: str) -> bool:
    return event.startswith("clean.") or (_happens_by_itself(event) and not event.startswith("provider."))


def _describe(state: State) -> str:
    jobs = ", ".join(f"{job.id}{' ended' if job.ended else ''}" for job in state.jobs) or "no job"
    made = (
        ", ".join(("open", "done", "broken", "cancelled", "deleted")[each.status] for each in state.provider) or "none"
    )
    claim = f" · claim {state.claim}{'' if state.lease else ' without lease'}" if state.claim else ""
    answer = "" if state.answer == UNKNOWN else f" · answer of {state.answer}"
    return f"{'run' if state.phase == RUN else 'end'} · journal: {jobs} · provider: {made}{claim}{answer}"


RULES: Final = Rules(
    initial=initial,
    successors=successors,
    violations=violations,
    canonical=canonical,
    goals=(
        Goal("J6: an execution cannot end", _rests, _happens_by_itself),
        Goal("J7: a stop waits for the provider", _is_stopped_or_free, _happens_without_provider),
        Goal("J8: a job whose execution has ended goes on", _is_clean, _happens_in_cleaning),
        Goal(
            "J10: money stays reserved of a job of which it is known what has become of it",
            is_settled,
            _happens_by_itself,
        ),
    ),
    events=EVENTS,
    describe=_describe,
)

CONFIGURATIONS: Final[dict[str, Config]] = {
    "an answer": Config(stop=True, faults=2),
    "an answer that is rejected": Config(rejected=True, stop=True),
    "a job that fails": Config(broken=1, stop=True),
    "a batch": Config(listed=True, stop=True, faults=2),
    "a batch that is rejected": Config(listed=True, rejected=True, broken=1),
    "a batch among others": Config(listed=True, blurred=True, faults=2),
    "a batch that is retried": Config(listed=True, stop=True, retry=True),
    "money": Config(capped=True, broken=1, stop=True),
    "money of a batch": Config(listed=True, capped=True, stop=True, retry=True),
}
LARGE: Final[dict[str, Config]] = {
    **CONFIGURATIONS,
    "everything": Config(rejected=True, broken=1, stop=True, faults=2),
    "everything in a batch": Config(listed=True, rejected=True, broken=1, stop=True, faults=2),
    "a batch among others that is retried": Config(listed=True, blurred=True, stop=True, retry=True, faults=2),
    # Without a stop: a worker that sleeps with an answer past it, and dies behind journaling it, leaves it reserved.
    "money, and two faults": Config(capped=True, broken=1, faults=2),
    "money of a batch, and two faults": Config(listed=True, capped=True, rejected=True, faults=2),
}
EXPLORER: Final = Explorer("jobs", RULES, CONFIGURATIONS, LARGE)

if __name__ == "__main__":
    sys.exit(EXPLORER.show_searches())
