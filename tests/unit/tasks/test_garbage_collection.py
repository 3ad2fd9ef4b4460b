"""The collector runs rarely in a worker."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from celery_agents.tasks.consumer.garbage_collection import collect_rarely


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
    gc.set_threshold(*before)


@pytest.mark.usefixtures("rarely")
@pytest.mark.parametrize(("count", "is_found"), [(100_000, False), (210_000, True)])
def test_a_cycle_is_found_after_two_hundred_thousand_new_objects(count: int, is_found: bool) -> None:
    cycle = weakref.ref(Node())
    kept: list[object] = [[] for _ in range(count)]
    assert (cycle() is None) is is_found
    assert len(kept) == count
