"""Collects the live text that the steps of a process emit while they run, and writes it to the store.

One thread sends what all steps have emitted in one round trip, at most every 50 ms, and ends when no step emits. Where
its writes take long, because many sessions are followed or Redis is slow, it writes less often. A step never waits for
it: what Redis does not take, and what would need too much memory, is dropped and counted.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from ..drivers.protocol import Delta
from ..errors import InvalidInput
from ..known_secrets import SecretStream, redact_known_json
from ..redaction import describe_exception, whole_unicode
from ..store.event_records import EventType, NewEvent
from ..store.live.streams import Attempt, NewDelta
from ..store.records import Claimed
from ..store.store import Store
from .leases import ActiveLease

log = logging.getLogger(__name__)

_FLUSH_SECONDS: Final = 0.05
_LONGEST_FLUSH_SECONDS: Final = 0.2
# Of the time, at most, that the writes take.
_WRITING_SHARE: Final = 0.02
_SHORTEST_SECONDS: Final = 0.002
_FLUSH_BYTES: Final = 1_000
_IDLE_SECONDS: Final = 2.0
_AFTER_FAILURE_SECONDS: Final = 0.5
_CLOSE_SECONDS: Final = 2.0
# Bytes that wait for Redis: of one attempt, and of all.
_MOST_OF_ONE: Final = 64_000
_MOST_OF_ALL: Final = 4_000_000
# What a piece takes besides its text.
_PIECE_BYTES: Final = 300
# Attempts in one script, so that Redis is not kept from others.
_BATCH: Final = 200


@dataclass(slots=True)
class _Piece:
    """Text or data of one part of an attempt since the last write; data are not joined.

    Attributes:
        offset, end: Characters of the part before this piece, and with it.
        size: Bytes that it takes.
    """

    call: int
    part: str
    offset: int
    end: int
    texts: list[str]
    data: bytes | None = None
    size: int = _PIECE_BYTES

    def is_followed_by(self, call: int, part: str, offset: int) -> bool:
        """Whether text of this part and place continues where the piece ends."""
        return self.end == offset and self.part == part and self.call == call and self.data is None

    def delta(self) -> NewDelta:
        """The piece as it is stored."""
        return NewDelta(call=self.call, part=self.part, offset=self.offset, text="".join(self.texts), data=self.data)


@dataclass(slots=True, eq=False)
class AttemptText:
    """The live text of one attempt, on its way to Redis.

    Attributes:
        pieces: Pieces that wait, and their size in bytes.
        ends: Characters that each part of a call has had so far.
        written: Numbers of the driver calls of which something may have been written.
    """

    attempt: Attempt
    pieces: list[_Piece] = field(default_factory=list[_Piece])
    size: int = 0
    ends: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    written: set[int] = field(default_factory=set[int])

    def add(self, call: int, part: str, offset: int, value: str | bytes, size: int) -> int:
        """Add a piece; text joins the last piece where that is of the same part and nothing was dropped in between.

        Returns:
            Bytes that it takes.
        """
        last = self.pieces[-1] if self.pieces else None
        if isinstance(value, str) and last is not None and last.is_followed_by(call, part, offset):
            last.texts.append(value)
            last.end += len(value)
            last.size += size
            return size
        texts, data = ([value], None) if isinstance(value, str) else (list[str](), value)
        end = offset + sum(map(len, texts))
        piece = _Piece(call=call, part=part, offset=offset, end=end, texts=texts, data=data, size=size + _PIECE_BYTES)
        self.pieces.append(piece)
        return piece.size


class LiveWriter:
    """Writes live text for the steps of one process. Safe between threads.

    Attributes:
        dropped: How many pieces were not written: Redis did not take them, or too much waited.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._emitted = threading.Condition(self._lock)
        self._urgent = threading.Event()
        self._waiting: dict[AttemptText, None] = {}  # in the order in which they have begun to wait
        self._size = 0
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self.dropped = 0

    def add(self, to: AttemptText, call: int, part: str, value: str | bytes) -> None:
        """Add a piece: text, or the JSON of a value.

        Args:
            call: Number of the driver call within the attempt, from 1; 0 for a tool.
        """
        size, place = _bytes_of(value), (call, part)
        with self._lock:
            offset = to.ends.get(place, 0)
            if self._closed.is_set() or to.size + size > _MOST_OF_ONE or self._size + size > _MOST_OF_ALL:
                self.dropped += 1
            else:
                self._note(to, to.add(call, part, offset, value, size))
            if isinstance(value, str):
                to.ends[place] = offset + len(value)

    def void(self, of: AttemptText, call: int) -> bool:
        """Drop what a driver call has emitted; True when some of it may have been written already."""
        with self._emitted:
            left = [piece for piece in of.pieces if piece.call != call]
            gone = sum(each.size for each in of.pieces) - sum(each.size for each in left)
            of.pieces, of.size, self._size = left, of.size - gone, self._size - gone
            return call in of.written

    def close(self) -> None:
        """Write what waits, and end the thread."""
        with self._emitted:
            self._closed.set()
            self._emitted.notify_all()
            thread = self._thread
        self._urgent.set()
        if thread is not None:
            thread.join(timeout=_CLOSE_SECONDS)

    def _note(self, to: AttemptText, size: int) -> None:
        """Count a piece, and have it written."""
        to.size += size
        self._size += size
        self._waiting[to] = None
        if to.size >= _FLUSH_BYTES:
            self._urgent.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="celery-agents-live", daemon=True)
            self._thread.start()
        elif len(self._waiting) == 1:
            self._emitted.notify_all()

    def _run(self) -> None:
        written_at, pause = -_FLUSH_SECONDS, _FLUSH_SECONDS
        while self._has_work():
            # The first piece goes at once, those behind it together.
            self._urgent.wait(max(_SHORTEST_SECONDS, written_at + pause - time.monotonic()))
            self._urgent.clear()
            written_at = time.monotonic()
            taken = self._take()
            try:
                for start in range(0, len(taken), _BATCH):
                    self._write(taken[start : start + _BATCH])
            except Exception as error:  # noqa: BLE001 - whatever it was, the text of other steps is to go on
                log.debug("live text was dropped: %s", describe_exception(error).message)
                self._closed.wait(_AFTER_FAILURE_SECONDS)
            pause = _pause_after(time.monotonic() - written_at)

    def _has_work(self) -> bool:
        """Wait until something is there to write; False when the thread has to end."""
        with self._emitted:
            if not self._waiting and not self._closed.is_set():
                self._emitted.wait(_IDLE_SECONDS)
            if not self._waiting:
                self._thread = None
            return bool(self._waiting)

    def _take(self) -> list[tuple[Attempt, Sequence[_Piece]]]:
        with self._emitted:
            taken: list[tuple[Attempt, Sequence[_Piece]]] = []
            for each in self._waiting:
                if each.pieces:
                    taken.append((each.attempt, each.pieces))
                    each.written.update(piece.call for piece in each.pieces)
                each.pieces, each.size = [], 0
            self._waiting, self._size = {}, 0
            return taken

    def _write(self, taken: Sequence[tuple[Attempt, Sequence[_Piece]]]) -> None:
        texts = {attempt: [piece.delta() for piece in pieces] for attempt, pieces in taken}
        count, written = sum(map(len, texts.values())), 0
        try:
            written = self._store.live.write(texts)
        finally:
            self.dropped += count - written


def _pause_after(seconds: float) -> float:
    """From the beginning of a write that took so long to that of the next one, in seconds."""
    return min(max(_FLUSH_SECONDS, seconds / _WRITING_SHARE), _LONGEST_FLUSH_SECONDS)


def _bytes_of(value: str | bytes) -> int:
    """How much a value takes as UTF-8."""
    if isinstance(value, bytes) or value.isascii():
        return len(value)
    return len(value.encode(errors="replace"))


_MOST_BYTES: Final = 16_000
_ANSWER: Final = "text"


class RunText:
    """The live text of one attempt while it runs.

    Shared by all copies of its run. Where no client follows the session, all of it costs a comparison of two numbers.
    """

    def __init__(
        self, writer: LiveWriter, claimed: Claimed, lease: ActiveLease, monotonic: Callable[[], float]
    ) -> None:
        self._writer = writer
        self._lease = lease
        self._monotonic = monotonic
        self._claimed = claimed
        # Redis's time at this machine's 0, at the earliest.
        self._ahead_ms = claimed.claim.now_ms - monotonic() * 1000
        self._call = 0
        self._secret_streams: dict[int, SecretStream] = {}
        self._said: list[str] = []

    @cached_property
    def _text(self) -> AttemptText:
        """The pieces of this attempt; made when it emits the first one."""
        return AttemptText(Attempt(self._claimed.claim, self._claimed.loaded.legs))

    @property
    def is_followed(self) -> bool:
        """Whether a client follows the session now."""
        return self._lease.followed_until_ms > self._monotonic() * 1000 + self._ahead_ms

    def begin_call(self) -> Callable[[Delta], None] | None:
        """Begin a driver call, and return what takes its deltas while it runs. None: no client follows it."""
        self._call += 1
        self._said = []
        if not self.is_followed:
            return None
        call, said = self._call, self._said

        def emit(delta: Delta) -> None:
            if delta.part == _ANSWER:
                said.append(delta.text)
            if delta.text:
                self._writer.add(self._text, call, delta.part, whole_unicode(delta.text))

        return emit

    @property
    def said(self) -> str:
        """The text that the last driver call has emitted of its answer; "" where no client followed it."""
        return whole_unicode("".join(self._said))

    def void_call(self) -> NewEvent | None:
        """Take back what the last driver call has emitted: it has failed. None: no reader has seen anything of it."""
        if not self._call or not self._writer.void(self._text, self._call):
            return None
        claim, ref = self._claimed.claim, self._claimed.claim.ref
        data = {"attempt": claim.id, "call": self._call, "keeps_answer": False}
        return NewEvent(type=EventType.ATTEMPT_VOIDED, execution_id=ref.execution_id, step=ref.step, data=data)

    def emit_of_tool(self, index: int, value: Any) -> None:
        """Emit a text or a JSON value of a tool call.

        Raises:
            InvalidInput: The value is no text and no JSON, or too large.
        """
        piece = _check_piece(value)
        if isinstance(piece, str):
            stream = self._secret_streams.get(index) or self._secret_streams.setdefault(index, SecretStream())
            piece = stream.feed(piece)
        self._emit(index, piece)

    def end_tool(self, index: int) -> None:
        """Emit what was held back of a tool call's text because a secret might have begun with it."""
        stream = self._secret_streams.pop(index, None)
        if stream is not None:
            self._emit(index, stream.flush())

    def _emit(self, index: int, piece: str | bytes) -> None:
        if piece and self.is_followed:
            self._writer.add(self._text, 0, f"t{index}", piece)


def _check_piece(value: Any) -> str | bytes:
    """The value as it is stored: data without the secrets that are known, text as it is given.

    Raises:
        InvalidInput: It is no text and no JSON, or too large.
    """
    try:
        given = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
        size = len(given.encode())
    except (TypeError, ValueError, RecursionError):
        raise InvalidInput("value", value, "ctx.emit takes a text, or data of JSON.") from None
    if size > _MOST_BYTES:
        raise InvalidInput("value", value, f"ctx.emit takes at most {_MOST_BYTES} bytes; emit it in pieces.")
    return given if isinstance(value, str) else redact_known_json(given).encode()
