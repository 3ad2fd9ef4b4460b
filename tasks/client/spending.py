"""Costs: what the executions that are kept have spent, added up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, Final

from pydantic import Field

from ...worker.archive.rows import CostBy, CostSum, ExecutionCost
from ...worker.errors import InvalidInput
from ...worker.moments import moment
from ...worker.store.labels import check_labels
from ...worker.store.session_records import Header
from ...worker.store.sessions.spending import add_up, join_sums, sum_of
from .connection import ClientConnection
from .inputs import read_time_ms
from .listing import Filter, iterate_headers
from .verbs import Scope, verb

_BATCH: Final = 100
# The time of a step and that of its session's update are two estimates of Redis's time: the update may look earlier.
_ESTIMATES_DIFFER_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """The costs of executions, added up.

    Attributes:
        sums: By agent, model or label the most expensive first, days in their order.
        total: All of it, under the name "".
        unread: Ids of sessions that cannot be read; what they have spent is missing.
    """

    sums: tuple[CostSum, ...]
    total: CostSum
    unread: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        sums = [each.to_dict() for each in self.sums]
        return {"sums": sums, "total": self.total.to_dict(), "unread": list(self.unread)}


class SpendingVerbs(ClientConnection):
    """Adds up what was spent."""

    @verb(
        "GET", "/v1/costs", "add_up_costs", scope=Scope.ADMIN, reads_session=False,
        http={
            "by": Field(description="agent, model, day, or label:<key>."),
            "since": Field(description="Executions whose last step is from this time or later, with its zone."),
            "until": Field(description="Executions whose last step is from before this time, with its zone."),
        },
    )  # fmt: skip
    def costs(self, *, by: str = "agent", since: datetime | None = None, until: datetime | None = None) -> CostReport:
        """Add up what executions have spent: steps, tokens and US dollars, each execution once.

        An execution counts with its last committed step (one without steps when its session was updated last), what its
        children have spent counts with these. It reads all steps of all sessions that were updated since: some 100
        microseconds each.

        Args:
            by: agent, model, day (in UTC) or `label:<key>`, such as `label:customer`. The sum under the name "" is that
                of what has no such name: answers that were rejected, that hooks and tools have asked for, or of jobs
                that were cancelled, have no model, and sessions without the label have no value. A session below
                another one that lacks the label has that of its root.
            since, until: The last step is from `since` or later, and from before `until`, so that sums of times that
                meet are the sum of the whole. None: all that is stored.
        Raises:
            InvalidInput: There is no such sum, or a time has no zone.
        """
        name_of, label = _read_by(by)
        oldest, newest = (read_time_ms(n, t, may_be_far=True) for n, t in (("since", since), ("until", until)))
        costs, unread = list[tuple[ExecutionCost, Mapping[str, str]]](), list[str]()
        updated_since = None if oldest is None else oldest - _ESTIMATES_DIFFER_MS
        found_sessions = iterate_headers(self.store, Filter(oldest_ms=updated_since))
        counted = set[str]()
        while headers := list(islice(found_sessions, _BATCH)):
            labels = self._labels_of(headers, label) if label else {}
            found, damaged = self.store.sessions.costs(headers)
            counted |= {each.session_id for each in found}
            unread += damaged
            costs += [
                (each, labels.get(each.session_id, {}))
                for each in found
                if (oldest is None or each.ended_ms >= oldest) and (newest is None or each.ended_ms < newest)
            ]
        archived = self._archived_sums(by, oldest, newest, counted)
        sums = join_sums([*add_up((each, name_of(each, labels)) for each, labels in costs), *archived])
        (total,) = join_sums([sum_of("", [each for each, _ in costs]), *(replace(each, name="") for each in archived)])
        if by == CostBy.DAY:
            sums.sort(key=lambda each: each.name)
        return CostReport(sums=tuple(sums), total=total, unread=tuple(unread))

    def _archived_sums(self, by: str, since_ms: int | None, until_ms: int | None, counted: set[str]) -> list[CostSum]:
        if self.store.archived is None:
            return []
        kind, _, label = by.partition(":")
        return self.store.archived.costs(CostBy(kind), label, since_ms, until_ms, counted=counted)

    def _labels_of(self, headers: Sequence[Header], key: str) -> dict[str, Mapping[str, str]]:
        """The labels of sessions; where one lacks the key, those of its root."""
        below = self.store.trees.roots([each.session_id for each in headers if key not in each.labels])
        roots = sorted(set(below.values()) - set(below))
        found = self.store.sessions.headers_of(roots)
        labels = {each.session_id: each.labels for each in (*headers, *found)}
        return labels | {child: labels[root] for child, root in below.items() if root in labels}


_NameOf = Callable[[ExecutionCost, Mapping[str, str]], str]


def _read_by(by: Any) -> tuple[_NameOf, str]:
    """How an execution is named for a sum, and the key of the label that is needed for that."""
    kind, _, key = by.partition(":") if isinstance(by, str) else ("", "", "")
    if kind == CostBy.LABEL and key:
        check_labels({key: "-"})
        return lambda _, labels: labels.get(key, ""), key
    names: dict[str, _NameOf] = {
        CostBy.AGENT: lambda each, _: each.agent,
        CostBy.MODEL: lambda each, _: each.model,
        CostBy.DAY: lambda each, _: f"{moment(each.ended_ms):%Y-%m-%d}",
    }
    if by not in names:
        raise InvalidInput("by", by, "choose agent, model, day, or label:<key>, such as label:customer.")
    return names[by], ""
