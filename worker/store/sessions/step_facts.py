"""Reading what a session's next step waits for: who has it, and until when it is delayed."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import StateUnreadable
from .. import fields
from ..context import StoreContext
from ..database import Command, Reply
from ..keys import ShardKeys
from ..session_records import DelayedStep, StepFacts
from .marks import missing_error

_FACTS = (
    "execution",
    "step",
    "phase",
    "claim",
    "worker",
    "attempts",
    "delays",
    "not_before",
    "cancel",
    "why",
)
_DELAY = ("step", "phase", "claim", "delays", "not_before", "why")


def step_facts(context: StoreContext, session_id: str) -> StepFacts:
    """Read what the session's next step waits for.

    Raises:
        SessionNotFound: There is no such session, or it has expired.
        StateUnreadable: Its control fields are damaged.
    """
    scope = context.session(session_id)
    keys = scope.keys
    reads: list[Command] = [
        ("HMGET", keys.ctl, *_FACTS),
        ("ZSCORE", keys.shard.due, session_id),
        scope.clock.now(),
    ]
    control, due, now = context.database.pipeline("facts.read", reads)
    execution, step, phase, claim, worker, attempts, delays, not_before, cancel, why = control
    if execution is None:
        raise missing_error(context, session_id)
    lease_ms = _lease_ms(context, session_id, fields.text(claim))
    return StepFacts(
        execution_id=fields.text(execution),
        step=fields.number(step),
        phase=fields.text(phase),
        claimed=bool(claim),
        worker=fields.text(worker),
        lease_ms=lease_ms,
        attempts=fields.number(attempts),
        delays=fields.number(delays),
        not_before_ms=fields.milliseconds(not_before),
        due_ms=None if due is None else fields.score_ms(due),
        reason=fields.text(why) if fields.number(delays) else "",
        now_ms=scope.clock.milliseconds(now),
        is_stopping=bool(cancel) and cancel == execution,
    )


def delayed_steps(context: StoreContext, limit: int) -> list[DelayedStep]:
    """Read the delayed steps that are not due yet, the next try first."""
    found: list[DelayedStep] = []
    for shard in context.shards:
        (now_reply,) = context.database.pipeline("delayed.now", [context.clock.now()])
        now_ms = context.clock.milliseconds(now_reply)
        command: Command = ("ZRANGEBYSCORE", shard.delayed, now_ms, "+inf", "WITHSCORES", "LIMIT", 0, limit)
        (reply,) = context.database.pipeline("delayed.read", [command])
        # An entry that is no text is none of ours; `inspection` names it.
        session_ids = [name for entry in reply[::2] if (name := fields.name(entry)).encode() == entry]
        entries = zip(session_ids, _read_delays(context, shard, session_ids), strict=True)
        steps = (_delayed_step(session_id, control, now_ms) for session_id, control in entries if control is not None)
        found += [step for step in steps if step is not None]
    return sorted(found, key=lambda entry: entry.next_try_ms)[:limit]


def _read_delays(context: StoreContext, shard: ShardKeys, session_ids: Sequence[str]) -> list[Sequence[Reply] | None]:
    """Read the control fields of steps that were delayed; None for a session whose key is of another type."""
    reads: list[Command] = [("HMGET", shard.session(session_id).ctl, *_DELAY) for session_id in session_ids]
    try:
        return context.database.pipeline("delayed.why", reads) if reads else []
    except StateUnreadable:  # of one session, and the others are to be seen
        if len(session_ids) == 1:
            return [None]
        return [control for each in session_ids for control in _read_delays(context, shard, [each])]


def _delayed_step(session_id: str, control: Sequence[Reply], now_ms: int) -> DelayedStep | None:
    """A delayed step from its control fields; None where a stop or another end came first."""
    step, phase, claim, delays, not_before, why = control
    try:
        next_try_ms = fields.milliseconds(not_before)
        if fields.text(phase) != "run" or claim or not fields.number(delays) or next_try_ms <= now_ms:
            return None
        return DelayedStep(
            session_id=session_id,
            step=fields.number(step),
            reason=fields.text(why),
            next_try_ms=next_try_ms,
            delays=fields.number(delays),
        )
    except StateUnreadable:
        return None


def _lease_ms(context: StoreContext, session_id: str, claim: str) -> int | None:
    if not claim:
        return None
    (left,) = context.database.pipeline("facts.lease", [("PTTL", context.keys(session_id).shard.lease(claim))])
    return None if left == -2 else max(0, left)
