"""Moving sessions to the archive beside steps: at its pace, without a gap between passes, and yielding to what is busy."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_agents.config.settings import Settings
from celery_agents.tasks.housekeeping.archiving import ArchiveProgress, SessionMover, StepLoad
from celery_agents.worker.errors import ArchiveUnavailable, StateUnreadable
from celery_agents.worker.store.archiving.moving import MoveOutcome
from celery_agents.worker.store.keys import ShardKeys

from support.wait import wait_until

SHARD = cast("ShardKeys", "a shard")


class Sessions:
    """Stands for an `Archiver`: sessions that ended so many seconds ago, and when each was moved."""

    def __init__(self, count: int, *, ended_seconds: float = 1.0, **settings: Any) -> None:
        self.context = SimpleNamespace(
            settings=Settings.build(archive_after_seconds=0, **settings),
            now_ms=lambda: 10_000_000,
            servers=lambda: [()],
        )
        self.left = {f"s{number}": 10_000_000 - 1000 * ended_seconds + number / 1000 for number in range(count)}
        self.moved_at: list[float] = []
        self.tidied = 0

    def find_ended(self, shard: ShardKeys, *, behind_ms: float, until_ms: float) -> tuple[dict[str, float], None]:
        assert shard is SHARD
        return {name: at for name, at in self.left.items() if behind_ms < at <= until_ms}, None

    def move(self, session_id: str) -> MoveOutcome:
        del self.left[session_id]
        self.moved_at.append(time.monotonic())
        return MoveOutcome.MOVED

    def keep(self, shard: ShardKeys) -> None:
        self.tidied += 1

    def finish_pending(self) -> None: ...
    def bury_deleted(self, shards: object) -> None: ...
    def forget(self) -> None: ...


def mover_of(sessions: Sessions) -> tuple[SessionMover, ArchiveProgress]:
    progress = ArchiveProgress()
    return SessionMover(cast("Any", sessions), progress), progress


def burn(seconds: float) -> None:
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass


def test_a_mover_does_not_rest_for_its_own_work() -> None:
    load = StepLoad()
    burn(0.2)
    assert load.rest_seconds(0.05) < 1.0  # nineteen times as much beside a busy process


def test_a_mover_rests_nineteen_times_as_long_as_it_works_beside_steps_that_never_pause() -> None:
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            burn(0.01)

    threads = [threading.Thread(target=work) for _ in range(2)]
    load, began, own, used = StepLoad(), time.monotonic(), time.thread_time(), time.process_time()
    for each in threads:
        each.start()
    burn(0.02)
    time.sleep(0.5)
    rest = load.rest_seconds(0.05)
    passed, own, used = time.monotonic() - began, time.thread_time() - own, time.process_time() - used
    is_over.set()
    for each in threads:
        each.join()
    busy = min(1.0, (used - own) / passed)  # less than one core where the machine has other work
    assert busy > 0
    assert rest == pytest.approx(19 * own * busy, rel=0.25)


def test_a_mover_goes_on_from_one_pass_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepLoad, "rest_seconds", lambda *_: 0.0)
    sessions = Sessions(40, archive_per_second=100)
    mover, progress = mover_of(sessions)
    mover.begin([SHARD], 0.2)
    mover.begin([SHARD], 30.0)  # the worker holds the shard still
    wait_until(lambda: not sessions.left, "all have moved")
    assert progress.moved == 40
    assert sessions.moved_at[-1] - sessions.moved_at[0] >= 0.38  # at the pace of the setting


def test_a_mover_ends_when_its_worker_no_longer_asks() -> None:
    sessions = Sessions(1000, archive_per_second=100)
    mover, _ = mover_of(sessions)
    mover.begin([SHARD], 0.1)
    time.sleep(0.3)
    moved = len(sessions.moved_at)
    time.sleep(0.1)
    assert 0 < moved == len(sessions.moved_at) < 20


@pytest.mark.parametrize(("ended_seconds", "share"), [(10.0, 0.05), (4000.0, 0.5)])
def test_a_mover_yields_less_when_sessions_have_waited_for_an_hour(
    ended_seconds: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []

    def rest(_: StepLoad, share: float) -> float:
        shares.append(share)
        return 0.05

    monkeypatch.setattr(StepLoad, "rest_seconds", rest)
    sessions = Sessions(3, ended_seconds=ended_seconds, archive_per_second=1000)
    mover, _ = mover_of(sessions)
    mover.begin([SHARD], 1.0)
    wait_until(lambda: not sessions.left, "all have moved")
    assert sessions.moved_at[2] - sessions.moved_at[0] >= 0.1
    assert shares[:2] == [share, share]


def test_an_archive_that_is_away_ends_the_pass_and_the_next_one_tries_again() -> None:
    sessions = Sessions(2, archive_per_second=1000)
    move = sessions.move
    answers: list[Any] = [ArchiveUnavailable("away")]

    def fail(session_id: str) -> MoveOutcome:
        if answers:
            raise answers.pop()
        return move(session_id)

    sessions.move = fail  # type: ignore[method-assign]
    mover, progress = mover_of(sessions)
    mover.begin([SHARD], 1.0)
    time.sleep(0.1)
    assert progress.moved == 0
    mover.begin([SHARD], 1.0)
    wait_until(lambda: progress.moved == 2, "the next pass moves them")


@pytest.mark.parametrize("part", ["keep", "finish_pending", "bury_deleted", "forget"])
def test_what_cannot_be_tidied_keeps_nothing_else_from_it(part: str) -> None:
    sessions, tidied = Sessions(3, archive_per_second=1000), list[str]()

    def tidy(name: str) -> None:
        if name == part:
            raise StateUnreadable("head", "damaged")
        tidied.append(name)

    parts = ["keep", "finish_pending", "bury_deleted", "forget"]
    for each in parts:
        setattr(sessions, each, lambda *_, name=each: tidy(name))
    mover, progress = mover_of(sessions)
    mover.begin([SHARD], 1.0)
    wait_until(lambda: progress.moved == 3, "all have moved")
    assert tidied == [each for each in parts if each != part]


@pytest.mark.parametrize("error", [StateUnreadable("head", "damaged"), AttributeError("'list' object has no 'get'")])
def test_a_session_that_cannot_be_moved_keeps_no_other_from_it(error: Exception) -> None:
    sessions = Sessions(3, archive_per_second=1000)
    move = sessions.move

    def fail(session_id: str) -> MoveOutcome:
        if session_id == "s1":
            raise error
        return move(session_id)

    sessions.move = fail  # type: ignore[method-assign]
    mover, progress = mover_of(sessions)
    mover.begin([SHARD], 1.0)
    wait_until(lambda: list(sessions.left) == ["s1"], "the others have moved")
    assert progress.failed == 1
