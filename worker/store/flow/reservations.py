"""Reserving requests to model providers, and settling them, by the script `bucket`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

from ...errors import StoreForbidden, StoreFull
from ...flow.values import Dimension, ModelEndpoint, ProviderLimit
from .. import fields
from ..context import StoreContext, StorePart
from ..database import Command, Reply, Word
from ..keys import FLOW_CHANNEL
from ..records import Claim
from .records import Refused, Reservation, Settled, Settlement, Why

ALIVE_MS: Final = 20_000
"""In a cluster, how long reservations count after their worker has registered or reserved; it registers each 5 s."""


class ReservationVerbs(StorePart):
    """Reserving requests to providers, and settling them."""

    def reserve(
        self,
        claim: Claim,
        bucket: ModelEndpoint,
        limit: ProviderLimit | None,
        *,
        call: str,
        cost: Mapping[Dimension, float],
        lease_ms: int,
    ) -> Reservation | Refused:
        """Ask whether a request may go now; one round trip.

        A user who may run no scripts ends no step: the request is admitted without a reservation.

        Args:
            claim: The claim of the step that asks. When its lease ends, the reservation ends too.
            limit: The limit that is set for the bucket; None: none, what was learned holds.
            call: Unique within the claim. Asking again under the same name, after a lost reply, admits once.
            cost: What the request will use, by dimension; `requests` counts 1 where it is not given. More than a limit
                of a minute counts as a full minute.
            lease_ms: The longest that the request takes; afterwards it counts as ended.
        Returns:
            The reservation, which has to be settled; or `Refused`, with the reason and the time after which to ask
            again. The session keeps its place in the line until then and a minute longer, also for another claim.
        Raises:
            StoreUnavailable: No answer in time; asking again is safe.
        """
        asked = replace(self.unreserved(claim, bucket, call=call), limit=limit, cost={"requests": 1.0, **cost})
        try:
            found = self._context.database.script(
                "flow.reserve", "bucket", *_script(self._context, "reserve", asked, lease=lease_ms, alive=ALIVE_MS)
            )
        except (StoreForbidden, StoreFull):
            return asked
        if found[0]:
            _, at_ms, is_probe = found
            return replace(asked, at_ms=int(at_ms), is_probe=bool(is_probe))
        _, now_ms, wait_ms, why, dimension, rate, source, since_ms = found
        return Refused(
            why=cast("Why", fields.text(why)),
            wait_ms=int(wait_ms),
            at_ms=int(now_ms),
            dimension=cast("Dimension | None", fields.text(dimension) or None),
            per_minute=float(rate),
            source=fields.text(source),
            since_ms=int(since_ms),
        )

    def unreserved(self, claim: Claim, bucket: ModelEndpoint, *, call: str) -> Reservation:
        """Name a request that is sent without a reservation, so that what its provider told can be settled."""
        # By the key of the lease the script sees whether the reservation has ended; in a cluster, by the worker.
        lease = self._context.keys(claim.ref.session_id).shard.lease(claim.id)
        owner = f"{claim.worker} {claim.id}" if self._context.fleet.is_apart else lease
        return Reservation(bucket, f"{owner} {call}", claim.ref.session_id)

    def settle(self, settlement: Settlement) -> Settled:
        """Settle a request, and learn from what its provider told. Applied once, however often it is sent.

        Where an answer is journaled, `record_answer(…, settlement)` does it in the same round trip. Once
        `settlement.settled` is there, this does nothing.

        Raises:
            StoreUnavailable: No answer in time; asking again is safe. Without it the reservation ends with its lease.
        """
        if settlement.settled is None:
            keys, args = settle_words(self._context, settlement)
            try:
                settlement.settled = read_settled(self._context.database.script("flow.settle", "bucket", keys, args))
            except (StoreForbidden, StoreFull):
                settlement.settled = Settled()
        return settlement.settled


def settle_commands(context: StoreContext, settlement: Settlement) -> list[Command]:
    """The command that settles within a transaction; none where nothing is to be settled, or that is not possible."""
    if settlement.settled is not None or context.fleet.is_apart:
        return []
    command = context.database.script_command("bucket", *settle_words(context, settlement))
    return [] if command is None else [command]


def settle_words(context: StoreContext, settlement: Settlement) -> tuple[tuple[str, ...], list[Word]]:
    """The keys and arguments with which the script settles."""
    facts, counts = settlement.facts, settlement.counts
    retry = {} if facts.retry_after is None else {"retry": _ms(facts.retry_after)}
    return _script(
        context,
        "settle",
        settlement.reservation,
        at=settlement.reservation.at_ms,
        kind=facts.kind,
        source=facts.source,
        worker=counts.worker,
        ended=counts.last_minute,
        accepted=counts.accepted,
        busy=_ms(counts.busy_seconds),
        longest=_ms(context.settings.retry_later_limit_seconds),
        used=dict(settlement.used or {}),
        told=dict(facts.limits),
        remaining=dict(facts.remaining),
        reset={dimension: _ms(seconds) for dimension, seconds in facts.reset_seconds.items()},
        **retry,
    )


def read_settled(reply: Reply) -> Settled:
    """Parse what the script answers to a settlement."""
    opened, closed, learned, refused = map(bool, reply)
    return Settled(opened=opened, closed=closed, learned=learned, refused=refused)


def _script(context: StoreContext, op: str, of: Reservation, **more: Any) -> tuple[tuple[str, ...], list[Word]]:
    bucket, limit = of.bucket, of.limit
    asked = {
        "op": op,
        "id": of.id,
        "session": of.session_id,
        "digest": bucket.digest,
        "names": bucket.names,
        "channel": FLOW_CHANNEL,
        "limits": {} if limit is None else limit.per_minute,
        "cost": dict(of.cost),
        **more,
    }
    fleet = context.fleet
    keys = (*fleet.rate(bucket.digest).all, fleet.flow, *((fleet.alive,) if fleet.is_apart else ()))
    return keys, [fields.to_json(asked)]


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
