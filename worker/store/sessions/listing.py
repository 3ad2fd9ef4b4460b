"""Listing sessions: their headers and summaries, which do not need their states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...errors import StateUnreadable
from .. import fields
from ..context import StoreContext, StorePart
from ..control import HOLD_FIELDS, read_hold, read_unoffered
from ..database import Command, Reply, Word
from ..history_losses import LOST, HistoryLoss
from ..keys import SessionKeys, ShardKeys
from ..labels import LABELS, NO_LABELS, read_labels, session_of, sessions_range
from ..requests.index import read_entry
from ..safe_ends import SAFE, is_end_safe
from ..session_records import Header, SessionState
from .loading import missing_error

WAITS_FOR: Final = "waits_for:"
"""Before the kind of a request, the index of sessions that wait for one."""

_BATCH: Final = 5_000
# Sessions whose status or agent is compared in one round trip; of an index without an end, in one page.
_COMPARED: Final = 2_000
# The due index and that of labels have no order by update. With more sessions in them than this, or with no more than
# so many times as many as are due in all, the listing of all is read instead.
_MOST_READ: Final = 20_000
_FEW_OTHERS: Final = 2
_HEADER: Final = (
    "version", "agent", "status", "created", "updated", "session_status", "forked_from", LOST, LABELS, SAFE,
)  # fmt: skip
_CTL: Final = ("execution", "step", "unoffered", "not_before", "retries", *HOLD_FIELDS)
_ENDED: Final = frozenset((SessionState.COMPLETED, SessionState.STOPPED, SessionState.FAILED))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The sessions that a listing wants; None does not restrict.

    Attributes:
        status: Those that cannot be read are among those of every status.
        labels: They have all of these.
    """

    status: str | None = None
    agent: str | None = None
    labels: Mapping[str, str] = NO_LABELS

    @property
    def is_any(self) -> bool:
        """Whether every session is wanted."""
        return self.status is None and self.agent is None and not self.labels

    def matches(self, status: bytes | None, agent: bytes | None, labels: bytes | None = None) -> bool:
        """Whether a session with these fields is wanted; only the header of an unreadable one tells its status."""
        return (
            (self.status in (None, SessionState.UNREADABLE) or status == self.status.encode())
            and (self.agent is None or agent == self.agent.encode())
            and (not self.labels or self.labels.items() <= fields.or_else(read_labels, labels, NO_LABELS).items())
        )


_ANY: Final = Wanted()


class ListVerbs(StorePart):
    """Headers of sessions."""

    def header(self, session_id: str) -> Header:
        """Read what a listing shows of a session.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
        """
        found = read_headers(self._context, [self._context.keys(session_id)])[0]
        if found is None:
            raise missing_error(self._context, session_id)
        return found

    def headers_of(self, session_ids: Sequence[str]) -> list[Header]:
        """Read what a listing shows of sessions, in order; those that do not exist are left out."""
        found = read_headers(self._context, [self._context.keys(each) for each in session_ids])
        return [each for each in found if each is not None]

    def headers(
        self,
        *,
        index: str = "sessions",
        newest_ms: int | None = None,
        oldest_ms: int | None = None,
        limit: int = 50,
        wanted: Wanted = _ANY,
    ) -> tuple[list[Header], int | None]:
        """Read a page of sessions by last update, newest first, and where the next page begins (ms; None at the end).

        Args:
            index: "sessions"; "failed" for those whose last execution failed; "active" for those whose execution runs
                or waits, which are found in the due index; `WAITS_FOR` and a kind for those with an open request of
                that kind.
            newest_ms: Begin at this update time (inclusive). None: the newest.
            oldest_ms: Nothing older than this. None: no bound.
            limit: Most sessions of the page.
            wanted: With a restriction the page may be shorter, or empty, where others follow.
        """
        context = self._context
        most = limit if wanted.is_any else max(limit, _COMPARED)
        entries, beyond = _read_index(context, index, _Bounds(newest_ms, oldest_ms, most), wanted)
        page, rest = _take(context, entries, wanted, limit)
        rest = rest or beyond
        read = iter(read_headers(context, [context.keys(each.name) for each in page if not each.is_damaged]))
        no_id = StateUnreadable("the listing", "an entry is no session id")
        found = [_unreadable_header(each.name, b"", no_id) if each.is_damaged else next(read) for each in page]
        headers = [
            # The index knows when an unreadable one was updated.
            header if header.updated_ms >= entry.at_ms else replace(header, updated_ms=entry.at_ms)
            for entry, header in zip(page, found, strict=True)
            if header is not None
        ]
        return headers, rest[0].at_ms if rest else None

    def find_labelled(self, labels: Mapping[str, str]) -> set[str]:
        """Find the sessions that have all of these labels, one at least, also those whose headers cannot be read."""
        ranges = [sessions_range(*label) for label in labels.items()]
        listed = self._context.read_shards(
            "list.labelled", lambda shard: [("ZRANGEBYLEX", shard.labels, *each) for each in ranges]
        )
        members = [[each for found in replies for each in found] for replies in zip(*listed.values(), strict=True)]
        first, *others = ({fields.name(session_of(each)) for each in of_label} for of_label in members)
        return first.intersection(*others)

    def find_matching(self, prefix: str, limit: int = 10) -> list[str]:
        """Find sessions whose id begins with this text, in sorted order; reads the listing's names in batches."""
        found: set[str] = set()
        wanted = prefix.encode()
        uppers: dict[ShardKeys, Word] = dict.fromkeys(self._context.shards, "+inf")
        while uppers and len(found) <= limit:
            reads: list[Command] = [
                ("ZREVRANGEBYSCORE", shard.sessions, upper, "-inf", "WITHSCORES", "LIMIT", 0, _BATCH)
                for shard, upper in uppers.items()
            ]
            replies = dict(zip(list(uppers), self._context.database.pipeline("match", reads), strict=True))
            for names in replies.values():
                found.update(name.decode("utf-8", "replace") for name in names[::2] if name.startswith(wanted))
            uppers = {
                shard: names[-1]
                for shard, names in replies.items()
                if len(names) == 2 * _BATCH and names[-1] != uppers[shard]
            }
        return sorted(found)[:limit]


def read_headers(context: StoreContext, all_keys: Sequence[SessionKeys]) -> list[Header | None]:
    """Read the headers of sessions, in order; None for one that does not exist."""
    reads = [[("HMGET", keys.session, *_HEADER), ("HMGET", keys.ctl, *_CTL)] for keys in all_keys]
    return [
        _unreadable_header(keys.session_id, b"", replies)
        if isinstance(replies, StateUnreadable)
        else _parse_header(keys.session_id, *replies, confirms=context.settings.replicas > 0)
        for keys, replies in zip(all_keys, context.read_apart("headers", reads), strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Which entries of an index are looked at: updated between these times, and at most so many."""

    newest_ms: int | None
    oldest_ms: int | None
    count: int

    def holds(self, at_ms: int) -> bool:
        """Whether a time is within the bounds."""
        return (self.newest_ms is None or at_ms <= self.newest_ms) and (
            self.oldest_ms is None or at_ms >= self.oldest_ms
        )


@dataclass(frozen=True, slots=True)
class _Entry:
    """A session of an index: when it was updated, and its name; a damaged one is no session id."""

    at_ms: int
    name: str
    is_damaged: bool

    @classmethod
    def of(cls, at_ms: int, member: bytes) -> _Entry:
        """Parse a member of an index."""
        name = fields.name(member)
        return cls(at_ms, name, is_damaged=name.encode() != member)


def _read_index(
    context: StoreContext, index: str, bounds: _Bounds, wanted: Wanted
) -> tuple[Sequence[_Entry], Sequence[_Entry]]:
    """Entries of an index by update time, newest first, and the one behind them; an index without an order whole."""
    whole = _read_unordered(context, index, bounds, wanted)
    scored = _scored(context, index, bounds) if whole is None else whole
    entries = [_Entry.of(at_ms, member) for at_ms, member in sorted(scored, reverse=True)]
    return (entries, ()) if whole is not None else (entries[: bounds.count], entries[bounds.count :])


def _read_unordered(
    context: StoreContext, index: str, bounds: _Bounds, wanted: Wanted
) -> list[tuple[int, bytes]] | None:
    """The sessions of an index without an order, with their update times; None where one with an order is shorter."""
    kind = index.removeprefix(WAITS_FOR)
    if kind != index:
        return _with_times(
            context,
            bounds,
            lambda shard: ("ZRANGEBYSCORE", shard.requests, "-inf", "+inf"),
            lambda entry: _asked_by(entry, kind),
        )
    label = _rarest_label(context, wanted.labels) if wanted.status or index == "sessions" else None
    if label is not None:
        return _with_times(
            context, bounds, lambda shard: ("ZRANGEBYLEX", shard.labels, *sessions_range(*label)), session_of
        )
    if index == "active" and _has_few_due(context):
        return _with_times(context, bounds, lambda shard: ("ZREVRANGEBYSCORE", shard.due, "+inf", "-inf"))
    return None


def _asked_by(entry: bytes, kind: str) -> bytes | None:
    """The session that has made an open request of a kind; None: it is of another."""
    request = read_entry(entry)
    return request.session_id.encode() if request is not None and request.kind == kind else None


def _take(
    context: StoreContext, entries: Sequence[_Entry], wanted: Wanted, limit: int
) -> tuple[list[_Entry], Sequence[_Entry]]:
    """Take the first entries that are wanted, and give those behind them."""
    if wanted.is_any:
        return list(entries[:limit]), entries[limit:]
    found: list[_Entry] = []
    for start in range(0, len(entries), _COMPARED):
        batch = entries[start : start + _COMPARED]
        for place, is_wanted in enumerate(_compare(context, batch, wanted), start):
            if len(found) == limit:
                return found, entries[place:]
            if is_wanted:
                found.append(entries[place])
    return found, ()


def _compare(context: StoreContext, entries: Sequence[_Entry], wanted: Wanted) -> list[bool]:
    """Whether each session is wanted; true where only its header tells."""
    names = [each.name for each in entries if not each.is_damaged]
    compared = ("status", "agent", LABELS) if wanted.labels else ("status", "agent")
    try:
        stored = context.database.pipeline(
            "headers.compare", [("HMGET", context.keys(name).session, *compared) for name in names]
        )
    except StateUnreadable:  # a key of another type, which is told with its header
        return [True] * len(entries)
    matching = {name for name, found in zip(names, stored, strict=True) if wanted.matches(*found)}
    return [each.is_damaged or each.name in matching for each in entries]


def _scored(context: StoreContext, index: str, bounds: _Bounds) -> list[tuple[int, bytes]]:
    """Entries of an index with update times; of each shard the newest, one more than `bounds.count`."""
    upper: Word = "+inf" if bounds.newest_ms is None else bounds.newest_ms
    lower: Word = "-inf" if bounds.oldest_ms is None else bounds.oldest_ms

    def reads(shard: ShardKeys) -> list[Command]:
        key = shard.failed if index == "failed" else shard.sessions
        return [("ZREVRANGEBYSCORE", key, upper, lower, "WITHSCORES", "LIMIT", 0, bounds.count + 1)]

    return [
        (fields.score_ms(score), member)
        for (reply,) in context.read_shards("list", reads).values()
        for member, score in zip(reply[::2], reply[1::2], strict=True)
    ]


def _has_few_due(context: StoreContext) -> bool:
    """Whether the due index is the shorter way to the sessions whose execution runs or waits."""
    sizes = context.read_shards("list.sizes", lambda shard: [("ZCARD", shard.due), ("ZCARD", shard.sessions)])
    due, all_sessions = (sum(each) for each in zip(*sizes.values(), strict=True))
    return due <= _MOST_READ and due * _FEW_OTHERS < all_sessions


def _rarest_label(context: StoreContext, labels: Mapping[str, str]) -> tuple[str, str] | None:
    """The label that the fewest sessions have; None where reading all of these is not the shorter way."""
    if not labels:
        return None
    ranges = [sessions_range(*label) for label in labels.items()]
    sizes = context.read_shards("list.labels", lambda shard: [("ZLEXCOUNT", shard.labels, *each) for each in ranges])
    counts = [sum(each) for each in zip(*sizes.values(), strict=True)]
    fewest = min(counts)
    return list(labels.items())[counts.index(fewest)] if fewest <= _MOST_READ else None


def _with_times(
    context: StoreContext,
    bounds: _Bounds,
    read: Callable[[ShardKeys], Command],
    name: Callable[[bytes], bytes | None] = lambda member: member,
) -> list[tuple[int, bytes]]:
    """The sessions of an index, each once, with their update times.

    Args:
        name: The session that a member of the index names; None: none that is wanted.
    """
    listed = context.read_shards("list.index", lambda shard: [read(shard)])
    named = [(shard.sessions, name(each)) for shard, (found,) in listed.items() for each in found]
    members = list(dict.fromkeys((key, session) for key, session in named if session is not None))
    scores = context.database.pipeline("list.updated", [("ZSCORE", *each) for each in members]) if members else []
    return [
        (at_ms, member)
        for score, (_, member) in zip(scores, members, strict=True)
        if score is not None and bounds.holds(at_ms := fields.score_ms(score))
    ]


def _parse_header(session_id: str, session: Sequence[Reply], ctl: Sequence[Reply], *, confirms: bool) -> Header | None:
    version, agent, status, created, updated, session_status, forked_from, lost, labels, safe = session
    if version is None:
        return None
    try:
        state, execution_id = _session_state(fields.text(status)), fields.text(ctl[0])
        return Header(
            session_id=session_id,
            agent=fields.text(agent),
            status=state,
            execution_id=execution_id,
            step=fields.number(ctl[1]),
            version=fields.number(version),
            created_ms=fields.milliseconds(created),
            updated_ms=fields.milliseconds(updated),
            unoffered_since_ms=read_unoffered(fields.text(ctl[2]))[0],
            not_before_ms=fields.milliseconds(ctl[3]),
            hold=(hold := read_hold(ctl[5:])),
            session_status="suspended" if hold is not None else fields.text(session_status) or "active",
            forked_from=fields.text(forked_from),
            history_lost=HistoryLoss.read(lost),
            labels=read_labels(labels),
            confirmed=is_end_safe(safe, execution_id, fields.number(ctl[4])) if confirms and state in _ENDED else None,
        )
    except StateUnreadable as error:
        return _unreadable_header(session_id, agent, error)


def _session_state(name: str) -> SessionState | str:
    try:
        return SessionState(name)
    except ValueError:  # of a newer version
        return name


def _unreadable_header(session_id: str, agent: bytes | None, error: StateUnreadable) -> Header:
    return Header(
        session_id=session_id, agent=fields.any_text(agent), status=SessionState.UNREADABLE, problem=str(error)
    )
