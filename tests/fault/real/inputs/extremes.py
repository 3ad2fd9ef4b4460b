"""The values that are drawn: extremes of every kind, JSON, bytes, and damage to what was good."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import json
import reprlib
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pydantic
from hypothesis import strategies as st

from celery_agents.worker.tools import StopExecution

from support.verdict import Verdict

_HUGE_CHARS: Final = 10 * 1024 * 1024
# Too deep for a function that calls itself twice a level; for Python, and not for the C code of 3.12; for any.
_DEPTHS: Final = (400, 3_000, 100_000)


def _deep(depth: int, make: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = make(value)
    return value


def _nested(begin: bytes, end: bytes, depth: int) -> bytes:
    return begin * depth + b"1" + end * depth


# By name: the value, and the bytes that somebody would write for it.
EXTREMES: Final[Mapping[str, tuple[tuple[Callable[[], Any], ...], tuple[Callable[[], bytes], ...]]]] = {
    "nan": ((lambda: float("nan"),), (lambda: b"NaN",)),
    "infinity": ((lambda: float("inf"), lambda: float("-inf")), (lambda: b"-Infinity", lambda: b"1e999")),
    "huge_int": ((lambda: 10**5000, lambda: -(10**5000)), (lambda: b"1" + b"0" * 5000, lambda: b"-1" + b"0" * 5000)),
    "large_int": ((lambda: 2**63, lambda: 2**63 - 1), (lambda: b"9223372036854775808", lambda: b"9223372036854775807")),
    "surrogate": ((lambda: "half \ud800 a pair",), (lambda: rb'"\ud800"', lambda: b'"\xed\xa0\x80"')),
    "nul": ((lambda: "NUL \0",), (lambda: rb'"\u0000"', lambda: b"\x00")),
    "deep": (
        tuple(
            functools.partial(_deep, depth, make)
            for depth in _DEPTHS
            for make in (lambda inner: [inner], lambda inner: {"a": inner})
        ),
        (
            *(functools.partial(_nested, b"[", b"]", depth) for depth in _DEPTHS),
            *(functools.partial(_nested, b'{"a":', b"}", depth) for depth in _DEPTHS),
            lambda: b"[" * _DEPTHS[-1],
        ),
    ),
    "huge_text": ((lambda: "x" * _HUGE_CHARS,), (lambda: b'"' + b"x" * _HUGE_CHARS + b'"',)),
}
# What is large takes long, and comes in fewer examples.
_OFTEN: Final = tuple(name for name in EXTREMES for _ in range({"huge_text": 4, "deep": 5}.get(name, 12)))


@functools.cache
def _made(name: str, kind: int, which: int) -> Any:
    return EXTREMES[name][kind][which]()


_scalars: Final = (
    st.sampled_from(
        (None, True, False, 0, 1, -1, 0.0, -0.0, 1.5, 1e308, 5e-324, "", "a", "1", "\n", "ä", "🦊", "\u202e")
    )
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
)
_names: Final = st.sampled_from(("", "a", "id", "content", "0", "ä", "\0", "__class__"))
# Flat: what is nested deeply is among the extremes, and drawing trees takes longer than judging them.
json_values: Final = (
    _scalars | _scalars | st.lists(_scalars, max_size=3) | st.dictionaries(_names, _scalars | st.just([{}]), max_size=3)
)


class Material:
    """Strategies of one run, which count the extremes they give."""

    def __init__(self, verdict: Verdict) -> None:
        self._counts = verdict.counts
        self._damaged: dict[bytes, st.SearchStrategy[bytes]] = {}
        names = st.sampled_from(_OFTEN)
        self.extremes = st.tuples(names, st.integers(0, 6)).map(lambda drawn: self._extreme(0, *drawn))
        self.raw_extremes = st.tuples(names, st.integers(0, 6)).map(lambda drawn: self._extreme(1, *drawn))
        nested = self.extremes.flatmap(lambda value: st.sampled_from(([value], {"a": value}, [1, {"b": [value]}])))
        keyed = st.sampled_from(({1: 2}, {None: 1}, {"\ud800": 1}, {"\0": 1}, {"": ""}))
        self.json = json_values | self.extremes | nested
        self.values = json_values | self.extremes | nested | keyed | self.objects()
        self.raw = (
            st.binary(max_size=60)
            | json_values.map(as_json)
            | self.raw_extremes
            | self.raw_extremes.map(lambda raw: b'{"content": ' + raw + b"}")
        )

    def _extreme(self, kind: int, name: str, which: int) -> Any:
        self._counts[f"extreme_{name}"] += 1
        return _made(name, kind, which % len(EXTREMES[name][kind]))

    def objects(self) -> st.SearchStrategy[Any]:
        """What Python can hold and JSON cannot."""
        holding = self.extremes.flatmap(
            lambda value: st.sampled_from((_Pair(value, 1), Model(held=value), (value,), _Told(value)))
        )
        return st.sampled_from(OBJECTS).map(lambda make: make()) | holding

    def damaged(self, original: bytes) -> st.SearchStrategy[bytes]:
        """The bytes with something wrong with them."""
        if original not in self._damaged:  # making a strategy takes longer than drawing from it
            self._damaged[original] = self._damages(original)
        return self._damaged[original]

    def _damages(self, original: bytes) -> st.SearchStrategy[bytes]:
        return st.one_of(
            st.tuples(st.integers(0, 2**20), st.integers(1, 255)).map(lambda drawn: _flipped(original, *drawn)),
            st.integers(0, 2**20).map(lambda place: original[: place % (len(original) + 1)]),
            st.integers(0, 2**20).map(lambda place: original + original[place % (len(original) + 1) :]),
            st.tuples(st.integers(0, 2**20), self.raw_extremes | st.binary(max_size=4)).map(
                lambda drawn: _spliced(original, *drawn)
            ),
            self.raw,
            self._changed(original),
            self._changed(original),
            self._changed(original),
        )

    def _changed(self, original: bytes) -> st.SearchStrategy[bytes]:
        """Valid JSON of the same shape, with another value, another key or a value less at one place."""
        written = json_values.map(as_json) | self.raw_extremes
        drawn = st.tuples(st.integers(0, 2**20), st.sampled_from(("value", "value", "value", "key", "drop")), written)
        return drawn.map(lambda each: _replaced(original, *each))


def as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _flipped(data: bytes, place: int, mask: int) -> bytes:
    if not data:
        return bytes([mask])
    place %= len(data)
    return data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]


def _spliced(data: bytes, place: int, more: bytes) -> bytes:
    place %= len(data) + 1
    return data[:place] + more + data[place:]


_MARK: Final = "@here@"


def _replaced(original: bytes, place: int, how: str, written: bytes) -> bytes:
    try:
        tree = json.loads(original)
    except ValueError:
        return written  # a plain text, such as an id or a number
    places = list(_places(tree))
    if not places:
        return written
    holder, key = places[place % len(places)]
    if how == "value":
        holder[key] = _MARK
    elif how == "drop":
        del holder[key]
    elif isinstance(holder, dict):
        holder[f"{key}{_MARK}"] = holder.pop(key)
    else:
        holder[key] = [holder[key]]
    return as_json(tree).replace(b'"' + _MARK.encode() + b'"', written)


def _places(value: Any) -> Generator[tuple[Any, Any]]:
    """Every place in a JSON value that something stands at: what holds it, and where."""
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    for key, inner in list(pairs):
        yield value, key
        yield from _places(inner)


@dataclasses.dataclass(frozen=True)
class _Pair:
    one: Any
    other: Any


class Model(pydantic.BaseModel):
    held: Any = None


class _Colour(enum.Enum):
    RED = float("nan")


class _Told(Exception):
    """Raised by a tool, not returned."""


class _Hostile:
    """An object all of whose answers are errors."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__

    def __iter__(self) -> Any:
        raise RuntimeError("no items")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __bool__(self) -> bool:
        raise RuntimeError("neither")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")


class _HostileMapping(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RuntimeError(key)

    def __iter__(self) -> Any:
        return iter(("a", "b"))

    def __len__(self) -> int:
        return 2


class _Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class _Text(str):
    __slots__ = ()

    def encode(self, *_: Any, **__: Any) -> bytes:
        raise RuntimeError("no bytes")


def _cycle() -> Any:
    value: dict[str, Any] = {}
    value["self"] = [value]
    return value


OBJECTS: Final[Sequence[Callable[[], Any]]] = (
    object, _Hostile, _HostileMapping, _Wordless, _cycle, lambda: _Text("text"), lambda: b"\xff", lambda: bytearray(b"a"),
    lambda: memoryview(b"a"), lambda: {1, 2}, lambda: frozenset({"\ud800"}), lambda: (i for i in "ab"), lambda: range(3),
    lambda: len, lambda: _Colour.RED, lambda: _Colour, lambda: _Pair, lambda: Model(), lambda: _Pair(_cycle(), 1),
    lambda: decimal.Decimal("NaN"), lambda: decimal.Decimal("sNaN"), lambda: decimal.Decimal("1e100000"),
    lambda: dt.datetime.max.replace(tzinfo=dt.UTC), lambda: dt.timedelta.max, lambda: uuid.UUID(int=0),
    lambda: complex(1, float("nan")), lambda: Path("a\0b"), lambda: {(1, 2): 3}, lambda: {1: 2, "1": 3},
    lambda: {float("nan"): 1}, lambda: {_Colour.RED: 1}, lambda: ..., lambda: NotImplemented, lambda: json,
    lambda: ValueError("half \ud800"), lambda: StopIteration("a"), lambda: RecursionError(), lambda: SystemExit("x"),
    lambda: GeneratorExit(), lambda: TimeoutError(), lambda: ExceptionGroup("a", [_Wordless()]),
    lambda: StopExecution("enough", result=_cycle()), lambda: StopExecution(result=10**5000),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), lambda: OSError(5, "x" * 100_000), lambda: KeyError(b"\xff"),
)  # fmt: skip


class _Short(reprlib.Repr):
    """A repr that always comes to an end and is never long."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxdict, self.maxlist = 4, 90, 90, 6, 6

    def repr1(self, x: Any, level: int) -> str:
        try:
            return super().repr1(x, level)
        except Exception as error:
            return f"<{type(x).__name__}: {type(error).__name__}>"

    def repr_int(self, x: int, level: int) -> str:
        return f"<{x.bit_length()} bits>" if x.bit_length() > 200 else repr(x)

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(x[:200], level) + (f" of {len(x)}" if len(x) > 200 else "")

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x[:150]) + (f" of {len(x)}" if len(x) > 150 else "")


short: Final = _Short().repr
