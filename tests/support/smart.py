"""A bench for the smart capabilities: a driver that remembers what it was asked, and workers that die at a point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery_agents.worker import crash_points
from celery_agents.worker.drivers import InferenceRequest, ScriptedDriver
from celery_agents.worker.state import AgentState, Message

from .engine import Bench, WorkerDied


class Asked(ScriptedDriver):
    """A scripted driver that keeps the messages of each request, auxiliary ones apart."""

    def __init__(
        self, answers: Sequence[Any], *, repeat_last: bool = False, auxiliary: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(answers, repeat_last=repeat_last, auxiliary=auxiliary)
        self.requests: list[InferenceRequest] = []
        self.auxiliary: list[InferenceRequest] = []

    def infer(self, request: InferenceRequest) -> bytes:
        (self.auxiliary if request.purpose else self.requests).append(request)
        return super().infer(request)

    @property
    def read(self) -> list[tuple[Message, ...]]:
        """The messages of each request for a step."""
        return [each.messages for each in self.requests]


def run_dying(bench: Bench, session_id: str, point: str, *, at: Sequence[int] = (2, 4)) -> int:
    """Run a session whose workers die when the point is passed for these times; how often it was passed."""
    passed = 0

    def die(name: str) -> None:
        nonlocal passed
        passed += name == point
        if name == point and passed in at:
            raise WorkerDied

    crash_points.install(die)
    try:
        while bench.due(session_id) is not None:
            try:
                bench.step(session_id)
            except WorkerDied:
                bench.clock.go_on(bench.settings.lease_seconds + bench.settings.lease_grace_seconds + 0.1)
    finally:
        crash_points.install(None)
    return passed


def finished(bench: Bench, message: str = "hello") -> AgentState:
    """The state of a session that has run to its end."""
    session_id = bench.submit(message)
    bench.run(session_id, limit=2000)
    return bench.state(session_id)
