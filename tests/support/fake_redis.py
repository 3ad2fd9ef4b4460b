"""A database on fakeredis: Redis's commands and Lua in this process, behind redis-py's connections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fakeredis import FakeRedisConnection, FakeServer
from redis.connection import ConnectionPool

from celery_agents.worker.store.database import Command, Reply
from celery_agents.worker.store.redis.connection import RedisConnection
from celery_agents.worker.store.redis.database import RedisDatabase

from support.lua_scripts import lua

_INFO: Final = b"# Server\r\nuptime_in_seconds:1000000\r\nmaster_replid:fake\r\nmaxmemory_policy:noeviction\r\n"
_Pool: Final[Any] = ConnectionPool


class FakeRedisDatabase(RedisDatabase):
    """The product's database on a server of its own. It answers `INFO`, which fakeredis does not know."""

    def __init__(self) -> None:
        lua()  # by which fakeredis runs scripts
        super().__init__(_Pool(connection_class=FakeRedisConnection, server=FakeServer(version=(7, 0)), protocol=2))

    def _round_trip(self, point: str, wire: RedisConnection, commands: Sequence[Command]) -> list[Reply]:
        asked = [("PING",) if command[0] == "INFO" else command for command in commands]
        replies = super()._round_trip(point, wire, asked)
        if commands[0][0] == "MULTI" and isinstance(replies[-1], list):
            return [*replies[:-1], _with_info(commands[1:-1], replies[-1])]
        return _with_info(commands, replies)


def _with_info(commands: Sequence[Command], replies: Sequence[Reply]) -> list[Reply]:
    return [_INFO if command[0] == "INFO" else reply for command, reply in zip(commands, replies, strict=True)]
