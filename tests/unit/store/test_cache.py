from __future__ import annotations

import tracemalloc

from celery_agents.worker.state import AgentState
from celery_agents.worker.store.cache import Held, SessionCache
from celery_agents.worker.store.standing import Standing


def held(version: int = 1, messages: int = 3) -> Held:
    state = AgentState.fresh()
    for number in range(messages):
        state = state.with_user_message(f"message {number}")
    return Held(version, state, 200 * messages, "agent", Standing())


def test_the_least_recently_used_session_leaves_first() -> None:
    cache = SessionCache(held().weight * 2)
    cache.put("a", held())
    cache.put("b", held())
    assert cache.get("a") is not None
    cache.put("c", held())
    assert [name for name in "abc" if cache.get(name) is not None] == ["a", "c"]


def test_an_older_version_does_not_replace_a_newer_one() -> None:
    cache = SessionCache(1_000_000)
    cache.put("a", held(version=3))
    cache.put("a", held(version=2))
    found = cache.get("a")
    assert found is not None
    assert found.version == 3


def test_what_is_larger_than_the_cache_is_not_kept_and_zero_keeps_nothing() -> None:
    for cache in (SessionCache(held().weight - 1), SessionCache(0)):
        cache.put("a", held())
        assert cache.get("a") is None


def test_the_cache_takes_about_the_memory_it_is_given() -> None:
    limit = 4_000_000
    cache = SessionCache(limit)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(2_000):
            cache.put(f"session-{number}", held())
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert limit / 4 < after - before < limit * 1.5
