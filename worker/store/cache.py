"""Sessions this process saw last, so that a claim reads only what is new.

Correctness never rests on it: an entry is used as it is only under a WATCH that proves its version, and an older one
only as the beginning of what is read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from ..state import AgentState
from .bookkeeping import Bookkeeping

# Measured with 5 kB of JSON for a step and its two messages: 5.9 kB where they were made in this process, since both
# hold the same text, and 12.9 kB where they were read (docs/decisions/0007).
_OBJECTS_BYTES: Final = 800
_READ_TIMES: Final = 2
# Of the time after which sessions come back: what it is taken for before any has, how much of it each that comes back
# tells, how much of it is forgotten with each that does not, and how many times it has to have passed.
_FIRST_RETURN: Final = 65_536.0
_LEARN: Final = 1 / 64
_FORGET: Final = 1 / 1024
_MUCH_LONGER: Final = 2
_NOTHING: Final = (None, 0)


@dataclass(frozen=True, slots=True)
class CachedSession:
    """A session as it stood at a version.

    Attributes:
        size: The memory of its texts, about: bytes of JSON that this process wrote, and `as_read` of those it read.
        weight: The memory it takes, about: its texts, and what the objects of each message and step need besides.
    """

    version: int
    state: AgentState
    size: int
    agent: str
    bookkeeping: Bookkeeping
    weight: int = field(init=False)

    def __post_init__(self) -> None:
        steps = len(self.state.execution.step_executions) if self.state.execution is not None else 0
        messages = sum(len(section.messages) for section in self.state.store.sections.values())
        object.__setattr__(self, "weight", self.size + _OBJECTS_BYTES * (1 + steps + messages))

    def is_at(self, version: int, lineage: bytes) -> bool:
        """Whether the session with this version and lineage is the one that is held."""
        return self.version == version and self.bookkeeping.lineage == lineage


def as_read(stored_bytes: int) -> int:
    """The `size` of what was read: its texts are held by messages and steps apart, with more objects around them."""
    return _READ_TIMES * stored_bytes


class SessionCache:
    """Sessions that are likely to be asked for again, bounded by bytes.

    Sessions take turns in a queue: of more than there is room for, the least recently used is the one that comes next,
    and whoever drops that one never finds any. Therefore first those leave that were not asked for in a much longer
    time than sessions usually come back after; they have ended, or are another worker's now. Where there are none, a
    session that is not held is not kept, and one that has grown takes the place of the most recently used, which come
    last.

    Time is counted in sessions put here.

    Attributes:
        has_met_newer: A newer version of this package has written a session that this process claimed. Others may be
            like it: what is not held is looked at before it is claimed from then on.
    """

    def __init__(self, limit_bytes: int) -> None:
        """
        Args:
            limit_bytes: 0 keeps nothing.
        """
        self.has_met_newer = False
        self._limit = limit_bytes
        self._size = 0
        self._held: OrderedDict[str, tuple[CachedSession, int]] = (
            OrderedDict()
        )  # with the time they were asked for last
        self._announced: dict[str, CachedSession] = {}
        self._puts = 0
        self._return: float = _FIRST_RETURN  # after how long sessions come back
        self._lock = threading.Lock()

    def get(self, session_id: str) -> CachedSession | None:
        """What is held of a session, of whatever version."""
        with self._lock:
            return self._found(session_id)

    def stage(self, session_id: str, held: CachedSession) -> None:
        """What a session will be if a commit goes through.

        The next step's message leaves inside the commit, so that another thread may claim it before `put` is called.
        """
        with self._lock:
            self._announced[session_id] = held

    def latest(self, session_id: str) -> CachedSession | None:
        """The newest that may be stored: what was announced, or what was proven."""
        with self._lock:
            staged, held = self._announced.get(session_id), self._found(session_id)
            if staged is not None and (held is None or held.version < staged.version):
                return staged
            return held

    def staged(self, session_id: str, version: int, lineage: bytes) -> CachedSession | None:
        """What was announced, when the stored version and lineage prove that it came true."""
        with self._lock:
            found = self._announced.get(session_id)
        return found if found is not None and found.is_at(version, lineage) else None

    def unstage(self, session_id: str) -> None:
        """It did not come true, or nobody knows."""
        with self._lock:
            self._announced.pop(session_id, None)

    def put(self, session_id: str, held: CachedSession) -> None:
        """Keep the newer of two versions, if there is room for it."""
        with self._lock:
            staged = self._announced.get(session_id)
            if staged is not None and staged.version <= held.version:
                del self._announced[session_id]
            self._puts += 1
            before = self._taken(session_id)
            if before is not None and before.version >= held.version:
                held = before
            if self._make_room(held.weight, for_one_of_them=before is not None):
                self._held[session_id] = held, self._puts
                self._size += held.weight

    def drop(self, session_id: str) -> None:
        """Forget a session."""
        with self._lock:
            self._announced.pop(session_id, None)
            self._taken(session_id)

    def _found(self, session_id: str) -> CachedSession | None:
        found = self._held.get(session_id)
        if found is None:
            self._return -= self._return * _FORGET
            return None
        held, asked = found
        if asked != self._puts:  # else it is asked for again at once
            self._return += (self._puts - asked - self._return) * _LEARN
        self._held[session_id] = held, self._puts
        self._held.move_to_end(session_id)
        return held

    def _taken(self, session_id: str) -> CachedSession | None:
        held, _ = self._held.pop(session_id, _NOTHING)
        if held is not None:
            self._size -= held.weight
        return held

    def _make_room(self, weight: int, *, for_one_of_them: bool) -> bool:
        """Let those leave that may leave for so much; whether there is room for it then."""
        if weight > self._limit:
            return False
        while self._size + weight > self._limit:
            oldest = next(iter(self._held))
            if self._puts - self._held[oldest][1] > _MUCH_LONGER * self._return:
                self._taken(oldest)
            elif for_one_of_them:
                self._taken(next(reversed(self._held)))
            else:
                return False
        return True
