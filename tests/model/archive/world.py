"""Everything that can happen: movers, the client that restores, messages, deletion, crashes and a loss."""

from __future__ import annotations

from .values import (
    IDLE,
    MARKED,
    PENDING,
    READ,
    REMOVED,
    RESTORERS,
    STORED,
    TOMBSTONE,
    VALID,
    Actor,
    Config,
    Moves,
    Mutant,
    Redis,
    Row,
    State,
    is_named,
    readable,
)


def moves_of_mover(state: State, config: Config, number: int) -> Moves:
    """What a mover does next, or its death."""
    actor, redis = state.actors[number], state.redis
    if actor.at == IDLE and redis.session is not None and not redis.is_deleted:
        yield "move.read", number + 1, _act(state, number, Actor(READ, redis.session, _revision(state)))
    elif actor.at == READ and config.mutant is Mutant.REMOVE_BEFORE_STORED:
        yield from _remove(state, config, number)
    elif actor.at == READ:
        yield from _store(state, config, number)
    elif actor.at == STORED:
        yield from _remove(state, config, number)
    elif actor.at == REMOVED and config.expires:
        yield "move.life given", number + 1, _give_life(state, number)
    elif actor.at in (REMOVED, MARKED):
        yield "move.valid", number + 1, _finish(state, number)
    if actor.at != IDLE and state.crashes:
        yield "fault.crash", number + 1, _act(state, number, Actor())._replace(crashes=state.crashes - 1)


def _store(state: State, config: Config, number: int) -> Moves:
    actor = state.actors[number]
    if not _may_store(state, config, actor):
        yield "move.refused", number + 1, _act(state, number, Actor())
        return
    row = Row(PENDING, actor.history, _revision(state) + 1)
    stored = Actor(STORED, actor.history, row.revision)
    yield "move.stored", number + 1, _act(state, number, stored)._replace(row=row)


def _may_store(state: State, config: Config, actor: Actor) -> bool:
    row = state.row
    if row is None:
        return True
    if row.kind == TOMBSTONE:
        return config.mutant is Mutant.ROW_OVER_TOMBSTONE
    if row.revision != actor.seen and config.mutant is not Mutant.ROW_OVER_NEWER:
        return False
    # A loss of Redis can bring back the state that was durable last, and it may need this row.
    is_needed = row.history != actor.history and row.history in (state.saved.session, state.saved.mark)
    return not is_needed or config.mutant is Mutant.ROW_OVER_UNCONFIRMED


def _remove(state: State, config: Config, number: int) -> Moves:
    actor, redis = state.actors[number], state.redis
    is_same = redis.session == actor.history or (config.mutant is Mutant.REMOVE_UNWATCHED and redis.session is not None)
    if not is_same or redis.is_deleted:
        yield "move.changed meanwhile", number + 1, _act(state, number, Actor())
        return
    mark = None if config.mutant is Mutant.MARK_FORGOTTEN else actor.history
    after = _act(state, number, actor._replace(at=REMOVED))
    yield "move.removed", number + 1, after._replace(redis=redis._replace(session=None, mark=mark, lives=False))


def _give_life(state: State, number: int) -> State:
    actor, redis = state.actors[number], state.redis
    after = _act(state, number, actor._replace(at=MARKED))
    is_own = redis.session is None and redis.mark == actor.history
    return after._replace(redis=redis._replace(lives=True)) if is_own else after


def _finish(state: State, number: int) -> State:
    actor, row = state.actors[number], state.row
    after = _act(state, number, Actor())
    if row is not None and row.kind == PENDING and row.revision == actor.seen:
        after = after._replace(row=row._replace(kind=VALID, revision=row.revision + 1))
    return after


def moves_of_restorer(state: State, config: Config, number: int) -> Moves:
    """A client that acts on an archived session: it restores the session first."""
    actor, redis, row = state.actors[number], state.redis, state.row
    if actor.at == IDLE and redis.session is None and readable(state) is not None and row is not None:
        yield "restore.read", 0, _act(state, number, Actor(READ, row.history, row.revision))
    elif actor.at == READ:
        after = _act(state, number, Actor())
        may_write = is_named(redis, actor.history) or config.mutant is Mutant.RESTORE_OVER_NEWER
        if may_write and not redis.is_deleted:
            there = redis._replace(session=actor.history, mark=None, lives=False, is_expired=False)
            yield "restore.written", 0, after._replace(redis=there)
        else:
            yield "restore.refused", 0, after
    if actor.at != IDLE and state.crashes:
        yield "fault.crash", 0, _act(state, number, Actor())._replace(crashes=state.crashes - 1)


def moves_of_world(state: State, config: Config) -> Moves:
    """Messages, a deletion, housekeeping, and what becomes of Redis."""
    redis, row = state.redis, state.row
    if redis.session is not None and not redis.is_deleted and state.sent < config.messages:
        longer = (*redis.session, state.sent + 1)
        yield (
            "message.taken",
            0,
            state._replace(redis=redis._replace(session=longer), accepted=longer, sent=state.sent + 1),
        )
    if config.delete and not redis.is_deleted and readable(state) is not None:
        outbox = config.mutant is not Mutant.DELETE_WITHOUT_OUTBOX
        gone = Redis(session=None, is_deleted=True, outbox=outbox)
        yield "delete.marked", 0, state._replace(redis=gone, accepted=())
    is_durable = state.saved.is_deleted or config.mutant is Mutant.TOMBSTONE_UNCONFIRMED
    if redis.outbox and (row is None or row.kind != TOMBSTONE) and is_durable:
        yield "delete.tombstone", 0, state._replace(row=Row(TOMBSTONE, (), _revision(state) + 1))
    elif redis.outbox and row is not None and row.kind == TOMBSTONE:
        yield "delete.entry removed", 0, state._replace(redis=redis._replace(outbox=False))
    # A life is longer than any client is on its way.
    if config.expires and redis.lives and all(state.actors[number].at == IDLE for number in RESTORERS):
        expired = redis._replace(mark=None, lives=False, is_expired=True)
        yield "redis.mark expired", 0, state._replace(redis=expired)
    yield from _keep_house(state, config)
    yield from _lose(state)


def _keep_house(state: State, config: Config) -> Moves:
    redis, row = state.redis, state.row
    if row is None or row.kind != PENDING or redis.is_deleted or not is_named(redis, row.history):
        return
    if redis.is_expired and config.mutant is Mutant.ONLY_MARKED_FINISHED:
        return
    valid = row._replace(kind=VALID, revision=row.revision + 1)
    lives = config.expires and redis.mark is not None
    yield "house.pending made valid", 0, state._replace(row=valid, redis=redis._replace(lives=lives))


def _lose(state: State) -> Moves:
    if state.saved == state.redis:
        return
    yield "redis.saved", 0, state._replace(saved=state.redis)
    if state.losses:
        lost = state._replace(redis=state.saved, losses=state.losses - 1)
        # A loss excuses what was accepted after the save; what Redis held then must be readable.
        held = state.saved.session if state.saved.session is not None else state.saved.mark
        yield "fault.loss", 0, lost._replace(accepted=held or ())


def _act(state: State, number: int, actor: Actor) -> State:
    actors = list(state.actors)
    actors[number] = actor
    return state._replace(actors=tuple(actors))


def _revision(state: State) -> int:
    return -1 if state.row is None else state.row.revision
