"""Keeping a claim alive, taking its lease back, and giving it back: at once, later, or to another worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from ...errors import StateUnreadable
from ...flow.values import AT_PROVIDER
from ...state.execution.budget import ExecutionBudget
from .. import fields
from ..context import SessionScope, StorePart, TooManyConflicts
from ..control import ControlFields, control_command, find_budget, interrupt_field
from ..database import Command, Guard, SlotAway
from ..event_records import EventType
from ..events import attempt_of, tell
from ..flow.forwarding import look_again
from ..records import Claim, StepRef
from ..waking import begin_waiting

_REASON_CHARS: Final = 500
_NOTHING_MORE: Final[Mapping[str, str | bool]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer to a heartbeat for one claim; what else it has is as in `LoadedSession`."""

    alive: bool
    cancel: str | None
    followed_until_ms: int = 0
    budget: ExecutionBudget | None = None
    is_interrupted: bool = False


class LeaseVerbs(StorePart):
    """Keeping claims and giving them back."""

    def renew(self, claims: Sequence[Claim]) -> list[Renewal | None]:
        """Renew the leases of claims of one server, in one round trip; the answers are in their order.

        None: The slot of the claim moves to another node of a cluster; ask again.
        """
        try:
            return [*self._renew(claims)]
        except SlotAway:
            if len(claims) == 1:
                return [None]
            return [each for claim in claims for each in self.renew([claim])]

    def _renew(self, claims: Sequence[Claim]) -> list[Renewal]:
        context, commands = self._context, list[Command]()
        for claim in claims:
            keys = context.keys(claim.ref.session_id)
            commands.append(context.clock.renew_lease(keys.shard.lease(claim.id), context.lease_ms))
            commands.append(("HMGET", keys.ctl, "cancel", "watched", "budget", "interrupt"))
        replies = context.database.pipeline("renew", commands)
        return [
            Renewal(
                alive=bool(alive),
                cancel=_read_stop(cancel, claim.ref),
                followed_until_ms=fields.milliseconds(followed),
                budget=_read_budget(budget, claim.ref),
                is_interrupted=fields.text(interrupt) == interrupt_field(claim.ref.execution_id, claim.ref.step),
            )
            for claim, alive, (cancel, followed, budget, interrupt) in zip(
                claims, replies[::2], replies[1::2], strict=True
            )
        ]

    def place(self, claim: Claim) -> str:
        """Name the server that has the lease of a claim; "" where there is one."""
        return self._context.session(claim.ref.session_id).place

    def restore(self, claim: Claim) -> bool:
        """Take back a lease that has ended; False when another worker has the claim."""
        scope = self._context.session(claim.ref.session_id)
        try:
            return scope.retry(lambda: _restore(scope, claim), "take a lease back")
        except TooManyConflicts:
            return False

    def release(
        self,
        claim: Claim,
        *,
        delay_ms: int | None,
        give_back: bool,
        reason: str = "",
        put_off: str = "",
        told: Mapping[str, str | bool] | None = _NOTHING_MORE,
    ) -> StepRef | None:
        """Give a claim back without a commit. A step that was asked to stop is not delayed.

        Args:
            delay_ms: Not before then (retry later, counted). None: at once.
            give_back: The attempt does not count.
            reason: Why it is delayed, for people; redacted.
            put_off: The bucket's digest or the `Pause.field` that holds the step: the delay is not counted, and
                `FlowVerbs.bring_forward` ends it. "": nothing of this.
            told: What watchers are told of the attempt besides the delay; None: they are told nothing.
        Returns:
            The step to publish, where the transaction could not publish it.
        """
        scope = self._context.session(claim.ref.session_id)
        delay = _Delay(ms=delay_ms, reason=reason[:_REASON_CHARS], put_off=put_off, told=told)
        ref = scope.retry(lambda: _release(scope, claim, delay, give_back=give_back), "give a claim back")
        return look_again(scope, put_off) if put_off and ref is None else ref

    def move(self, claim: Claim, queue: str) -> StepRef | None:
        """Give a claim back and move the step to another queue, where the session's steps stay from now on.

        Nothing happens when another worker has the claim by now.

        Args:
            queue: Name of a queue of a worker that offers the agent.
        Returns:
            The step to publish, where the script could not publish it.
        Raises:
            StoreUnavailable: No answer in time. The claim may still hold; then its lease ends, and the sweep continues.
        """
        context, ref, now_ms = self._context, replace(claim.ref, queue=queue), claim.now_ms
        keys, publication = context.keys(ref.session_id), context.publisher.commands(ref, now_ms)
        writes: list[Command] = [
            ("HSET", keys.ctl, "queue", queue, "published", now_ms, "nudges", 0),
            ("ZADD", keys.shard.due, "XX", now_ms + context.due_ms, ref.session_id),
            *publication,
        ]
        return ref if self._give_up(claim, writes) and not publication else None

    def wait_for_worker(self, claim: Claim, agent: str) -> None:
        """Give a claim back and let the step wait until a worker registers the agent, at most for the grace period.

        Nothing happens when another worker has the claim by now.

        Raises:
            StoreUnavailable: As for `move`.
        """
        scope = self._context.session(claim.ref.session_id)
        self._give_up(claim, begin_waiting(scope, agent, since_ms=claim.now_ms, ref=claim.ref))

    def _give_up(self, claim: Claim, writes: Sequence[Command]) -> bool:
        """Give a claim up by one script, and write more with it.

        The claim leaves no trace in the journal, so the next one finds a step that no worker has begun.

        Returns:
            False: Another worker has the claim by now, and nothing was written.
        """
        keys, ref = self._context.keys(claim.ref.session_id), claim.ref
        own_claim: Guard = (("HMGET", keys.ctl, "execution", "step", "claim"), (ref.execution_id, ref.step, claim.id))
        given_up: list[Command] = [
            ("HSET", keys.ctl, "claim", "", "worker", "", "attempts", max(0, claim.attempt - 1)),
            ("HDEL", keys.journal(ref.execution_id, ref.step), f"try:{claim.id}"),
            ("DEL", keys.shard.lease(claim.id)),
        ]
        database = self._context.database
        return database.compare_and_apply("move.attempt", [own_claim], [*given_up, *writes]) is not None


def _read_stop(value: bytes | None, ref: StepRef) -> str | None:
    """The execution, when it is the one that was asked to stop."""
    name = fields.text(value)
    return name if name == ref.execution_id else None


def _read_budget(value: bytes | None, ref: StepRef) -> ExecutionBudget | None:
    """The budget that was set for this execution; None without one, and where it is damaged, which the commit says."""
    try:
        return find_budget(fields.text(value), ref.execution_id) if value else None
    except StateUnreadable:
        return None


def _restore(scope: SessionScope, claim: Claim) -> bool:
    keys = scope.keys
    with scope.database.watch("restore.read", (keys.ctl,), [("HGET", keys.ctl, "claim")]) as watched:
        if fields.text(watched.replies[0]) != claim.id:
            return False
        lease = scope.clock.start_lease(keys.shard.lease(claim.id), claim.worker, scope.context.lease_ms)
        # Rewriting the claim aborts a rival that has looked but not yet taken it.
        watched.commit("restore.exec", [lease, ("HSET", keys.ctl, "claim", claim.id)])
        return True


@dataclass(frozen=True, slots=True)
class _Delay:
    """The delay of a step that is given back, as `LeaseVerbs.release` takes it."""

    ms: int | None
    reason: str
    put_off: str
    told: Mapping[str, str | bool] | None

    def events(self, scope: SessionScope, claim: Claim, *, due_ms: int, delays: int) -> Sequence[Command]:
        """Tell watchers of the delay, where they are told."""
        if self.told is None:
            return ()
        data: dict[str, Any] = {"reason": self.reason, "next_try_ms": due_ms, "delays": delays, **attempt_of(claim)}
        data |= {"at_provider": True} if self.put_off == AT_PROVIDER else {}
        return tell(scope, claim.ref, EventType.STEP_DELAYED, {**data, **self.told})


def _release(scope: SessionScope, claim: Claim, delayed: _Delay, *, give_back: bool) -> StepRef | None:
    keys, context = scope.keys, scope.context
    with scope.database.watch("release.read", (keys.ctl,), [control_command(keys), scope.clock.now()]) as watched:
        control = ControlFields.read(watched.replies[0])
        now_ms = scope.clock.milliseconds(watched.replies[1])
        if control.claim != claim.id:
            return None
        worker = "" if give_back else control.worker  # the next claim carries its attempt on
        changed: list[str | int] = ["claim", "", "worker", worker, "attempts", max(0, control.attempts - give_back)]
        is_held, ref = control.is_held(now_ms), control.ref(scope.session_id)
        publication: Sequence[Command] = ()
        delay: list[Command] = []
        delay_ms = None if control.requested_stop is not None else delayed.ms
        if delay_ms is None:
            due = now_ms + context.due_ms
            publication = () if is_held else context.publisher.commands(ref, now_ms)
            changed += ["published", 0 if is_held else now_ms]
        else:
            due, delays = now_ms + delay_ms, control.delays + (not delayed.put_off)
            since_ms = control.tried_since_ms(claim.now_ms)
            # The time in which the step is put off does not count as retrying.
            since_ms = (since_ms and since_ms + delay_ms) if delayed.put_off else (since_ms or now_ms)
            changed += ["delays", delays, "delayed", since_ms]
            changed += ["not_before", due, "published", 0, "why", delayed.reason, "put_off", delayed.put_off]
            delay = [("ZADD", keys.shard.delayed, due, scope.session_id)]
            delay += delayed.events(scope, claim, due_ms=due, delays=delays)
            if delayed.put_off == AT_PROVIDER:  # it may be looked at a thousand times, and asks nothing then
                delay.append(("HDEL", keys.journal(claim.ref.execution_id, claim.ref.step), f"try:{claim.id}"))
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
