"""Giving up a claim of a step whose agent this worker does not offer: for another queue, or until a worker offers it.

The claim leaves no trace in the journal, so the next one finds a step that nobody has begun. Each is one script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..context import StoreContext
from ..database import Command, Guard
from ..records import Claim, StepRef
from ..sessions.unoffered import begin_waiting


def move(context: StoreContext, claim: Claim, queue: str) -> StepRef | None:
    """Move a claimed step to another queue. See `StepStore.move`."""
    scope, ref, now_ms = context.session(claim.ref.session_id), replace(claim.ref, queue=queue), claim.now_ms
    publication = context.publisher.commands(ref, now_ms)
    is_moved = _give_up(
        context,
        claim,
        [
            ("HSET", scope.keys.ctl, "queue", queue, "published", now_ms, "nudges", 0),
            ("ZADD", scope.keys.shard.due, "XX", now_ms + context.due_ms, scope.session_id),
            *publication,
        ],
    )
    return ref if is_moved and not publication else None


def wait_for_worker(context: StoreContext, claim: Claim, agent: str) -> None:
    """Let a claimed step wait for a worker that offers its agent. See `StepStore.wait_for_worker`."""
    scope = context.session(claim.ref.session_id)
    _give_up(context, claim, begin_waiting(scope, agent, since_ms=claim.now_ms, ref=claim.ref))


def _give_up(context: StoreContext, claim: Claim, writes: Sequence[Command]) -> bool:
    """Give a claim up and write more with it; False: another worker has the claim by now, and nothing was written."""
    scope, ref = context.session(claim.ref.session_id), claim.ref
    keys = scope.keys
    own_claim: Guard = (("HMGET", keys.ctl, "execution", "step", "claim"), (ref.execution_id, ref.step, claim.id))
    given_up: list[Command] = [
        ("HSET", keys.ctl, "claim", "", "worker", "", "attempts", max(0, claim.attempt - 1)),
        ("HDEL", keys.journal(ref.execution_id, ref.step), f"try:{claim.id}"),
        ("DEL", keys.shard.lease(claim.id)),
    ]
    return scope.database.compare_and_apply("move.attempt", [own_claim], [*given_up, *writes]) is not None
