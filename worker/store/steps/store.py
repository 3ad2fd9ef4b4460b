"""The step store: what one step does to what is stored, as a Protocol of domain verbs and its one implementation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from ...state import AnswerRecord, Request
from ..children.making import NO_CHILDREN, ChildPlan
from ..context import StoreContext
from ..event_records import NewEvent
from ..journal import Journal
from ..records import Claim, ClaimResult, Committed, LoadedSession, Renewal, StepRef, Transition
from ..sessions import parking
from . import claims, commits, leases, moving, reloading, waits
from .journals import BeginResult, StepJournal
from .step_requests import OpenedRequests, StepRequests, StoppedChildren
from .waits import WaitRequest, WaitResult


class StepStore(Protocol):
    """The store as the engine needs it to run one step."""

    def claim(self, ref: StepRef, claim_id: str, worker: str, *, alone: bool) -> ClaimResult:
        """Take the right to run a step, and load the session with it.

        Args:
            claim_id: Fresh for each attempt; asking again with the same id after a lost reply is safe and not counted.
            alone: Nothing else runs in this process. Without it a step that died too often answers `Suspect`.
        Raises:
            StoreUnavailable: No answer in time. The claim may have been taken; its lease will end.
            StateTooNew: A worker of a newer version has to run it. No claim stays: WATCH refuses before it claims, and
                the script claims and gives the claim back.
            StateUnreadable: A part is damaged, and untouched. The claim may have been taken; its lease will end.
        """
        ...

    def record_answer(self, claim: Claim, raw: bytes) -> bytes:
        """Journal the driver's raw answer; the first one stored wins, whoever wrote it.

        Returns:
            The stored answer, which may be another worker's.
        Raises:
            StoreFull: Not even the room kept for this was enough; keep the answer and ask again.
            StoreUnavailable: No answer in time; asking again is safe.
        """
        ...

    def record_auxiliary(self, claim: Claim, key: str, raw: bytes) -> bytes:
        """Journal the raw answer of an auxiliary call; the first one stored under the key wins, whoever wrote it.

        Returns:
            The stored answer, which may be another worker's.
        Raises:
            StoreFull: Not even the room kept for this was enough; keep the answer and ask again.
            StoreUnavailable: No answer in time; asking again is safe.
        """
        ...

    def record_tools(self, claim: Claim, raw: bytes) -> bytes:
        """Journal to which remote lists of tools the step is pinned; the first one stored wins, whoever wrote it.

        Returns:
            The stored pins, which may be another worker's.
        """
        ...

    def record_failure(self, claim: Claim, number: int, failure: bytes, events: Sequence[NewEvent] = ()) -> None:
        """Journal an attempt of the driver that gave no usable answer, and tell watchers of it by the events."""
        ...

    def drop_answer(self, claim: Claim, rejected: bytes | None = None) -> bool:
        """Forget a journaled answer that cannot be parsed; refused once a tool of it has begun or a request is made.

        Args:
            rejected: A record of what the answer cost, to keep in its place. None: nobody can tell.
        """
        ...

    def drop_results(self, claim: Claim, results: Mapping[int, bytes]) -> None:
        """Forget journaled results, by call index; one that is another by now stays.

        Raises:
            ClaimLost: Another worker took over; nothing was written.
        """
        ...

    def begin_calls(
        self, claim: Claim, timeouts_ms: Mapping[int, int], at_ms: int, *, again: Collection[int] = ()
    ) -> BeginResult:
        """Record that tool calls begin now (Redis ms), and learn which of them may run.

        Args:
            again: Calls that an earlier claim began and that may be run again; their record becomes this claim's.
        Raises:
            ClaimLost: Another worker took over; no record of this claim stays.
        """
        ...

    def record_results(self, claim: Claim, results: Mapping[int, bytes]) -> None:
        """Journal results of tool calls; the first one stored wins."""
        ...

    def record_decisions(self, claim: Claim, decisions: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Journal what a policy decided about calls, by call index, before anything else happens to them.

        Returns:
            The stored decisions of these calls: the first one stored wins, whoever wrote it. So a policy is asked once.
        """
        ...

    def open_requests(
        self, claim: Claim, requests: Sequence[Request], *, begins: Mapping[int, int] | None = None
    ) -> OpenedRequests:
        """Journal requests of this step in one transaction that the claim guards, and tell watchers of the new ones.

        A request takes the begin record of its call back: the call asked before its effect and runs from its start.
        A call of `begins` keeps or gets its begin record in the same transaction: its result comes later, from outside.

        Args:
            begins: Calls that begin together with their request, by index: their timeouts (ms).
        Raises:
            ClaimLost: Another worker took over; nothing was written.
            InvalidInput: A request is longer than `MAX_REQUEST_BYTES`, or the step would have more than
                `MAX_REQUESTS_PER_STEP`; nothing was written.
            StoreFull: Nothing was written; ask again when there is room.
        """
        ...

    def record_started_calls(self, claim: Claim, indexes: Collection[int]) -> None:
        """Journal that calls with a later result have been started, and their start has returned.

        Without this note, after a crash, the effect class decides whether a call is started again.
        """
        ...

    def close_requests(
        self, claim: Claim, records: Mapping[str, AnswerRecord], *, opens: Sequence[Request] = ()
    ) -> Mapping[str, AnswerRecord]:
        """Answer open requests of this step as its worker: at their expiry, or under a stop.

        One transaction, guarded by the claim. An answer that somebody gave in between stays.

        Args:
            records: By request id.
            opens: The next rounds of requests whose record passes them on; each is written where its record is.
        Returns:
            The stored answers of these requests, by request id; another's where it came first.
        Raises:
            ClaimLost: Another worker took over; nothing was written.
        """
        ...

    def stop_children(
        self, claim: Claim, places: Collection[tuple[int, int]], *, ending: bytes | None = None
    ) -> StoppedChildren:
        """Journal that children are asked to stop; from now on they have one lease for it.

        Args:
            places: Call index and round of their requests.
            ending: Why the execution ends after this step, where it does: each later leg finds it. None: it does not.
        Returns:
            The stored times and reason; those of an earlier leg where it came first.
        Raises:
            ClaimLost: Another worker took over; nothing was written.
        """
        ...

    def wait(
        self,
        claim: Claim,
        base: LoadedSession,
        transition: Transition,
        *,
        seen: Journal,
        results: Mapping[int, bytes],
        plan: ChildPlan = NO_CHILDREN,
    ) -> WaitResult:
        """Give a claim back and keep the journal, until an answer, an expiry, a stop or a resume wakes the session.

        The session is due at the earliest expiry of its open requests, at its deadline, or in 30 days.

        Args:
            base: The version that `transition` starts from.
            transition: Pure. Gives the stored state with its execution waiting, and nothing that hooks did; the store
                adds the events.
            seen: The journal as the step knows it. With an answer that it does not know, the step must not wait.
            results: Results not yet journaled, those of pure calls too; they are journaled now.
            plan: The children that this transaction makes. Their sessions must not exist.
        Returns:
            `RefusedWait` when an answer came, no request is open, a stop was asked for, or a child cannot be made: the
            claim stays.
        Raises:
            ClaimLost: Another worker took over, or the wait was applied and its reply lost: leave the step.
            VersionConflict: The session was saved meanwhile; nothing was written. `reload` and wait again.
            StoreFull: Nothing was written; ask again when there is room.
            StoreUnavailable: No answer in time. The step may wait already; asking again is safe.
        """
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

        The commit of a step that has asked ends its waiting: its open requests leave the index of requests, and its
        task ids count from the first leg again. While the session is held, the commit carries nothing on and publishes
        nothing.

        Args:
            base: The version that `transition` starts from.
            transition: Pure; may be called again when a conflict makes the transaction start over.
            results: Results of tool calls not yet journaled; the committed step holds them. Only the way with WATCH
                journals them before its transaction; the script journals none.
            keep_claim: Keep the claim for the next step, if one follows.
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

    def release(self, claim: Claim, *, delay_ms: int | None, give_back: bool, reason: str = "") -> StepRef | None:
        """Give a claim back without a commit. A delay is told to watchers.

        Args:
            delay_ms: Not before then (retry later, counted). None: at once.
            give_back: The attempt does not count.
            reason: Why it is delayed, for people; redacted.
        Returns:
            The step to publish, where the transaction could not publish it.
        """
        ...

    def move(self, claim: Claim, queue: str) -> StepRef | None:
        """Give a claim back and move the step to another queue, where the session's steps stay from now on.

        Nothing happens when another worker has the claim by now.

        Args:
            queue: Name of a queue of a worker that offers the agent.
        Returns:
            The step to publish, where the script could not publish it.
        Raises:
            StoreUnavailable: No answer in time. The claim may still stand; then its lease ends, and the sweep goes on.
        """
        ...

    def wait_for_worker(self, claim: Claim, agent: str) -> None:
        """Give a claim back and let the step wait until a worker registers the agent, at most for the grace period.

        Nothing happens when another worker has the claim by now.

        Raises:
            StoreUnavailable: As for `move`.
        """
        ...

    def renew(self, claims: Sequence[Claim]) -> list[Renewal]:
        """Renew the leases of claims, in order."""
        ...

    def restore(self, claim: Claim) -> bool:
        """Take back a lease that has ended; False when another worker has the claim."""
        ...

    def park(self, ref: StepRef, reason: str) -> None:
        """Take a step that no worker can carry on out of the due index, and say why in the list of dead steps."""
        ...


class DatabaseStepStore:
    """`StepStore` on any `Database`."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context

    def _journal(self, claim: Claim) -> StepJournal:
        return StepJournal(self._context.session(claim.ref.session_id), claim)

    def _requests(self, claim: Claim) -> StepRequests:
        return StepRequests(self._context.session(claim.ref.session_id), claim)

    def claim(self, ref: StepRef, claim_id: str, worker: str, *, alone: bool) -> ClaimResult:
        """See `StepStore.claim`."""
        return claims.claim(self._context, ref, claim_id, worker, alone=alone)

    def record_answer(self, claim: Claim, raw: bytes) -> bytes:
        """See `StepStore.record_answer`."""
        return self._journal(claim).record_answer(raw)

    def record_auxiliary(self, claim: Claim, key: str, raw: bytes) -> bytes:
        """See `StepStore.record_auxiliary`."""
        return self._journal(claim).record_auxiliary(key, raw)

    def record_tools(self, claim: Claim, raw: bytes) -> bytes:
        """See `StepStore.record_tools`."""
        return self._journal(claim).record_tools(raw)

    def record_failure(self, claim: Claim, number: int, failure: bytes, events: Sequence[NewEvent] = ()) -> None:
        """See `StepStore.record_failure`."""
        self._journal(claim).record_failure(number, failure, events)

    def drop_answer(self, claim: Claim, rejected: bytes | None = None) -> bool:
        """See `StepStore.drop_answer`."""
        return self._journal(claim).drop_answer(rejected)

    def drop_results(self, claim: Claim, results: Mapping[int, bytes]) -> None:
        """See `StepStore.drop_results`."""
        self._journal(claim).drop_results(results)

    def begin_calls(
        self, claim: Claim, timeouts_ms: Mapping[int, int], at_ms: int, *, again: Collection[int] = ()
    ) -> BeginResult:
        """See `StepStore.begin_calls`."""
        return self._journal(claim).begin_calls(timeouts_ms, at_ms, again)

    def record_results(self, claim: Claim, results: Mapping[int, bytes]) -> None:
        """See `StepStore.record_results`."""
        self._journal(claim).record_results(results)

    def record_decisions(self, claim: Claim, decisions: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """See `StepStore.record_decisions`."""
        return self._requests(claim).record_decisions(decisions)

    def open_requests(
        self, claim: Claim, requests: Sequence[Request], *, begins: Mapping[int, int] | None = None
    ) -> OpenedRequests:
        """See `StepStore.open_requests`."""
        return self._requests(claim).open(requests, begins or {})

    def stop_children(
        self, claim: Claim, places: Collection[tuple[int, int]], *, ending: bytes | None = None
    ) -> StoppedChildren:
        """See `StepStore.stop_children`."""
        return self._requests(claim).stop_children(places, ending)

    def record_started_calls(self, claim: Claim, indexes: Collection[int]) -> None:
        """See `StepStore.record_started_calls`."""
        self._requests(claim).record_started(indexes)

    def close_requests(
        self, claim: Claim, records: Mapping[str, AnswerRecord], *, opens: Sequence[Request] = ()
    ) -> Mapping[str, AnswerRecord]:
        """See `StepStore.close_requests`."""
        return self._requests(claim).close(records, opens)

    def wait(
        self,
        claim: Claim,
        base: LoadedSession,
        transition: Transition,
        *,
        seen: Journal,
        results: Mapping[int, bytes],
        plan: ChildPlan = NO_CHILDREN,
    ) -> WaitResult:
        """See `StepStore.wait`."""
        request = WaitRequest(claim=claim, base=base, transition=transition, seen=seen, results=results, plan=plan)
        return waits.wait(self._context, request)

    def commit(
        self,
        claim: Claim,
        base: LoadedSession,
        transition: Transition,
        *,
        results: Mapping[int, bytes],
        keep_claim: bool,
    ) -> Committed:
        """See `StepStore.commit`."""
        return commits.commit(self._context, claim, base, transition, results=results, keep_claim=keep_claim)

    def reload(self, claim: Claim) -> LoadedSession:
        """See `StepStore.reload`."""
        return reloading.reload(self._context, claim)

    def release(self, claim: Claim, *, delay_ms: int | None, give_back: bool, reason: str = "") -> StepRef | None:
        """See `StepStore.release`."""
        return leases.release(self._context, claim, delay_ms=delay_ms, give_back=give_back, reason=reason)

    def move(self, claim: Claim, queue: str) -> StepRef | None:
        """See `StepStore.move`."""
        return moving.move(self._context, claim, queue)

    def wait_for_worker(self, claim: Claim, agent: str) -> None:
        """See `StepStore.wait_for_worker`."""
        moving.wait_for_worker(self._context, claim, agent)

    def renew(self, claims: Sequence[Claim]) -> list[Renewal]:
        """See `StepStore.renew`."""
        return leases.renew(self._context, claims)

    def restore(self, claim: Claim) -> bool:
        """See `StepStore.restore`."""
        return leases.restore(self._context, claim)

    def park(self, ref: StepRef, reason: str) -> None:
        """See `StepStore.park`."""
        parking.park(self._context, ref, reason)
