"""Claiming a step: by one script where the session is as expected, else by WATCH and a transaction.

The rules stand in `watched_claims`. The script may only grant what that way would grant; whatever it does not expect,
and a claim whose reply was lost, goes that way.
"""

from __future__ import annotations

from ..context import StoreContext
from ..records import ClaimResult, NotClaimed, NotClaimedReason, StepRef
from ..transaction_retries import TooManyConflicts
from .claim_request import ClaimRequest
from .scripted_claims import claim_by_script
from .watched_claims import claim_by_watch


def claim(context: StoreContext, ref: StepRef, claim_id: str, worker: str, *, alone: bool) -> ClaimResult:
    """Take the right to run a step. See `StepStore.claim`."""
    scope = context.session(ref.session_id)
    request = ClaimRequest(scope=scope, ref=ref, claim_id=claim_id, worker=worker, alone=alone)
    claimed = claim_by_script(request)
    if claimed is not None:
        return claimed
    try:
        return scope.retry(lambda: claim_by_watch(request), purpose=f"claim step {ref.step}")
    except TooManyConflicts:
        return NotClaimed(NotClaimedReason.BUSY)
