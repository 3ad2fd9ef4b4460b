"""Reading a session: whole, or only what is new since the version a worker holds.

A session is a head of bounded size and lists that only grow. Who holds an older version reads the head and the tails of
the lists; `join` refuses parts that do not fit, and then everything is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...errors import SessionNotFound, StateUnreadable, StoreUnavailable
from ...state import DEFAULT, AgentState, Head, Message, StepExecution, join, read_head
from .. import fields
from ..bookkeeping import BOOKKEEPING, Bookkeeping, descends
from ..cache import CachedSession, as_read
from ..context import StoreContext
from ..database import Changed, Command, Reply, WatchedTransaction
from ..keys import SessionKeys

_TORN_READS: Final = 20


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as read."""

    state: AgentState
    version: int
    agent: str


def reads(keys: SessionKeys, execution_id: str, held: CachedSession | None) -> list[Command]:
    """Commands for the first round trip; `finish` understands their replies."""
    first: Command = ("HMGET", keys.session, "version", "agent", *BOOKKEEPING, "head")
    if held is not None:  # most likely another worker has made a step since
        return [first, *_tails(keys, held.state)]
    return [
        first,
        ("LRANGE", keys.section(DEFAULT, 0), 0, -1),
        ("LRANGE", keys.steps(execution_id), 0, -1),
    ]


def finish(
    context: StoreContext,
    keys: SessionKeys,
    execution_id: str,
    held: CachedSession | None,
    watched: WatchedTransaction,
    replies: Sequence[Reply],
) -> CachedSession:
    """The session from the replies to `reads`, with further reads under the same WATCH where they are needed.

    Raises:
        SessionNotFound: There is none.
        StateUnreadable: A part cannot be read; the parts that could are untouched.
        Changed: Somebody saved between two of the reads.
    """
    version, agent, bookkeeping = _known(replies[0])
    if not version:
        raise SessionNotFound(keys.session_id)
    if held is not None and held.is_at(version, bookkeeping.lineage):
        return held
    staged = context.cache.staged(keys.session_id, version, bookkeeping.lineage)
    if staged is not None:
        return staged
    try:
        stored = _present(replies[0][-1])
        head, size = read_head(stored), len(stored)
        found = None
        if held is None:
            found = _guessed(head, size, execution_id, replies[1:])
        elif _descends(version, bookkeeping, held):
            found = _newer(held, head, replies[1:])
        else:
            context.cache.drop(keys.session_id)  # it may be of a higher version, which Redis has lost
        state, size = found or _read_all(keys, head, size, watched)
    except StateUnreadable:
        # Parts of two versions do not fit, and then nothing is wrong with the session.
        (now,) = watched.pipeline("load.check", [("HGET", keys.session, "version")])
        if fields.number(now) != version:
            raise Changed from None
        raise
    return _kept(context, keys, CachedSession(version, state, size, agent, bookkeeping))


def at_once(
    context: StoreContext, keys: SessionKeys, execution_id: str, held: CachedSession | None, replies: Sequence[Reply]
) -> CachedSession | None:
    """The session from what is held and the replies to `reads`, which were made at one moment.

    Returns:
        None: Its lists are not those that are held, gone on, or not the usual ones; it has to be read in full.
    Raises:
        StateTooNew: A newer version of this package has written it.
        StateUnreadable: A part cannot be read.
    """
    version, agent, bookkeeping = _known(replies[0])
    if not version or (held is not None and not _descends(version, bookkeeping, held)):
        return None
    stored = _present(replies[0][-1])
    head, lists = read_head(stored), replies[1:]
    found = _newer(held, head, lists) if held is not None else _guessed(head, len(stored), execution_id, lists)
    if found is None:
        return None
    state, size = found
    return _kept(context, keys, CachedSession(version, state, size, agent, bookkeeping))


def load(context: StoreContext, session_id: str) -> StoredSession:
    """The session as stored now, read in full.

    Raises:
        SessionNotFound: There is none.
        StateUnreadable: A part of it cannot be read.
    """
    keys = context.keys(session_id)
    with context.database.watch(
        "load.read", (keys.session,), [("HMGET", keys.session, "version", "agent", "head")]
    ) as w:
        version, agent, head = w.replies[0]
        if version is None:
            raise SessionNotFound(session_id)
        for _ in range(_TORN_READS):
            state, problem = None, None
            try:
                state, _size = _read_all(keys, read_head(_present(head)), len(head), w)
            except StateUnreadable as error:
                problem = error
            # Nothing is written here that would prove the WATCH: the version tells whether the parts belong together.
            again, head_now = w.pipeline("load.check", [("HMGET", keys.session, "version", "head")])[0]
            if again == version:
                if state is None:
                    assert problem is not None
                    raise problem
                return StoredSession(state, fields.number(version), fields.text(agent))
            version, head = again, head_now
    raise StoreUnavailable(f"session {session_id} changes too fast to be read; try again")


def _kept(context: StoreContext, keys: SessionKeys, read: CachedSession) -> CachedSession:
    context.cache.put(keys.session_id, read)
    return read


def _known(reply: Sequence[bytes | None]) -> tuple[int, str, Bookkeeping]:
    """Version (0: there is no session), agent and standing from the reply to the first of `reads`."""
    return fields.number(reply[0]), fields.text(reply[1]), Bookkeeping.read(*reply[2:6])


def _descends(version: int, bookkeeping: Bookkeeping, held: CachedSession) -> bool:
    """Whether what is stored is what is held, gone on; what Redis has lost was nobody's beginning."""
    return descends(bookkeeping.lineage, held.bookkeeping.lineage, version - held.version)


def _present(head: bytes | None) -> bytes:
    if head is None:
        raise StateUnreadable("head", "the session has no state head")
    return head


def _tails(keys: SessionKeys, old: AgentState) -> list[Command]:
    """What the lists have gained since: of each section, then of the steps."""
    commands: list[Command] = [
        ("LRANGE", keys.section(name, section.generation), len(section.messages), -1)
        for name, section in old.store.sections.items()
    ]
    commands += [
        ("LRANGE", keys.part(name, items.generation), len(items.items), -1) for name, items in old.part_lists.items()
    ]
    if old.execution is not None:
        place = len(old.execution.step_executions)
        commands.append(("LRANGE", keys.steps(old.execution.execution_id), place, -1))
    return commands


def _newer(held: CachedSession, head: Head, tails: Sequence[list[bytes]]) -> tuple[AgentState, int] | None:
    """From the head and the replies to `_tails`; None when what is held is not the beginning."""
    old = held.state
    if not _continues(old, head):
        return None
    sections = old.store.sections
    grown = {name: (*sections[name].messages, *tail) for name, tail in zip(sections, tails, strict=False)}
    steps = (*old.execution.step_executions, *tails[-1]) if old.execution is not None else ()
    lists = {
        name: (*items.items, *tail)
        for (name, items), tail in zip(old.part_lists.items(), tails[len(sections) :], strict=False)
    }
    return join(head, grown, steps, lists), held.size + as_read(sum(len(item) for tail in tails for item in tail))


def _continues(old: AgentState, head: Head) -> bool:
    """Whether every list of `old` is the beginning of what the head describes."""
    new = head.state
    if (old.execution is None) != (new.execution is None):
        return False
    if old.execution is not None and new.execution is not None and not old.execution.is_written_like(new.execution):
        return False
    lists = {name: items.generation for name, items in old.part_lists.items()}
    if lists != {name: items.generation for name, items in new.part_lists.items()}:
        return False
    held = {name: section.generation for name, section in old.store.sections.items()}
    return held == {name: section.generation for name, section in new.store.sections.items()}


def _guessed(head: Head, size: int, execution_id: str, lists: Sequence[list[bytes]]) -> tuple[AgentState, int] | None:
    """Where the guess of `reads` is right, as for most sessions: one section, never replaced, and this execution."""
    messages, steps = lists
    generations = {name: section.generation for name, section in head.state.store.sections.items()}
    execution = head.state.execution
    if generations not in ({}, {DEFAULT: 0}) or execution is None or execution.execution_id != execution_id:
        return None
    if head.lists:
        return None
    return _joined(head, size, {DEFAULT: messages} if generations else {}, steps)


def _read_all(keys: SessionKeys, head: Head, size: int, watched: WatchedTransaction) -> tuple[AgentState, int]:
    sections = head.state.store.sections
    names = list(sections)
    commands: list[Command] = [("LRANGE", keys.section(n, sections[n].generation), 0, -1) for n in names]
    lists = head.state.part_lists
    commands += [("LRANGE", keys.part(name, items.generation), 0, -1) for name, items in lists.items()]
    execution = head.state.execution
    if execution is not None:
        commands.append(("LRANGE", keys.steps(execution.execution_id), 0, -1))
    replies = watched.pipeline("load.all", commands) if commands else []
    steps: list[bytes] = replies[-1] if execution is not None else []
    read = dict(zip(lists, replies[len(names) :], strict=False))
    return _joined(head, size, dict(zip(names, replies, strict=False)), steps, read)


def _joined(
    head: Head,
    size: int,
    sections: dict[str, list[bytes]],
    steps: Sequence[bytes | StepExecution],
    lists: Mapping[str, Sequence[bytes]] | None = None,
) -> tuple[AgentState, int]:
    given: dict[str, Sequence[bytes | Message]] = {name: list(items) for name, items in sections.items()}
    size += sum(len(item) for items in sections.values() for item in items)
    size += sum(len(item) for item in steps if isinstance(item, bytes))
    lists = lists or {}
    size += sum(len(item) for items in lists.values() for item in items)
    return join(head, given, steps, lists), as_read(size)
