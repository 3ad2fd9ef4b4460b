"""Moving sessions to the archive beside a worker's steps: at a pace, the oldest first, shard by shard.

Moving yields to steps. Behind each session that it has moved, the mover rests the longer, the more of its core the
rest of the process uses: on a worker whose steps wait for their models it does not rest at all, and on one that is
busy it takes a twentieth of the core, or half of it once sessions have waited for an hour.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ...worker.errors import StoreFull, StoreUnavailable
from ...worker.redaction import describe_exception
from ...worker.store.archiving.moving import Archiver, MoveOutcome
from ...worker.store.keys import ShardKeys

log = logging.getLogger(__name__)

_LONGEST_REST_SECONDS: Final = 30.0
_SHARE: Final = 0.05
_SHARE_BEHIND: Final = 0.5
_BEHIND_SECONDS: Final = 3600.0
_FIRST: Final = -1.0


@dataclass(slots=True)
class ArchiveProgress:
    """How far a worker is with moving sessions to the archive.

    Attributes:
        moved: Sessions that it has moved since it started.
        failed: Sessions that could not be read; they stay in Redis.
        behind: By shard, for how many seconds its oldest session should have been in the archive already.
    """

    moved: int = 0
    failed: int = 0
    behind: dict[ShardKeys, float] = field(default_factory=dict[ShardKeys, float])


@dataclass(slots=True)
class _Scan:
    """A pass through the sessions of a shard: where it goes on, and when (`time.monotonic()`)."""

    behind_ms: float = _FIRST
    begins_at: float = 0.0


class StepLoad:
    """How long a mover rests, by how busy its process is besides it; for the thread that moves."""

    def __init__(self) -> None:
        self._seen = self._look()

    def rest_seconds(self, share: float) -> float:
        """How long to rest for what the mover has worked since it was asked last.

        Args:
            share: The share of a core that it may take where the process is busy without a pause.
        """
        seen, self._seen = self._seen, self._look()
        passed, all_cpu, own_cpu = (now - before for now, before in zip(self._seen, seen, strict=True))
        load = (all_cpu - own_cpu) / passed if passed > 0 else 0.0
        return own_cpu * min(1.0, max(0.0, load)) * (1 / share - 1)

    @staticmethod
    def _look() -> tuple[float, float, float]:
        return time.monotonic(), time.process_time(), time.thread_time()


class SessionMover:
    """Moves the sessions of one server's shards, in a thread while there is something to do."""

    def __init__(self, archiver: Archiver, progress: ArchiveProgress) -> None:
        self._archiver = archiver
        self._progress = progress
        self._scans: dict[ShardKeys, _Scan] = {}
        self._thread: threading.Thread | None = None
        self._tidy_at = 0.0
        self._next_at = 0.0
        self._ends_at = 0.0

    def begin(self, shards: Sequence[ShardKeys], seconds: float) -> None:
        """Move sessions in a thread for so long from now; one that is still at it goes on for so long."""
        self._ends_at = time.monotonic() + seconds
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(target=self.run, args=(shards,), name="celery-agents-archive", daemon=True)
        self._thread.start()

    def run(self, shards: Sequence[ShardKeys]) -> None:
        """Move sessions until there are no more, or its time is over, and tidy up from time to time.

        An error is logged, and ends it.
        """
        load = StepLoad()
        try:
            while time.monotonic() < self._ends_at:
                if time.monotonic() >= self._tidy_at:
                    self._tidy(shards)
                    self._tidy_at = time.monotonic() + _rest(self._archiver.context.settings.archive_settle_seconds / 2)
                if not self._move(shards, load):
                    return
        except Exception as error:  # noqa: BLE001 - the next pass tries again
            log.warning("sessions stay in Redis for now: %s", describe_exception(error).message)

    def _tidy(self, shards: Sequence[ShardKeys]) -> None:
        """Finish what other workers have begun, delete what was deleted, and forget what is old: each by itself."""
        archiver = self._archiver
        kept = [partial(archiver.keep, shard) for shard in shards]
        for job in (*kept, archiver.finish_pending, partial(archiver.bury_deleted, shards), archiver.forget):
            try:
                job()
            except (StoreUnavailable, StoreFull):
                raise
            except Exception as error:  # noqa: BLE001 - of damaged data: sessions move all the same
                log.error("the archive could not be tidied: %s", describe_exception(error).message)

    def _move(self, shards: Sequence[ShardKeys], load: StepLoad) -> bool:
        """Move a batch of each shard whose scan is due; False where none is."""
        context, progress = self._archiver.context, self._progress
        until_ms = context.now_ms() - context.settings.archive_after_seconds * 1000
        pause = len(context.servers()) / context.settings.archive_per_second
        due = self._due(shards)
        for shard in due:
            scan = self._scans[shard]
            found, following = self._archiver.find_ended(shard, behind_ms=scan.behind_ms, until_ms=until_ms)
            for session_id, at_ms in found.items():
                behind = progress.behind[shard] = (until_ms - at_ms) / 1000
                if not self._wait_for_turn(pause):
                    return False
                self._move_one(session_id)
                scan.behind_ms = at_ms
                rest = load.rest_seconds(_SHARE if behind < _BEHIND_SECONDS else _SHARE_BEHIND)
                self._next_at = max(self._next_at, time.monotonic() + rest)
            progress.behind.pop(shard, None)
            scan.behind_ms = _FIRST if following is None else following
            if following is None:
                scan.begins_at = time.monotonic() + _rest(context.settings.archive_after_seconds / 10)
        return bool(due)

    def _due(self, shards: Sequence[ShardKeys]) -> list[ShardKeys]:
        """The shards whose scan goes on now, the one that has rested longest first."""
        scans = {shard: self._scans.setdefault(shard, _Scan()) for shard in shards}
        due = [shard for shard in shards if scans[shard].begins_at <= time.monotonic()]
        return sorted(due, key=lambda shard: scans[shard].begins_at)

    def _wait_for_turn(self, pause: float) -> bool:
        """Wait until the next session may move; False where the time is over before."""
        now = time.monotonic()
        at = max(now, self._next_at)
        if at >= self._ends_at:
            return False
        time.sleep(at - now)
        self._next_at = at + pause
        return True

    def _move_one(self, session_id: str) -> None:
        try:
            outcome = self._archiver.move(session_id)
        except (StoreUnavailable, StoreFull):
            raise
        except Exception as error:  # noqa: BLE001 - of damaged data: it keeps no other session from moving
            self._progress.failed += 1
            why = describe_exception(error).message
            log.error("session %s stays in Redis, since it cannot be read: %s", session_id, why)
            return
        self._progress.moved += outcome is MoveOutcome.MOVED
        if outcome is MoveOutcome.DELETED:
            log.warning("session %s is in Redis, and the archive says that it was deleted; it stays", session_id)


def _rest(seconds: float) -> float:
    """How long to do nothing: at least a second, and no longer than is worth waiting for."""
    return min(_LONGEST_REST_SECONDS, max(1.0, seconds))
