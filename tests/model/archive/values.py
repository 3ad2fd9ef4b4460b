"""The state of the model of the archive: one session, its mark and row, two movers, two clients, and a deletion."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple, TypeAlias

History: TypeAlias = tuple[int, ...]
"""What a session holds: the numbers of the messages that it has taken, in order."""

IDLE, READ, STORED, REMOVED, MARKED = range(5)
PENDING, VALID, TOMBSTONE = range(3)


class Mutant(StrEnum):
    """A rule of the protocol that is broken."""

    REMOVE_BEFORE_STORED = "the mover removes the session before its row is stored"
    REMOVE_UNWATCHED = "the mover removes a session that has changed since it was read"
    ROW_OVER_TOMBSTONE = "a row is stored over a tombstone"
    ROW_OVER_NEWER = "a slow mover stores over a row that was written after it read"
    ROW_OVER_UNCONFIRMED = "a row is replaced before the restore from it is durable"
    RESTORE_OVER_NEWER = "a restore replaces what is in Redis"
    MARK_FORGOTTEN = "the mover removes the session and leaves no mark"
    TOMBSTONE_UNCONFIRMED = "a row becomes a tombstone before the deletion is durable"
    DELETE_WITHOUT_OUTBOX = "a deletion leaves no entry in the outbox"
    ONLY_MARKED_FINISHED = "housekeeping leaves a row pending whose mark has outlived its life"


class Config(NamedTuple):
    """What may happen in one search; `expires`: a mark outlives its life."""

    messages: int = 2
    delete: bool = False
    crashes: int = 1
    losses: int = 0
    expires: bool = False
    mutant: Mutant | None = None


class Redis(NamedTuple):
    """What Redis holds of the session, and what a loss takes back.

    Attributes:
        lives: The mark has its life.
        is_expired: The mark is gone, since its life was over.
    """

    session: History | None = (0,)
    mark: History | None = None
    lives: bool = False
    is_expired: bool = False
    is_deleted: bool = False
    outbox: bool = False


class Row(NamedTuple):
    """The row of the archive; `revision` grows with each write."""

    kind: int
    history: History = ()
    revision: int = 0


class Actor(NamedTuple):
    """A mover or the client that restores: what it has read, and how far it is."""

    at: int = IDLE
    history: History = ()
    seen: int = -1


class State(NamedTuple):
    """Everything. `accepted` is the history that clients were told of."""

    redis: Redis = Redis()
    saved: Redis = Redis()
    row: Row | None = None
    actors: tuple[Actor, ...] = (Actor(), Actor(), Actor(), Actor())
    accepted: History = (0,)
    sent: int = 0
    crashes: int = 0
    losses: int = 0


Moves: TypeAlias = Iterator[tuple[str, int, State]]
MOVERS, RESTORERS = (0, 1), (2, 3)


def initial(config: Config) -> State:
    """The session has ended long ago, and is in Redis alone."""
    return State(crashes=config.crashes, losses=config.losses)


def canonical(state: State) -> State:
    """The two movers are alike, so are the two clients, and of revisions only the order matters."""
    known = {actor.seen for actor in state.actors}
    if state.row is not None:
        known.add(state.row.revision)
    rank = {revision: number for number, revision in enumerate(sorted(known - {-1}))} | {-1: -1}
    first, second, third, fourth = (actor._replace(seen=rank[actor.seen]) for actor in state.actors)
    row = state.row and state.row._replace(revision=rank[state.row.revision])
    return state._replace(row=row, actors=(*sorted((first, second)), *sorted((third, fourth))))


def readable(state: State) -> History | None:
    """What a reader is shown: Redis first, then the row that matches the mark, or any where its life is over."""
    redis, row = state.redis, state.row
    if redis.is_deleted:
        return None
    if redis.session is not None:
        return redis.session
    if row is None or row.kind == TOMBSTONE or not is_named(redis, row.history):
        return None
    return row.history


def is_named(redis: Redis, history: History) -> bool:
    """Whether a row with this history is the session: its mark is in Redis, or nothing."""
    return redis.session is None and (redis.is_expired or redis.mark == history)
