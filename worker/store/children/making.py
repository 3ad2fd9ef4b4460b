"""Making children: the commands that create them, in the transaction of the wait that asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ...state.execution.children import ParentLink
from ...state.execution.requests import Request
from ..bookkeeping import Bookkeeping
from ..context import StoreContext
from ..database import Command
from ..event_records import EventType, NewEvent
from ..records import NextState, StepRef
from ..sessions.saving import SessionSave
from ..waking import begin_waiting


@dataclass(frozen=True, slots=True)
class NewChild:
    """A child to be made.

    Attributes:
        request: The request of its parent that it answers.
        link: Its place in the tree, as its session keeps it.
        queue: Name of its agent's queue, "" for the common one; None: no worker has registered the agent.
        start: Makes its first state of Redis's time (ms).
        lane: That of its parent; "" for none.
    """

    request: Request
    link: ParentLink
    queue: str | None
    start: Callable[[int], NextState]
    lane: str = ""

    @property
    def session_id(self) -> str:
        """The id of the child."""
        assert self.request.child is not None
        return self.request.child.session_id


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """The part of a wait that concerns children.

    Attributes:
        new: Children to be made.
        is_ending: The execution ends, and waits only for children that were asked to stop: a stop does not hinder it.
        waits_for_all: Nothing can be done before all open children have ended: only the last end wakes the step.
    """

    new: Sequence[NewChild] = ()
    is_ending: bool = False
    waits_for_all: bool = False


NO_CHILDREN: Final = ChildPlan()


@dataclass(frozen=True, slots=True)
class MadeChild:
    """The commands that create a child.

    Attributes:
        event: For the watchers of its parent.
        publish: Its first step, where the commands could not publish it.
    """

    commands: list[Command]
    event: NewEvent
    publish: StepRef | None


def make(context: StoreContext, child: NewChild, now_ms: int) -> MadeChild:
    """Make the commands that create a child with its first execution. Its session must not exist."""
    scope, order = context.session(child.session_id), child.request.child
    assert order is not None
    next_state = child.start(now_ms)
    save = SessionSave(
        scope=scope,
        before=None,
        next_state=next_state,
        bookkeeping=Bookkeeping(parent=child.link.to_json()),
        version=1,
        now_ms=now_ms,
        extra=(
            "agent", order.agent, "fingerprint", "", "first", order.execution_id, "created", now_ms,
            "parent", child.link.to_json(),
        ),
        queue=child.queue,
        lane=child.lane,
    ).prepare()  # fmt: skip
    commands = [*save.commands, ("ZADD", scope.keys.shard.children, 0, scope.session_id)]
    if child.queue is None:
        commands += begin_waiting(scope, order.agent, since_ms=now_ms, ref=save.next)
    has_message = save.is_published or child.queue is None
    return MadeChild(commands, _event(child), None if has_message else save.next)


def _event(child: NewChild) -> NewEvent:
    request, order = child.request, child.request.child
    assert order is not None
    data = {
        "session": order.session_id,
        "execution": order.execution_id,
        "agent": order.agent,
        "tool": request.tool,
        "depth": order.depth,
    }
    return NewEvent(type=EventType.CHILD_STARTED, execution_id=request.execution_id, step=request.step, data=data)
