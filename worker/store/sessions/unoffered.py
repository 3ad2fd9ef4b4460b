"""Sessions that wait for a worker: no live worker offers their agent.

Such a session stays in the due index. The sweep looks at it once, and again when its grace period is over, by the
setting of the sweeping worker, and parks it then. The shard's index `unoffered` names it with its agent, so that a
worker that registers the agent finds it, parked or not.
"""

from __future__ import annotations

from ..context import SessionScope
from ..control import ControlFields, read_unoffered, unoffered_mark, unoffered_member
from ..database import Command
from ..event_records import EventType, NewEvent
from ..events import event_commands
from ..records import StepRef


def begin_waiting(scope: SessionScope, agent: str, *, since_ms: int, ref: StepRef | None) -> list[Command]:
    """Commands that let a session with a due step wait for a worker that offers its agent.

    Args:
        since_ms: Redis time from which the grace period counts.
        ref: The step that is due; None: nothing is, and nothing waits.
    """
    if ref is None:
        return []
    keys = scope.keys
    event = NewEvent(
        type=EventType.WAITING_FOR_WORKER, execution_id=ref.execution_id, step=ref.step, data={"agent": agent}
    )
    return [
        ("HSET", keys.ctl, "unoffered", unoffered_mark(since_ms, agent), "published", 0, "nudges", 0),
        ("ZADD", keys.shard.unoffered, 0, unoffered_member(agent, scope.session_id)),
        ("ZADD", keys.shard.due, "XX", since_ms + scope.context.due_ms, scope.session_id),
        *event_commands(scope, [event]),
    ]


def end_waiting(scope: SessionScope, control: ControlFields) -> list[Command]:
    """Commands that take a session out of the index of those that wait for a worker; none where it does not wait."""
    _, agent = read_unoffered(control.unoffered)
    if not agent:
        return []
    return [
        ("HDEL", scope.keys.ctl, "unoffered"),
        ("ZREM", scope.keys.shard.unoffered, unoffered_member(agent, scope.session_id)),
    ]
