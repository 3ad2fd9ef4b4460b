"""The runtime of a worker process ends whatever becomes of its parts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_agents.tasks.runtime import Runtime
from celery_agents.worker.agent import Agent
from celery_agents.worker.capability import Capability, CommittedStep
from celery_agents.worker.drivers import ScriptedDriver

closed: list[str] = []


@dataclass(frozen=True)
class Closing(Capability):
    """Notes that it was closed, or raises."""

    error: BaseException | None = None

    def committed(self, step: CommittedStep) -> None:
        """Take no note."""

    def close(self, seconds: float) -> None:
        if self.error is not None:
            raise self.error
        closed.append(self.name)


def runtime_with(agents: Sequence[Agent]) -> Runtime:
    made = cast("Any", Runtime.__new__(Runtime))
    part = SimpleNamespace(close=lambda: None)
    for name in ("_wake_ups", "callbacks", "schedules", "keeper", "live", "connections", "_own_loop", "observers"):
        setattr(made, name, part)
    made.agents = agents
    return cast("Runtime", made)


@pytest.mark.parametrize("error", [OSError("no space"), SystemExit(3)])
def test_a_capability_that_cannot_be_closed_keeps_no_other_from_it(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    closed.clear()
    agents = [
        Agent("a", driver=ScriptedDriver(["done"]), capabilities=[Closing(error)]),
        Agent("b", driver=ScriptedDriver(["done"]), capabilities=[Closing()]),
    ]
    with caplog.at_level(logging.WARNING):
        runtime_with(agents).close()
    assert closed == ["Closing"]
    assert "capability Closing was not closed" in caplog.text
