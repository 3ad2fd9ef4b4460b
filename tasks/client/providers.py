"""The verbs of a client about pauses, and about jobs at model providers."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any, Final

from pydantic import Field

from ...config.settings import DEFAULT_QUEUE
from ...worker.errors import InvalidInput
from ...worker.flow.values import PAUSE_KINDS, Pause, PauseKind, limit_field, pause_field
from .connection import ClientConnection
from .inputs import check_caller, read_time_ms
from .provider_notes import find_unknown
from .verbs import BY, Scope, verb

log = logging.getLogger(__name__)

_SELECTORS: Final[dict[str, Any]] = dict.fromkeys(PAUSE_KINDS, Field(max_length=200))


class ProviderVerbs(ClientConnection):
    """Pauses what steps use, and hears of jobs at providers."""

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
        and within five seconds where they have missed the message. It takes the place of an earlier pause of the same:
        what that one held is held by this one.

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
        if self.store.flow.pause(pause):
            self._bring_forward(pause.field)
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
        ended = self.store.flow.unpause(kind, name)
        held = [limit_field(name, None)] if kind == "model" else []
        self._bring_forward(pause_field(kind, name), *held)
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

    def _bring_forward(self, *put_off: str) -> None:
        """Let steps that were put off by these become due now, and publish those that no transaction could."""
        for step in self.store.flow.bring_forward(*put_off):
            self._publish(step)


def _read_selector(**named: str | None) -> tuple[PauseKind, str]:
    """The kind and the name of what is paused; exactly one is given."""
    given: list[tuple[PauseKind, str]] = [(kind, name) for kind in PAUSE_KINDS if (name := named[kind]) is not None]
    if len(given) != 1:
        both = ", ".join(kind for kind, _ in given) or None
        raise InvalidInput("Pause", both, f"name exactly one of {', '.join(PAUSE_KINDS)}.")
    kind, name = given[0]
    return kind, "" if kind == "queue" and name == DEFAULT_QUEUE else name
