"""What workers do: claim, ask the model, begin, call, commit, and confirm before anything leaves Redis."""

from __future__ import annotations

from .values import (
    BEGUN,
    CLAIMED,
    COMMITTING,
    DEAD,
    ENDED,
    IDLE,
    JOURNALED,
    NOBODY,
    NOT_RUN,
    OVER,
    READY,
    UNKNOWN,
    Act,
    Config,
    Moves,
    Mutant,
    State,
    Store,
    Worker,
    confirmations,
    sides,
    spend,
    stored,
)


def moves_of_worker(state: State, config: Config, number: int) -> Moves:
    """What a worker does next, or what befalls it."""
    worker = state.workers[number]
    yield from _PLACES[worker.at](state, config, number, worker)
    crashed = spend(state, "crashes") if worker.at not in (IDLE, DEAD) else None
    if crashed is not None:
        yield "fault.crash", number, _with(crashed, number, Worker(DEAD))


def _with(state: State, number: int, worker: Worker) -> State:
    return state._replace(workers=(*state.workers[:number], worker, *state.workers[number + 1 :]))


def _claim(state: State, config: Config, number: int, worker: Worker) -> Moves:
    for is_behind, store in sides(state, is_behind=worker.is_behind):
        waits = store.asked and not (store.has_reply or store.is_stopped)
        if store.exists and not store.is_ended and not waits and _is_free(state, store.claim, is_behind):
            at, result = _go_on(store, config)
            claimed = Worker(at, is_behind, store.answer, result, is_again=store.begun != NOBODY)
            after = stored(state, store._replace(claim=number), is_behind=is_behind)
            yield "claim", number, _with(after, number, claimed)


def _is_free(state: State, holder: int, is_behind: bool) -> bool:
    """Whether the lease of a claim has ended: its worker is dead, or renews it on another server, or has left."""
    if holder == NOBODY:
        return True
    worker = state.workers[holder]
    return worker.at in (IDLE, DEAD) or worker.is_behind != is_behind


def _go_on(store: Store, config: Config) -> tuple[int, int]:
    """Where a claim goes on, by the journal, and the result that it commits."""
    if store.ends:
        return COMMITTING, store.ends[-1]
    if store.begun != NOBODY and (store.is_stopped or not config.is_keyed):
        return COMMITTING, UNKNOWN
    if store.is_stopped:
        return COMMITTING, NOT_RUN
    return (JOURNALED if store.answer else CLAIMED), 0


def _ask_model(state: State, config: Config, number: int, worker: Worker) -> Moves:
    """Ask the model and journal its answer; where the call has to ask a person, the step waits."""
    asked = state._replace(models=state.models + 1)
    for is_behind, store in sides(state, is_behind=worker.is_behind):
        if store.claim != number:
            yield "claim lost", number, _with(asked, number, Worker(is_behind=is_behind))
            continue
        store = store._replace(answer=asked.models)
        after = worker._replace(at=JOURNALED, is_behind=is_behind, answer=store.answer)
        if config.asks:
            store = store._replace(asked=store.answer, claim=NOBODY)
            after = Worker(is_behind=is_behind)
        name = "ask" if config.asks else "journal"
        yield name, number, _with(stored(asked, store, is_behind=is_behind), number, after)


def _begin(state: State, config: Config, number: int, worker: Worker) -> Moves:
    for is_behind, store in sides(state, is_behind=worker.is_behind):
        if store.claim != number or store.answer != worker.answer or (store.begun != NOBODY and not worker.is_again):
            yield "claim lost", number, _with(state, number, Worker(is_behind=is_behind))
        elif store.is_stopped:
            result = NOT_RUN if store.begun == NOBODY else UNKNOWN
            after = worker._replace(at=COMMITTING, is_behind=is_behind, result=result)
            yield "begin, stopped", number, _with(state, number, after)
        else:
            is_late = state.callers[Act.STOP].at == OVER
            after = worker._replace(at=BEGUN, is_behind=is_behind, is_late=is_late)
            begun = stored(state, store._replace(begun=number), is_behind=is_behind)
            yield "begin", number, _with(begun, number, after)


def _confirm_begin(state: State, config: Config, number: int, worker: Worker) -> Moves:
    if config.mutant is Mutant.BEGIN_UNCONFIRMED:
        yield "begin confirmed", number, _with(state, number, worker._replace(at=READY))
        return
    for counts, after in confirmations(state, config, is_behind=worker.is_behind):
        if counts:
            yield "begin confirmed", number, _with(after, number, worker._replace(at=READY))
        else:
            yield from _take_back(after, config, number, worker)


def _take_back(state: State, config: Config, number: int, worker: Worker) -> Moves:
    """Remove the begin record where it is new and still the worker's own, and put the step off."""
    for is_behind, store in sides(state, is_behind=worker.is_behind):
        if store.begun == number and not worker.is_again and config.mutant is not Mutant.BEGIN_KEPT:
            store = store._replace(begun=NOBODY)
        if store.claim == number:
            store = store._replace(claim=NOBODY)
        put_off = _with(stored(state, store, is_behind=is_behind), number, Worker(is_behind=is_behind))
        yield "begin taken back", number, put_off


def _call(state: State, config: Config, number: int, worker: Worker) -> Moves:
    called = _with(state, number, worker._replace(at=COMMITTING, result=worker.answer))
    broken = "I6: a call began after an acknowledged stop" if worker.is_late else state.broken
    yield "call", number, called._replace(effects=(*state.effects, worker.answer), broken=broken)


def _commit(state: State, config: Config, number: int, worker: Worker) -> Moves:
    for is_behind, store in sides(state, is_behind=worker.is_behind):
        if store.claim != number:
            yield "claim lost", number, _with(state, number, Worker(is_behind=is_behind))
            continue
        store = store._replace(claim=NOBODY, ends=(*store.ends, worker.result), is_ended=True)
        if config.mutant is Mutant.SAFE_FIRST:
            store = store._replace(safe=len(store.ends))
        ended = Worker(ENDED, is_behind, result=len(store.ends))
        yield "commit", number, _with(stored(state, store, is_behind=is_behind), number, ended)


def _mark_safe(state: State, config: Config, number: int, worker: Worker) -> Moves:
    """Confirm the end, and say so to readers where it is still the version that is stored."""
    for counts, after in confirmations(state, config, is_behind=worker.is_behind):
        if not counts:
            yield "end not confirmed", number, _with(after, number, Worker(is_behind=worker.is_behind))
            continue
        for is_behind, store in sides(after, is_behind=worker.is_behind):
            if store.exists and len(store.ends) == worker.result:
                store = store._replace(safe=worker.result)
            marked = _with(stored(after, store, is_behind=is_behind), number, Worker(is_behind=is_behind))
            yield "end confirmed", number, marked


def _rest(state: State, config: Config, number: int, worker: Worker) -> Moves:
    yield from ()


_PLACES = {
    IDLE: _claim, CLAIMED: _ask_model, JOURNALED: _begin, BEGUN: _confirm_begin, READY: _call,
    COMMITTING: _commit, ENDED: _mark_safe, DEAD: _rest,
}  # fmt: skip
