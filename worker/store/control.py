"""The control fields of a session: which step is due, who has claimed it, and what holds it back.

A hold is stored in `held` and its companions, a changed budget in `budget`, a message that interrupts a step in
`interrupt`. Each leaves a mark in `cancel` as well: the scripts of claims and commits compare `cancel`, so an ordinary
step needs no further word to learn that there is none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pydantic import ValidationError

from ..errors import StateUnreadable
from ..state.execution.budget import ExecutionBudget
from . import fields
from .database import Command, Reply
from .keys import SessionKeys
from .records import Hold, StepRef

_TIME_DIGITS: Final = 15
HELD_MARK: Final = "!held"
"""The value of `cancel` in a held session without a requested stop. No execution has such an id."""
BUDGET_MARK: Final = "!budget"
"""The value of `cancel` where only a changed budget waits for the next commit."""
INTERRUPT_MARK: Final = "!interrupt"
"""The value of `cancel` where only a message that interrupts the step waits."""
QUEUE_HELD: Final = "next_held"
"""The control field with the reason why the queue of messages is held; removed where it is not."""
HOLD_FIELDS: Final = ("held", "held_by", "held_why", "held_since")
"""The control fields of a hold; any end of the execution removes them."""
LONGEST_WAIT_MS: Final = 30 * 24 * 3600 * 1000
"""A session that waits or is held is due after this time at the latest: it waits again, or its hold ends."""
UNCLAIMED: Final = {"claim": "", "phase": "run", "attempts": 0, "delays": 0, "not_before": 0, "cancel": ""}
"""The control fields of a step that no worker has begun, besides execution and step."""


@dataclass(frozen=True, slots=True)
class ControlFields:
    """The control hash of a session; an empty `execution` where there is no session.

    Attributes:
        phase: "run", "wait", "end" or "parked".
        attempts: Claims of the step so far.
        delays: How often the step was delayed; `delayed_ms` says since when (Redis ms, 0 never).
        cancel: The execution that was asked to stop.
        started_ms: When the execution was claimed first; 0 never.
        queue: Name of the queue for the session's step messages; "" is the common one.
        lane: The lane of the session's steps, see `worker.flow.shares.lane_of`; "" for none.
        unoffered: While no live worker offers the session's agent: since when, and the agent. See `unoffered_mark`.
        retries: How often the execution was retried.
        legs: How often the step has waited.
        tasks: Of a child: the Celery tasks at the root of its tree and above it, see `tasks_above`.
        hold: The hold of a suspended session; None: it is not suspended.
        followed_until_ms: Redis time until which a client follows the session's live text; 0: none does.
        live: The mark of the attempt whose live text is stored; see `live_mark`.
        worker: The worker that has claimed the step, dead or alive; "" without a claim.
        put_off: The bucket's digest or the `Pause.field` by which the step was put off at its last delay; "" for none.
        budget: The changed budget that no save has taken into the state yet, as `budget_field` stores it; "" for none.
        queue_held: Why the queue of messages is held; "": it is not.
        interrupt: The step that a message interrupts, as `interrupt_field` stores it; "" for none.
        yields: Whether a message may close a request of the step that waits, or has waited.
    """

    execution: str
    step: int
    claim: str
    phase: str
    attempts: int
    delays: int
    delayed_ms: int
    not_before_ms: int
    cancel: str
    started_ms: int
    queue: str = ""
    lane: str = ""
    unoffered: str = ""
    retries: int = 0
    legs: int = 0
    tasks: str = ""
    hold: Hold | None = None
    followed_until_ms: int = 0
    live: str = ""
    worker: str = ""
    put_off: str = ""
    budget: str = ""
    queue_held: str = ""
    interrupt: str = ""
    yields: bool = False

    @classmethod
    def read(cls, reply: Reply) -> ControlFields:
        """Parse the reply to `control_command`."""
        values: dict[str, Any] = {name: parse(value) for (name, parse), value in zip(_ATTRIBUTES, reply, strict=False)}
        return cls(**values, hold=read_hold(reply[len(_ATTRIBUTES) :]))

    def tried_since_ms(self, now_ms: int) -> int:
        """Since when the step is tried (Redis ms), seen from its claim or its wake-up; 0: it was not delayed.

        The time in which it was due and nobody ran it does not count, nor what is left of the time it was put off for.
        """
        idle_ms = now_ms - self.not_before_ms if self.not_before_ms else 0
        if not self.delayed_ms or (idle_ms < 0 and not self.put_off):
            return self.delayed_ms
        return max(1, self.delayed_ms + idle_ms)

    @property
    def requested_stop(self) -> str | None:
        """The execution, when it was asked to stop."""
        return self.cancel if self.cancel and self.cancel == self.execution else None

    @property
    def changed_budget(self) -> ExecutionBudget | None:
        """The budget that was set since the last save; None: that of the state holds.

        Raises:
            StateUnreadable: It is damaged.
        """
        return find_budget(self.budget, self.execution) if self.budget else None

    @property
    def is_interrupted(self) -> bool:
        """Whether a message waits that interrupts the step."""
        return bool(self.interrupt) and self.interrupt == interrupt_field(self.execution, self.step)

    @property
    def has_waited(self) -> bool:
        """Whether the step waits, or has waited before."""
        return self.phase == "wait" or self.legs > 0

    def ref(self, session_id: str) -> StepRef:
        """The step that the session waits for, as its messages name it."""
        root_task, _, parent_task = self.tasks.partition(" ")
        return StepRef(
            session_id,
            self.execution,
            self.step,
            retries=self.retries,
            legs=self.legs,
            queue=self.queue,
            lane=self.lane,
            root_task=root_task,
            parent_task=parent_task if self.step == 1 else "",
        )

    def is_held(self, now_ms: int) -> bool:
        """Whether nothing may begin because of a hold: its time is not over, and no stop was requested."""
        return self.hold is not None and now_ms < self.hold.until_ms and self.requested_stop is None

    def is_at(self, ref: StepRef) -> bool:
        """Whether this step is the next one."""
        return (self.execution, self.step) == (ref.execution_id, ref.step)

    def is_claimed_by(self, claim_id: str, ref: StepRef) -> bool:
        """Whether the session has this claim of this step."""
        return self.claim == claim_id and self.is_at(ref)


_PARSERS: Final[Mapping[str, tuple[str, Callable[[bytes | None], Any]]]] = {
    "execution": ("execution", fields.text),
    "step": ("step", fields.number),
    "claim": ("claim", fields.text),
    "phase": ("phase", fields.text),
    "attempts": ("attempts", fields.number),
    "delays": ("delays", fields.number),
    "delayed": ("delayed_ms", fields.milliseconds),
    "not_before": ("not_before_ms", fields.milliseconds),
    "cancel": ("cancel", fields.text),
    "started": ("started_ms", fields.milliseconds),
    "queue": ("queue", fields.text),
    "lane": ("lane", fields.text),
    "unoffered": ("unoffered", fields.text),
    "retries": ("retries", fields.number),
    "legs": ("legs", fields.number),
    "tasks": ("tasks", fields.text),
    "watched": ("followed_until_ms", fields.milliseconds),
    "live": ("live", fields.text),
    "worker": ("worker", fields.text),
    "put_off": ("put_off", fields.text),
    "budget": ("budget", fields.text),
    QUEUE_HELD: ("queue_held", fields.text),
    "interrupt": ("interrupt", fields.text),
    "yields": ("yields", bool),
}
"""Attribute and parser of each field, besides those of a hold."""
_ATTRIBUTES: Final = tuple(_PARSERS.values())
_FIELDS: Final = (*_PARSERS, *HOLD_FIELDS)


def tasks_above(root_task: str, parent_task: str) -> str:
    """The value of the field `tasks`: the ids of two Celery tasks with a blank between them."""
    return f"{root_task} {parent_task}"


def live_mark(step: int, legs: int, claim_id: str) -> str:
    """The value of the field `live`: the attempt whose live text is stored."""
    return f"{step} {legs} {claim_id}"


def abandoned_attempt(control: ControlFields, claim_id: str) -> str | None:
    """The claim that has written live text of this step and leg and has ended without its commit; None without one."""
    writer = control.live.removeprefix(live_mark(control.step, control.legs, ""))
    return writer if writer not in (control.live, claim_id) and writer else None


def unoffered_mark(since_ms: int, agent: str) -> str:
    """The value of the field `unoffered`: the time (Redis ms), a blank, and the agent's name."""
    return f"{since_ms} {agent}"


def read_unoffered(mark: str) -> tuple[int, str]:
    """Read since when (Redis ms) a session waits for a worker, and for which agent; (0, "") where it does not."""
    since, _, agent = mark.partition(" ")
    return (int(since), agent) if since.isdecimal() and len(since) <= _TIME_DIGITS else (0, "")


def unoffered_member(agent: str, session_id: str) -> str:
    """The member of the index of sessions that wait for a worker: in the order of the agents' names."""
    return f"{agent} {session_id}"


def read_hold(reply: Sequence[bytes | None]) -> Hold | None:
    """Parse the values of `HOLD_FIELDS`; None where the session is not held."""
    until, by, why, since = reply
    if not until:
        return None
    return Hold(
        until_ms=fields.milliseconds(until),
        by=fields.text(by),
        reason=fields.text(why),
        since_ms=fields.milliseconds(since),
    )


def hold_commands(keys: SessionKeys, hold: Hold) -> list[Command]:
    """Commands that hold a session."""
    values = (hold.until_ms, hold.by, hold.reason, hold.since_ms)
    words = [word for pair in zip(HOLD_FIELDS, values, strict=True) for word in pair]
    return [("HSET", keys.ctl, *words, "cancel", HELD_MARK)]


def budget_field(execution_id: str, budget: ExecutionBudget) -> str:
    """The value of the field `budget`. It names its execution: whatever stays behind binds no later one."""
    return f"{execution_id} {budget.to_json().decode()}"


def find_budget(field: str, execution_id: str) -> ExecutionBudget | None:
    """Parse the field `budget`; None where it is of another execution.

    Raises:
        StateUnreadable: It is damaged.
    """
    execution, _, budget = field.partition(" ")
    if execution != execution_id:
        return None
    try:
        return ExecutionBudget.from_json(budget.encode())
    except ValidationError:
        raise StateUnreadable("budget", "it is no budget") from None


def budget_commands(keys: SessionKeys, control: ControlFields, budget: ExecutionBudget) -> list[Command]:
    """Commands that change the budget of the execution that runs or waits."""
    marked = () if control.cancel else ("cancel", BUDGET_MARK)
    return [("HSET", keys.ctl, "budget", budget_field(control.execution, budget), *marked)]


def interrupt_field(execution_id: str, step: int) -> str:
    """The value of the field `interrupt`. It names its step: whatever stays behind interrupts no later one."""
    return f"{execution_id} {step}"


def interrupt_commands(keys: SessionKeys, control: ControlFields) -> list[Command]:
    """Commands that mark the present step as interrupted by a message."""
    marked = ("cancel", INTERRUPT_MARK) if control.cancel in ("", INTERRUPT_MARK) else ()
    return [("HSET", keys.ctl, "interrupt", interrupt_field(control.execution, control.step), *marked)]


def forget_changes(keys: SessionKeys, control: ControlFields, *names: Literal["budget", "interrupt"]) -> list[Command]:
    """Commands that remove a changed budget, or an interruption, which holds no longer; none where there is none."""
    gone = [name for name in names if getattr(control, name)]
    if not gone:
        return []
    commands: list[Command] = [("HDEL", keys.ctl, *gone)]
    if control.cancel in (BUDGET_MARK, INTERRUPT_MARK):
        commands.append(("HSET", keys.ctl, "cancel", mark_without_hold(replace(control, **dict.fromkeys(gone, "")))))
    return commands


def mark_without_hold(control: ControlFields) -> str:
    """The value of `cancel` that is left when a hold ends and no stop is requested."""
    if control.budget:
        return BUDGET_MARK
    return INTERRUPT_MARK if control.is_interrupted else ""


def forget_waiting(keys: SessionKeys, *, legs: int, held: bool) -> list[Command]:
    """Commands that remove what waiting and holding have left in the control fields; none after an ordinary step.

    Args:
        legs: How often the step has waited.
        held: The session was held, and its execution ends.
    """
    names = (["legs", "rest", "yields"] if legs else []) + ([*HOLD_FIELDS] if held else [])
    return [("HDEL", keys.ctl, *names)] if names else []


def control_command(keys: SessionKeys) -> Command:
    """The command whose reply `ControlFields.read` takes."""
    return ("HMGET", keys.ctl, *_FIELDS)
