"""Waking a session: the one way in which an answer, a stop or a resume lets its step go on.

    phase run · not before 0 · nudges 0 · published · ZADD due · the step's message

It is part of the transaction that is its cause, so a wake-up is never lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .context import SessionScope
from .control import ControlFields
from .database import Command
from .event_records import EventType, NewEvent
from .events import event_commands
from .records import StepRef


@dataclass(frozen=True, slots=True)
class WakeUp:
    """A session that is woken.

    Attributes:
        commands: To be run in the transaction of the cause, which watches the control fields.
        publish: A step to publish, where the commands could not.
    """

    commands: list[Command]
    publish: StepRef | None


def wake(scope: SessionScope, control: ControlFields, now_ms: int, data: Mapping[str, Any]) -> WakeUp:
    """Let the step of a session that has no claim go on at once, whether it waits or was delayed.

    Args:
        data: Of the event `execution_resumed`, which is written for a session that waits: its cause, and by whom.
    """
    keys, ref = scope.keys, control.ref(scope.session_id)
    publication = scope.context.publisher.commands(ref, now_ms)
    commands: list[Command] = [
        ("HSET", keys.ctl, "phase", "run", "not_before", 0, "nudges", 0, "published", now_ms),
        # Without XX: whatever stands there, it is brought forward.
        ("ZADD", keys.shard.due, now_ms + scope.context.due_ms, scope.session_id),
        *publication,
    ]
    if control.phase == "wait":
        commands += resumed_event(scope, control, data)
    return WakeUp(commands, None if publication else ref)


def resumed_event(scope: SessionScope, control: ControlFields, data: Mapping[str, Any]) -> list[Command]:
    """The event that a step goes on which waited or was held."""
    event = NewEvent(type=EventType.EXECUTION_RESUMED, execution_id=control.execution, step=control.step, data=data)
    return event_commands(scope, [event])
