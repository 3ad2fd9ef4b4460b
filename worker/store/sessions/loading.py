"""Reading a session: in full, or only what is new since the version that this process has cached.

A session is a head of bounded size and lists that only grow. A process with an older version reads the head and the
tails of the lists; `join` refuses parts that do not fit, and then everything is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from ...errors import SessionArchived, SessionDeleted, SessionNotFound, StateUnreadable, StoreUnavailable
from ...state.agent_state import AgentState
from ...state.codec.join import Head, StateParts, read_head
from ...state.conversation.messages import DEFAULT
from ...state.execution.budget import ExecutionBudget
from .. import fields
from ..bookkeeping import BOOKKEEPING, Bookkeeping, descends, remembers
from ..cache import CachedSession, as_read
from ..context import SessionScope, StoreContext, StorePart
from ..control import find_budget
from ..database import Changed, Command, Guard, Reply, WatchedTransaction
from ..keys import SessionKeys
from ..labels import LABELS, read_labels
from ..session_records import ACTIVE, DEFINITION, FORKED_FROM, SESSION_STATUS, SUSPENDED, StoredSession
from .joining import join_tails, join_usual, join_whole

T = TypeVar("T")

_TORN_READS: Final = 20
_STORED_FIELDS: Final = (
    "version",
    "agent",
    SESSION_STATUS,
    DEFINITION,
    FORKED_FROM,
    LABELS,
    "created",
    "updated",
    "head",
)
# A new session has one message; if the second is there, too, it is not new.
_NEW_MESSAGES: Final = 1


def reads(scope: SessionScope, execution_id: str, cached: CachedSession | None) -> list[Command]:
    """Commands for the first round trip; `finish` and `join_replies` understand their replies.

    Args:
        cached: The session as this process has cached it, if it may be the beginning of the stored one.
    """
    if cached is not None:  # most likely another worker has made a step since
        return [_head_command(scope), *_tail_commands(scope, cached.state)]
    return [_head_command(scope), *_list_commands(scope, execution_id, -1)]


def reads_of_new(scope: SessionScope, execution_id: str) -> list[Command]:
    """As `reads`, for a session that has perhaps just one message: it reads no more than two."""
    return [_head_command(scope), *_list_commands(scope, execution_id, _NEW_MESSAGES)]


def _head_command(scope: SessionScope) -> Command:
    return ("HMGET", scope.keys.session, "version", "agent", *BOOKKEEPING, "head")


def _list_commands(scope: SessionScope, execution_id: str, last: int) -> list[Command]:
    """Read the lists that most sessions have, up to an index."""
    return [
        ("LRANGE", scope.keys.section(DEFAULT, 0), 0, last),
        ("LRANGE", scope.keys.steps(execution_id), 0, last),
    ]


def finish(
    scope: SessionScope,
    execution_id: str,
    cached: CachedSession | None,
    watched: WatchedTransaction,
    replies: Sequence[Reply],
) -> CachedSession:
    """The session from the replies to `reads`, with further reads under the same WATCH where they are needed.

    Raises:
        SessionNotFound: There is none.
        StateUnreadable: A part cannot be read; the parts that could are untouched.
        Changed: The session was saved between two of the reads.
    """
    version, agent, bookkeeping = _parse_head(replies[0])
    if not version:
        raise missing_error(scope.context, scope.session_id)
    if cached is not None and cached.is_at(version, bookkeeping.lineage):
        return cached
    staged = scope.cache.staged(scope.session_id, version, bookkeeping.lineage)
    if staged is not None:
        return staged
    try:
        head, size = _read_head(scope, replies[0][-1])
        found = None
        if cached is None:
            found = join_usual(head, size, execution_id, replies[1:])
        elif _descends(version, bookkeeping, cached):
            found = join_tails(cached, head, replies[1:])
        else:
            _doubt(scope, version, cached)
        state, size = found or join_whole(_read_parts(scope, head, watched), as_read(size))
    except StateUnreadable:
        # Parts of two versions do not fit, and then nothing is wrong with the session.
        (now,) = watched.pipeline("load.check", [("HGET", scope.keys.session, "version")])
        if fields.number(now) != version:
            raise Changed from None
        raise
    return _cache(scope, CachedSession(version=version, state=state, size=size, agent=agent, bookkeeping=bookkeeping))


def join_replies(
    scope: SessionScope,
    execution_id: str,
    cached: CachedSession | None,
    replies: Sequence[Reply],
    *,
    limited: bool = False,
) -> CachedSession | None:
    """The session from what is cached and the replies to `reads` or `reads_of_new`, which were made at one moment.

    Args:
        limited: They are the replies to `reads_of_new`.
    Returns:
        None: More has to be read: its lists do not continue the cached ones, are not the usual ones, or are longer.
    Raises:
        StateTooNew: A newer version of this package has written it.
        StateUnreadable: A part cannot be read.
    """
    version, agent, bookkeeping = _parse_head(replies[0])
    if not version:
        return None
    if cached is not None and not _descends(version, bookkeeping, cached):
        _doubt(scope, version, cached)
        return None
    (head, size), lists = _read_head(scope, replies[0][-1]), replies[1:]
    if cached is not None:
        found = join_tails(cached, head, lists)
    elif _is_cut(lists, limited=limited):
        found = None
    else:
        found = join_usual(head, size, execution_id, lists)
    if found is None:
        return None
    state, size = found
    return _cache(scope, CachedSession(version=version, state=state, size=size, agent=agent, bookkeeping=bookkeeping))


class LoadVerbs(StorePart):
    """Reading a session in full, or the facts that it has besides its state."""

    def load_with(self, session_id: str, parts: StateParts) -> tuple[StoredSession, StateParts]:
        """Read a session without its lists, and give it the parts of a state that were read elsewhere.

        Raises:
            SessionNotFound: There is none.
        """
        keys = self._context.keys(session_id)
        reads: list[Command] = [("HMGET", keys.session, *_STORED_FIELDS), ("HGET", keys.ctl, "held")]
        found, held = self._context.database.pipeline("load.facts", reads)
        if found[0] is None:
            raise missing_error(self._context, session_id)
        return _stored_session(parts.head.state, found, (held, None)), parts

    def load(self, session_id: str) -> StoredSession:
        """Read the session in full, at one version.

        Raises:
            SessionNotFound: There is none.
            StateUnreadable: A part of it cannot be read.
        """
        session, parts = self.load_parts(session_id)
        return replace(session, state=join_whole(parts)[0])

    def load_parts(self, session_id: str) -> tuple[StoredSession, StateParts]:
        """Read the session in full, with a state that has no lists, and with parts whose items are entries.

        Raises:
            SessionNotFound: There is none.
            StateUnreadable: Its head cannot be read.
        """
        scope = self._context.session(session_id)
        keys = scope.keys
        reads: list[Command] = [("HMGET", keys.session, *_STORED_FIELDS), ("HMGET", keys.ctl, "held", "budget")]
        with self._context.database.watch("load.read", (keys.session,), reads) as watched:
            found = watched.replies
            for _ in range(_TORN_READS):
                if found[0][0] is None:
                    raise missing_error(self._context, session_id)
                head, _ = _read_head(scope, found[0][-1])
                parts = _read_parts(scope, head, watched)
                # Nothing is written here that would prove the WATCH: the version tells whether the parts fit.
                after = watched.pipeline("load.check", reads)
                if after[0][0] == found[0][0]:
                    session = _stored_session(head.state, *after)
                    return session, parts.with_outline(session.state)
                found = after
        raise StoreUnavailable(f"session {session_id} changes too fast to be read; try again")


def with_changed_budget(state: AgentState, field: bytes | None) -> AgentState:
    """The state with the budget that was set since it was saved, for those who show it.

    Args:
        field: The control field `budget`; None: there is none.
    """
    if not field or state.execution is None:
        return state
    return with_budget(state, find_budget(fields.text(field), state.execution.execution_id))


def with_budget(state: AgentState, budget: ExecutionBudget | None) -> AgentState:
    """The state with another budget of its execution. None: as it is."""
    if budget is None or state.execution is None:
        return state
    return state.with_context_and_execution(state.context, state.execution.with_budget(budget))


def _stored_session(state: AgentState, found: Sequence[bytes | None], control: Sequence[bytes | None]) -> StoredSession:
    held, budget = control
    version, agent, status, definition, forked_from, labels, created, updated, _head = found
    return StoredSession(
        agent=fields.text(agent),
        state=with_changed_budget(state, budget),
        status=SUSPENDED if held else fields.text(status) or ACTIVE,
        definition=definition or b"",
        forked_from=fields.text(forked_from),
        labels=read_labels(labels),
        version=fields.number(version),
        created_ms=fields.milliseconds(created),
        updated_ms=fields.milliseconds(updated),
    )


def _cache(scope: SessionScope, session: CachedSession) -> CachedSession:
    scope.cache.put(scope.session_id, session)
    return session


def _parse_head(reply: Sequence[bytes | None]) -> tuple[int, str, Bookkeeping]:
    """Parse version (0: there is no session), agent and bookkeeping from the reply to `_head_command`."""
    return fields.number(reply[0]), fields.text(reply[1]), Bookkeeping.read(*reply[2:-1])


def _descends(version: int, bookkeeping: Bookkeeping, cached: CachedSession) -> bool:
    """Whether what is stored continues what is cached; it does not continue a version that Redis has lost."""
    return descends(bookkeeping.lineage, cached.bookkeeping.lineage, version - cached.version)


def _doubt(scope: SessionScope, version: int, cached: CachedSession) -> None:
    """Forget a cached session that the stored one does not continue: it may be of a version that Redis has lost."""
    if remembers(version - cached.version):
        scope.cache.doubt(scope.session_id)
    else:
        scope.cache.drop(scope.session_id)


def _read_head(scope: SessionScope, stored: bytes | None) -> tuple[Head, int]:
    """Read the state's head, and its size; a session with packed entries tells that the store is upgraded."""
    stored = require_head(stored)
    head = read_head(stored)
    if head.packed:
        scope.context.layout.packs = True
    return head, len(stored)


def require_head(head: bytes | None) -> bytes:
    """The state's head of a session.

    Raises:
        StateUnreadable: There is none.
    """
    if head is None:
        raise StateUnreadable("head", "the session has no state head")
    return head


def _tail_commands(scope: SessionScope, old: AgentState) -> list[Command]:
    """Read what the lists have gained since: each section's, then the steps'."""
    commands: list[Command] = [
        ("LRANGE", scope.keys.section(name, section.generation), len(section.messages), -1)
        for name, section in old.store.sections.items()
    ]
    commands += [
        ("LRANGE", scope.keys.part(name, items.generation), len(items.items), -1)
        for name, items in old.part_lists.items()
    ]
    if old.execution is not None:
        place = len(old.execution.step_executions)
        commands.append(("LRANGE", scope.keys.steps(old.execution.execution_id), place, -1))
    return commands


def _is_cut(lists: Sequence[list[bytes]], *, limited: bool) -> bool:
    """Whether a list of `reads_of_new` may be longer than what was read of it."""
    return limited and any(len(items) > _NEW_MESSAGES for items in lists)


def _read_parts(scope: SessionScope, head: Head, watched: WatchedTransaction) -> StateParts:
    """Read every list that the head names, as entries."""
    keys, state = scope.keys, head.state
    parts, named = state.part_lists, state.store.sections
    commands: list[Command] = [("LRANGE", keys.section(name, each.generation), 0, -1) for name, each in named.items()]
    commands += [("LRANGE", keys.part(name, each.generation), 0, -1) for name, each in parts.items()]
    if state.execution is not None:
        commands.append(("LRANGE", keys.steps(state.execution.execution_id), 0, -1))
    replies = watched.pipeline("load.all", commands) if commands else []
    sections = dict(zip(named, replies, strict=False))
    lists = dict(zip(parts, replies[len(sections) :], strict=False))
    return StateParts(head, sections, replies[-1] if state.execution is not None else (), lists=lists)


MARK: Final = "created"
"""The one field of a session that was deleted; any other session has it next to `version`."""

ARCHIVED: Final = "archived"
"""The field with the mark of a session in the archive, next to `MARK` and nothing else.

A session that was restored has it too: its row is still in the archive."""


def read_whole(session_id: str, read: Callable[[], T | None]) -> T:
    """Read something of a session again until nobody has changed the session in between.

    Args:
        read: Reads once; None where the session was changed meanwhile.
    Raises:
        StoreUnavailable: It changes too fast.
    """
    for _ in range(_TORN_READS):
        found = read()
        if found is not None:
            return found
    raise StoreUnavailable(f"session {session_id} changes too fast to be read; try again")


def missing_error(context: StoreContext, session_id: str) -> SessionNotFound:
    """The error for a session that has no version: it was archived, it was deleted, or there is none."""
    read: Command = ("HMGET", context.keys(session_id).session, MARK, ARCHIVED, "version")
    ((created, archived, version),) = context.database.pipeline("session.mark", [read])
    if version is not None:  # it was made since
        return SessionNotFound(session_id)
    if archived is not None:
        return SessionArchived(session_id, fields.text(archived), fields.milliseconds(created))
    return SessionDeleted(session_id) if created is not None else SessionNotFound(session_id)


def is_unused(keys: SessionKeys) -> Guard:
    """The guard of a script that creates a session: there is none, and no deletion has left its mark."""
    return (("HMGET", keys.session, "version", MARK), ("", ""))
