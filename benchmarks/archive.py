"""200 000 sessions in the archive: moving beside steps, memory, listings, searches, and the restore of a large session.

    python benchmarks/archive.py

Thousands of sessions are moved by a worker as it does in production, at a pace that is raised so that it never waits.
The others are written by the function that writes the row of every session, with 2 000 in a transaction, and their
marks by the commands that a move leaves; the archive cannot tell them from moved ones. SQLite, in a temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import redis
from engines.product import product
from yardstick.engine import Engine
from yardstick.environments import BENCHMARKS, own_python
from yardstick.load import Load
from yardstick.processes import Started
from yardstick.running import Running, Sample
from yardstick.sections import Row, Section

ROWS: Final = 200_000
MOVED: Final = 4_000
BACKLOG: Final = 3
"""Steps of each session that is moved."""
LOAD: Final = Load(40, 50)
_IN_A_TRANSACTION: Final = 2_000
_LOOKS: Final = 20
_LARGE: Final = 1_000
_WORDS: Final = 5_000

SECTION: Final = Section(
    title="The archive",
    text="""200 000 sessions in an archive of SQLite. 4 000 of three steps were moved by a worker, as it does in
    production, at a raised pace; the rows of the others were written by the function that writes every row, and their
    marks by the
    commands of a move. The rate of steps is that of 40 sessions of 50 steps with a model that takes no time, on a
    worker with sessions to move and on one without, in turns. `make bench-archive` measures this.""",
    rows=(
        Row(title="steps/s while sessions are moved, over those without", key="steps_ratio", at_least=0.9),
        Row(title="sessions moved a second beside these steps", key="moved_beside_steps"),
        Row(title="sessions moved a second by a worker without steps", key="moved_alone"),
        Row(title="CPU of the worker for each, ms", key="cpu_ms_per_move"),
        Row(title="memory of Redis for a session of three steps before, KB", key="hot_kb"),
        Row(title="… its mark, bytes", key="mark_bytes"),
        Row(title="memory of Redis with 200 000 archived sessions, MB", key="redis_mb"),
        Row(title="file of SQLite, MB", key="file_mb"),
        Row(title="the newest 50 sessions, ms (median)", key="list_ms", at_most=100),
        Row(title="… of an agent", key="list_agent_ms", at_most=100),
        Row(title="… that failed", key="list_failed_ms", at_most=100),
        Row(title="… with a label", key="list_label_ms", at_most=100),
        Row(title="… behind 100 000 others", key="list_deep_ms", at_most=100),
        Row(title="sessions with a word that 40 have, ms (median)", key="search_rare_ms", at_most=100),
        Row(title="… with a word that 20 000 have", key="search_common_ms", at_most=100),
        Row(title="… with two words", key="search_two_ms", at_most=100),
        Row(title="… with a word of their error", key="search_error_ms", at_most=100),
        Row(title="restore of a session of 1 000 steps, ms (median)", key="restore_ms", at_most=200),
    ),
)


def archive_figures(rows: int, moved: int, rounds: int) -> dict[str, object]:
    """All figures; workers, their Redis and the archive are its own."""
    with tempfile.TemporaryDirectory(prefix="bench-archive-") as folder:
        path, other = Path(folder) / "history.db", Path(folder) / "other.db"
        with Running(_waiting(path)) as moving, Running(_waiting(other)) as plain:
            client = _client(moving, f"sqlite:///{path}")
            figures = _prepare(moving, client, moved, path)
            figures |= _beside_steps(moving, plain, client, rounds)
            figures |= _alone(moving, client)
            large = _large_session(moving, client)
            _fill(client, rows - client.archive_status().sessions)
            with redis.Redis.from_url(moving.store.environment()["BENCH_REDIS"]) as database:
                figures["redis_mb"] = round(_memory(database) / 1e6, 1)
            figures["file_mb"] = round(sum(each.stat().st_size for each in path.parent.glob("history.db*")) / 1e6)
            figures["rows"] = client.archive_status().sessions
            return figures | _look(client, rows) | {"restore_ms": _restore(client, large)}


def _waiting(path: Path) -> Engine:
    """Workers and clients with an archive, to which nothing moves for a day."""
    return product("keyed", journal_seconds="2", archive_url=f"sqlite:///{path}", archive_after_seconds="86400")


def _client(running: Running, archive_url: str) -> Any:
    from celery_agents import AgentClient
    from celery_agents.config.settings import Settings

    environment = {"CELERY_AGENTS_REDIS_URL": running.store.environment()["BENCH_REDIS"]}
    os.environ.update(environment | {"CELERY_AGENTS_ARCHIVE_URL": archive_url})
    return AgentClient(settings=Settings.from_environment())


def _prepare(running: Running, client: Any, moved: int, path: Path) -> dict[str, object]:
    """Let a worker run the sessions that will move, and put one in its place that moves them."""
    with redis.Redis.from_url(running.store.environment()["BENCH_REDIS"]) as database:
        before = _memory(database)
        running.measure(Load(moved, BACKLOG))
        _wait(lambda: not list(database.scan_iter("ca:*:j:*", count=10_000)), 120)  # journals of the last minute
        hot = (_memory(database) - before) / moved
    for worker in running.workers:
        worker.end()
    env = {**running.store.environment(), "PYTHONPATH": str(BENCHMARKS), **running.engine.env}
    env |= {"CELERY_AGENTS_ARCHIVE_AFTER_SECONDS": "0.5", "CELERY_AGENTS_ARCHIVE_PER_SECOND": "1000"}
    running.workers[:] = [Started([own_python(), "-P", "-m", *running.engine.workers], path.parent, "mover", env)]
    _wait(lambda: client.archive_status().sessions > 0, 120)
    return {"hot_kb": round(hot / 1000, 1)}


def _beside_steps(moving: Running, plain: Running, client: Any, rounds: int) -> dict[str, object]:
    """Steps a second of a worker that moves sessions, over those of one that does not, in turns."""
    (mover,) = moving.workers
    ratios: list[float] = []
    rates: list[float] = []
    for _ in range(rounds):
        os.kill(mover.pid, signal.SIGSTOP)
        without = plain.measure(LOAD)
        os.kill(mover.pid, signal.SIGCONT)
        _wait_until_it_moves(client)
        before = client.archive_status().sessions
        beside: Sample = moving.measure(LOAD)
        rates.append((client.archive_status().sessions - before) / beside.seconds)
        ratios.append(beside.steps_per_second / without.steps_per_second)
    return {
        "steps_ratio": round(statistics.median(ratios), 3),
        "moved_beside_steps": round(statistics.median(rates), 1),
    }


def _wait_until_it_moves(client: Any) -> None:
    count = client.archive_status().sessions
    _wait(lambda: client.archive_status().sessions > count, 60)


def _alone(running: Running, client: Any) -> dict[str, object]:
    """Let the worker move the rest, with nothing else to do."""
    (mover,) = running.workers
    began, cpu, count = time.perf_counter(), mover.cpu_seconds(), client.archive_status().sessions
    _wait(lambda: not _hot(client), 600)
    moved = client.archive_status().sessions - count
    assert moved > 500, f"only {moved} sessions were left; raise --moved"
    passed = time.perf_counter() - began
    mark = client.store.context.keys(next(iter(client.list(limit=1))).session_id).session
    with redis.Redis.from_url(running.store.environment()["BENCH_REDIS"]) as database:
        size: Any = database.memory_usage(mark, samples=0)
    return {
        "moved_alone": round(moved / passed, 1),
        "cpu_ms_per_move": round(1000 * (mover.cpu_seconds() - cpu) / moved, 1),
        "mark_bytes": size,
    }


def _hot(client: Any) -> int:
    (shards,) = client.store.context.servers()
    sizes = client.store.context.database.pipeline("bench", [("ZCARD", each.sessions) for each in shards])
    return sum(sizes)


def _large_session(running: Running, client: Any) -> str:
    """A session of 1 000 steps, in the archive."""
    before = {each.session_id for each in client.list(limit=10_000)}
    running.measure(Load(1, _LARGE))
    (name,) = {each.session_id for each in client.list(limit=1)} - before
    _wait(lambda: not _hot(client), 60)
    for worker in running.workers:
        worker.end()
    return name


def _restore(client: Any, name: str) -> float:
    from datetime import timedelta

    times: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        assert client.store.archived.restore(name)
        times.append(time.perf_counter() - began)
        assert client.archive_now(older_than=timedelta(0)).moved == 1
    return round(1000 * statistics.median(times), 1)


def _memory(database: redis.Redis) -> int:
    found: Any = database.info("memory")
    return int(found["used_memory"])


def _wait(holds: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"it takes longer than {seconds:g} s"
        time.sleep(0.05)


# --- rows that were not moved ---------------------------------------------------------------------------------------


def _fill(client: Any, count: int) -> None:
    """Write rows and their marks: 20 agents, a twentieth failed, 200 customers, 60 words of 5 000 each."""
    from sqlalchemy import update

    from celery_agents.worker.archive.rows import Entry, RowState
    from celery_agents.worker.archive.storing import StoreVerbs
    from celery_agents.worker.archive.tables import sessions
    from celery_agents.worker.archive.words import words

    assert words("word") == ("word",)
    archive, context = client.store.archived.archive, client.store.context
    database = archive._database
    now_ms, dice = context.now_ms(), random.Random(1)
    for start in range(0, count, _IN_A_TRANSACTION):
        entries: list[Entry] = [
            _entry(dice, number, now_ms - 60_000 - 1_000 * number)
            for number in range(start, min(start + _IN_A_TRANSACTION, count))
        ]
        with database.writing() as connection:
            verbs = StoreVerbs(_InTransaction(database.dialect, connection))  # type: ignore[arg-type]
            for entry in entries:
                assert verbs.store(entry, seen=0) == 1
            connection.execute(
                update(sessions).where(sessions.c.state == RowState.PENDING).values(state=RowState.VALID)
            )
        context.database.pipeline("bench.marks", list(_marks(client, entries)))


class _InTransaction:
    """A database whose transactions are all the one that is open."""

    def __init__(self, dialect: Any, connection: Any) -> None:
        self.dialect, self._connection = dialect, connection

    @contextlib.contextmanager
    def writing(self) -> Generator[Any]:
        yield self._connection


def _entry(dice: random.Random, number: int, at_ms: int) -> Any:
    from celery_agents.worker.archive.rows import ArchivedSession, Entry, ExecutionCost, SessionKey
    from celery_agents.worker.store.sessions.archive_marks import ArchiveMark

    document = dice.randbytes(600)
    said = " ".join(f"word{dice.randrange(_WORDS)}" for _ in range(60))
    said += " common" if not number % 10 else ""
    said += " rare" if not number % _WORDS else ""
    failed, agent, execution = not number % 20, f"agent{number % 20}", f"e{number}"
    mark = ArchiveMark.of(document, version=4, fingerprint=f"{dice.getrandbits(128):032x}", first=execution)
    session = ArchivedSession(
        key=SessionKey(f"filled{number}", at_ms - 5_000),
        mark=mark.text,
        agent=agent,
        status="failed" if failed else "completed",
        updated_ms=at_ms,
        error=f"the service refused{number % 7} to answer" if failed else "",
        execution_id=execution,
        version=4,
        first_words=said[:200],
        labels={"customer": str(number % 200)},
        steps=3,
        tokens=900,
        cost=0.01,
    )
    cost = ExecutionCost(
        session_id=session.key.session_id, execution_id=execution, agent=agent, model="model", ended_ms=at_ms, steps=3,
        tokens=900, cost=0.01,
    )  # fmt: skip
    return Entry(session=session, document=document, text=said, costs=(cost,))


def _marks(client: Any, entries: list[Any]) -> Iterator[Any]:
    """The commands that leave the marks of sessions in Redis."""
    from celery_agents.worker.store.sessions.loading import ARCHIVED, MARK

    for each in entries:
        name = client.store.context.keys(each.session.key.session_id).session
        yield ("HSET", name, MARK, each.session.key.created_ms, ARCHIVED, each.session.mark)
        yield ("PEXPIRE", name, client.store.context.retention_ms)


# --- listings and searches ------------------------------------------------------------------------------------------


def _look(client: Any, rows: int) -> dict[str, object]:
    """Milliseconds of listings and searches by the client, each page with 50 sessions."""
    from datetime import UTC, datetime

    deep = list(client.store.archived.archive.search(_search()).sessions)[-1].session.updated_ms
    until = datetime.fromtimestamp((deep - 500 * rows) / 1000, UTC)
    looks: dict[str, Callable[[], Any]] = {
        "list_ms": lambda: client.list(),
        "list_agent_ms": lambda: client.list(agent="agent7"),
        "list_failed_ms": lambda: client.list(status="failed"),
        "list_label_ms": lambda: client.list(label={"customer": "42"}),
        "list_deep_ms": lambda: client.list(until=until),
        "search_rare_ms": lambda: client.list(text="rare"),
        "search_common_ms": lambda: client.list(text="common"),
        "search_two_ms": lambda: client.list(text="common word77"),
        "search_error_ms": lambda: client.list(error="refused3"),
    }
    found: dict[str, object] = {}
    for name, look in looks.items():
        times: list[float] = []
        for _ in range(_LOOKS):
            began = time.perf_counter()
            page = look()
            times.append(time.perf_counter() - began)
            assert page.items, name
        found[name] = round(1000 * statistics.median(times), 1)
    return found


def _search() -> Any:
    from celery_agents.worker.archive.rows import Search

    return Search(limit=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--moved", type=int, default=MOVED)
    parser.add_argument("--rounds", type=int, default=5)
    SECTION.run(parser, "ARCHIVE", lambda asked: archive_figures(asked.rows, asked.moved, asked.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
