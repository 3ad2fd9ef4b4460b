"""Claimed steps whose waits pass on the clock of their bench, for parts of the engine that are asked by themselves."""

from __future__ import annotations

from dataclasses import replace

from celery_agents.worker.agent import AgentRegistry
from celery_agents.worker.engine.claiming import StepClaimer
from celery_agents.worker.engine.leases import ActiveLease, Interruption
from celery_agents.worker.engine.run import Run
from celery_agents.worker.engine.sticky import StickySessions

from support.engine import Bench, StillClock


class StillLease(ActiveLease):
    """A lease that waits on a still clock.

    Attributes:
        waited: The seconds of each wait.
        interrupts_waits: A stop comes in the next wait.
    """

    def __init__(self, of: ActiveLease, clock: StillClock) -> None:
        super().__init__(of.claim, of.renewed_at, of.deadline)
        self.budget_ends = of.budget_ends
        self.waited: list[float] = []
        self.interrupts_waits = False
        self._clock = clock

    def wait(self, seconds: float, *, by_cut: bool) -> bool:
        del by_cut
        self.waited.append(seconds)
        self._clock.go_on(seconds)
        if self.interrupts_waits:
            self.interrupt(Interruption.CANCEL, self._clock.monotonic())
        return self.interrupts_waits


def claim_run(bench: Bench, session_id: str | None = None) -> tuple[Run, StillLease]:
    """Claim the step of a session that is due, a new session's where none is given."""
    ref = bench.due(session_id or bench.submit())
    assert ref is not None, "no step is due"
    services = bench.gate._services
    sticky = StickySessions(bench.settings, bench.clock.monotonic)
    run = StepClaimer(services, AgentRegistry(bench.agents), sticky, worker="worker").claim_step(ref, alone=True)
    assert isinstance(run, Run), run
    lease = StillLease(run.lease, bench.clock)
    return replace(run, lease=lease), lease
