"""Where the messages of a session are at the end of a run, and what must be true of those that are queued."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_agents.worker.state import AgentState
from celery_agents.worker.store.queued_messages import UNDELIVERED

if TYPE_CHECKING:
    from .simulation import Simulation


@dataclass(frozen=True)
class Places:
    """Messages that no execution has, by their operations: those that are queued, and those that were taken back."""

    queued: tuple[str, ...]
    undelivered: tuple[str, ...]

    @property
    def elsewhere(self) -> frozenset[str]:
        """All of them."""
        return frozenset((*self.queued, *self.undelivered))


def find_places(sim: Simulation, session: str, state: AgentState, steps: dict[str, list[Any]]) -> Places:
    """Find the messages of a session that has come to rest, and check the order of those that were queued."""
    world, store = sim.world, sim.client
    waits = store.sessions.read_waiting(session)
    queue, waiting = waits.queue, waits.inbox
    is_idle = state.execution is None or state.execution.status.is_terminal()
    world.expect(not (is_idle and waiting), "I8", f"{session} is idle, and its inbox holds {waiting}")
    world.expect(not queue.messages or bool(queue.held), "I8", f"{session} has a queue that nothing holds")
    world.expect(bool(queue.messages) or not queue.held, "I8", f"{session} holds an empty queue")
    sent = [action for action in sim.actions if action.session == session]
    joined = {action.operation: store.sessions.read_joined(session, action.operation) for action in sent}
    moved = {action.target for action in sent if action.kind.startswith("mode")}
    stayed = [a for a in sent if a.kind == "queue" and a.operation not in moved and joined[a.operation] in steps]
    homes = [joined[action.operation] for action in stayed]
    world.expect(len(homes) == len(set(homes)), "I8", f"{session}: queued messages share executions: {homes}")
    world.tally.answers["followed from the queue"] += len(homes)
    _check_holds(sim, session)
    undelivered = tuple(name for name, found in joined.items() if found.startswith(UNDELIVERED))
    return Places(tuple(each.id for each in queue.messages), undelivered)


def _check_holds(sim: Simulation, session: str) -> None:
    """No message of a held queue starts an execution before a release or a retry, by what the events tell."""
    if sim.client.context.keys(session).events in sim.history.trimmed:
        return
    queued: set[str] = set()
    held: set[str] = set()
    for event in sim.client.sessions.events(session, limit=5000):
        operation, placed = str(event.data.get("operation", "")), event.data.get("placed")
        if event.type == "queue_held":
            held = set(queued)
        elif event.type in ("queue_released", "step_retried"):
            held = set()
        elif event.type == "message_received" and placed in ("queued", "held"):
            queued.add(operation)
            held |= {operation} if placed == "held" else set()
        elif event.type in ("message_received", "message_undelivered", "message_joined"):
            promoted = any(a.kind == "mode steer" and a.target == operation for a in sim.actions)
            is_wrong = event.type == "message_joined" and operation in held and not promoted
            sim.world.expect(not is_wrong, "I8", f"{operation} has started although the queue was held")
            queued.discard(operation)
            held.discard(operation)
