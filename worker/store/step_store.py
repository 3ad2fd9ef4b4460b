"""The step store: what one step does to what is stored, as a Protocol of domain verbs and its one implementation.

`KeyedStepStore` runs on any `Database`; `redis_step_store` and `memory_step_store` put it on Redis or in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from ...config.settings import Settings
from .cache import SessionCache
from .clock import Clock, RedisClock
from .context import NoPublisher, StepPublisher, StoreContext
from .database import Database, Meanwhile
from .housekeeping import callbacks, sweeps
from .housekeeping.sweeps import QueueSnapshot
from .memory.database import MemoryDatabase
from .records import (
    ActionResult,
    Callback,
    Claim,
    ClaimResult,
    Committed,
    Event,
    ExecutionRecord,
    Header,
    LoadedSession,
    NextState,
    Operation,
    Renewal,
    StepRef,
    SweepResult,
    Transition,
)
from .redis.database import RedisDatabase, connect
from .sessions import actions, loading, reads
from .steps import claims, commits, journals
from .steps.journals import BeginResult


class StepStore(Protocol):
    """What the engine needs to run one step."""

    def claim(self, ref: StepRef, claim_id: str, worker: str, *, alone: bool) -> ClaimResult:
        """Take the right to run a step, and load the session with it.

        Args:
            claim_id: Fresh for each attempt; asking again with the same id after a lost reply is safe and not counted.
            alone: Nothing else runs in this process. Without it a step that died too often answers `Suspect`.
        Raises:
            StoreUnavailable: No answer in time. The claim may have been taken; its lease will end.
            StateTooNew: A worker of a newer version has to run it; nobody has claimed it.
            StateUnreadable: A part is damaged, and untouched. The claim may have been taken; its lease will end.
        """
        ...

    def record_answer(self, claim: Claim, raw: bytes, meanwhile: Meanwhile | None = None) -> bytes:
        """Journal the driver's raw answer; the first one stored wins, whoever wrote it.

        Args:
            meanwhile: May be called while the answer is on its way, when nothing that becomes of this process keeps it
                from getting there; see `Database.transaction`.
        Returns:
            The stored answer, which may be another worker's.
        Raises:
            StoreFull: Not even the room kept for this was enough; keep the answer and ask again.
            StoreUnavailable: No answer in time; asking again is safe.
        """
        ...

    def record_failure(self, claim: Claim, number: int, failure: bytes) -> None:
        """Journal an attempt of the driver that gave no usable answer."""
        ...

    def drop_answer(self, claim: Claim) -> bool:
        """Forget a journaled answer that cannot be parsed; refused once a tool of it has begun."""
        ...

    def begin_calls(
        self, claim: Claim, timeouts_ms: Mapping[int, int], at_ms: int, *, again: Collection[int] = ()
    ) -> BeginResult:
        """Record that tool calls begin now (Redis ms), and learn which of them may run.

        Args:
            again: Calls that an earlier claim began and that may be run again; their record becomes mine.
        Raises:
            ClaimLost: Another worker took over; no record of mine stays.
        """
        ...

    def record_results(self, claim: Claim, results: Mapping[int, bytes]) -> None:
        """Journal results of tool calls; the first one stored wins."""
        ...

    def commit(
        self,
        claim: Claim,
        base: LoadedSession,
        transition: Transition,
        *,
        results: Mapping[int, bytes],
        keep_claim: bool,
    ) -> Committed:
        """Make a step real, once.

        Args:
            base: The version that `transition` starts from.
            settle: Pure; may be called again when a conflict makes the transaction start over.
            results: Results of tool calls not yet journaled; they are, before the transaction.
            carry_on: Keep the claim for the next step, if one follows.
        Returns:
            What was stored; the same answer again when this claim had already committed.
        Raises:
            ClaimLost: Another worker took over; nothing was written.
            VersionConflict: The session was saved meanwhile; nothing was written. `reload` and commit again.
            StoreFull: Nothing was written; ask again when there is room.
            StoreUnavailable: No answer in time. The commit may have happened; asking again is safe.
        """
        ...

    def reload(self, claim: Claim) -> LoadedSession:
        """The session as stored now, for the same claim.

        Raises:
            ClaimLost: The claim no longer stands.
        """
        ...

    def release(self, claim: Claim, *, delay_ms: int | None, give_back: bool) -> StepRef | None:
        """Give a claim back without a commit.

        Args:
            delay_ms: Not before then (retry later, counted). None: at once.
            give_back: The attempt does not count.
        Returns:
            The step to publish, where the transaction could not publish it.
        """
        ...

    def renew(self, held: Sequence[Claim]) -> list[Renewal]:
        """Renew the leases, in order."""
        ...

    def restore(self, claim: Claim) -> bool:
        """Take back a lease that has ended; False when another worker has the claim."""
        ...

    def park(self, ref: StepRef, reason: str) -> None:
        """Take a step that no worker can carry on out of the due index, and say why in the list of dead steps."""
        ...

    def workers(self) -> dict[str, dict[str, Any]]:
        """Workers heard of lately."""
        ...

    def stop(self, session_id: str, execution_id: str | None, transition: Transition) -> ActionResult:
        """End an execution: at once when nothing runs, else by asking whoever runs it.

        Returns:
            "changed" when it has ended, "queued" when the running step was asked, "again" when nothing ran.
        """
        ...


class KeyedStepStore:
    """`StepStore` and what clients and the sweep need, over `Database`."""

    def __init__(self, database: Database, settings: Settings, *, clock: Clock, handover: StepPublisher) -> None:
        self.context = StoreContext(database, clock, settings, handover, SessionCache(settings.cache_bytes))

    def claim(self, ref: StepRef, claim_id: str, worker: str, *, alone: bool) -> ClaimResult:
        return claims.claim(self.context, ref, claim_id, worker, alone=alone)

    def record_answer(self, claim: Claim, raw: bytes, meanwhile: Meanwhile | None = None) -> bytes:
        return journals.record_answer(self.context, claim, raw, meanwhile)

    def record_failure(self, claim: Claim, number: int, failure: bytes) -> None:
        journals.record_failure(self.context, claim, number, failure)

    def drop_answer(self, claim: Claim) -> bool:
        return journals.drop_answer(self.context, claim)

    def begin_calls(
        self, claim: Claim, timeouts_ms: Mapping[int, int], at_ms: int, *, again: Collection[int] = ()
    ) -> BeginResult:
        return journals.begin_calls(self.context, claim, timeouts_ms, at_ms, again)

    def record_results(self, claim: Claim, results: Mapping[int, bytes]) -> None:
        journals.record_results(self.context, claim, results)

    def commit(
        self,
        claim: Claim,
        base: LoadedSession,
        transition: Transition,
        *,
        results: Mapping[int, bytes],
        keep_claim: bool,
    ) -> Committed:
        return commits.commit(self.context, claim, base, transition, results=results, keep_claim=keep_claim)

    def reload(self, claim: Claim) -> LoadedSession:
        return commits.reload(self.context, claim)

    def release(self, claim: Claim, *, delay_ms: int | None, give_back: bool) -> StepRef | None:
        return claims.release(self.context, claim, delay_ms=delay_ms, give_back=give_back)

    def renew(self, held: Sequence[Claim]) -> list[Renewal]:
        return claims.renew(self.context, held)

    def restore(self, claim: Claim) -> bool:
        return claims.restore(self.context, claim)

    # --- actions ----------------------------------------------------------------------------------------------

    def submit(
        self,
        session_id: str,
        agent: str,
        fingerprint: str,
        transition: Callable[[int], NextState],
    ) -> ActionResult:
        """Create a session with its first execution, once.

        Args:
            fingerprint: Of everything submitted; the same id with another one is refused.
            settle: From Redis's time (ms) to the session's first state.
        Returns:
            "started", or "again" with the first execution when this was submitted before.
        Raises:
            IdempotencyMismatch: The session exists and was submitted with something else.
            StoreFull: Nothing was written.
        """
        return actions.submit(self.context, session_id, agent, fingerprint, transition)

    def act(self, session_id: str, operation: Operation, transition: Transition) -> ActionResult:
        """Apply an operation once: now, or by the commit of the step that is running.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: The running step has too many messages waiting.
        """
        return actions.act(self.context, session_id, operation, transition)

    def stop(self, session_id: str, execution_id: str | None, transition: Transition) -> ActionResult:
        return actions.stop(self.context, session_id, execution_id, transition)

    def park(self, ref: StepRef, reason: str) -> None:
        actions.park(self.context, ref, reason)

    def quarantine(self, payload: str, reason: str) -> None:
        """Keep a malformed message, cut and escaped, with the reason."""
        actions.quarantine(self.context, payload, reason)

    def retry(self, session_id: str, transition: Transition) -> ActionResult:
        """Continue an execution that has failed or was stopped; `transition` refuses any other.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: Raised by `transition`; nothing was changed.
        """
        return actions.retry(self.context, session_id, transition)

    # --- reads ------------------------------------------------------------------------------------------------

    def load(self, session_id: str) -> loading.StoredSession:
        """The session, read in full."""
        return loading.load(self.context, session_id)

    def header(self, session_id: str) -> Header:
        """What a listing shows of a session."""
        return reads.header(self.context, session_id)

    def headers(
        self, *, index: str = "sessions", newest_ms: int | None = None, oldest_ms: int | None = None, limit: int = 50
    ) -> tuple[list[Header], int | None]:
        """A page of sessions, newest first, and where the next begins."""
        return reads.headers(self.context, index=index, newest_ms=newest_ms, oldest_ms=oldest_ms, limit=limit)

    def definition(self, session_id: str) -> dict[str, Any]:
        """The agent's definition stored with the session."""
        return reads.definition(self.context, session_id)

    def record(self, session_id: str, execution_id: str) -> ExecutionRecord | None:
        """How an execution ended last, whether it was retried since or not; None where it never has."""
        return reads.record(self.context, session_id, execution_id)

    def outcome(self, session_id: str, execution_id: str) -> ExecutionRecord | None:
        """How an execution ended; None as long as it has not, or goes on after a retry."""
        return reads.outcome(self.context, session_id, execution_id)

    def events(self, session_id: str, after: str | None = None, limit: int = 1000) -> list[Event]:
        """Stored events after an event id."""
        return reads.events(self.context, session_id, after, limit)

    def watch(self, session_id: str, after: str, block_ms: int) -> list[Event]:
        """Events after an event id ("0" for all, "$" for those to come), waiting no longer than `block_ms`."""
        return reads.watch(self.context, session_id, after, block_ms)

    def dead(self, limit: int = 100) -> list[dict[str, str]]:
        """Parked steps and quarantined messages, newest first."""
        return reads.dead(self.context, limit)

    def server_facts(self) -> dict[str, str]:
        """What Redis says of itself (`INFO`), and its time as `now_ms`."""
        return reads.server_facts(self.context)

    def backlog(self) -> tuple[int, int, int]:
        """Sessions that are due at some time, those overdue, and the age of the oldest of them in milliseconds."""
        return reads.backlog(self.context)

    # --- callbacks --------------------------------------------------------------------------------------------

    def due_callbacks(self, shard: int, *, limit: int, hold_ms: int) -> list[Callback]:
        """Ends of executions to tell somebody of now; each comes again after `hold_ms` unless it was made."""
        return callbacks.due_callbacks(self.context, self.context.shards[shard], limit=limit, hold_ms=hold_ms)

    def callback_made(self, callback: Callback) -> None:
        """It was heard; it does not come again."""
        callbacks.callback_made(self.context, callback)

    def callback_failed(self, callback: Callback, *, delay_ms: int | None, reason: str) -> None:
        """It was not heard: again after `delay_ms`, or never (None), with an entry among the dead."""
        callbacks.callback_failed(self.context, callback, delay_ms=delay_ms, reason=reason)

    # --- the sweep and the registry ---------------------------------------------------------------------------

    def sweep(self, shard: int, queue: QueueSnapshot) -> SweepResult:
        """Look at what is due in a shard, move every entry looked at, and name the steps whose message is lost.

        The caller publishes them. Nothing is named that a live lease holds or whose message may still be queued.
        """
        return sweeps.sweep(self.context, self.context.shards[shard], queue)

    def lock_sweep(self, shard: int, worker: str, hold_ms: int) -> bool:
        """Be the one who sweeps a shard for the next milliseconds."""
        return sweeps.lock(self.context, self.context.shards[shard], worker, hold_ms)

    def prune(self, shard: int) -> int:
        """Take expired sessions out of the listings."""
        return sweeps.prune(self.context, self.context.shards[shard])

    def register(self, worker: str, facts: Mapping[str, Any], agents: Mapping[str, str]) -> None:
        """Tell that a worker lives and what it offers."""
        sweeps.register(self.context, worker, facts, agents)

    def unregister(self, worker: str) -> None:
        """Tell that a worker has gone."""
        sweeps.unregister(self.context, worker)

    def workers(self) -> dict[str, dict[str, Any]]:
        """Workers heard of lately."""
        return sweeps.workers(self.context)

    def agents(self) -> dict[str, dict[str, Any]]:
        """Agents ever registered."""
        return sweeps.agents(self.context)

    def now_ms(self) -> int:
        """Redis's time."""
        return sweeps.now_ms(self.context)

    def check_shards(self) -> None:
        """Refuse a Redis that was used with another number of shards."""
        sweeps.check_shards(self.context)


def redis_step_store(
    settings: Settings, *, name: str, handover: StepPublisher | None = None, database: RedisDatabase | None = None
) -> KeyedStepStore:
    """A step store on the Redis of the settings; nothing is sent yet."""
    chosen = database or connect(
        settings.redis_url,
        timeout_seconds=settings.redis_timeout_seconds,
        connections=max(settings.redis_connections, 2 * settings.concurrency + 16),
        name=name,
    )
    return KeyedStepStore(chosen, settings, clock=RedisClock(), handover=handover or NoPublisher())


def memory_step_store(
    settings: Settings, *, now_ms: Callable[[], int] | None = None, handover: StepPublisher | None = None
) -> KeyedStepStore:
    """A step store that lives as long as the object."""
    clock = RedisClock() if now_ms is None else RedisClock(lambda: now_ms() / 1000)
    return KeyedStepStore(MemoryDatabase(now_ms), settings, clock=clock, handover=handover or NoPublisher())
