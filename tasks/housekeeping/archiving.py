"""Moving sessions to the archive beside a worker's steps: at a pace, the oldest first, shard by shard."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ...worker.errors import CeleryAgentsError, StateUnreadable
from ...worker.redaction import describe_exception
from ...worker.store.archiving.moving import Archiver, MoveOutcome
from ...worker.store.keys import ShardKeys

log = logging.getLogger(__name__)

_LONGEST_REST_SECONDS: Final = 30.0
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


class SessionMover:
    """Moves the sessions of one server's shards, in a thread while there is something to do."""

    def __init__(self, archiver: Archiver, progress: ArchiveProgress) -> None:
        self._archiver = archiver
        self._progress = progress
        self._scans: dict[ShardKeys, _Scan] = {}
        self._thread: threading.Thread | None = None
        self._tidy_at = 0.0
        self._next_at = 0.0

    def begin(self, shards: Sequence[ShardKeys], seconds: float) -> None:
        """Move sessions in a thread for so long; where one is still at it, leave it alone."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(
            target=self.run, args=(shards, seconds), name="celery-agents-archive", daemon=True
        )
        self._thread.start()

    def run(self, shards: Sequence[ShardKeys], seconds: float) -> None:
        """Move sessions for so long, and tidy up from time to time. An error is logged, and ends the pass."""
        try:
            if time.monotonic() >= self._tidy_at:
                self._tidy(shards)
                self._tidy_at = time.monotonic() + _rest(self._archiver.context.settings.archive_settle_seconds / 2)
            self._move(shards, time.monotonic() + seconds)
        except CeleryAgentsError as error:
            log.warning("sessions stay in Redis for now: %s", error)
        except Exception as error:  # noqa: BLE001 - the next pass tries again
            log.warning("sessions stay in Redis for now: %s", describe_exception(error).message)

    def _tidy(self, shards: Sequence[ShardKeys]) -> None:
        """Finish what other workers have begun, delete what was deleted, and forget what is old."""
        for shard in shards:
            self._archiver.keep(shard)
        self._archiver.finish_pending()
        self._archiver.bury_deleted(shards)
        self._archiver.forget()

    def _move(self, shards: Sequence[ShardKeys], ends_at: float) -> None:
        context, progress = self._archiver.context, self._progress
        until_ms = context.now_ms() - context.settings.archive_after_seconds * 1000
        pause = len(context.servers()) / context.settings.archive_per_second
        for shard in self._due(shards):
            scan = self._scans[shard]
            found, following = self._archiver.find_ended(shard, behind_ms=scan.behind_ms, until_ms=until_ms)
            for session_id, at_ms in found.items():
                progress.behind[shard] = (until_ms - at_ms) / 1000
                if not self._wait_for_turn(pause, ends_at):
                    return
                self._move_one(session_id)
                scan.behind_ms = at_ms
            progress.behind.pop(shard, None)
            scan.behind_ms = _FIRST if following is None else following
            if following is None:
                scan.begins_at = time.monotonic() + _rest(context.settings.archive_after_seconds / 10)

    def _due(self, shards: Sequence[ShardKeys]) -> list[ShardKeys]:
        """The shards whose scan goes on now, the one that has rested longest first."""
        scans = {shard: self._scans.setdefault(shard, _Scan()) for shard in shards}
        due = [shard for shard in shards if scans[shard].begins_at <= time.monotonic()]
        return sorted(due, key=lambda shard: scans[shard].begins_at)

    def _wait_for_turn(self, pause: float, ends_at: float) -> bool:
        """Wait until the next session may move; False where the pass ends before."""
        now = time.monotonic()
        at = max(now, self._next_at)
        if at >= ends_at:
            return False
        time.sleep(at - now)
        self._next_at = at + pause
        return True

    def _move_one(self, session_id: str) -> None:
        try:
            outcome = self._archiver.move(session_id)
        except StateUnreadable as error:
            self._progress.failed += 1
            log.error("session %s stays in Redis, since it cannot be read: %s", session_id, error)
            return
        self._progress.moved += outcome is MoveOutcome.MOVED
        if outcome is MoveOutcome.DELETED:
            log.warning("session %s is in Redis, and the archive says that it was deleted; it stays", session_id)


def _rest(seconds: float) -> float:
    """How long to do nothing: at least a second, and no longer than is worth waiting for."""
    return min(_LONGEST_REST_SECONDS, max(1.0, seconds))
