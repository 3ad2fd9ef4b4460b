"""Acting on many: one act on all sessions that a filter finds, with a report of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import Field

from ...worker.errors import ActionRefused, InvalidInput, SessionConflict, SessionNotFound, StateUnreadable
from ...worker.state.execution.execution import ExecutionState
from ...worker.store.labels import check_changes
from ...worker.store.session_records import SUSPENDED, Header
from .deleting import DeletingVerbs
from .holding import HoldingVerbs, check_reason
from .inputs import check_caller, check_listing
from .listing import iterate_all, iterate_headers, read_filter
from .trees import ACTIVE
from .verbs import BY, Scope, verb

if TYPE_CHECKING:
    from .client import AgentClient

_FILTER: Final = ("status", "agent", "label", "text", "error", "waits_for", "since", "until")
_REFUSALS: Final = (ActionRefused, SessionConflict, SessionNotFound, StateUnreadable, InvalidInput, TimeoutError)
_MOST: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ActOutcome:
    """The outcome of one session of many.

    Attributes:
        outcome: done; unchanged: it was so already; refused; planned: it was only looked at.
        reason: Why it was refused; "" otherwise.
        cost: For a retry that is planned, US dollars that it may cost at most: the steps that its budget leaves times
            what its steps have cost on average, at most what its budget leaves. None: not known, or without a limit.
    """

    session_id: str
    agent: str
    outcome: str
    reason: str = ""
    cost: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActReport:
    """The outcomes of one act on many sessions.

    Attributes:
        outcomes: Of each session, the last updated first.
        more: There are more than `limit`; act again.
    """

    act: str
    outcomes: tuple[ActOutcome, ...]
    more: bool

    @property
    def counts(self) -> dict[str, int]:
        """How many sessions have each outcome."""
        return dict(Counter(each.outcome for each in self.outcomes))

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        outcomes = [asdict(each) for each in self.outcomes]
        return {"act": self.act, "counts": self.counts, "outcomes": outcomes, "more": self.more}


class BulkVerbs(HoldingVerbs, DeletingVerbs):
    """Acts on many sessions."""

    @verb(
        "POST", "/v1/acts", "act_on_many", scope=Scope.ADMIN, reads_session=False,
        body=("NewAct", "One act on all sessions that the filter finds."),
        http={
            "act": Field(description="retry, stop, suspend, resume, delete or label."),
            "status": Field(description="As in a listing."),
            "agent": Field(),
            "label": Field(description="With all of these."),
            "text": Field(description="Part of the first message's beginning."),
            "error": Field(description="Part of the error with which it failed."),
            "waits_for": Field(description="Kind of an open request: approval, question or external."),
            "since": Field(description="Updated at or after this time, with its zone."),
            "until": Field(description="Updated at or before this time, with its zone."),
            "everything": Field(description="true: without a filter."),
            "labels": Field(description="For label: texts by key; null removes a label."),
            "reason": Field(max_length=1000, description="For suspend."),
            "limit": Field(ge=1, le=_MOST, description="Most sessions."),
            "dry_run": Field(description="true: only tell what would be done."),
            "by": BY,
        },
    )  # fmt: skip
    def act_on_many(
        self,
        act: str,
        *,
        status: str | None = None,
        agent: str | None = None,
        label: Mapping[str, str] | None = None,
        text: str | None = None,
        error: str | None = None,
        waits_for: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        everything: bool = False,
        labels: Mapping[str, str | None] | None = None,
        reason: str = "",
        limit: int = 1000,
        dry_run: bool = False,
        by: str | None = None,
        progress: Callable[[ActOutcome], object] | None = None,
    ) -> ActReport:
        """Do one thing to all sessions that a filter finds, each as the verb of its name does it.

        It concerns those that it can concern: a retry the failed ones, or with `status="stopped"` those; a stop and a
        suspension those that run or wait; a resume those that are held; a deletion those that have ended. Sessions
        that agents have started go with theirs. A stop does not wait for the end.

        Args:
            act: retry, stop, suspend, resume, delete or label.
            status, agent, label, text, error, waits_for, since, until: As for `list`.
            everything: Needed where none of these is given.
            labels: For `label`: what to set, and with None what to remove.
            reason: For `suspend` alone.
            limit: Most sessions, 1 to 10 000.
            dry_run: Only tell what would be done, and what a retry may cost.
            progress: Called with each outcome when it is known.
        Returns:
            The outcome of each. What was refused is named, and the others are done.
        Raises:
            InvalidInput: There is no such act, nothing is named and not `everything`, or an argument cannot be used.
                Nothing was done.
        """
        given = {
            "status": status, "agent": agent, "label": label, "text": text, "error": error, "waits_for": waits_for,
            "since": since, "until": until,
        }  # fmt: skip
        if not everything and not any(given.values()):
            named = ", ".join(_FILTER)
            raise InvalidInput("everything", False, f"name {named}, or give everything (--all) to mean all.")
        do = self._read_act(act, labels, reason, by)
        check_listing(status, limit)
        check_caller(by)
        if act == "retry" and status is None:
            given["status"] = "failed"
        found = list(islice(self._concerned(act, given), limit + 1))
        outcomes = list[ActOutcome]()
        for header in found[:limit]:
            outcomes.append(self._plan(act, header) if dry_run else _try(do, header))
            if progress is not None:
                progress(outcomes[-1])
        return ActReport(act=act, outcomes=tuple(outcomes), more=len(found) > limit)

    def _read_act(
        self, act: Any, labels: Mapping[str, str | None] | None, reason: str, by: str | None
    ) -> Callable[[Header], object]:
        """The verb for each session; it returns False where nothing changed."""
        client = cast("AgentClient", self)  # whose other verbs it does
        acts: dict[str, Callable[[Header], object]] = {
            "retry": lambda each: client.retry(each.session_id, by=by),
            "stop": lambda each: client.stop(each.session_id, execution_id=each.execution_id, timeout=0, by=by),
            "suspend": lambda each: self._hold(each.session_id, reason, by) == "changed",
            "resume": lambda each: client.resume(each.session_id, by=by),
            "delete": lambda each: self._delete_found(each, by),
            "label": lambda each: client.label(each.session_id, changes),
        }
        if act not in acts:
            raise InvalidInput("act", act, f"there are {', '.join(acts)}.")
        if act == "suspend":
            check_reason(reason)
        elif reason:
            raise InvalidInput("reason", reason, "it is shown where a session is held: give it to `suspend` alone.")
        changes = check_changes({} if labels is None else labels)
        if bool(changes) != (act == "label"):
            raise InvalidInput("labels", labels, "they are what `label` sets and removes: give them there alone.")
        return acts[act]

    def _concerned(self, act: str, given: Mapping[str, Any]) -> Iterator[Header]:
        """Sessions that the filter finds and the act can concern, as they are now."""
        index = "active" if act in ("stop", "suspend") and given["waits_for"] is None else None
        wanted, ended = read_filter(**given), act in ("delete", "label", "retry")
        found = iterate_all(self.store, wanted) if ended else iterate_headers(self.store, wanted, index=index)
        for header in found:
            if _CONCERNED[act](header) and not (ended and self._is_child(header)):
                yield header

    def _plan(self, act: str, header: Header) -> ActOutcome:
        cost = self._cost_of_retry(header.session_id) if act == "retry" else None
        return ActOutcome(session_id=header.session_id, agent=header.agent, outcome="planned", cost=cost)

    def _cost_of_retry(self, session: str) -> float | None:
        try:
            execution = self.store.sessions.execution(session, 1, 1).execution
        except _REFUSALS:
            return None
        return None if execution is None else cost_of_retry(execution)


def cost_of_retry(execution: ExecutionState) -> float | None:
    """The US dollars that an execution may still cost within its budget; None: not known, or without a limit."""
    if execution.cost is None:
        return None
    budget, done, bounds = execution.budget, execution.steps_used, list[float]()
    if budget.max_steps is not None and done:
        bounds.append(max(0, budget.max_steps - done) * execution.cost / done)
    if budget.max_cost is not None:
        bounds.append(max(0.0, budget.max_cost - execution.cost))
    return min(bounds, default=None)


def _is_active(header: Header) -> bool:
    return header.status in ACTIVE


def _is_held(header: Header) -> bool:
    return header.hold is not None or header.session_status == SUSPENDED


_CONCERNED: Final[Mapping[str, Callable[[Header], bool]]] = {
    "retry": lambda header: header.status in ("failed", "stopped"),
    "stop": _is_active,
    "suspend": lambda header: _is_active(header) and not _is_held(header),
    "resume": _is_held,
    "delete": lambda header: not _is_active(header),
    "label": lambda _: True,
}
"""The sessions that an act can concern."""


def _try(do: Callable[[Header], object], header: Header) -> ActOutcome:
    outcome, reason = "done", ""
    try:
        if do(header) is False:
            outcome = "unchanged"
    except _REFUSALS as error:
        outcome, reason = "refused", str(error)
    return ActOutcome(session_id=header.session_id, agent=header.agent, outcome=outcome, reason=reason)
