"""The verbs of a client about concurrency limits, which hold for all workers."""

from __future__ import annotations

import logging
from typing import Any, Final

from pydantic import Field

from ...worker.errors import InvalidInput
from ...worker.flow.concurrency import ConcurrencyLimit, ConcurrencyStatus, concurrency_field, undefined_cause
from .connection import ClientConnection
from .inputs import check_caller
from .provider_notes import find_unnamed
from .providers import FleetLimits
from .verbs import BY, Scope, verb

log = logging.getLogger(__name__)

_NAME: Final[Any] = Field(max_length=200)


class ConcurrencyVerbs(ClientConnection):
    """Sets concurrency limits."""

    @property
    def concurrency(self) -> ConcurrencyLimits:
        """The concurrency limits."""
        return ConcurrencyLimits(lambda: self.store, self._publish)


class ConcurrencyLimits(FleetLimits):
    """How many steps and calls run at a time: `client.concurrency`."""

    @verb(
        "PUT", "/v1/concurrency", "set_concurrency", reads_session=False, part="concurrency",
        body=("NewConcurrencyLimit", "A concurrency limit, in place of the one of its name."),
        http={"limit": Field(), "by": BY},
    )  # fmt: skip
    def set(self, limit: ConcurrencyLimit, *, by: str | None = None) -> tuple[str, ...]:
        """Set a concurrency limit, in place of the one of its name. It holds at once for what has not begun.

        What runs goes on, also where it is more than a lower limit allows.

        Args:
            by: Who asks; shown with the limit.
        Returns:
            Sentences about what may not be meant, such as a limit that no agent names; none when all is well.
        Raises:
            InvalidInput: It is no `ConcurrencyLimit`.
        """
        given: Any = limit
        if not isinstance(given, ConcurrencyLimit):
            raise InvalidInput("limit", given, "give a ConcurrencyLimit(name, total=…); others: client.limits.set(…).")
        check_caller(by)
        self._store().flow.set_concurrency(limit, by=by or "")
        self._bring_forward(undefined_cause(limit.name))
        log.info("%s was set by %s", limit.field, by)
        return find_unnamed(limit, self._store().registry.workers())

    def get(self, name: str) -> ConcurrencyLimit | None:
        """Read the limit of a name; None: none is set."""
        return self._store().flow.view().concurrency.get(name)

    @verb("GET", "/v1/concurrency", "list_concurrency", scope=Scope.READ, reads_session=False, part="concurrency")
    def list(self) -> tuple[ConcurrencyStatus, ...]:
        """List the concurrency limits by name, with how many run and wait."""
        return tuple(self._store().flow.concurrency())

    @verb(
        "DELETE", "/v1/concurrency", "remove_concurrency", reads_session=False, part="concurrency", http={"name": _NAME}
    )
    def remove(self, name: str) -> bool:
        """Remove a limit; steps that it held are due at once. False when there was none.

        What names the limit is not limited by it any more. Only a limit that was never set is waited for.
        """
        removed = self._store().flow.remove_concurrency(name)
        self._bring_forward(concurrency_field(name))
        log.info("%s was removed", concurrency_field(name))
        return removed
