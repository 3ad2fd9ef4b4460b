"""Reservations: how the children of a step share what their parent has left.

Each limit that adds up over children (steps, tokens, cost) is shared by itself. Limits that were given for a child are
taken first, in the order of the calls; the rest is split evenly among the others. The limits of a child's agent cap its
share, and what it leaves goes to the others. So siblings never get the same money twice. The parent keeps what the step
needs that uses the results. Time is not shared, since children run side by side: each may take what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from typing import Any, Final

from .budget import UNLIMITED, ExecutionBudget

_LONGEST_MARGIN: Final = timedelta(seconds=2)
_MARGIN_SHARE: Final = 0.1
_SHARED: Final = ("max_steps", "max_tokens", "max_cost")
_UNITS: Final = {"max_steps": "steps", "max_tokens": "tokens", "max_cost": "US dollars", "max_seconds": "seconds"}


@dataclass(frozen=True, slots=True)
class BudgetWish:
    """The limits that are requested for a child.

    Attributes:
        wanted: Limits given for this child; more than is left is refused. None: none were given.
        limits: Limits of the child's agent; they cap its share.
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


def keep_closing_step(left: ExecutionBudget, tokens: int, cost: float) -> ExecutionBudget:
    """The part of what is left that children may get, when their parent keeps a step that uses their results.

    Args:
        tokens, cost: What a step of the parent uses; half of what is left is kept at most, so that children get some.
    """
    return left.remaining(
        steps=1,
        tokens=tokens if left.max_tokens is None else min(tokens, left.max_tokens // 2),
        cost=cost if left.max_cost is None else min(cost, left.max_cost / 2),
    )


def cover(reservation: ExecutionBudget, left: ExecutionBudget) -> ExecutionBudget | Shortage:
    """Cap a reservation by what its parent has left when the child is made: siblings may have used more than theirs."""
    limits: dict[str, Any] = {name: getattr(left, name) for name in _SHARED}
    granted = reservation.capped_by(ExecutionBudget(**limits))
    short = next((name for name in _SHARED if getattr(granted, name) == 0), None)
    return granted if short is None else Shortage(f"no {_UNITS[short]} are left for it: the calls before it used them")


def subtract(left: ExecutionBudget, taken: ExecutionBudget) -> ExecutionBudget:
    """Take a reservation away from what is left."""
    return left.remaining(steps=taken.max_steps or 0, tokens=taken.max_tokens or 0, cost=taken.max_cost or 0.0)


def reserve(
    left: ExecutionBudget, wishes: Sequence[BudgetWish], now: datetime, *, shared: ExecutionBudget | None = None
) -> list[ExecutionBudget | Shortage]:
    """Share what a parent has left among children, in the order of their calls.

    Args:
        left: What the parent has left, without what is reserved for other children. A limit given for a child that is
            above it is refused.
        shared: The part of it that children may get; see `keep_closing_step`. None: all of it.
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
            taken = subtract(taken, ExecutionBudget(**_given_share(taken, wish)))
    fitting = [number for number in range(len(wishes)) if number not in found]
    shares: dict[int, dict[str, Any]] = {number: {} for number in fitting}
    shared = left if shared is None else shared
    for name in _SHARED:
        _share(name, shared, {number: wishes[number] for number in fitting}, shares)
    deadline = _earlier(left.deadline, now)
    for number in fitting:
        own = wishes[number].own
        time = ExecutionBudget(max_seconds=left.max_seconds, deadline=deadline)
        granted = ExecutionBudget(**shares[number]).capped_by(time)
        granted = granted.capped_by(ExecutionBudget(max_seconds=own.max_seconds, deadline=own.deadline))
        found[number] = _shortage_of(granted, shared, now) or granted
    return [found[number] for number in range(len(wishes))]


def _share(name: str, left: ExecutionBudget, wishes: dict[int, BudgetWish], shares: dict[int, dict[str, Any]]) -> None:
    """Share one limit: given ones first, the rest evenly; a whole number's remainder goes to the first ones."""
    rest = getattr(left, name)
    caps: dict[int, Any] = {}
    for number, wish in wishes.items():
        wanted = None if wish.wanted is None else getattr(wish.own, name)
        if wanted is None or getattr(wish.wanted, name) is None:
            caps[number] = getattr(wish.limits, name)
            continue
        shares[number][name] = wanted if rest is None else min(wanted, rest)
        rest = None if rest is None else rest - shares[number][name]
    # The lowest caps first: what they leave of an even share goes to all others.
    ordered = sorted(caps, key=lambda number: inf if caps[number] is None else caps[number])
    for place, number in enumerate(ordered):
        count, cap = len(ordered) - place, caps[number]
        share = cap if rest is None else -(-rest // count) if isinstance(rest, int) else rest / count
        if share is None:
            continue
        shares[number][name] = share if cap is None else min(share, cap)
        rest = None if rest is None else rest - shares[number][name]


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


def _given_share(left: ExecutionBudget, wish: BudgetWish) -> dict[str, Any]:
    """Compute how much a child with limits given for it takes of what is left."""
    limits: dict[str, Any] = {}
    for name in _SHARED if wish.wanted is not None else ():
        limit, rest = getattr(wish.own, name), getattr(left, name)
        if getattr(wish.wanted, name) is not None:
            limits[name] = limit if rest is None else min(limit, rest)
    return limits


def _earlier(deadline: datetime | None, now: datetime) -> datetime | None:
    """A deadline a little before the parent's, so that its step still has time for the results."""
    if deadline is None:
        return None
    time_left = max(timedelta(), deadline - now)
    return deadline - min(_LONGEST_MARGIN, time_left * _MARGIN_SHARE)
