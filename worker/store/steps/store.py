"""The step store: what one step does to what is stored, as a Protocol of domain verbs and its one implementation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from ..context import StoreContext
from ..records import (
    Claim,
    ClaimResult,
    Committed,
    LoadedSession,
    Renewal,
    StepRef,
    Transition,
)
from ..sessions import parking
from . import claims, commits, leases, reloading
from .journals import BeginResult, StepJournal


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


class DatabaseStepStore:
    """`StepStore` on any `Database`."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context

    def _journal(self, claim: Claim) -> StepJournal:
        return StepJournal(self._context.session(claim.ref.session_id), claim)

    def claim(self, ref: StepRef, claim_id: str, worker: str, *, alone: bool) -> ClaimResult:
        """See `StepStore.claim`."""
        return claims.claim(self._context, ref, claim_id, worker, alone=alone)

    def record_answer(self, claim: Claim, raw: bytes) -> bytes:
        """See `StepStore.record_answer`."""
        return self._journal(claim).record_answer(raw)

    def record_auxiliary(self, claim: Claim, key: str, raw: bytes) -> bytes:
        """See `StepStore.record_auxiliary`."""
        return self._journal(claim).record_auxiliary(key, raw)

    def record_failure(self, claim: Claim, number: int, failure: bytes) -> None:
        """See `StepStore.record_failure`."""
        self._journal(claim).record_failure(number, failure)

    def drop_answer(self, claim: Claim) -> bool:
        """See `StepStore.drop_answer`."""
        return self._journal(claim).drop_answer()

    def begin_calls(
        self, claim: Claim, timeouts_ms: Mapping[int, int], at_ms: int, *, again: Collection[int] = ()
    ) -> BeginResult:
        """See `StepStore.begin_calls`."""
        return self._journal(claim).begin_calls(timeouts_ms, at_ms, again)

    def record_results(self, claim: Claim, results: Mapping[int, bytes]) -> None:
        """See `StepStore.record_results`."""
        self._journal(claim).record_results(results)

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

    def release(self, claim: Claim, *, delay_ms: int | None, give_back: bool) -> StepRef | None:
        """See `StepStore.release`."""
        return leases.release(self._context, claim, delay_ms=delay_ms, give_back=give_back)

    def renew(self, held: Sequence[Claim]) -> list[Renewal]:
        """See `StepStore.renew`."""
        return leases.renew(self._context, held)

    def restore(self, claim: Claim) -> bool:
        """See `StepStore.restore`."""
        return leases.restore(self._context, claim)

    def park(self, ref: StepRef, reason: str) -> None:
        """See `StepStore.park`."""
        parking.park(self._context, ref, reason)
