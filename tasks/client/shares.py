"""The verbs of a client about fair shares, which hold for all workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import Field

from ...worker.errors import ActionRefused, InvalidInput
from ...worker.flow.shares import FIELD, FairShares, SharesStatus, ShareStatus
from ...worker.store.housekeeping.registry import offered_queues
from ...worker.store.store import Store
from ..publishing import StepPublisher
from .inputs import check_caller
from .verbs import BY, Scope, verb

log = logging.getLogger(__name__)

_MOST_SHOWN: Final = 100


class Shares:
    """How the slots of the fleet are shared while more steps wait than there are slots: `client.shares`."""

    def __init__(
        self, store: Callable[[], Store], publisher: StepPublisher, changed: Callable[[], object] = lambda: None
    ) -> None:
        """
        Args:
            changed: Called when the shares have changed; other clients know it within a second.
        """
        self._store = store
        self._publisher = publisher
        self._changed = changed

    @property
    def have_effect(self) -> bool:
        """Whether steps can wait for their turn: the broker is a Redis."""
        return self._publisher.has_lanes

    @verb(
        "PUT", "/v1/shares", "set_shares", reads_session=False, part="shares",
        body=("NewShares", "Fair shares, in place of those before."), http={"shares": Field(), "by": BY},
    )  # fmt: skip
    def set(self, shares: FairShares, *, by: str | None = None) -> None:
        """Set the fair shares, in place of those before. Steps that wait already are taken in the order before.

        A session belongs to the share of its label as it is when the session is made, or, for one that was made before
        any shares were set, when its next step begins. Children belong to the share of their parent. Other clients know
        of the change within a second.

        Args:
            by: Who asks; shown with the shares.
        Raises:
            InvalidInput: They are no `FairShares`.
            ActionRefused: The broker is no Redis: steps could not wait for their turn.
        """
        given: Any = shares
        if not isinstance(given, FairShares):
            raise InvalidInput("shares", given, "give FairShares(label, weights=…).")
        check_caller(by)
        if not self.have_effect:
            raise ActionRefused("fair shares need a Redis as the broker; here it is none")
        self._store().flow.set_value(shares, by=by or "")
        self._changed()
        log.info("fair shares were set by %s", by)

    @verb("GET", "/v1/shares", "get_shares", scope=Scope.READ, reads_session=False, part="shares")
    def get(self) -> SharesStatus:
        """The fair shares, and whose steps wait in the queues of live workers."""
        store = self._store()
        queues = {queue for queues in offered_queues(store.registry.workers()).values() for queue in queues} | {""}
        keys = [self._publisher.queue_key(queue) for queue in sorted(queues)] if self.have_effect else []
        shares = store.flow.view().shares
        weights: Mapping[str, float] = {} if shares is None else shares.weights
        waiting = store.flow.shares_waiting(keys)
        found = (ShareStatus(share, weights.get(share, 1.0), counts) for share, counts in waiting.items())
        most_first = sorted(found, key=lambda each: (-sum(each.waiting.values()), each.share))
        return SharesStatus(shares, tuple(most_first[:_MOST_SHOWN]))

    @verb("DELETE", "/v1/shares", "remove_shares", reads_session=False, part="shares")
    def remove(self) -> bool:
        """Remove the fair shares: new sessions are served in the order of their steps. False when there were none.

        Sessions that have a share keep it; all shares weigh the same from now on.
        """
        removed = self._store().flow.remove_value(FIELD)
        self._changed()
        log.info("fair shares were removed")
        return removed
