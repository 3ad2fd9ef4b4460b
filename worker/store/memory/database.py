"""The database interface in memory: Redis's commands, as far as the store uses them, under one lock.

For tests and for a first try without a server. State lives as long as the object.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, cast

from ...errors import WRONG_TYPE, StateUnreadable
from ..database import Changed, Command, Guard, Reply, Word
from .ranges import Stream, members_between, page, position, score_text, scores_between, stream_id, stream_positions
from .scripts import SCRIPTS, Script


class MemoryDatabase:
    """A dictionary that answers like Redis, with a method for each command: `_hget` for HGET. Safe between threads.

    Attributes:
        grown: Notified when a stream gets an entry.
    """

    def __init__(self, now_ms: Callable[[], int] | None = None, scripts: Mapping[str, Script] = SCRIPTS) -> None:
        """
        Args:
            now_ms: Unix time in milliseconds. None: this machine's clock.
            scripts: The counterparts of the scripts of `redis.scripts`.
        """
        self._scripts = scripts
        self._now = now_ms or (lambda: time.time_ns() // 1_000_000)
        self._lock = threading.RLock()
        self._values: dict[str, Any] = {}
        self._expiry: dict[str, int] = {}
        self._touched: dict[str, int] = {}
        self._changes = itertools.count(1)
        self.grown = threading.Condition(self._lock)

    def pipeline(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        """Run the commands in order."""
        del point
        with self._lock:
            return [self._run(command) for command in commands]

    def transaction(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        """Run the commands in order, under one lock."""
        return self.pipeline(point, commands)

    def compare_and_apply(self, point: str, guards: Sequence[Guard], commands: Sequence[Command]) -> list[Reply] | None:
        """Compare and run the commands under one lock."""
        del point
        with self._lock:
            for read, answers in guards:
                reply = self._run(read)
                found: list[Reply] = cast("list[Reply]", reply) if isinstance(reply, list) else [reply]
                if [b"" if word is None else _bytes(word) for word in found] != [_bytes(word) for word in answers]:
                    return None
            return [self._run(command) for command in commands]

    @contextlib.contextmanager
    def watch(self, point: str, keys: Sequence[str], reads: Sequence[Command]) -> Generator[_MemoryWatched]:
        """Remember when each key was last touched."""
        with self._lock:
            seen = {key: self._stamp(key) for key in keys}
            watched = _MemoryWatched(self, seen, self.pipeline(point, reads))
        yield watched

    def script(self, point: str, name: str, keys: Sequence[str], args: Sequence[Word]) -> Reply:
        """Run the Python counterpart of a script of `redis.scripts`."""
        del point
        with self._lock:
            return self._scripts[name](self._run, keys, args)

    def script_command(self, name: str, keys: Sequence[str], args: Sequence[Word]) -> Command | None:
        """The command that runs a script. See `Database.script_command`."""
        return ("EVALSHA", name, len(keys), *keys, *args)

    def place(self, key: str) -> str:
        """There is one server."""
        del key
        return ""

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def keys(self) -> list[str]:
        """List all keys that have not expired."""
        with self._lock:
            return [key for key in list(self._values) if self._alive(key)]

    def _stamp(self, key: str) -> tuple[int, bool]:
        return (self._touched.get(key, 0), self._alive(key))

    def _ask_watching(
        self, seen: dict[str, tuple[int, bool]], also: Sequence[str], commands: Sequence[Command]
    ) -> list[Reply]:
        with self._lock:
            seen.update({key: self._stamp(key) for key in also})
            return [self._run(command) for command in commands]

    def _commit(self, seen: dict[str, tuple[int, bool]], commands: Sequence[Command]) -> list[Reply]:
        with self._lock:
            if any(self._stamp(key) != stamp for key, stamp in seen.items()):
                raise Changed
            return [self._run(command) for command in commands]

    def _run(self, command: Command) -> Reply:
        name, *args = command
        return getattr(self, f"_{str(name).lower()}")(*args)

    def _alive(self, key: str) -> bool:
        expiry = self._expiry.get(key)
        if expiry is not None and expiry <= self._now():
            self._forget(key)
        return key in self._values

    def _forget(self, key: str) -> None:
        self._values.pop(key, None)
        self._expiry.pop(key, None)
        self._touch(key)

    def _touch(self, key: str) -> None:
        self._touched[key] = next(self._changes)

    def _read(self, key: str, kind: type, default: Any) -> Any:
        if not self._alive(key):
            return default
        value = self._values[key]
        if not isinstance(value, kind):
            raise StateUnreadable(WRONG_TYPE, "a key of the session holds another type; somebody else wrote to it")
        return value

    def _write(self, key: str, kind: type) -> Any:
        value = self._read(key, kind, None)
        if value is None:
            value = self._values[key] = kind()
        self._touch(key)
        return value

    def _drop_empty(self, key: str) -> None:
        if not self._values.get(key):
            self._forget(key)

    def _evalsha(self, name: str, keys: int, *words: Any) -> Reply:
        return self._scripts[name](self._run, words[:keys], words[keys:])

    def _time(self) -> Reply:
        now = self._now()
        return [b"%d" % (now // 1000), b"%d" % (now % 1000 * 1000)]

    def _info(self, section: str = "everything") -> bytes:
        return (
            b"# %b\r\nuptime_in_seconds:1000000\r\nmaster_replid:memory\r\nmaxmemory_policy:noeviction\r\n"
            % section.encode()
        )

    def _exists(self, *keys: str) -> int:
        return sum(self._alive(key) for key in keys)

    def _del(self, *keys: str) -> int:
        found = [key for key in keys if self._alive(key)]
        for key in found:
            self._forget(key)
        return len(found)

    def _pexpire(self, key: str, milliseconds: int) -> int:
        if not self._alive(key):
            return 0
        self._expiry[key] = self._now() + int(milliseconds)
        return 1

    def _type(self, key: str) -> bytes:
        if not self._alive(key):
            return b"none"
        value = self._values[key]
        if isinstance(value, dict):
            scores = cast("dict[str, Any]", value).values()
            return b"zset" if all(isinstance(each, float) for each in scores) else b"hash"
        if isinstance(value, list):
            return b"stream" if isinstance(value, Stream) else b"list"
        return b"string"

    def _persist(self, key: str) -> int:
        return int(self._alive(key) and self._expiry.pop(key, None) is not None)

    def _pttl(self, key: str) -> int:
        if not self._alive(key):
            return -2
        return self._expiry[key] - self._now() if key in self._expiry else -1

    def _get(self, key: str) -> bytes | None:
        return self._read(key, bytes, None)

    def _set(self, key: str, value: Word, *options: Word) -> bytes | None:
        if "NX" in options and self._alive(key):
            return None
        self._values[key] = _bytes(value)
        self._expiry.pop(key, None)
        self._touch(key)
        if "PX" in options:
            self._expiry[key] = self._now() + int(options[options.index("PX") + 1])
        return b"OK"

    def _publish(self, channel: str, message: Word) -> int:
        del channel, message
        return 0

    def _hget(self, key: str, field: str) -> bytes | None:
        return self._read(key, dict, {}).get(_bytes(field))

    def _hmget(self, key: str, *fields: str) -> list[bytes | None]:
        return [self._hget(key, field) for field in fields]

    def _hgetall(self, key: str) -> list[bytes]:
        return [part for item in self._read(key, dict, {}).items() for part in item]

    def _hlen(self, key: str) -> int:
        return len(self._read(key, dict, {}))

    def _hscan(self, key: str, cursor: Word, *options: Word) -> list[Any]:
        del cursor, options
        return [b"0", self._hgetall(key)]

    def _hset(self, key: str, *pairs: Word) -> int:
        value = self._write(key, dict)
        before = len(value)
        value.update({_bytes(f): _bytes(v) for f, v in zip(pairs[::2], pairs[1::2], strict=True)})
        return len(value) - before

    def _hsetnx(self, key: str, field: str, value: Word) -> int:
        if _bytes(field) in self._read(key, dict, {}):
            return 0
        return self._hset(key, field, value)

    def _hdel(self, key: str, *fields: str) -> int:
        return self._zrem(key, *fields)

    def _llen(self, key: str) -> int:
        return len(self._read(key, list, []))

    def _rpush(self, key: str, *values: Word) -> int:
        value = self._write(key, list)
        value.extend(_bytes(item) for item in values)
        return len(value)

    def _lpush(self, key: str, *values: Word) -> int:
        value = self._write(key, list)
        value[:0] = [_bytes(item) for item in reversed(values)]
        return len(value)

    def _lrange(self, key: str, start: int, stop: int) -> list[bytes]:
        value = self._read(key, list, [])
        return list(value[position(start, value) : position(stop, value) + 1])

    def _lindex(self, key: str, index: int) -> bytes | None:
        value = self._read(key, list, [])
        return value[index] if -len(value) <= int(index) < len(value) else None

    def _ltrim(self, key: str, start: int, stop: int) -> bytes:
        if self._alive(key):
            value = self._write(key, list)
            value[:] = value[position(start, value) : position(stop, value) + 1]
            self._drop_empty(key)
        return b"OK"

    def _zadd(self, key: str, *args: Word) -> int:
        only_existing = args[0] == "XX"
        pairs = args[1:] if only_existing else args
        current = self._read(key, dict, {})
        chosen = {_bytes(m): float(s) for s, m in zip(pairs[::2], pairs[1::2], strict=True)}
        if only_existing:
            chosen = {member: score for member, score in chosen.items() if member in current}
        if chosen:
            self._write(key, dict).update(chosen)
        return 0

    def _zrem(self, key: str, *members: Word) -> int:
        if not self._alive(key):
            return 0
        value = self._write(key, dict)
        gone = [value.pop(_bytes(member), None) for member in members]
        self._drop_empty(key)
        return sum(item is not None for item in gone)

    def _zrange(self, key: str, start: int, stop: int, *options: Word) -> list[Reply]:
        found = scores_between(self._read(key, dict, {}), "-inf", "+inf")
        return page(found[position(start, found) : position(stop, found) + 1], options)

    def _zrevrange(self, key: str, start: int, stop: int, *options: Word) -> list[Reply]:
        found = scores_between(self._read(key, dict, {}), "-inf", "+inf")[::-1]
        return page(found[position(start, found) : position(stop, found) + 1], options)

    def _zremrangebyscore(self, key: str, low: Word, high: Word) -> int:
        return self._zrem(key, *(member for _, member in scores_between(self._read(key, dict, {}), low, high)))

    def _zscore(self, key: str, member: Word) -> bytes | None:
        score = self._read(key, dict, {}).get(_bytes(member))
        return None if score is None else _bytes(score)

    def _zcard(self, key: str) -> int:
        return len(self._read(key, dict, {}))

    def _zcount(self, key: str, low: Word, high: Word) -> int:
        return len(scores_between(self._read(key, dict, {}), low, high))

    def _zrangebyscore(self, key: str, low: Word, high: Word, *options: Word) -> list[bytes]:
        return page(scores_between(self._read(key, dict, {}), low, high), options)

    def _zrevrangebyscore(self, key: str, high: Word, low: Word, *options: Word) -> list[bytes]:
        return page(list(reversed(scores_between(self._read(key, dict, {}), low, high))), options)

    def _zrangebylex(self, key: str, low: str, high: str, *options: Word) -> list[bytes]:
        return members_between(self._read(key, dict, {}), _bytes(low), _bytes(high), options)

    def _zlexcount(self, key: str, low: str, high: str) -> int:
        return len(self._zrangebylex(key, low, high))

    def _xadd(self, key: str, *args: Word) -> bytes | None:
        if args[0] == "NOMKSTREAM":
            if not self._alive(key):
                return None
            args = args[1:]
        limit = int(args[2]) if args[0] == "MAXLEN" else None
        at = 0 if limit is None else 3
        words = [_bytes(word) for word in args[at + 1 :]]
        entry_id = self._write(key, Stream).add(self._now(), words, limit, _bytes(args[at]))
        self.grown.notify_all()
        return stream_id(entry_id)

    def _xtrim(self, key: str, *args: Word) -> int:
        return self._read(key, Stream, Stream()).trim(int(args[-1]))

    def _xdel(self, key: str, *ids: Word) -> int:
        return self._read(key, Stream, Stream()).drop({_bytes(each) for each in ids})

    def _xrange(self, key: str, first: str, last: str, *options: Word) -> list[Reply]:
        return self._read(key, Stream, Stream()).entries_from(first, int(options[1]) if options else None)

    def _xread(self, *args: Word) -> Reply:
        after, count = stream_positions(args)
        for key, at in after.items():
            if at == "$":
                after[key] = stream_id(self._read(key, Stream, Stream()).last).decode()
        if "BLOCK" in args and not any(self._xrange(key, f"({at}", "+") for key, at in after.items()):
            self.grown.wait(int(args[args.index("BLOCK") + 1]) / 1000)
        found = [[key.encode(), self._xrange(key, f"({at}", "+")[:count]] for key, at in after.items()]
        return [each for each in found if each[1]] or None

    def _xrevrange(self, key: str, last: str, first: str, *options: Word) -> list[Reply]:
        found = list(reversed(self._xrange(key, first, last)))
        return found[: int(options[1])] if options else found


class _MemoryWatched:
    def __init__(self, database: MemoryDatabase, seen: dict[str, tuple[int, bool]], replies: list[Reply]) -> None:
        self.replies = replies
        self._database = database
        self._seen = seen

    def pipeline(self, point: str, commands: Sequence[Command], *, also: Sequence[str] = ()) -> list[Reply]:
        return self._database._ask_watching(self._seen, also, commands)  # pyright: ignore[reportPrivateUsage]

    def commit(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        del point
        return self._database._commit(self._seen, commands)  # pyright: ignore[reportPrivateUsage]


def _bytes(value: Word) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        return score_text(value)
    return str(value).encode()
