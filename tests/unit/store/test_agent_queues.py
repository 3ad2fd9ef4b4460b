"""An agent's queue is read from the registry, and remembered for some seconds."""

from __future__ import annotations

from typing import Any

from celery_agents.worker.store import AgentQueues


class Registry:
    """A registry that counts how often it was asked."""

    def __init__(self) -> None:
        self.queues: dict[str, str] = {}
        self.asked = 0

    def queue_for_new(self, agent: str) -> str | None:
        self.asked += 1
        return self.queues.get(agent)

    def agents(self) -> dict[str, Any]:
        return dict(self.queues)


def test_a_queue_is_read_again_after_some_seconds() -> None:
    registry, now = Registry(), [0.0]
    found: Any = AgentQueues(lambda: registry, lambda: now[0])  # type: ignore[arg-type,return-value]
    assert found.queue_of("painter") is None
    registry.queues["painter"] = "gpu"
    assert [found.queue_of("painter") for _ in range(3)] == ["gpu"] * 3
    assert registry.asked == 2
    registry.queues["painter"] = "tpu"
    now[0] = 10.0
    assert found.queue_of("painter") == "tpu"


def test_an_agent_that_was_registered_once_keeps_its_queue() -> None:
    registry, now = Registry(), [0.0]
    registry.queues["painter"] = "gpu"
    found: Any = AgentQueues(lambda: registry, lambda: now[0])  # type: ignore[arg-type,return-value]
    assert found.queue_of("painter") == "gpu"
    registry.queues.clear()
    now[0] = 10.0
    assert found.queue_of("painter") == "gpu"


def test_a_warning_names_the_registered_agents() -> None:
    registry = Registry()
    found: Any = AgentQueues(lambda: registry)  # type: ignore[arg-type,return-value]
    assert "'painter' (registered: none)" in found.describe_unknown("painter")
    registry.queues = {"clerk": "", "buyer": ""}
    assert "(registered: buyer, clerk)" in found.describe_unknown("painter")
