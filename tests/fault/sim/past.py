"""The state at each step, read at the end of a run, against the head that the step's commit had stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_agents.worker.errors import CeleryAgentsError
from celery_agents.worker.state.codec.join import read_head
from celery_agents.worker.state.codec.split import head_json
from celery_agents.worker.store.sessions.past_reads import StepAddress

if TYPE_CHECKING:
    from .simulation import Simulation


def check_past(sim: Simulation, session: str) -> None:
    """Note each step whose state is not what was committed."""
    for (of, execution, step), head in sim.history.heads.items():
        committed = read_head(head)
        present = committed.state.execution
        if of != session or present is None or present.execution_id != execution:
            continue  # the same commit has begun the next execution
        try:
            found = read_head(head_json(sim.client.sessions.state_at(session, StepAddress(step, execution))))
        except CeleryAgentsError as error:
            sim.world.expect(False, "past", f"{execution}.{step} cannot be read: {error}")
            continue
        sim.world.expect(found == committed, "past", f"{execution}.{step} is not read as it was committed")
