"""A cache of the sessions that this process read or saved last, so that a claim reads only what is new.

Correctness never rests on it: an entry is used as it is only where its version and lineage are the stored ones, and an
older one only as the beginning of what is read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from ..state.agent_state import AgentState
from .bookkeeping import Bookkeeping

# Estimated memory of one message or step besides its texts. Measured: a step and its two messages with 5 kB of JSON
# take 5.9 kB where this process made them, because step and messages share their texts.
_OBJECTS_BYTES: Final = 800
# Texts count this many times where they were read, because step and messages then hold a copy each (12.9 kB).
_READ_TIMES: Final = 2
# First value of the return time: the average number of `put` calls until a session is asked for again.
_FIRST_RETURN_TIME: Final = 65_536.0
# Weight of one hit in the moving average of the return time.
_HIT_WEIGHT: Final = 1 / 64
# Share of the return time that each miss takes off, so that sessions that do not return can be evicted.
_MISS_DECAY: Final = 1 / 1024
# A session may be evicted after this many return times without a hit.
_EVICTION_FACTOR: Final = 2
_DOUBTED: Final = 1_000
# Sessions that have ended and are remembered for a check of their histories: so many, and this share of the bytes.
_ENDED: Final = 256
_ENDED_SHARE: Final = 1 / 16
_NO_ENTRY: Final = (None, 0)


@dataclass(frozen=True, slots=True)
class CachedSession:
    """A session as it was at a version.

    Attributes:
        size: About the memory of its texts: bytes of JSON that this process wrote, and `as_read` of those it read.
        weight: About the memory it takes: its texts, and the objects of its messages and steps.
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
        """Whether this is the session with that version and lineage."""
        return self.version == version and self.bookkeeping.lineage == lineage


def as_read(stored_bytes: int) -> int:
    """The `size` of stored bytes once they are read: messages and steps hold their texts apart from each other."""
    return _READ_TIMES * stored_bytes


class SessionCache:
    """Sessions that are likely to be asked for again, bounded by bytes.

    Sessions take turns in a queue. If there are more than fit, the least recently used one is the next to be asked
    for, so a cache that evicts it never has a hit. Therefore sessions are evicted first that were not asked for in
    twice the time after which sessions usually come back: they have ended, or another worker has them now. Where there
    are none, a session that is not in the cache stays out, and one that has grown evicts the most recently used ones,
    which come last. Qureshi et al., "Adaptive insertion policies for high performance caching" (2007), describe the
    pattern.

    Time is counted in calls of `put`.

    Attributes:
        has_met_newer: A newer version of this package has written a session that this process claimed. From then on
            the process looks at sessions that are not in the cache before it claims them.
    """

    def __init__(self, limit_bytes: int) -> None:
        """
        Args:
            limit_bytes: 0 keeps nothing.
        """
        self.has_met_newer = False
        self._limit = limit_bytes
        self._size = 0
        # Each with the time at which it was asked for last.
        self._entries: OrderedDict[str, tuple[CachedSession, int]] = OrderedDict()
        self._staged: dict[str, CachedSession] = {}
        self._doubted: dict[str, CachedSession] = {}
        self._ended: dict[str, CachedSession] = {}
        self._ended_size = 0
        self._puts = 0
        self._return_time: float = _FIRST_RETURN_TIME
        self._lock = threading.Lock()

    def get(self, session_id: str) -> CachedSession | None:
        """The session at whatever version it is cached; None when it is not."""
        with self._lock:
            return self._find(session_id)

    def stage(self, session_id: str, cached: CachedSession) -> None:
        """Stage the session that a commit would store.
        The next step's message leaves inside the commit, so that another thread may claim it before `put` is called.
        Staged sessions do not count towards `limit_bytes`. There is at most one for each commit on its way.
        """
        with self._lock:
            self._staged[session_id] = cached

    def latest(self, session_id: str) -> CachedSession | None:
        """The newest version that may be stored: the staged one, or the cached one."""
        with self._lock:
            staged, cached = self._staged.get(session_id), self._find(session_id)
            if staged is not None and (cached is None or cached.version < staged.version):
                return staged
            return cached

    def staged(self, session_id: str, version: int, lineage: bytes) -> CachedSession | None:
        """The staged session, when the stored version and lineage prove that its commit went through."""
        with self._lock:
            found = self._staged.get(session_id)
        return found if found is not None and found.is_at(version, lineage) else None

    def unstage(self, session_id: str) -> None:
        """Remove the staged session: the commit failed, or its result is unknown."""
        with self._lock:
            self._staged.pop(session_id, None)

    def put(self, session_id: str, cached: CachedSession) -> None:
        """Cache the newer of two versions, if there is room for it."""
        with self._lock:
            staged = self._staged.get(session_id)
            if staged is not None and staged.version <= cached.version:
                del self._staged[session_id]
            self._puts += 1
            before = self._remove(session_id)
            if before is not None and before.version >= cached.version:
                cached = before
            if self._make_room(cached.weight, replaces=before is not None):
                self._entries[session_id] = cached, self._puts
                self._size += cached.weight

    def end(self, session_id: str, ended: CachedSession) -> None:
        """Remove a session that has ended: who comes back to it reads it once. `take_doubted` knows it for a while."""
        self.drop(session_id)
        with self._lock:
            before = self._ended.pop(session_id, None)
            self._ended_size += ended.weight - (0 if before is None else before.weight)
            self._ended[session_id] = ended
            while self._ended and (len(self._ended) > _ENDED or self._ended_size > _ENDED_SHARE * self._limit):
                self._ended_size -= self._ended.pop(next(iter(self._ended))).weight

    def drop(self, session_id: str) -> None:
        """Remove a session from the cache, staged or not."""
        with self._lock:
            self._staged.pop(session_id, None)
            self._remove(session_id)

    def doubt(self, session_id: str) -> None:
        """Remove a session that the stored one does not continue, and keep it for `take_doubted`."""
        with self._lock:
            found, _ = self._entries.get(session_id, _NO_ENTRY)
            if found is not None and len(self._doubted) < _DOUBTED:
                self._doubted.setdefault(session_id, found)
        self.drop(session_id)

    def doubt_again(self, session_id: str, doubted: CachedSession) -> None:
        """Keep for the next `take_doubted` what it has given."""
        with self._lock:
            self._doubted.setdefault(session_id, doubted)

    def take_doubted(self, *, every: bool = False) -> dict[str, CachedSession]:
        """Give the sessions that `doubt` has kept, once.

        Args:
            every: All that are cached as well, and those that have ended; they stay.
        """
        with self._lock:
            found, self._doubted = self._doubted, {}
            cached = {name: each for name, (each, _) in self._entries.items()}
            return {**self._ended, **cached, **found} if every else found

    @property
    def has_doubts(self) -> bool:
        """Whether `take_doubted` would give something."""
        return bool(self._doubted)

    def _find(self, session_id: str) -> CachedSession | None:
        found = self._entries.get(session_id)
        if found is None:
            self._return_time -= self._return_time * _MISS_DECAY
            return None
        cached, asked = found
        if asked != self._puts:  # else the same step asks again
            self._return_time += (self._puts - asked - self._return_time) * _HIT_WEIGHT
        self._entries[session_id] = cached, self._puts
        self._entries.move_to_end(session_id)
        return cached

    def _remove(self, session_id: str) -> CachedSession | None:
        cached, _ = self._entries.pop(session_id, _NO_ENTRY)
        if cached is not None:
            self._size -= cached.weight
        return cached

    def _make_room(self, weight: int, *, replaces: bool) -> bool:
        """Evict what may be evicted; whether there is room for so much then.

        Args:
            replaces: The session was in the cache before.
        """
        if weight > self._limit:
            return False
        while self._size + weight > self._limit:
            oldest = next(iter(self._entries))
            if self._puts - self._entries[oldest][1] > _EVICTION_FACTOR * self._return_time:
                self._remove(oldest)
            elif replaces:
                self._remove(next(reversed(self._entries)))
            else:
                return False
        return True
