"""Waking a session: the one way in which an answer, a stop or a resume lets its step continue.

    phase run · not before 0 · nudges 0 · published · ZADD due · the step's message

It is part of the transaction that is its cause, so a wake-up is never lost.

A session whose agent no live worker offers waits for a worker. It stays in the due index: the sweep looks at it once,
and again when its grace period is over, by the setting of the sweeping worker, and parks it then. The shard's index
`unoffered` names it with its agent, so that a worker that registers the agent finds it, parked or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .context import SessionScope
from .control import ControlFields, read_unoffered, unoffered_mark, unoffered_member
from .database import Command
from .event_records import EventType
from .events import tell
from .records import StepRef


@dataclass(frozen=True, slots=True)
class WakeUp:
    """The commands that wake a session, or that leave it an answer which it needs later.

    Attributes:
        commands: To be run in the transaction of the cause, which watches the control fields.
        publish: A step to publish, where the commands could not.
    """

    commands: list[Command]
    publish: StepRef | None = None


def wake(
    scope: SessionScope,
    control: ControlFields,
    now_ms: int,
    data: Mapping[str, Any],
    *,
    publication: Sequence[Command] = (),
) -> WakeUp:
    """Let the step of a session that has no claim continue at once, whether it waits, was delayed or put off.

    Args:
        data: Of the event `execution_resumed`, which is written for a session that waits: its cause, and by whom.
        publication: Commands that publish the step, where it does not go to the end of its queue.
    """
    keys, ref = scope.keys, control.ref(scope.session_id)
    publication = publication or scope.context.publisher.commands(ref, now_ms)
    commands: list[Command] = [
        (
            "HSET", keys.ctl, "phase", "run", "not_before", 0, "nudges", 0, "published", now_ms,
            "delayed", control.tried_since_ms(now_ms),
        ),
        # Without XX: whatever is there, it is brought forward.
        ("ZADD", keys.shard.due, now_ms + scope.context.due_ms, scope.session_id),
        *publication,
    ]  # fmt: skip
    if control.put_off and control.not_before_ms > now_ms:
        commands += [("HSET", keys.ctl, "put_off", ""), ("ZREM", keys.shard.delayed, scope.session_id)]
    if control.phase == "wait":
        commands += resumed_event(scope, control, data)
    return WakeUp(commands, None if publication else ref)


def resumed_event(scope: SessionScope, control: ControlFields, data: Mapping[str, Any]) -> list[Command]:
    """The event of a step that continues after a wait or a hold."""
    return tell(scope, control.ref(scope.session_id), EventType.EXECUTION_RESUMED, data)


def begin_waiting(scope: SessionScope, agent: str, *, since_ms: int, ref: StepRef | None) -> list[Command]:
    """Commands that let a session with a due step wait for a worker that offers its agent.

    Args:
        since_ms: Redis time from which the grace period counts.
        ref: The step that is due; None: nothing is, and nothing waits.
    """
    if ref is None:
        return []
    keys = scope.keys
    return [
        ("HSET", keys.ctl, "unoffered", unoffered_mark(since_ms, agent), "published", 0, "nudges", 0),
        ("ZADD", keys.shard.unoffered, 0, unoffered_member(agent, scope.session_id)),
        ("ZADD", keys.shard.due, "XX", since_ms + scope.context.due_ms, scope.session_id),
        *tell(scope, ref, EventType.WAITING_FOR_WORKER, {"agent": agent}),
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
