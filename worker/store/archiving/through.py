"""The parts of a store whose verbs reach sessions in the archive.

A verb is asked as it is. Where Redis does not have the session, one that reads gets it from a store in memory, and one
that acts restores it and is asked again. Verbs that are not named here do not depend on a session that has ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from ...errors import SessionDeleted, SessionNotFound, StateUnreadable
from ..children.trees import Member, Trees
from ..context import StoreContext
from ..keys import root_of
from ..live.streams import Entry, StreamPosition
from ..records import ActionResult
from ..requests.records import RequestFilter, RequestPage
from ..session_records import Header, SessionSummary
from .overlays import open_overlay
from .reaching import ArchivedSessions, header_of, summary_of

_RESTORES: Final = 5

Verb = Callable[..., Any]


class ThroughArchive:
    """A part of a store, such as its sessions, with the verbs of it."""

    def __init__(self, part: object, archived: ArchivedSessions) -> None:
        self._part = part
        self._archived = archived

    def __getattr__(self, name: str) -> Any:
        verb: Verb = getattr(self._part, name)
        way = _WAYS.get(name)
        found = verb if way is None else partial(way, self._archived, verb)
        setattr(self, name, found)
        return found


class TreesThroughArchive(Trees):
    """Trees of which some sessions are in the archive."""

    def __init__(self, context: StoreContext, archived: ArchivedSessions) -> None:
        super().__init__(context)
        self._archived = archived

    def members(self, session_id: str) -> list[str]:
        """Ids of all sessions below the root of this session, in no order."""
        found = super().members(session_id)
        moved = [each.session for each in self._archived.below(root_of(session_id)) if each.session.parent_id]
        return list(dict.fromkeys((*found, *(each.key.session_id for each in moved))))

    def active_below(self, session_id: str) -> Iterator[Header]:
        """The sessions below this one that have not ended: none of them is in the archive."""
        return Trees(self._context).active_below(session_id)

    def roots(self, session_ids: Iterable[str]) -> dict[str, str]:
        """The session at the root of the tree of each of these: itself for a root, and for a fork."""
        found = super().roots(session_ids)
        return {name: top if top == root_of(top) else self._root(top) for name, top in found.items()}

    def _root(self, session_id: str) -> str:
        seen: set[str] = set()
        with contextlib.suppress(StateUnreadable):
            while session_id not in seen and (link := self.link(session_id)) is not None:
                seen.add(session_id)
                session_id = link.session_id
        return session_id

    def link(self, session_id: str) -> Any:
        """The place of a session in its tree; None for a root, and for a session that is not there."""
        found = super().link(session_id)
        moved = self._archived.read(session_id) if found is None else None
        return found if moved is None else Trees(moved).link(session_id)

    def _read(self, names: Sequence[str]) -> list[Member | None]:
        found = super()._read(names)
        missing = [name for name, member in zip(names, found, strict=True) if member is None]
        documents = {name: document for name in missing if (document := self._archived.document(name)) is not None}
        if not documents:
            return found
        read = Trees(open_overlay(self._context, documents))._read(list(documents))
        moved = {
            name: member and replace(member, header=replace(member.header, is_archived=True))
            for name, member in zip(documents, read, strict=True)
        }
        return [member or moved.get(name) for name, member in zip(names, found, strict=True)]


def _verb_in(archived: ArchivedSessions, store: StoreContext, verb: Any) -> Verb:
    """The same verb of the same part, on the store that has the session."""
    return verb if store is archived.context else getattr(type(verb.__self__)(store), verb.__name__)


def _read(archived: ArchivedSessions, verb: Verb, session_id: str, *args: Any, **options: Any) -> Any:
    """Read of a session that Redis says it does not have."""
    return _read_where_it_is(archived, verb, session_id, session_id, *args, **options)[0]


def _read_where_it_is(
    archived: ArchivedSessions, verb: Verb, session_id: str, *args: Any, **options: Any
) -> tuple[Any, StoreContext]:
    """Read of the store that has a session, and that store."""
    try:
        return verb(*args, **options), archived.context
    except SessionNotFound as missing:
        moved = archived.read(session_id, missing)
        if moved is None:
            raise
    return _verb_in(archived, moved, verb)(*args, **options), moved


def _header(archived: ArchivedSessions, verb: Verb, session_id: str) -> Header:
    """Read a header, which says where the session is."""
    header, store = _read_where_it_is(archived, verb, session_id, session_id)
    return header if store is archived.context else replace(header, is_archived=True)


def _look(archived: ArchivedSessions, verb: Verb, session_id: str, *args: Any, **options: Any) -> Any:
    """Read what may be empty, without an error where there is no session."""
    found = verb(session_id, *args, **options)
    if not _is_empty(found):
        return found
    moved = archived.read(session_id)
    return found if moved is None else _verb_in(archived, moved, verb)(session_id, *args, **options)


def _is_empty(found: object) -> bool:
    return not found or (isinstance(found, list) and not any(cast("list[object]", found)))


def _act(archived: ArchivedSessions, verb: Verb, session_id: str, *args: Any, **options: Any) -> Any:
    """Act on a session, which is restored before: again where a mover has taken it before the verb could act."""
    for _ in range(_RESTORES):
        try:
            return verb(session_id, *args, **options)
        except SessionNotFound as missing:
            if not archived.restore(session_id, missing):
                raise
    return verb(session_id, *args, **options)


def _delete(archived: ArchivedSessions, verb: Verb, session_id: str, **options: Any) -> ActionResult:
    """Delete a session; the mark of one in the archive says so, and may have gone."""
    try:
        return verb(session_id, **options)
    except SessionDeleted:
        raise
    except SessionNotFound:
        if not archived.put_mark(session_id):
            raise
    return verb(session_id, **options)


def _follow(
    archived: ArchivedSessions,
    verb: Verb,
    positions: Mapping[str, StreamPosition],
    block_ms: int | None = None,
) -> dict[str, list[Entry]]:
    """Follow sessions, of which nothing more comes where they are in the archive."""
    found: dict[str, list[Entry]] = verb(positions, block_ms)
    if found:
        return found
    moved = {each: store for each in positions if (store := archived.read(each)) is not None}
    for each, store in moved.items():
        found |= _verb_in(archived, store, verb)({each: positions[each]})
    return found


def _summaries(archived: ArchivedSessions, verb: Verb, session_ids: Sequence[str]) -> dict[str, SessionSummary]:
    found: dict[str, SessionSummary] = verb(session_ids)
    missing = [each for each in session_ids if each not in found or not found[each].steps]
    rows, restored = archived.rows(missing)
    found |= {row.session.key.session_id: summary_of(row) for row in rows}
    return found | verb(restored) if restored else found


def _page(archived: ArchivedSessions, verb: Verb, wanted: RequestFilter, **options: Any) -> RequestPage:
    """List requests; those of one session where it is."""
    return _read_where_it_is(archived, verb, wanted.session_id or "", wanted, **options)[0]


def _headers_of(archived: ArchivedSessions, verb: Verb, session_ids: Sequence[str]) -> list[Header]:
    found: dict[str, Header] = {each.session_id: each for each in verb(session_ids)}
    rows, restored = archived.rows([each for each in session_ids if each not in found])
    found |= {row.session.key.session_id: header_of(row) for row in rows}
    found |= {each.session_id: each for each in verb(restored)} if restored else {}
    return [found[each] for each in session_ids if each in found]


def _find_matching(archived: ArchivedSessions, verb: Verb, prefix: str, limit: int = 10) -> list[str]:
    return sorted({*verb(prefix, limit), *archived.matching(prefix, limit)})[:limit]


_WAYS: Final[Mapping[str, Verb]] = {
    **dict.fromkeys(
        (
            "load", "definition", "record", "records", "read_joined", "outcome", "step_facts", "execution",
            "messages", "outline", "state_at", "parts_at", "request_at", "steps_after", "find", "read_waiting",
            "find_rewind",
        ),
        _read,
    ),
    **dict.fromkeys(
        (
            "events", "latest_events", "watch", "read_failed_sinks", "event_at", "keep_followed",
            "committed_texts",
        ),
        _look,
    ),
    **dict.fromkeys(
        (
            "act", "withdraw", "set_mode", "release_queue", "stop", "suspend", "resume", "change_budget", "retry",
            "rewind", "save", "fork", "label", "answer", "charge_job",
        ),
        _act,
    ),
    "header": _header,
    "delete": _delete,
    "follow": _follow,
    "page": _page,
    "summaries": _summaries,
    "headers_of": _headers_of,
    "find_matching": _find_matching,
}  # fmt: skip
