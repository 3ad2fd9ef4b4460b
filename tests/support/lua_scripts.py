"""Scripts of flow on a database in memory: the product's texts, run by Lua in this process, on a clock of the tests.

lupa, which is that Lua, has no wheels for the newest Python. Without it, the tests that come to a script are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, Final

import pytest

from celery_agents.worker.store.database import Reply, Word
from celery_agents.worker.store.memory.scripts import SCRIPTS as MEMORY_SCRIPTS
from celery_agents.worker.store.memory.scripts import Run
from celery_agents.worker.store.redis.scripts import SCRIPTS as LUA


@cache
def lua() -> Any:
    """The Lua of this process; the test is skipped where there is none."""
    return pytest.importorskip("lupa.lua51", reason="lupa is not installed").LuaRuntime(encoding=None)


@cache
def _compile(text: str) -> Any:
    return lua().execute(f"return function(KEYS, ARGV, redis, cjson) {text} end".encode())


def run_script(text: str, run: Run, keys: Sequence[str], args: Sequence[Word]) -> Reply:
    """Run the text of a script as Redis does."""

    def call(name: bytes, *words: Any) -> Any:
        return _to_lua(run((name.decode(), *(_word(word) for word in words))))

    def decode(text: bytes) -> Any:
        return _to_lua(json.loads(text))

    libraries = {b"call": call}, {b"decode": decode}
    return _from_lua(_compile(text)(_to_lua(list(keys)), _to_lua(list(args)), *map(_table, libraries)))


_OF_FLOW: Final = {name: partial(run_script, LUA[name]) for name in ("bucket", "holders", "caps")}
SCRIPTS: Final = {**MEMORY_SCRIPTS, **_OF_FLOW}
"""The scripts of the database in memory; those of flow are the product's own."""


def _word(word: Any) -> Any:
    return word.decode() if isinstance(word, bytes) else word


def _to_lua(value: Any) -> Any:
    match value:
        case None:
            return False
        case str():
            return value.encode()
        case list():
            return _table({place: _to_lua(each) for place, each in enumerate(value, 1)})
        case dict():
            return _table({name.encode(): _to_lua(each) for name, each in value.items()})
        case _:
            return value


def _table(values: dict[Any, Any]) -> Any:
    return lua().table_from(values)


def _from_lua(value: Any) -> Any:
    if hasattr(value, "values"):  # a table
        return [_from_lua(value[place]) for place in range(1, len(value) + 1)]
    return int(value) if isinstance(value, float) else value
