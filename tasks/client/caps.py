"""The verbs of a client about spend caps, which hold for all workers."""

from __future__ import annotations

import logging
from typing import Any

from pydantic import Field

from ...worker.errors import InvalidInput
from ...worker.flow.caps import CapStatus, SpendCap, cap_field
from .connection import ClientConnection
from .inputs import check_caller
from .provider_notes import find_unused_cap
from .providers import FleetLimits
from .verbs import BY, Scope, verb

log = logging.getLogger(__name__)


class CapVerbs(ClientConnection):
    """Sets spend caps."""

    @property
    def caps(self) -> SpendCaps:
        """The spend caps."""
        return SpendCaps(lambda: self.store, self._publish)


class SpendCaps(FleetLimits):
    """How much may be spent on models in an hour, a day or a month: `client.caps`."""

    @verb(
        "PUT", "/v1/caps", "set_cap", reads_session=False, part="caps",
        body=("NewCap", "A spend cap, in place of the one of its name."), http={"cap": Field(), "by": BY},
    )  # fmt: skip
    def set(self, cap: SpendCap, *, by: str | None = None) -> tuple[str, ...]:
        """Set a spend cap, in place of the one of its name. It holds at once for calls that have not begun.

        What was spent in the present period under the same name, period and zone stays counted. What waits for the cap
        is due at once, and waits again where there is still not enough left.

        Args:
            by: Who asks; shown with the cap.
        Returns:
            Sentences about what may not be meant, such as an agent that no worker has; none when all is well.
        Raises:
            InvalidInput: It is no `SpendCap`.
        """
        given: Any = cap
        if not isinstance(given, SpendCap):
            raise InvalidInput("cap", given, "give a SpendCap(name, usd=…, per=…).")
        check_caller(by)
        self._store().flow.set_cap(cap, by=by or "")
        self._bring_forward(cap.field)
        log.info("%s was set by %s", cap.field, by)
        return find_unused_cap(cap, self._store().registry.workers())

    def get(self, name: str) -> SpendCap | None:
        """Read the cap of a name; None: none is set."""
        return self._store().flow.view().caps.get(name)

    @verb("GET", "/v1/caps", "list_caps", scope=Scope.READ, reads_session=False, part="caps")
    def list(self) -> tuple[CapStatus, ...]:
        """List the spend caps by name, with what was spent in the present period."""
        return tuple(self._store().flow.caps())

    @verb("DELETE", "/v1/caps", "remove_cap", reads_session=False, part="caps", http={"name": Field(max_length=200)})
    def remove(self, name: str) -> bool:
        """Remove a cap; steps that it held are due at once. False when there was none."""
        removed = self._store().flow.remove_cap(name)
        self._bring_forward(cap_field(name))
        log.info("%s was removed", cap_field(name))
        return removed
