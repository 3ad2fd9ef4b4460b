from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

from celery_agents.worker.state import AgentState
from celery_agents.worker.store.bookkeeping import Bookkeeping
from celery_agents.worker.store.cache import CachedSession, SessionCache


def cached(version: int = 1, messages: int = 3) -> CachedSession:
    state = AgentState.fresh()
    for number in range(messages):
        state = state.with_user_message(f"message {number}")
    return CachedSession(version, state, 200 * messages, "agent", Bookkeeping())


def steps(cache: SessionCache, names: Sequence[str], version: int) -> int:
    """A step of each session, in turn: how many of them were cached."""
    found = 0
    for name in names:
        found += cache.latest(name) is not None
        cache.put(name, cached(version))
    return found


def test_of_more_sessions_than_it_holds_that_take_turns_it_keeps_as_many_as_it_can() -> None:
    cache, names = SessionCache(cached().weight * 60), [str(number) for number in range(100)]
    steps(cache, names, 1)
    assert [steps(cache, names, round_) for round_ in range(2, 6)] == [60] * 4, "the least recently used comes next"


def test_sessions_that_grow_beyond_the_limit_leave_one_after_the_other() -> None:
    cache, names = SessionCache(cached(messages=4).weight * 10), [str(number) for number in range(10)]
    found: list[int] = []
    for version in range(1, 12):
        found.append(sum(cache.latest(name) is not None for name in names))
        for name in names:
            if cache.latest(name) is not None or version == 1:
                cache.put(name, cached(version, messages=version))
    assert found[:5] == [0, 10, 10, 10, 10]
    assert found[5:] == sorted(found[5:], reverse=True)
    assert found[-1] >= 3, "of those that are left all is cached"
    assert all(kept is None or kept.version == 11 for kept in map(cache.get, names))


def test_one_that_has_grown_beyond_the_limit_leaves_alone() -> None:
    cache = SessionCache(cached().weight * 4)
    steps(cache, "abc", 1)
    cache.put("a", cached(2, messages=100))
    assert [name for name in "abc" if cache.get(name) is not None] == ["b", "c"]


def test_sessions_that_do_not_come_back_make_room() -> None:
    cache = SessionCache(cached().weight * 50)
    alive = [str(number) for number in range(10)]
    for round_ in range(1, 100):
        steps(cache, alive, round_)
        steps(cache, [f"went elsewhere {round_}"], 1)
    assert steps(cache, alive, 100) == 10
    assert steps(cache, ["new"], 1) == 0
    assert steps(cache, ["new"], 2) == 1


def test_those_that_take_over_are_held_after_a_while() -> None:
    cache = SessionCache(cached().weight * 50)
    for round_ in range(1, 20):
        steps(cache, [f"before {number}" for number in range(60)], round_)
    later = [f"after {number}" for number in range(40)]
    assert steps(cache, later, 1) == 0
    for round_ in range(2, 6):
        steps(cache, later, round_)
    assert steps(cache, later, 6) == 40


def test_an_older_version_does_not_replace_a_newer_one() -> None:
    cache = SessionCache(1_000_000)
    cache.put("a", cached(version=3))
    cache.put("a", cached(version=2))
    found = cache.get("a")
    assert found is not None
    assert found.version == 3


def test_what_is_larger_than_the_cache_is_not_kept_and_zero_keeps_nothing() -> None:
    for cache in (SessionCache(cached().weight - 1), SessionCache(0)):
        cache.put("a", cached())
        assert cache.get("a") is None


def test_the_cache_takes_about_the_memory_it_is_given() -> None:
    limit = 4_000_000
    cache = SessionCache(limit)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(2_000):
            cache.put(f"session-{number}", cached())
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert limit / 4 < after - before < limit * 1.5
