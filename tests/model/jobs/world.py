"""Everything besides the workers' steps: the provider, who cleans up, who stops the execution, and time."""

from __future__ import annotations

from .values import BROKEN, DEAD, DONE, END, LATER, NOBODY, NOW, OPEN, RUN, UNKNOWN, Config, Moves, Mutant, State
from .worker import cleaned


def moves_of_provider(state: State) -> Moves:
    """Jobs end, one at a time."""
    if state.is_blurred:
        yield "provider.others ended", 0, state._replace(is_blurred=False)
    for number, job in enumerate(state.provider):
        if job.status != OPEN:
            continue
        before, after = state.provider[:number], state.provider[number + 1 :]
        yield "provider.done", 0, state._replace(provider=(*before, job._replace(status=DONE), *after))
        if state.broken:
            broken = (*before, job._replace(status=BROKEN), *after)
            yield "provider.broken", 0, state._replace(provider=broken, broken=state.broken - 1)


def moves_of_cleaner(state: State, config: Config) -> Moves:
    """Whoever cleans up cancels what no step waits for any more, charges its answer, and removes it from the index."""
    waited_for = {job.id for job in state.jobs if not job.ended} if state.phase == RUN else set[int]()
    for job, retries in state.index:
        if job not in waited_for:
            yield "clean.removed", 0, cleaned(state, config, job, retries)
        elif config.mutant is Mutant.CLEANS_EVERYTHING:
            yield "clean.removed", 0, cleaned(state, config, job, retries)._replace(cancelled_running=True)


def moves_of_client(state: State, config: Config) -> Moves:
    """Somebody who stops the execution, so that a step that was put off becomes due; and who retries it."""
    is_first = config.retry and not state.retries
    if is_first and state.phase == END and state.stopped and state.answer == UNKNOWN:
        yield "retry.made", 0, state._replace(phase=RUN, stopped=False, retries=1, due=NOW)
    if config.stop and state.phase != END and not state.stopped:
        wakes = state.due == LATER and config.mutant is not Mutant.STOP_WAITS
        yield "stop.made", 0, state._replace(stopped=True, due=NOW if wakes else state.due)


def moves_of_time(state: State) -> Moves:
    """The lease of a dead claim ends; the time of the next poll comes."""
    if state.claim == DEAD and state.lease:
        yield "lease.ended", 0, state._replace(lease=False)
    if state.due == LATER and state.claim == NOBODY:
        yield "time.due", 0, state._replace(due=NOW)
