"""Reservations: how the children of a step share what their parent has left.

Each limit that adds up over children (steps, tokens, cost) is shared by itself. Children that bring a limit of their
own take it first, in the order of their calls; the rest is split evenly among the others. So siblings never get the
same money twice. Time is not shared, since children run side by side: each may take what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from .budget import UNLIMITED, ExecutionBudget

_LONGEST_MARGIN: Final = timedelta(seconds=2)
_MARGIN_SHARE: Final = 0.1
_SHARED: Final = ("max_steps", "max_tokens", "max_cost")
_UNITS: Final = {"max_steps": "steps", "max_tokens": "tokens", "max_cost": "US dollars", "max_seconds": "seconds"}


@dataclass(frozen=True, slots=True)
class BudgetWish:
    """The limits that somebody wants for a child.

    Attributes:
        wanted: Limits given for this child; more than is left is refused. None: none were given.
        limits: Limits of the child's agent; they are capped by what is left.
    """

    wanted: ExecutionBudget | None = None
    limits: ExecutionBudget = UNLIMITED

    @property
    def own(self) -> ExecutionBudget:
        """The limits that the child has of its own."""
        return self.limits if self.wanted is None else self.limits.capped_by(self.wanted)


@dataclass(frozen=True, slots=True)
class Shortage:
    """A child that does not fit into what is left; nothing is reserved for it.

    Attributes:
        message: Written for the model, with the numbers.
    """

    message: str


def reserve(left: ExecutionBudget, wishes: Sequence[BudgetWish], now: datetime) -> list[ExecutionBudget | Shortage]:
    """Share what a parent has left among children, in the order of their calls.

    Args:
        left: What the parent has left, without what is reserved for other children.
    Returns:
        For each wish the reservation, or why there is none.
    """
    found: dict[int, ExecutionBudget | Shortage] = {}
    taken = left
    for number, wish in enumerate(wishes):
        shortage = _shortage(taken, wish.wanted)
        if shortage is not None:
            found[number] = shortage
        else:
            taken = _less(taken, _own_share(taken, wish.own))
    fitting = [number for number in range(len(wishes)) if number not in found]
    shares: dict[int, dict[str, Any]] = {number: {} for number in fitting}
    for name in _SHARED:
        _share(name, left, {number: wishes[number].own for number in fitting}, shares)
    deadline = _earlier(left.deadline, now)
    for number in fitting:
        own = wishes[number].own
        time = ExecutionBudget(max_seconds=left.max_seconds, deadline=deadline)
        granted = ExecutionBudget(**shares[number]).capped_by(time)
        granted = granted.capped_by(ExecutionBudget(max_seconds=own.max_seconds, deadline=own.deadline))
        found[number] = _shortage_of(granted, left, now) or granted
    return [found[number] for number in range(len(wishes))]


def _share(
    name: str, left: ExecutionBudget, owns: dict[int, ExecutionBudget], shares: dict[int, dict[str, Any]]
) -> None:
    """Share one limit: own limits first, the rest evenly; a whole number's remainder goes to the first ones."""
    rest = getattr(left, name)
    others: list[int] = []
    for number, own in owns.items():
        wanted = getattr(own, name)
        if wanted is None:
            others.append(number)
            continue
        shares[number][name] = wanted if rest is None else min(wanted, rest)
        rest = None if rest is None else rest - shares[number][name]
    if rest is None:
        return
    for place, number in enumerate(others):
        count = len(others) - place
        share = -(-rest // count) if isinstance(rest, int) else rest / count
        shares[number][name] = share
        rest -= share


def _shortage(left: ExecutionBudget, wanted: ExecutionBudget | None) -> Shortage | None:
    """Why limits that were given do not fit; None where they do."""
    for name in _SHARED if wanted is not None else ():
        limit, rest = getattr(wanted, name), getattr(left, name)
        if limit is not None and rest is not None and limit > rest:
            return Shortage(f"it would need {limit:g} {_UNITS[name]}, and {rest:g} are left; ask for less")
    return None


def _shortage_of(granted: ExecutionBudget, left: ExecutionBudget, now: datetime) -> Shortage | None:
    """Why a child could not even begin; None where it can."""
    for name, unit in _UNITS.items():
        limit = getattr(granted, name)
        if limit is not None and limit <= 0:
            rest = getattr(left, name)
            return Shortage(f"no {unit} are left for it: {0 if rest is None else rest:g} for all calls of this step")
    if granted.deadline is not None and granted.deadline <= now:
        return Shortage("its deadline has passed")
    return None


def _own_share(left: ExecutionBudget, own: ExecutionBudget) -> ExecutionBudget:
    """Compute how much a child with limits of its own takes of what is left."""
    limits: dict[str, Any] = {}
    for name in _SHARED:
        limit, rest = getattr(own, name), getattr(left, name)
        if limit is not None:
            limits[name] = limit if rest is None else min(limit, rest)
    return ExecutionBudget(**limits)


def _less(left: ExecutionBudget, taken: ExecutionBudget) -> ExecutionBudget:
    return left.remaining(steps=taken.max_steps or 0, tokens=taken.max_tokens or 0, cost=taken.max_cost or 0.0)


def _earlier(deadline: datetime | None, now: datetime) -> datetime | None:
    """A deadline a little before the parent's, so that its step still has time for the results."""
    if deadline is None:
        return None
    time_left = max(timedelta(), deadline - now)
    return deadline - min(_LONGEST_MARGIN, time_left * _MARGIN_SHARE)
