"""The script of buckets on a clock of the tests: on a Redis, and on the database in memory, with the same words."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

from celery_agents.worker.store.database import Database
from celery_agents.worker.store.keys import FLEET
from celery_agents.worker.store.memory.database import MemoryDatabase
from celery_agents.worker.store.redis.scripts import SCRIPTS as LUA

from support.lua_scripts import SCRIPTS

DIGEST: Final = "0123456789abcdef"
KEYS: Final = FLEET.rate(DIGEST)
START_MS: Final = 1_700_000_000_000
_TIME: Final = "redis.call('TIME')"


class BucketScript(ABC):
    """A bucket in one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @abstractmethod
    def call(self, now_ms: int, asked: Mapping[str, Any]) -> Any:
        """Run the script at a time of the test's own."""

    def lease(self, claim: str, *, alive: bool) -> None:
        command = ("SET", claim, "w") if alive else ("DEL", claim)
        self.database.pipeline("test", [command])

    def stored(self) -> Mapping[str, Any]:
        """All that is stored, in an order that does not depend on the database."""
        reads: list[Any] = [("HGETALL", key) for key in (KEYS.bucket, KEYS.calls, FLEET.flow)]
        reads += [("ZRANGE", key, 0, -1, "WITHSCORES") for key in (KEYS.held, KEYS.line, KEYS.failures)]
        names = ("bucket", "calls", "flow", "held", "line", "failures")
        replies = self.database.pipeline("test", reads)
        return {
            name: dict(zip(flat[::2], map(_plain, flat[1::2]), strict=True))
            for name, flat in zip(names, replies, strict=True)
        }


class LuaBucket(BucketScript):
    """On a Redis, whose own time the script does not ask."""

    def call(self, now_ms: int, asked: Mapping[str, Any]) -> Any:
        text = LUA["bucket"]
        assert text.count(_TIME) == 1
        script = text.replace(_TIME, "{ARGV[2], ARGV[3]}")
        words = (*KEYS.all, FLEET.flow, json.dumps(asked), now_ms // 1000, now_ms % 1000 * 1000)
        return self.database.pipeline("test", [("EVAL", script, 6, *words)])[0]

    def forget(self, keys: Sequence[str]) -> None:
        if keys:
            self.database.pipeline("test", [("DEL", *keys)])

    def clear(self) -> None:
        self.forget((*KEYS.all, FLEET.flow))


class MemoryBucket(BucketScript):
    """In memory."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.memory = MemoryDatabase(lambda: self.now_ms, SCRIPTS)
        super().__init__(self.memory)

    def call(self, now_ms: int, asked: Mapping[str, Any]) -> Any:
        self.now_ms = now_ms
        return self.memory.script("test", "bucket", (*KEYS.all, FLEET.flow), [json.dumps(asked)])

    def ended(self) -> list[str]:
        """The keys whose life is over by the clock of the tests; a Redis has another one."""
        return sorted({*KEYS.all} - set(self.memory.keys()))


def _plain(value: bytes) -> bytes | float:
    try:
        return float(value)
    except ValueError:
        return value
