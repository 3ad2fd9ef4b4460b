"""The verbs of a client about model providers: limits that hold for all workers, and pauses."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from ...config.settings import DEFAULT_QUEUE
from ...worker.errors import InvalidInput
from ...worker.flow.values import PAUSE_KINDS, BucketStatus, Pause, PauseKind, ProviderLimit, limit_field, pause_field
from .connection import ClientConnection
from .inputs import check_caller, read_time_ms
from .provider_notes import find_unknown, find_unused
from .verbs import BY, Scope, verb

if TYPE_CHECKING:
    from ...worker.store.records import StepRef
    from ...worker.store.store import Store

log = logging.getLogger(__name__)

_NAME: Final[Any] = Field(max_length=200)
_SELECTORS: Final = dict.fromkeys(("provider", "model", "agent", "tool", "queue"), _NAME)


class ProviderVerbs(ClientConnection):
    """Sets limits of model providers, and pauses what steps use."""

    @property
    def limits(self) -> ProviderLimits:
        """The limits of model providers."""
        return ProviderLimits(lambda: self.store, self._publish)

    @verb(
        "POST", "/v1/pauses", "pause", scope=Scope.ADMIN, reads_session=False,
        body=("NewPause", "Exactly one of provider, model, agent, tool and queue, with the reason."),
        http={
            **_SELECTORS,
            "reason": Field(min_length=1, max_length=500),
            "until": Field(description="When it ends by itself. None: by hand."),
            "by": BY,
            "tell": Field(description="With a tool: the model reads the reason instead of waiting."),
        },
    )  # fmt: skip
    def pause(
        self,
        *,
        provider: str | None = None,
        model: str | None = None,
        agent: str | None = None,
        tool: str | None = None,
        queue: str | None = None,
        reason: str,
        until: datetime | None = None,
        by: str | None = None,
        tell: bool = False,
    ) -> tuple[str, ...]:
        """Hold every step that would use something, until it is unpaused. Calls that have begun are finished.

        A held step takes no slot and counts no attempt. Stops are carried out all the same. Workers know it at once,
        and within five seconds where they have missed the message.

        Args:
            provider: The part of a model's id before the colon.
            tool: Its calls wait; the other calls of the step run first.
            queue: "default" is the common one.
            reason: Why; shown with everything that it holds. Up to 500 characters.
            until: When it ends by itself. None: `unpause` ends it.
            by: Who asks; shown with the pause.
            tell: With `tool`: its calls do not wait. The result says that the tool is paused, and why.
        Returns:
            Sentences about what may not be meant, such as an agent that no worker has; none when all is well.
        Raises:
            InvalidInput: Not exactly one thing is named, the reason is missing, or `until` has passed.
        """
        check_caller(by)
        until_ms = read_time_ms("until", until)
        if until is not None and until_ms is not None and until_ms <= self._now_ms():
            raise InvalidInput("until", until.isoformat(), "give a time to come, or None: it is then ended by hand.")
        kind, name = _read_selector(provider=provider, model=model, agent=agent, tool=tool, queue=queue)
        pause = Pause(kind, name, reason=reason, until=until, by=by or "", tell=tell)
        self.store.flow.pause(pause)
        log.info("%s %s was paused by %s", kind, name, by)
        return find_unknown(pause, self.store.registry)

    @verb("DELETE", "/v1/pauses", "unpause", reads_session=False, http={**_SELECTORS, "by": BY})
    def unpause(
        self,
        *,
        provider: str | None = None,
        model: str | None = None,
        agent: str | None = None,
        tool: str | None = None,
        queue: str | None = None,
        by: str | None = None,
    ) -> bool:
        """End a pause; the steps that it held are due at once. Of a model, used-up quotas count as raised, too.

        Args:
            by: Who asks; in the log of this process.
        Returns:
            False when nothing was paused.
        Raises:
            InvalidInput: Not exactly one thing is named.
        """
        check_caller(by)
        kind, name = _read_selector(provider=provider, model=model, agent=agent, tool=tool, queue=queue)
        flow = self.store.flow
        ended = flow.unpause(kind, name)
        held = flow.put_off_by(name) if kind == "model" else ()
        for step in flow.bring_forward(pause_field(kind, name), *held):
            self._publish(step)
        log.info("the pause of %s %s was ended by %s", kind, name, by)
        return ended

    @verb("GET", "/v1/pauses", "list_pauses", scope=Scope.READ, reads_session=False)
    def pauses(self) -> tuple[Pause, ...]:
        """List the pauses that have not ended, the oldest first."""
        return tuple(sorted(self.store.flow.view().pauses.values(), key=lambda each: each.since_ms))

    def wake_provider_job(self, job_id: str) -> bool:
        """Let the step of a job at a provider look for its answer now, since the provider says that it has ended.

        Args:
            job_id: The provider's.
        Returns:
            False: No step waits for such a job.
        """
        found = self.store.housekeeping.wake_job(job_id)
        if found is not None:
            self._publish(found[1])
        return found is not None


class FleetLimits:
    """The base of limits that hold for all workers together, and change while they run."""

    def __init__(self, store: Callable[[], Store], publish: Callable[[StepRef | None], None]) -> None:
        self._store = store
        self._publish = publish

    def _bring_forward(self, *put_off: str) -> None:
        """Let steps that were put off by these become due now, and publish those that no transaction could."""
        for step in self._store().flow.bring_forward(*put_off):
            self._publish(step)


class ProviderLimits(FleetLimits):
    """Limits of model providers: `client.limits`."""

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
        given: Any = limit
        if not isinstance(given, ProviderLimit):
            raise InvalidInput("limit", given, "give a ProviderLimit(model, rpm=…).")
        check_caller(by)
        self._store().flow.set_limit(limit, by=by or "")
        self._bring_forward(*self._store().flow.put_off_by(limit.model, limit.group))
        log.info("%s was set by %s", limit.field, by)
        return find_unused(limit, self._store().registry.workers())

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
        removed = self._store().flow.remove_limit(model, group)
        self._bring_forward(*self._store().flow.put_off_by(model, group))
        log.info("%s was removed", limit_field(model, group))
        return removed


def _read_selector(**named: str | None) -> tuple[PauseKind, str]:
    """The kind and the name of what is paused; exactly one is given."""
    given: list[tuple[PauseKind, str]] = [(kind, name) for kind in PAUSE_KINDS if (name := named[kind]) is not None]
    if len(given) != 1:
        raise InvalidInput("Pause", [kind for kind, _ in given], f"name exactly one of {', '.join(PAUSE_KINDS)}.")
    kind, name = given[0]
    return kind, "" if kind == "queue" and name == DEFAULT_QUEUE else name
