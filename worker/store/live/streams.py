"""Live text: what a worker writes during its steps, and how it is followed with the events of a session as one stream.

A reader's cursor is a place in both streams.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from ....config.settings import Settings
from ...concurrency import fibers
from ...errors import InvalidInput, StateUnreadable
from ...moments import LAST_MS
from .. import fields
from ..context import StoreContext, StorePart
from ..control import live_mark
from ..database import Command, Database, Reply, Word, run_scripts
from ..event_records import Event
from ..events import parse_events
from ..keys import SessionKeys, ShardKeys
from ..packing import read_steps
from ..records import Claim

TEXT: Final = "text"
"""The part that is the text of the model's answer."""

_ENTRY_ID: Final = r"[0-9]{1,15}(-[0-9]{1,20})?"
_LARGEST: Final = 2**64 - 1
_CURSOR: Final = re.compile(rf"({_ENTRY_ID})(?:\+({_ENTRY_ID}))?")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One claim of a step as a writer of live text.

    Attributes:
        legs: How often the step had waited when it was claimed.
    """

    claim: Claim
    legs: int = 0

    @property
    def mark(self) -> str:
        """The mark in the control fields while this attempt's text is the one that counts."""
        return live_mark(self.claim.ref.step, self.legs, self.claim.id)


@dataclass(frozen=True, slots=True)
class NewDelta:
    """A piece of live text to be written.

    Attributes:
        call: Number of the driver call within the attempt, from 1; 0 for a tool.
        part: `text`, `thinking`, or `t<index>` of a tool call.
        offset: How many characters of this part came before it.
        text: The piece; "" where `data` is set.
        data: JSON of a value that a tool has emitted; None for text.
    """

    call: int
    part: str
    offset: int
    text: str = ""
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class LiveDelta:
    """A piece of text that a step has written and not committed yet, or a value that a tool has emitted.

    It is provisional until the step is committed; an event `attempt_voided` takes it back.

    Attributes:
        id: Its place in the stream of live text; "" for the end of a text, which has come with the commit.
        at_ms: Redis time.
        step: Number of the step, from 1.
        attempt: The attempt at the step; opaque, and different for each.
        call: Number of the model call within the attempt, from 1; 0 for a tool.
        part: `text` (the answer), `thinking`, or `t<index>` (what the tool call with this index emits).
        offset: How many characters of this part came before it. More than a reader has: something is missing between.
        text: The piece; "" where the tool has emitted data.
        data: What the tool has emitted, when that is no text; else None.
    """

    id: str
    at_ms: int
    session_id: str
    execution_id: str
    step: int
    attempt: str
    call: int
    part: str
    offset: int
    text: str
    data: Any = None


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A place in the two streams of a session: the last event and the last piece of live text that a reader has."""

    event: str = "0"
    live: str = "0"

    @classmethod
    def read(cls, cursor: str | None) -> Self:
        """Read a cursor; None is the beginning. The id of an event alone is a cursor without live text.

        Raises:
            InvalidInput: It is no cursor.
        """
        if cursor is None:
            return cls()
        found = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
        if found is None or any(int(each) > _LARGEST for each in re.split("[-+]", cursor)):
            raise InvalidInput("after", cursor, "give the cursor of an item of this stream, or the id of an event")
        return cls(found[1], found[3] or "0")

    def is_before(self, entry_id: str, *, is_event: bool) -> bool:
        """Whether an entry comes after this place, in the stream that it is of."""
        return entry_order(self.event if is_event else self.live) < entry_order(entry_id)

    def is_behind(self, other: Self) -> bool:
        """Whether it comes before another place, in one of the streams."""
        return self.is_before(other.event, is_event=True) or self.is_before(other.live, is_event=False)

    @property
    def cursor(self) -> str:
        """The opaque text by which a reader comes back to this place."""
        return f"{self.event}+{self.live}"


def entry_order(entry_id: str) -> tuple[int, int]:
    """Turn the id of an entry into a sort key that follows the order of storage."""
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)


_ENTRY_BYTES: Final = 200
"""About what an entry takes besides its text: the names of its fields, ids and numbers."""


class LiveVerbs(StorePart):
    """Writing live text, and following it together with the events."""

    def write(self, texts: Mapping[Attempt, Sequence[NewDelta]]) -> int:
        """Write text of attempts, where they have not been taken over; one script for each shard.

        Returns:
            How many pieces were written; the others belong to abandoned attempts.
        Raises:
            StoreFull, StoreUnavailable: Some or all pieces were not written. It need not be repeated: the commit
                brings the text.
            StoreForbidden: This user of Redis may not run scripts.
        """
        runs: dict[int, tuple[list[str], list[Word]]] = {}
        for attempt, deltas in texts.items():
            session = self._context.keys(attempt.claim.ref.session_id)
            keys, words = runs.setdefault(session.shard.shard, ([], [_life_ms(self._context)]))
            keys += [session.session, session.ctl, session.live]
            kept = _count_kept(self._context.settings, deltas)
            words += [attempt.claim.id, attempt.claim.ref.step, attempt.mark, kept, len(deltas)]
            for delta in deltas:
                entry = _entry(attempt, delta)
                words += [len(entry), *entry]
        return sum(run_scripts(self._context.database, "live.write", "write_live", list(runs.values())))

    def follow(self, positions: Mapping[str, StreamPosition], block_ms: int | None = None) -> dict[str, list[Entry]]:
        """Read events and live text after the positions of sessions, in the order of their times.

        Args:
            positions: By session id.
            block_ms: Longest wait for the first entry. None: do not wait.
        Returns:
            By session id, for those with something new; no more than a page, the rest comes with the next call.
        """
        if self._context.fleet.is_apart and len({self._context.keys(each).shard for each in positions}) > 1:
            return self._poll(positions, block_ms)
        named, command = self._read(positions, len(positions), () if block_ms is None else ("BLOCK", block_ms))
        return _parse(named, command, self._context.database.pipeline("live.follow", [command])[0])

    def _poll(self, positions: Mapping[str, StreamPosition], block_ms: int | None) -> dict[str, list[Entry]]:
        """Follow in a cluster, where no command reads two slots."""
        ends = time.monotonic() + (block_ms or 0) / 1000
        shards = defaultdict[ShardKeys, dict[str, StreamPosition]](dict)
        for session_id, position in positions.items():
            shards[self._context.keys(session_id).shard][session_id] = position
        reads = {shard: self._read(each, len(positions), ()) for shard, each in shards.items()}
        while True:
            replies = self._context.read_shards("live.follow", lambda shard: [reads[shard][1]], list(reads))
            found: dict[str, list[Entry]] = {}
            for shard, (reply,) in replies.items():
                found |= _parse(*reads[shard], reply)
            if found or time.monotonic() >= ends:
                return found
            fibers.sleep(min(_POLL_SECONDS, max(0.0, ends - time.monotonic())))

    def _read(
        self, positions: Mapping[str, StreamPosition], of: int, block: tuple[Word, ...]
    ) -> tuple[dict[str, str], Command]:
        """The sessions by the keys of their streams, and the command that reads these, as a part of `of` sessions."""
        named: dict[str, str] = {}
        places: list[str] = []
        for session_id, position in positions.items():
            keys = self._context.keys(session_id)
            named[keys.events] = named[keys.live] = session_id
            places += [position.event, position.live]
        count = max(1, min(PAGE, _MOST_OF_ALL // max(1, 2 * of)))
        return named, ("XREAD", "COUNT", count, *block, "STREAMS", *named, *places)

    def event_at(self, session_id: str, event_id: str) -> Event | None:
        """Read one event by its id; None where it is not stored."""
        keys = self._context.keys(session_id)
        (entries,) = self._context.database.pipeline(
            "live.event", [("XRANGE", keys.events, event_id, event_id, "COUNT", 1)]
        )
        return next(iter(parse_events(session_id, [entry for entry in entries if entry[0] == event_id.encode()])), None)

    def keep_followed(self, session_id: str) -> bool:
        """Store that a client follows a session, which counts for a minute; called again before that is over.

        Returns:
            False: There is no such session.
        Raises:
            StoreForbidden: This user of Redis may not write. Text comes while another reader says it, and otherwise
                with the commits.
        """
        scope = self._context.session(session_id)
        ctl = scope.keys.ctl

        def attempt() -> bool:
            # Watched: the mark of a session that expires at this moment would stay for ever.
            reads: list[Command] = [("HMGET", ctl, "execution", "watched"), scope.clock.now()]
            with scope.database.watch("live.followed", (ctl,), reads) as watched:
                (execution, until), now_ms = watched.replies[0], scope.clock.milliseconds(watched.replies[1])
                if not execution:
                    return False
                if fields.milliseconds(until) < now_ms + _RENEWED_MS:
                    watched.commit("live.mark", [("HSET", ctl, "watched", now_ms + FOLLOWED_MS)])
                return True

        return scope.apply_once(attempt, "say that it is followed")

    def committed_texts(self, session_id: str, steps: Sequence[tuple[str, int]]) -> list[str | None]:
        """Read the texts that committed steps have answered.

        Args:
            steps: Execution and number of each step.
        Returns:
            A text for each; None where the step is not stored any more.
        """
        if not steps:
            return []
        keys, database = self._context.keys(session_id), self._context.database
        commands: list[Command] = [("LINDEX", keys.steps(execution), step - 1) for execution, step in steps]
        return [_text_of(keys, entry, database) for entry in database.pipeline("live.committed", commands)]


def _parse(named: Mapping[str, str], command: Command, reply: Reply) -> dict[str, list[Entry]]:
    """Parse the reply to a command of `_read`, by session."""
    found: dict[str, list[tuple[Sequence[Entry], bool]]] = {}
    for name, entries in reply or ():
        key = fields.name(name)
        parse = _parse_live if key.endswith(":live") else parse_events
        page = (parse(named[key], entries), len(entries) == command[2])
        found.setdefault(named[key], []).append(page)
    return {session_id: _merge(pages) for session_id, pages in found.items()}


def _entry(attempt: Attempt, delta: NewDelta) -> list[Word]:
    ref = attempt.claim.ref
    named: list[Word] = ["x", ref.execution_id, "n", ref.step, "a", attempt.claim.id]
    named += ["c", delta.call, "p", delta.part, "o", delta.offset]
    return [*named, "t", delta.text] if delta.data is None else [*named, "d", delta.data]


def _count_kept(settings: Settings, deltas: Sequence[NewDelta]) -> int:
    """The entries that a session keeps: fewer where they are large, since Redis trims a stream by number alone."""
    largest = max((_bytes_of(delta) for delta in deltas), default=0)
    return max(1, min(settings.live_kept, settings.live_bytes // (_ENTRY_BYTES + largest)))


def _bytes_of(delta: NewDelta) -> int:
    return len(delta.data) if delta.data is not None else len(delta.text.encode(errors="replace"))


def _life_ms(context: StoreContext) -> int:
    return round(context.settings.live_seconds * 1000)


PAGE: Final = 200
"""Entries of one read of one stream, at most."""
_POLL_SECONDS: Final = 0.1
_MOST_OF_ALL: Final = 2_000
"""Entries of one read of all sessions together, at one for each stream at least."""
FOLLOWED_MS: Final = 60_000
"""How long after a reader's last sign a session counts as watched."""
_RENEWED_MS: Final = 30_000

Entry = Event | LiveDelta


def _merge(pages: Sequence[tuple[Sequence[Entry], bool]]) -> list[Entry]:
    """Merge two streams by time. Entries beyond the end of a full page are left for the next read."""
    ends = [entry_order(entries[-1].id) for entries, is_full in pages if is_full and entries]
    merged = [entry for entries, _ in pages for entry in entries if not ends or entry_order(entry.id) <= min(ends)]
    # Within one millisecond the text comes first: the commit that ends its step is later.
    return sorted(merged, key=lambda entry: (entry_order(entry.id)[0], isinstance(entry, Event), entry_order(entry.id)))


def moved_on(position: StreamPosition, entry: Entry) -> StreamPosition:
    """The position after an entry."""
    return replace(position, event=entry.id) if isinstance(entry, Event) else replace(position, live=entry.id)


def _parse_live(session_id: str, entries: Sequence[Reply]) -> list[Entry]:
    """Parse entries of live text. One that cannot be read is left out: the commit brings the text all the same."""
    found: list[Entry] = []
    for entry_id, flat in entries:
        with contextlib.suppress(KeyError, StateUnreadable):
            found.append(_parse_delta(session_id, entry_id.decode(), fields.named_pairs(flat or [])))
    return found


def _parse_delta(session_id: str, entry_id: str, named: Mapping[str, bytes]) -> LiveDelta:
    return LiveDelta(
        id=entry_id,
        at_ms=min(entry_order(entry_id)[0], LAST_MS),
        session_id=session_id,
        execution_id=fields.text(named["x"]),
        step=fields.number(named["n"]),
        attempt=fields.text(named["a"]),
        call=fields.number(named["c"]),
        part=fields.text(named["p"]),
        offset=fields.number(named["o"]),
        text=fields.text(named.get("t")),
        data=fields.read_json(named["d"], "live data") if "d" in named else None,
    )


def _text_of(keys: SessionKeys, entry: bytes | None, database: Database) -> str | None:
    """The text of a stored step's answer; None where it is not stored any more, or cannot be read."""
    if entry is None:
        return None
    try:
        stored: Any = fields.read_json(read_steps(database.pipeline, keys, [entry])[0], "a step")
        return str(stored["step"]["inference_response"]["content"])
    except (StateUnreadable, KeyError, TypeError):
        return None
