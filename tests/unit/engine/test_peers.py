"""Where a worker sends a step of an agent that it does not offer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from celery_agents.worker.engine.claiming import Peers


def facts(**more: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "draining": False, "slots": 10, "running": 0, "queues": ["", "@a"], "agent_queues": {}, "group": "@a",
        "agents": {"clerk": "hash"},
    }  # fmt: skip
    return {**defaults, **more}


def peers(*workers: dict[str, Any]) -> Peers:
    named = {str(number): worker for number, worker in enumerate(workers)}
    store: Any = SimpleNamespace(registry=SimpleNamespace(workers=lambda: named))
    return Peers(store)


def test_a_step_goes_to_the_group_that_offers_its_agent() -> None:
    assert peers(facts(), facts(agents={"other": "h"}, group="@b")).queue_for("clerk", besides="") == "@a"


def test_a_step_goes_to_the_queue_that_its_agent_has_now() -> None:
    moved = facts(queues=["gpu", "@a"], agent_queues={"clerk": "gpu"})
    assert peers(moved).queue_for("clerk", besides="") == "gpu"


def test_no_queue_is_chosen_that_the_step_came_from_or_that_only_draining_or_older_workers_take() -> None:
    for worker in (facts(group="", queues=[""]), facts(draining=True)):
        found = peers(worker)
        assert found.queue_for("clerk", besides="") is None
        assert found.offer("clerk")
    assert peers(facts()).queue_for("clerk", besides="@a") is None


def test_an_agent_that_nobody_offers_has_no_queue() -> None:
    found = peers(facts())
    assert found.queue_for("painter", besides="") is None
    assert not found.offer("painter")


def test_a_group_with_no_free_slot_is_chosen_all_the_same() -> None:
    assert peers(facts(running=10)).queue_for("clerk", besides="") == "@a"


def test_the_registry_is_read_once_a_second_while_it_names_a_queue() -> None:
    reads: list[float] = []
    now = [100.0]

    def workers() -> dict[str, Any]:
        reads.append(now[0])
        return {"one": facts()}

    store: Any = SimpleNamespace(registry=SimpleNamespace(workers=workers))
    found = Peers(store, monotonic=lambda: now[0])
    for moment in (100.0, 100.5, 100.9, 101.0):
        now[0] = moment
        assert found.queue_for("clerk", besides="") == "@a"
    assert reads == [100.0, 101.0]
