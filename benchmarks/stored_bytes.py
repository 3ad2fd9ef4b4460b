"""What a step with two kilobytes of content takes: in Redis by kind of key, compressed and plain, and with peers.

    python benchmarks/stored_bytes.py

The figures are bytes for each step when its session has ended, by which the server's memory shrinks when the keys are
deleted: `MEMORY USAGE` estimates the tree of a stream far too high. The journals of committed steps go after a minute;
what they take until then is a row of its own. What is sent is the workers' and the submits': the client that waits
looks once a second.
"""

from __future__ import annotations

import argparse
import dataclasses
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import redis
from engines.dbos import dbos
from engines.langgraph import langgraph
from engines.product import EACH, product
from engines.taskiq import taskiq
from yardstick.engine import Engine
from yardstick.load import Load
from yardstick.running import Running, Sample
from yardstick.sections import Row, Section
from yardstick.work import ENGLISH, TEXT, answer_text, tool_arguments, tool_result

LOAD: Final = Load(10, 50)
PEERS: Final = {"taskiq": taskiq(100), "dbos": dbos("postgres", "1"), "langgraph": langgraph("postgres", "1")}
JOURNAL: Final = "j"
# Wanted of English text: at most so much of the content, and so many bytes beside it.
_SHARE: Final = 0.75
_BESIDE: Final = 700
_SENT: Final = 6_500


def _rows(title: str, name: str) -> tuple[Row, ...]:
    figures = (
        (title, "content"),
        ("… in Redis, compressed", "packed"),
        ("… … messages", "packed_m"),
        ("… … steps", "packed_x"),
        ("… … events", "packed_events"),
        ("… sent to Redis, compressed", "packed_sent"),
        ("… in Redis, messages plain", "plain"),
        ("… … messages", "plain_m"),
        ("… … steps", "plain_x"),
        ("… sent to Redis, messages plain", "plain_sent"),
        ("… for a minute more, its journal", "packed_j"),
        ("… in the archive, as a document of what is compressed", "packed_document"),
        ("… … with plain messages", "plain_document"),
        ("… in the archive's file of SQLite, with its words", "packed_file"),
        ("… … with plain messages", "plain_file"),
        ("… Taskiq with a state save of its own, in Redis", "taskiq"),
        ("… DBOS in PostgreSQL", "dbos"),
        ("… LangGraph in PostgreSQL", "langgraph"),
    )
    targets = {"packed_sent": _SENT}
    return tuple(Row(title=each, key=f"{name}_{key}", at_most=targets.get(key)) for each, key in figures)


SECTION: Final = Section(
    title="Bytes of a step",
    text="""Ten sessions of 50 steps, each with an answer, a call of a tool and its result: what a step has left behind
    when its session has ended. Of Redis it is the memory that it gives back when the keys are deleted, of the peers
    what their server says it keeps. The English text is that of these documents; the other one is random letters, which
    compress badly. *Messages plain* is with `CELERY_AGENTS_COMPRESSION=false`. Sent is what workers and submits send. A
    session has 5 KB besides its steps: 100 bytes of a step of fifty, and 250 of one of twenty, which take as much
    otherwise. `make bench-bytes` measures this.""",
    rows=(
        *_rows("content, English text", "english"),
        Row(title=f"… compressed, beyond {_SHARE:g} of the content", key="english_beyond", at_most=_BESIDE),
        Row(title="… messages plain, beyond the content", key="english_plain_beyond", at_most=_BESIDE),
        *_rows("content, random letters", "random"),
    ),
)


def figures() -> dict[str, object]:
    """All figures; a peer that cannot be measured has none."""
    found: dict[str, object] = {}
    for name, env in (("english", {TEXT: ENGLISH}), ("random", {})):
        for mode, compression in (("packed", "true"), ("plain", "false")):
            with Running(_with(product("keyed", compression=compression), {**env, EACH: "1"})) as running:
                found |= {f"{name}_{mode}{kind}": size for kind, size in _of_product(running).items()}
        for peer, engine in PEERS.items():
            with Running(_with(engine, env)) as running:
                found[f"{name}_{peer}"] = round(_per_step(running.measure(LOAD), "stored"))
        found[f"{name}_content"] = _content(env)
    packed, plain, content = (int(str(found[f"english_{name}"])) for name in ("packed", "plain", "content"))
    return found | {"english_beyond": round(packed - _SHARE * content), "english_plain_beyond": plain - content}


def _with(engine: Engine, env: dict[str, str]) -> Engine:
    return dataclasses.replace(engine, env={**engine.env, **env})


def _content(env: dict[str, str]) -> int:
    """Bytes of the answer, the arguments and the result of a step, in the middle over the steps."""
    steps = range(1, LOAD.steps + 1)
    texts = [answer_text(step, env) + tool_arguments(step, env)["query"] + tool_result(step, env) for step in steps]
    return round(sum(len(text.encode()) for text in texts) / len(texts))


def _of_product(running: Running) -> dict[str, int]:
    """What the load's sessions take in Redis and then in the archive, and what was sent."""
    with tempfile.TemporaryDirectory(prefix="bench-archive-") as folder:
        file = Path(folder) / "history.db"
        archive = _Archive(running.store.environment()["BENCH_REDIS"], file)
        archive.take_all()  # what has warmed up
        return _kept_bytes(running) | {
            f"_{name}": round(size / LOAD.total_steps) for name, size in archive.take_all().items()
        }


class _Archive:
    """An archive in a file, to which sessions move at once."""

    def __init__(self, redis_url: str, file: Path) -> None:
        from celery_agents import AgentClient
        from celery_agents.config.settings import Settings

        settings = Settings.build(redis_url=redis_url, archive_url=f"sqlite:///{file}")
        self._client, self._file = AgentClient(settings=settings), file

    def take_all(self) -> dict[str, int]:
        """Move the sessions that have ended; the bytes of their documents, and those by which the file has grown."""
        before, in_file = self._client.archive_status().size, self._bytes()
        self._client.archive_now(older_than=timedelta(0))
        return {"document": self._client.archive_status().size - before, "file": self._bytes() - in_file}

    def _bytes(self) -> int:
        with closing(sqlite3.connect(self._file)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return self._file.stat().st_size


def _kept_bytes(running: Running) -> dict[str, int]:
    """The memory of the load's sessions by kind of key, "" without their journals, and what was sent."""
    database = redis.Redis.from_url(running.store.environment()["BENCH_REDIS"])
    before = set(database.scan_iter("ca:*:s:*", count=1000))
    sample = running.measure(LOAD)
    names: dict[str, list[Any]] = {}
    for key in set(database.scan_iter("ca:*:s:*", count=1000)) - before:
        kind = key.decode().split(":s:")[1].partition(":")[2].partition(":")[0]
        names.setdefault(kind or "head", []).append(key)
    sizes = {kind: _memory_of(database, keys) for kind, keys in names.items()}
    database.close()
    kinds = {f"_{kind}": round(size / LOAD.total_steps) for kind, size in sizes.items()}
    kept = sum(size for kind, size in sizes.items() if kind != JOURNAL)
    return {**kinds, "": round(kept / LOAD.total_steps), "_sent": round(_per_step(sample, "bytes_in"))}


def _memory_of(database: Any, keys: Sequence[Any]) -> int:
    """The bytes that Redis gives back for keys, which are there again afterwards, without their lives."""
    copies = {key: copy for key in keys if (copy := database.dump(key)) is not None}
    before = database.info("memory")["used_memory"]
    database.delete(*copies)
    size = before - database.info("memory")["used_memory"]
    for key, copy in copies.items():
        database.restore(key, 0, copy)
    return size


def _per_step(sample: Sample, count: str) -> float:
    return sample.per_step(getattr(sample, count)) or 0.0


def main() -> int:
    SECTION.run(
        argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter),
        "BYTES",
        lambda _: figures(),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
