"""Reloading a session under a claim, after somebody else has saved it."""

from __future__ import annotations

from dataclasses import replace

from ...errors import ClaimLost
from .. import decoding, fields
from ..cache import CachedSession
from ..context import SessionScope, StoreContext
from ..control import ControlFields, control_command
from ..database import Changed
from ..records import Claim, LoadedSession
from ..sessions import loading
from .claim_request import load_claimed


def reload(context: StoreContext, claim: Claim) -> LoadedSession:
    """Load the session as stored now, for a step whose version moved. See `StepStore.reload`."""
    scope = context.session(claim.ref.session_id)
    cached = scope.cache.get(scope.session_id)
    return scope.retry(lambda: _reload(scope, claim, cached), purpose="be read")


def _reload(scope: SessionScope, claim: Claim, cached: CachedSession | None) -> LoadedSession:
    keys, ref = scope.keys, claim.ref
    reads = [
        control_command(keys),
        scope.clock.now(),
        ("HGETALL", keys.journal(ref.execution_id, ref.step)),
        *loading.reads(scope, ref.execution_id, cached),
    ]
    with scope.database.watch("reload.read", (keys.session, keys.ctl), reads) as watched:
        control = ControlFields.read(watched.replies[0])
        if not control.is_claimed_by(claim.id, ref):
            raise ClaimLost(f"step {ref.step} of session {ref.session_id} has another claim by now")
        session = loading.finish(scope, ref.execution_id, cached, watched, watched.replies[3:])
        (version,) = watched.pipeline("reload.check", [("HGET", keys.session, "version")])
        if fields.number(version) != session.version:
            raise Changed
        journal = decoding.journal(watched.replies[2])
        asked = replace(claim, now_ms=scope.clock.milliseconds(watched.replies[1]))
        return load_claimed(asked, session, control, journal)
