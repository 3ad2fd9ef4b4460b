"""Keeping a claim alive, taking its lease back, and giving it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .. import fields
from ..context import SessionScope, StoreContext
from ..control import ControlFields, control_command
from ..database import Command
from ..event_records import EventType, NewEvent
from ..events import event_commands
from ..records import Claim, Renewal, StepRef
from ..transaction_retries import TooManyConflicts

_REASON_CHARS: Final = 500


def renew(context: StoreContext, claims: Sequence[Claim]) -> list[Renewal]:
    """Renew leases in one round trip. See `StepStore.renew`."""
    commands: list[Command] = []
    for claim in claims:
        keys = context.keys(claim.ref.session_id)
        commands.append(context.clock.renew_lease(keys.shard.lease(claim.id), context.lease_ms))
        commands.append(("HMGET", keys.ctl, "cancel", "watched"))
    replies = context.database.pipeline("renew", commands)
    return [
        Renewal(bool(alive), _read_stop(cancel, claim.ref), fields.milliseconds(followed))
        for claim, alive, (cancel, followed) in zip(claims, replies[::2], replies[1::2], strict=True)
    ]


def _read_stop(value: bytes | None, ref: StepRef) -> str | None:
    """The execution, when it is the one that somebody asked to stop."""
    name = fields.text(value)
    return name if name == ref.execution_id else None


def restore(context: StoreContext, claim: Claim) -> bool:
    """Take a lease that ended back, if the claim still stands. See `StepStore.restore`."""
    scope = context.session(claim.ref.session_id)
    try:
        return scope.retry(lambda: _restore(scope, claim), purpose="take a lease back")
    except TooManyConflicts:
        return False


def _restore(scope: SessionScope, claim: Claim) -> bool:
    keys = scope.keys
    with scope.database.watch("restore.read", (keys.ctl,), [("HGET", keys.ctl, "claim")]) as watched:
        if fields.text(watched.replies[0]) != claim.id:
            return False
        lease = scope.clock.start_lease(keys.shard.lease(claim.id), claim.worker, scope.context.lease_ms)
        # Rewriting the claim aborts a rival that has looked but not yet taken it.
        watched.commit("restore.exec", [lease, ("HSET", keys.ctl, "claim", claim.id)])
        return True


def release(
    context: StoreContext, claim: Claim, *, delay_ms: int | None, give_back: bool, reason: str = ""
) -> StepRef | None:
    """Give a claim back. See `StepStore.release`."""
    scope = context.session(claim.ref.session_id)
    reason = reason[:_REASON_CHARS]
    return scope.retry(
        lambda: _release(scope, claim, delay_ms, give_back=give_back, reason=reason), purpose="give a claim back"
    )


def _release(
    scope: SessionScope, claim: Claim, delay_ms: int | None, *, give_back: bool, reason: str
) -> StepRef | None:
    keys, context = scope.keys, scope.context
    with scope.database.watch("release.read", (keys.ctl,), [control_command(keys), scope.clock.now()]) as watched:
        control = ControlFields.read(watched.replies[0])
        now_ms = scope.clock.milliseconds(watched.replies[1])
        if control.claim != claim.id:
            return None
        changed: list[str | int] = ["claim", "", "worker", "", "attempts", max(0, control.attempts - give_back)]
        is_held, ref = control.is_held(now_ms), control.ref(scope.session_id)
        publication: Sequence[Command] = ()
        delay: list[Command] = []
        if delay_ms is None:
            due = now_ms + context.due_ms
            publication = () if is_held else context.publisher.commands(ref, now_ms)
            changed += ["published", 0 if is_held else now_ms]
        else:
            due = now_ms + delay_ms
            changed += ["delays", control.delays + 1, "delayed", control.delayed_ms or now_ms]
            changed += ["not_before", due, "published", 0, "why", reason]
            delay = _delay_commands(scope, claim, due, delays=control.delays + 1, reason=reason)
        if is_held and control.hold is not None:
            due = control.hold.until_ms
        commands: list[Command] = [
            ("HSET", keys.ctl, *changed),
            ("DEL", keys.shard.lease(claim.id)),
            ("ZADD", keys.shard.due, "XX", due, scope.session_id),
            *delay,
        ]
        watched.commit("release.exec", [*commands, *publication])
        return ref if delay_ms is None and not publication and not is_held else None


def _delay_commands(scope: SessionScope, claim: Claim, next_try_ms: int, *, delays: int, reason: str) -> list[Command]:
    """The commands that tell readers and operators that a step was delayed, why, and until when."""
    event = NewEvent(
        type=EventType.STEP_DELAYED,
        execution_id=claim.ref.execution_id,
        step=claim.ref.step,
        data={"reason": reason, "next_try_ms": next_try_ms, "delays": delays},
    )
    return [("ZADD", scope.keys.shard.delayed, next_try_ms, scope.session_id), *event_commands(scope, [event])]
