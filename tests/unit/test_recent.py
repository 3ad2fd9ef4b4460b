"""Caches of a fixed size."""

from celery_agents.worker.recent import Recent


def test_the_value_that_was_used_longest_ago_makes_room():
    recent = Recent[str, int](2)
    assert recent.get("a") is None
    assert (recent.put("a", 1), recent.put("b", 2)) == (1, 2)
    assert (recent.get("a"), recent.get("b"), len(recent)) == (1, 2, 2)
    recent.get("a")
    recent.put("c", 3)
    assert [recent.get(key) for key in "abc"] == [1, None, 3]
    recent.put("a", 4)
    recent.put("d", 5)
    assert [recent.get(key) for key in "acd"] == [4, None, 5]


def test_a_value_is_forgotten():
    recent = Recent[str, int | None](2)
    recent.put("a", 1)
    recent.drop("a")
    recent.drop("b")
    assert (recent.get("a"), len(recent)) == (None, 0)
