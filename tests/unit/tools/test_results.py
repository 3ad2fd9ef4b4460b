"""What a tool returns, as a JSON value."""

import itertools
import json
import tracemalloc
from collections import OrderedDict, deque, namedtuple
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from functools import reduce
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from celery_agents.worker.known_secrets import current_matcher
from celery_agents.worker.state import freeze, thaw
from celery_agents.worker.tools import UnusableResult, to_json_value

Pair = namedtuple("Pair", "a b")


class Kind(StrEnum):
    A = "a"


class Level(IntEnum):
    ONE = 1


class Shade(Enum):
    DARK = ("dark", 1)


class Item(BaseModel):
    name: str
    when: date


@dataclass
class Row:
    id: int
    item: Item | None = None


async def _rows_one_by_one() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("result", "value"),
    [
        (None, None),
        (True, True),
        (5, 5),
        (1.5, 1.5),
        ("Paris", "Paris"),
        ("", ""),
        ([1, "a", None], [1, "a", None]),
        ((1, 2), [1, 2]),
        (Pair(1, 2), [1, 2]),
        ({3}, [3]),
        (frozenset({3}), [3]),
        ({"a": {"b": [1]}}, {"a": {"b": [1]}}),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        ({1: "x"}, {"1": "x"}),
        ({Kind.A: 1}, {"a": 1}),
        ({date(2026, 1, 2): 1}, {"2026-01-02": 1}),
        (Kind.A, "a"),
        (Level.ONE, 1),
        (Shade.DARK, ["dark", 1]),
        (Item(name="x", when=date(2026, 1, 2)), {"name": "x", "when": "2026-01-02"}),
        (Row(1, Item(name="x", when=date(2026, 1, 2))), {"id": 1, "item": {"name": "x", "when": "2026-01-02"}}),
        ([Row(1)], [{"id": 1, "item": None}]),
        (datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), "2026-01-02T03:04:05.678901Z"),
        (timedelta(seconds=90), "PT1M30S"),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Path("/a/b"), "/a/b"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        ({"x": [float("inf")]}, {"x": ["Infinity"]}),
        ("half \ud83d pair", "half \ufffd pair"),
        (2**4096 - 1, 2**4096 - 1),
    ],
)
def test_values_get_their_usual_json_form(result: Any, value: Any):
    converted = to_json_value(result)
    assert converted == value
    assert type(converted) is type(value)
    freeze(converted)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (b"raw", "result: bytes have no JSON form"),
        ({"file": {"data": bytearray(b"x")}}, "result.file.data: bytes"),
        ([1, (n for n in range(3))], "result[1]: a generator"),
        (object(), "a object has no JSON form"),
        ([lambda: 1], "result[0]: a function"),
        ({(1, 2): "x"}, "a key of type tuple"),
        ({1: "a", "1": "b"}, "two keys become '1'"),
        (2**4096, "a number of more than"),
        ([Row], "result[0]: a type has no JSON form; return a list, or the values"),
        (_rows_one_by_one(), "result: a async_generator has no JSON form; return a list, or the values"),
        (Row(b"raw"), "result.id: bytes have no JSON form"),  # type: ignore[arg-type]
    ],
)
def test_what_has_no_json_form_is_refused_and_the_place_is_named(result: Any, said: str):
    with pytest.raises(UnusableResult) as caught:
        to_json_value(result)
    assert said in str(caught.value)


def test_a_cycle_and_too_deep_a_nesting_are_refused():
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(UnusableResult, match="deeper than 64 levels"):
        to_json_value(cycle)
    deepest = reduce(lambda inner, _: [inner], range(64), 1)
    assert to_json_value(deepest) == deepest
    with pytest.raises(UnusableResult, match="deeper than 64 levels"):
        to_json_value([deepest])


def test_text_is_cut_at_the_limit_with_a_marker_that_counts_the_rest():
    assert to_json_value("x" * 12_355, 10) == "xxxxxxxxxx[… 12345 characters left out]"
    assert to_json_value("x" * 10, 10) == "x" * 10
    assert to_json_value("x" * 100_000, None) == "x" * 100_000


def test_a_structure_that_is_too_long_becomes_the_beginning_of_its_json_text():
    rows = [{"id": n} for n in range(1000)]
    cut = to_json_value(rows, 50)
    assert isinstance(cut, str)
    whole = json.dumps(rows)
    assert cut == f"{whole[:50]}[… {len(whole) - 50} characters left out]"
    assert to_json_value(rows[:3], 50) == rows[:3]
    assert to_json_value({"a": "ü" * 100}, 10) == '{"a": "üüü[… 99 characters left out]'


@pytest.mark.parametrize(
    ("value", "limit", "is_cut"),
    [
        (["x" * 999_996], 10, False),
        (["x" * 999_997], 10, True),
        (["x" * 999_991, 0], 10, False),
        (["x" * 999_992, 0], 10, True),
        (["x" * 1_100_000], 600_000, False),
    ],
)
def test_a_million_characters_of_a_structure_are_read_or_twice_its_limit(value: Any, limit: int, is_cut: bool):
    kept = to_json_value(value, limit)
    whole = json.dumps(value)
    end = (
        "[… the rest is left out: the result is very large]"
        if is_cut
        else f"[… {len(whole) - limit} characters left out]"
    )
    assert kept == whole[:limit] + end


def test_a_small_limit_leaves_numbers_alone():
    assert to_json_value(True, 1) is True
    assert to_json_value(1.25, 1) == 1.25
    assert to_json_value(None, 1) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_json_values_come_back_as_they_are(value: Any):
    assert to_json_value(value, None) == value
    assert thaw(freeze(to_json_value(value, None))) == value


@given(st.text(alphabet=st.characters(), max_size=50), st.integers(1, 60))
def test_any_text_can_be_stored_and_stays_within_its_limit(text: str, limit: int):
    value = to_json_value(text, limit)
    freeze(value)
    assert len(value) <= limit + 40


class _Unreadable(Mapping[str, Any]):
    """A row of a database whose connection is closed, say."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError(f"{key} cannot be read")

    def __iter__(self) -> Iterator[str]:
        return iter(("id",))

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("result", [_Unreadable(), [_Unreadable()], {"row": _Unreadable()}])
def test_a_result_that_raises_when_it_is_read_is_refused(result: Any):
    with pytest.raises(UnusableResult, match="reading it raised RuntimeError"):
        to_json_value(result)


def test_a_huge_text_is_cut_before_it_is_copied():
    tracemalloc.start()
    huge = "x" * 100_000_000
    before, _ = tracemalloc.get_traced_memory()
    value = to_json_value(huge)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert value.endswith(f"[… {100_000_000 - 32_000} characters left out]")
    assert peak - before < 10_000_000


@pytest.mark.parametrize("huge", [range(10_000_000), itertools.repeat("x" * 1000, 1_000_000)], ids=["items", "texts"])
def test_a_huge_structure_is_read_no_further_than_it_is_kept(huge: Any):
    rows = _Rows(huge)
    value = to_json_value(rows)
    assert value.endswith("[… the rest is left out: the result is very large]")
    assert len(value) < 33_000
    assert rows.read < 300_000


class _Rows(tuple):  # type: ignore[type-arg]
    """A sequence that counts what is read of it."""

    read = 0

    def __new__(cls, rows: Any) -> Any:
        made = super().__new__(cls)
        made.rows = rows
        return made

    def __iter__(self) -> Iterator[Any]:
        for row in self.rows:
            self.read += 1
            yield row


def test_bytes_are_limited_as_well():
    value = to_json_value("é" * 1000, 1000, limit_bytes=100)
    assert value == "é" * 50 + "[… 950 characters left out]"
    assert to_json_value("🙂" * 100, 100, limit_bytes=300) == "🙂" * 75 + "[… 25 characters left out]"
    assert to_json_value("🙂" * 75, 100, limit_bytes=300) == "🙂" * 75
    assert to_json_value("x" * 100, None, limit_bytes=10) == "x" * 10 + "[… 90 characters left out]"
    assert to_json_value("x" * 100, 5, limit_bytes=10) == "x" * 5 + "[… 95 characters left out]"


def test_known_secrets_are_replaced_in_every_part_of_a_result(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACME_TOKEN", "not-a-real-token")
    current_matcher(fresh=True)
    given = {
        "env": {"ACME_TOKEN": "not-a-real-token"},
        "not-a-real-token": ["a not-a-real-token"],
        "path": Path("/not-a-real-token"),
    }
    assert "not-a-real-token" not in json.dumps(to_json_value(given))
    assert to_json_value(given, keeps_secrets=True)["env"] == given["env"]


def test_a_sequence_that_only_pydantic_knows_is_read_as_a_list_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACME_TOKEN", "not-a-real-token")
    current_matcher(fresh=True)
    given = ["a not-a-real-token", "\ud800", float("nan"), {"deep": ["not-a-real-token"]}]
    assert to_json_value(deque(given)) == to_json_value(given)
    with pytest.raises(UnusableResult, match="more than 4096 bits"):
        to_json_value(deque([2**5000]))


def test_a_secret_across_the_cut_is_replaced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACME_TOKEN", "not-a-real-token")
    current_matcher(fresh=True)
    assert "not-a" not in to_json_value("x" * 95 + "not-a-real-token" + "y" * 100, 100)


def test_the_length_of_a_text_that_was_read_in_full_is_counted_without_its_secrets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACME_TOKEN", "not-a-real-token")
    current_matcher(fresh=True)
    cut = to_json_value("not-a-real-token" + "x" * (1_000_000 - 16), 10)
    assert cut == f"[redacted][… {1_000_000 - 16} characters left out]"


def test_a_huge_mapping_is_read_no_further_than_it_is_kept():
    class Many(Mapping[str, Any]):
        read = 0

        def __getitem__(self, key: str) -> Any:
            self.read += 1
            return "x" * 100_000

        def __iter__(self) -> Iterator[str]:
            return iter(map(str, range(1_000)))

        def __len__(self) -> int:
            return 1_000

    many = Many()
    assert to_json_value(many, 10).endswith("[… the rest is left out: the result is very large]")
    assert many.read <= 12


def test_a_limit_of_bytes_bounds_what_is_read_whatever_the_tool_allows():
    rows = _Rows(itertools.repeat("x" * 1000, 100_000))
    assert len(to_json_value(rows, 1_000_000_000, limit_bytes=10_000)) < 10_100
    assert rows.read < 2_000


def test_a_key_that_is_a_member_of_an_enum_is_its_value() -> None:
    assert to_json_value({Kind.A: 1, Level.ONE: 2, "b": 3}, None) == {"a": 1, "1": 2, "b": 3}
