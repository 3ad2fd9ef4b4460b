"""Sums of what executions have cost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, assert_never

from sqlalchemy import BigInteger, ColumnElement, Float, Text, cast, distinct, func, select
from sqlalchemy.sql import bindparam, case

from .rows import CostBy, CostSum
from .storing import ArchivePart, clean
from .tables import costs, session_labels, sessions

_DAY_MS: Final = 24 * 3600 * 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# An execution is named by its session's row as well: a fork or a session that was taken elsewhere has the same id.
_EXECUTION: Final = cast(costs.c.id, Text) + ":" + costs.c.execution_id
_MOST: Final = 10_000
# Written into the statement: a statement has 65 535 parameters at most.
_OF_ANY_NUMBER: Final[Any] = {"type_": BigInteger, "expanding": True, "literal_execute": True}


class CostVerbs(ArchivePart):
    """Adding up costs."""

    def costs(
        self,
        by: CostBy,
        *,
        label: str = "",
        since_ms: int | None = None,
        until_ms: int | None = None,
        without: Sequence[int] = (),
        up_to: int | None = None,
    ) -> list[CostSum]:
        """Add up what executions have cost, the most expensive first; 10 000 sums at most.

        Args:
            by: By a label: that of the session at the root of a tree counts for those below that have none.
            label: Its key.
            since_ms, until_ms: The last step of an execution is from `since_ms` or later, and from before `until_ms`
                (Redis ms).
            without: Places of sessions that do not count.
            up_to: The greatest place that counts; None: all do.
        """
        name = _name(by)
        query: Any = select(name.label("name"), *_SUMS).select_from(costs)
        if by is CostBy.LABEL:
            query = query.join(sessions, sessions.c.id == costs.c.id)
            query = query.outerjoin(_roots, _is_root)
            for labels, owner in ((session_labels, sessions), (_labels_of_root, _roots)):
                query = query.outerjoin(labels, (labels.c.id == owner.c.id) & (labels.c.key == clean(label)))
        if without:
            query = query.where(costs.c.id.not_in(bindparam("without", list(without), **_OF_ANY_NUMBER)))
        if up_to is not None:
            query = query.where(costs.c.id <= up_to)
        if since_ms is not None:
            query = query.where(costs.c.ended_ms >= since_ms)
        if until_ms is not None:
            query = query.where(costs.c.ended_ms < until_ms)
        query = query.group_by(name).order_by(_SUMS[3].desc(), name).limit(_MOST)
        with self._database.reading() as connection:
            return [
                CostSum(
                    name=_show_day(row.name) if by is CostBy.DAY else row.name,
                    executions=row.executions,
                    steps=int(row.steps),
                    tokens=int(row.tokens),
                    cost=row.dollars,
                    unpriced=row.unpriced,
                )
                for row in connection.execute(query)
            ]


_roots = sessions.alias("roots")
_newer = sessions.alias("newer")
_labels_of_root = session_labels.alias("labels_of_root")
# The id of a fork begins with that of its source's root, but it is itself the root of its tree.
_root_id = case((sessions.c.parent_id == "", sessions.c.session_id), else_=sessions.c.root_id)
_is_root = (_roots.c.session_id == _root_id) & ~(
    select(_newer.c.id)
    .where(_newer.c.session_id == _roots.c.session_id, _newer.c.created_ms > _roots.c.created_ms)
    .exists()
)
_SUMS: Final = (
    func.count(distinct(_EXECUTION)).label("executions"),
    func.sum(costs.c.steps).label("steps"),
    func.sum(cast(costs.c.tokens, Float)).label("tokens"),  # a sum of integers may be larger than any integer
    func.sum(costs.c.cost).label("dollars"),
    func.count(distinct(case((costs.c.is_unpriced == 1, _EXECUTION)))).label("unpriced"),
)


def _name(by: CostBy) -> ColumnElement[Any]:
    match by:
        case CostBy.AGENT:
            return costs.c.agent
        case CostBy.MODEL:
            return costs.c.model
        case CostBy.DAY:
            return costs.c.ended_ms - costs.c.ended_ms % _DAY_MS
        case CostBy.LABEL:
            return func.coalesce(session_labels.c.value, _labels_of_root.c.value, "")
        case _ as never:
            assert_never(never)


def _show_day(start_ms: int) -> str:
    return f"{_EPOCH + timedelta(milliseconds=start_ms):%Y-%m-%d}"
