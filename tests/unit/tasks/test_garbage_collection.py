"""The collector looks in a quiet moment, little at a time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from celery_agents.tasks.consumer.garbage_collection import collect_rarely, collect_when_idle


class Node:
    """Part of a cycle that only the collector frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def rarely() -> Iterator[None]:
    before = gc.get_threshold()
    gc.collect()
    collect_rarely()
    yield
    gc.enable()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("rarely")
@pytest.mark.parametrize(("count", "is_found"), [(1_000, False), (60_000, True)])
def test_it_looks_where_it_is_worth_it(count: int, is_found: bool) -> None:
    kept: list[object] = [[] for _ in range(count)]
    cycle = weakref.ref(Node())
    collect_when_idle()
    assert (cycle() is None) is is_found
    assert len(kept) == count


@pytest.mark.usefixtures("rarely")
@pytest.mark.parametrize("decide", [gc.disable, lambda: gc.set_threshold(150_000)])
def test_who_decides_otherwise_is_left_alone(decide: Callable[[], None]) -> None:
    decide()
    kept: list[object] = [[] for _ in range(60_000)]
    cycle = weakref.ref(Node())
    collect_when_idle()
    assert cycle() is not None
    assert len(kept) == 60_000


@pytest.mark.usefixtures("rarely")
@pytest.mark.parametrize(
    ("counts", "collected"),
    [
        ((39_999, 500, 500), []),
        ((40_000, 0, 0), [0]),
        ((40_000, 100, 0), [0]),
        ((40_000, 101, 0), [1]),
        ((40_000, 101, 51), [2]),
    ],
)
def test_older_generations_take_their_turns(
    monkeypatch: pytest.MonkeyPatch, counts: tuple[int, int, int], collected: list[int]
) -> None:
    seen: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(gc, "get_count", lambda: counts)
        patched.setattr(gc, "collect", seen.append)
        collect_when_idle()
    assert seen == collected
