"""What clients, programs that read, and callbacks do, and what befalls the servers."""

from __future__ import annotations

from .values import (
    AGAIN,
    BEFORE,
    OVER,
    WROTE,
    Act,
    Caller,
    Config,
    Moves,
    Mutant,
    State,
    Store,
    confirmations,
    sides,
    spend,
    stored,
)

_READS = (Act.READ, Act.CALLBACK, Act.TELL)
_UNCONFIRMED = {
    Mutant.RESULT_UNCONFIRMED: (Act.READ,),
    Mutant.CALLBACK_UNCONFIRMED: (Act.CALLBACK,),
    Mutant.REQUEST_UNCONFIRMED: (Act.TELL,),
    Mutant.DELETION_UNCONFIRMED: (Act.DELETE,),
    Mutant.ACT_UNCONFIRMED: (Act.SUBMIT, Act.STOP, Act.RETRY),
}


def moves_of_caller(state: State, config: Config, act: Act) -> Moves:
    """What an actor outside the workers does next."""
    caller = state.callers[act]
    if caller.at == BEFORE and (act is Act.SUBMIT or act in config.acts):
        yield from (_read if act in _READS else _write)(state, config, act, caller)
    elif caller.at in (WROTE, AGAIN):
        yield from _confirm(state, config, act, caller)


def _with(state: State, act: Act, caller: Caller) -> State:
    return state._replace(callers=(*state.callers[:act], caller, *state.callers[act + 1 :]))


def _write(state: State, config: Config, act: Act, caller: Caller) -> Moves:
    for is_behind, store in sides(state, is_behind=caller.is_behind):
        after = _apply(act, store)
        if after is None:
            continue
        at = AGAIN if after == store else WROTE
        written = stored(state, after, is_behind=is_behind)
        yield f"act.{act.name.lower()}", 0, _with(written, act, Caller(at, is_behind))
        lost = spend(written, "replies") if at == WROTE else None
        if lost is not None:
            yield "fault.reply lost", 0, _with(lost, act, Caller(BEFORE, is_behind))


def _apply(act: Act, store: Store) -> Store | None:
    """The session after an action; the same one where it was applied before, None where it is not possible."""
    match act:
        case Act.SUBMIT:
            return None if store.is_deleted else store._replace(exists=True)
        case Act.STOP:
            if not store.exists:
                return None
            return store if store.is_ended else store._replace(is_stopped=True)
        case Act.DELETE:
            return Store(is_deleted=True) if store.is_deleted or store.is_ended else None
        case Act.RETRY:
            if len(store.ends) > 1 or (store.ends and not store.is_ended):
                return store
            return store._replace(is_ended=False, is_stopped=False) if store.is_ended else None
    raise AssertionError(act)


def _read(state: State, config: Config, act: Act, caller: Caller) -> Moves:
    for is_behind, store in sides(state, is_behind=caller.is_behind):
        if act is Act.TELL and store.asked and not store.has_reply:
            yield "read", 0, _with(state, act, Caller(WROTE, is_behind, (store.asked, 0)))
        elif act is not Act.TELL and store.is_ended:
            version = len(store.ends)
            found = Caller(WROTE, is_behind, (version, store.ends[-1]))
            is_safe = store.safe == version or (config.mutant is Mutant.SAFE_OF_ANOTHER and store.safe > 0)
            if act is Act.READ and is_safe:
                yield "read, safe", 0, _with(state, act, found._replace(at=OVER))
            else:
                yield "read", 0, _with(state, act, found)


def _confirm(state: State, config: Config, act: Act, caller: Caller) -> Moves:
    is_skipped = config.mutant is Mutant.AGAIN_UNCONFIRMED and caller.at == AGAIN
    if is_skipped or act in _UNCONFIRMED.get(config.mutant, ()):  # type: ignore[arg-type]
        yield "confirmed", 0, _with(state, act, caller._replace(at=OVER))
        return
    for counts, after in confirmations(state, config, is_behind=caller.is_behind):
        if counts:
            yield "confirmed", 0, _with(after, act, caller._replace(at=OVER))
        else:
            yield "not confirmed", 0, _with(after, act, Caller(BEFORE, caller.is_behind))


def moves_of_world(state: State, config: Config) -> Moves:
    """What befalls the servers, and what people do."""
    if state.is_foreign:
        yield "foreign client leaves", 0, state._replace(is_foreign=False)
    now = state.now
    if now.asked and not now.has_reply and not now.is_ended:
        yield "reply", 0, stored(state, now._replace(has_reply=True), is_behind=False)
    after = spend(state, "failovers")
    if after is not None:
        workers = tuple(worker._replace(is_behind=True) for worker in state.workers)
        callers = tuple(caller._replace(is_behind=True) for caller in state.callers)
        name = "fault.failover" if state.replica == now else "fault.failover, writes lost"
        yield name, 0, after._replace(former=now, now=state.replica, workers=workers, callers=callers)
        if state.replica != now:
            yield "replica catches up", 0, state._replace(replica=now)
