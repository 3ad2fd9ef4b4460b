"""The verbs of a client about values that hold for all workers and change while they run: limits and spend caps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pydantic import Field

from ...worker.errors import InvalidInput
from ...worker.flow.caps import CapStatus, SpendCap, cap_field
from ...worker.flow.concurrency import ConcurrencyLimit, ConcurrencyStatus, concurrency_field, undefined_cause
from ...worker.flow.values import BucketStatus, ProviderLimit, limit_field
from .connection import ClientConnection
from .inputs import check_caller
from .provider_notes import find_unnamed, find_unused, find_unused_cap
from .shares import Shares
from .verbs import BY, Scope, verb

if TYPE_CHECKING:
    from ...worker.store.records import StepRef
    from ...worker.store.store import Store

log = logging.getLogger(__name__)

V = TypeVar("V", ProviderLimit, ConcurrencyLimit, SpendCap)

_NAME: Final[Any] = Field(max_length=200)


class FleetVerbs(ClientConnection):
    """Sets limits of model providers, concurrency limits, spend caps and fair shares."""

    @property
    def limits(self) -> ProviderLimits:
        """The limits of model providers."""
        return ProviderLimits(lambda: self.store, self._publish)

    @property
    def concurrency(self) -> ConcurrencyLimits:
        """The concurrency limits."""
        return ConcurrencyLimits(lambda: self.store, self._publish)

    @property
    def caps(self) -> SpendCaps:
        """The spend caps."""
        return SpendCaps(lambda: self.store, self._publish)

    @property
    def shares(self) -> Shares:
        """The fair shares."""
        return Shares(lambda: self.store, self._publisher, self._notes.forget)


@dataclass(frozen=True, slots=True)
class _Kind(Generic[V]):
    """A kind of values: the parts in which it differs from the others.

    Attributes:
        advice: What to give instead of something else.
        find_notes: Says what may not be meant with a value, by the facts of the live workers.
        frees: What has put off the steps that a new value lets go.
    """

    value: type[V]
    advice: str
    find_notes: Callable[[V, Mapping[str, Mapping[str, Any]]], tuple[str, ...]]
    frees: Callable[[V], str] = attrgetter("field")


class FleetValues(Generic[V]):
    """The base of values of one kind, each of which is stored by its field."""

    _kind: _Kind[V]

    def __init__(self, store: Callable[[], Store], publish: Callable[[StepRef | None], None]) -> None:
        self._store = store
        self._publish = publish

    def _set(self, parameter: str, value: V, by: str | None) -> tuple[str, ...]:
        """Set a value, and let the steps go that waited for it; returns what may not be meant with it."""
        given: Any = value
        if not isinstance(given, self._kind.value):
            raise InvalidInput(parameter, given, self._kind.advice)
        check_caller(by)
        self._store().flow.set_value(value, by=by or "")
        self._bring_forward(self._kind.frees(value))
        log.info("%s was set by %s", value.field, by)
        return self._kind.find_notes(value, self._store().registry.workers())

    def _remove(self, field: str) -> bool:
        """Remove the value of a field, and let the steps go that it held; False when there was none."""
        removed = self._store().flow.remove_value(field)
        self._bring_forward(field)
        log.info("%s was removed", field)
        return removed

    def _bring_forward(self, put_off: str) -> None:
        """Let steps that were put off by this become due now, and publish those that no transaction could."""
        for step in self._store().flow.bring_forward(put_off):
            self._publish(step)


class ProviderLimits(FleetValues[ProviderLimit]):
    """Limits of model providers: `client.limits`."""

    _kind = _Kind(ProviderLimit, "give a ProviderLimit(model, rpm=…).", find_unused)

    @verb(
        "PUT", "/v1/limits", "set_limit", reads_session=False, part="limits",
        body=("NewLimit", "A limit, in place of the one for the same model and group."),
        http={"limit": Field(), "by": BY},
    )  # fmt: skip
    def set(self, limit: ProviderLimit, *, by: str | None = None) -> tuple[str, ...]:
        """Set a limit, in place of the one for the same model and group. Steps that the old one held are due at once.

        Args:
            by: Who asks; shown with the limit.
        Returns:
            Sentences about what may not be meant, such as a model that no agent has; none when all is well.
        Raises:
            InvalidInput: It is no `ProviderLimit`.
        """
        return self._set("limit", limit, by)

    def get(self, model: str, group: str | None = None) -> ProviderLimit | None:
        """Read the limit that was set for a model and a group; None: none was.

        Args:
            group: None: the limit for each group that has none of its own.
        """
        return self._store().flow.view().limits.get(limit_field(model, group))

    @verb("GET", "/v1/limits", "list_limits", scope=Scope.READ, reads_session=False, part="limits")
    def list(self) -> tuple[BucketStatus, ...]:
        """List what counts requests together, with limits that were set and learned, and limits that nothing uses."""
        return tuple(self._store().flow.buckets())

    @verb(
        "DELETE", "/v1/limits", "remove_limit", reads_session=False, part="limits",
        http={"model": _NAME, "group": _NAME},
    )  # fmt: skip
    def remove(self, model: str, group: str | None = None) -> bool:
        """Remove a limit; steps that it held are due at once. False when there was none."""
        return self._remove(limit_field(model, group))


class SpendCaps(FleetValues[SpendCap]):
    """How much may be spent on models in an hour, a day or a month: `client.caps`."""

    _kind = _Kind(SpendCap, "give a SpendCap(name, usd=…, per=…).", find_unused_cap)

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
        return self._set("cap", cap, by)

    def get(self, name: str) -> SpendCap | None:
        """Read the cap of a name; None: none is set."""
        return self._store().flow.view().caps.get(name)

    @verb("GET", "/v1/caps", "list_caps", scope=Scope.READ, reads_session=False, part="caps")
    def list(self) -> tuple[CapStatus, ...]:
        """List the spend caps by name, with what was spent in the present period."""
        return tuple(self._store().flow.caps())

    @verb("DELETE", "/v1/caps", "remove_cap", reads_session=False, part="caps", http={"name": _NAME})
    def remove(self, name: str) -> bool:
        """Remove a cap; steps that it held are due at once. False when there was none."""
        return self._remove(cap_field(name))


class ConcurrencyLimits(FleetValues[ConcurrencyLimit]):
    """How many steps and calls run at a time: `client.concurrency`."""

    _kind = _Kind(
        ConcurrencyLimit, "give a ConcurrencyLimit(name, total=…); others: client.limits.set(…).", find_unnamed,
        frees=lambda limit: undefined_cause(limit.name),
    )  # fmt: skip

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
        return self._set("limit", limit, by)

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
        return self._remove(concurrency_field(name))
