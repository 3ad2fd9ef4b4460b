"""Costs of sessions: the use that their executions have made of each model, and sums of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, Final

from ...archive.rows import CostSum, ExecutionCost
from ...errors import StateUnreadable
from ...moments import unix_ms
from ...state.execution.children import child_ids
from ...state.execution.execution import ExecutionState
from ...state.execution.requests import RequestKind
from ...state.execution.steps import StepExecution
from ...state.execution.usage import InferenceUsage
from .. import fields
from ..context import StorePart
from ..database import Command, Word
from ..packing import read_steps
from ..session_records import Header

_LEAST: Final = 1e-9  # dollars: less is the rounding of a sum
_BROUGHT: Final = "brought"


@dataclass(slots=True)
class _Use:
    """The use of a model, or that of an execution as a whole."""

    steps: int = 0
    tokens: int = 0
    cost: float = 0.0
    is_priced: bool = True

    def add(self, usage: InferenceUsage, cost: float | None, *, steps: int = 0) -> None:
        self.steps += steps
        self.tokens += usage.total
        self.cost += cost or 0.0
        self.is_priced = self.is_priced and cost is not None

    def take_off(self, tokens: int, cost: float) -> None:
        self.tokens -= tokens
        self.cost -= cost


@dataclass(frozen=True, slots=True)
class _Brought:
    """The use of the execution of a copy, as it was when the copy was made: of the session that it comes from.

    Attributes:
        tokens, cost: Without those of children, where they are known.
    """

    execution_id: str = ""
    steps: int = 0
    tokens: int = 0
    cost: float = 0.0


def brought_words(execution: ExecutionState, steps: int) -> list[Word]:
    """The field of a new session's hash that tells what its execution has used elsewhere, and its value.

    Args:
        steps: Its steps that are done.
    """
    tokens = execution.usage.total - (execution.child_tokens or 0)
    cost = (execution.cost or 0.0) - (execution.child_cost or 0.0)
    return [_BROUGHT, fields.to_json([execution.execution_id, steps, tokens, cost])]


def child_facts(execution: ExecutionState) -> dict[str, Any]:
    """Tell the record of an ended execution what its children have used."""
    if execution.child_tokens is None:
        return {}
    return {"child_tokens": execution.child_tokens, "child_cost": execution.child_cost}


class SpendingVerbs(StorePart):
    """Reads what sessions have spent."""

    def costs(self, headers: Sequence[Header]) -> tuple[list[ExecutionCost], list[str]]:
        """Read the costs of the executions that are kept, and the ids of the sessions that cannot be read.

        A session that goes while it is read, since it moves to the archive or is deleted, has none.
        """
        all_keys = [self._context.keys(each.session_id) for each in headers]
        names = ("executions", "head", "first", _BROUGHT)
        heads: list[list[Command]] = [[("HMGET", keys.session, *names)] for keys in all_keys]
        found, unread = list[ExecutionCost](), list[str]()
        for header, replies in zip(headers, self._context.read_apart("costs.heads", heads), strict=True):
            try:
                if isinstance(replies, StateUnreadable):
                    raise replies
                found += self._costs_of(header, *replies[0])
            except (StateUnreadable, AttributeError, KeyError, TypeError, ValueError):
                unread.append(header.session_id)
        versions: list[list[Command]] = [[("HGET", keys.session, "version")] for keys in all_keys]  # no mark has one
        there = self._context.read_apart("costs.there", versions)
        gone = {each.session_id for each, replies in zip(headers, there, strict=True) if replies == [None]}
        return [each for each in found if each.session_id not in gone], [each for each in unread if each not in gone]

    def _costs_of(
        self, header: Header, executions: bytes | None, head: bytes | None, first: bytes | None, brought: bytes | None
    ) -> Iterator[ExecutionCost]:
        # A session that begins with a message has no steps of another one. Times of steps follow an estimate of Redis's
        # clock: its first step may seem older than the session.
        oldest_ms = 0 if first else header.created_ms
        keys, database = self._context.keys(header.session_id), self._context.database
        names = fields.strings(executions)
        if not names:
            return
        lists: list[Command] = [("LRANGE", keys.steps(name), 0, -1) for name in names]
        *entries, ends = database.pipeline("costs.steps", [*lists, self._ends(header.session_id, names)])
        stored: Any = fields.read_json(head, "head") if head else {}
        latest: Any = stored.get("state", {}).get("execution") or {}
        copied = _Brought(*fields.read_json(brought, _BROUGHT)) if brought else _Brought()
        for name, records, end in zip(names, entries, ends, strict=True):
            steps = [StepExecution.from_json(each) for each in read_steps(database.pipeline, keys, records)]
            is_copied = copied.execution_id == name
            # What a copy has brought belongs to the session that it comes from.
            own = steps[copied.steps :] if is_copied else [e for e in steps if unix_ms(e.completed_at) >= oldest_ms]
            if steps and not own and not is_copied:
                continue  # an earlier version has made the copy
            uses = _uses(own)
            told: Any = latest if latest.get("execution_id") == name else end and fields.read_json(end, "a record")
            total = _total(told)
            if total is not None and (is_copied or len(own) == len(steps)):
                if is_copied:
                    total.take_off(copied.tokens, copied.cost)
                knows_children = told.get("child_tokens") is not None
                if knows_children:
                    total.take_off(told["child_tokens"], told.get("child_cost") or 0.0)
                self._add_rest(uses, total, () if knows_children else _children_of(header.session_id, name, own))
            yield from _execution_costs(header, name, own, uses)

    def _add_rest(self, uses: dict[str, _Use], total: _Use, children: Sequence[tuple[str, str]]) -> None:
        """Add what an execution has used besides the answers of its steps and besides its children.

        Args:
            children: Those whose use is in the total, by executions of earlier versions.
        """
        reads = [self._ends(session, [execution]) for session, execution in children]
        ends = self._context.database.pipeline("costs.children", reads) if reads else ()
        parts = [*uses.values(), *(_total(fields.read_json(end, "a record")) for (end,) in ends if end is not None)]
        if len(parts) < len(uses) + len(children):
            return  # a child is gone: nobody knows which part of the total it was
        tokens = total.tokens - sum(each.tokens for each in parts if each is not None)
        cost = total.cost - sum(each.cost for each in parts if each is not None)
        if tokens > 0 or cost > _LEAST:
            uses[""].tokens += max(tokens, 0)
            uses[""].cost += max(cost, 0.0)

    def _ends(self, session_id: str, executions: Sequence[str]) -> Command:
        return ("HMGET", self._context.keys(session_id).session, *[f"e:{name}" for name in executions])


def _uses(steps: Sequence[StepExecution]) -> dict[str, _Use]:
    """Add up the answers of steps by their model."""
    uses = defaultdict[str, _Use](_Use)
    for each in steps:
        answer = each.step.inference_response
        uses[answer.model or ""].add(answer.usage, answer.cost, steps=1)
    return uses


def _total(stored: Any) -> _Use | None:
    """Read the totals of an execution from its record or from a head; None where there are none."""
    if not stored:
        return None
    use = _Use()
    use.add(InferenceUsage.from_dict(stored.get("usage") or {}), stored.get("cost"))
    return use


def _children_of(session_id: str, execution_id: str, steps: Sequence[StepExecution]) -> list[tuple[str, str]]:
    """Ids of the children of an execution, and of the executions that they were made for."""
    return [
        child_ids(session_id, execution_id, each.step.number, (index, resolution.round))
        for each in steps
        for index, call in enumerate(each.step.tool_executions)
        for resolution in call.resolutions
        if resolution.kind is RequestKind.CHILD
    ]


def _execution_costs(
    header: Header, execution_id: str, steps: Sequence[StepExecution], uses: dict[str, _Use]
) -> Iterator[ExecutionCost]:
    for model, use in uses.items():
        yield ExecutionCost(
            session_id=header.session_id, execution_id=execution_id, agent=header.agent, model=model,
            ended_ms=unix_ms(steps[-1].completed_at) if steps else header.updated_ms,
            steps=use.steps, tokens=use.tokens, cost=use.cost, is_priced=use.is_priced,
        )  # fmt: skip


def sum_of(name: str, costs: Sequence[ExecutionCost]) -> CostSum:
    """Add up these costs."""
    return CostSum(
        name=name,
        executions=len({each.execution for each in costs}),
        steps=sum(each.steps for each in costs),
        tokens=sum(each.tokens for each in costs),
        cost=fsum(each.cost for each in costs),
        unpriced=len({each.execution for each in costs if not each.is_priced}),
    )


def join_sums(sums: Iterable[CostSum]) -> list[CostSum]:
    """Join sums of different sessions that have the same name, the most expensive first."""
    groups = defaultdict[str, list[CostSum]](list)
    for each in sums:
        groups[each.name].append(each)
    return sorted((_join(name, group) for name, group in groups.items()), key=_by_cost)


def _join(name: str, sums: Sequence[CostSum]) -> CostSum:
    return CostSum(
        name=name,
        executions=sum(each.executions for each in sums),
        steps=sum(each.steps for each in sums),
        tokens=sum(each.tokens for each in sums),
        cost=fsum(each.cost for each in sums),
        unpriced=sum(each.unpriced for each in sums),
    )


def _by_cost(each: CostSum) -> tuple[float, int, str]:
    return -each.cost, -each.tokens, each.name


def add_up(costs: Iterable[tuple[ExecutionCost, str]]) -> list[CostSum]:
    """Add costs up by the name that each comes with, the most expensive first."""
    groups = defaultdict[str, list[ExecutionCost]](list)
    for each, name in costs:
        groups[name].append(each)
    return sorted((sum_of(name, group) for name, group in groups.items()), key=_by_cost)
