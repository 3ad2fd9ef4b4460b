"""Money under spend caps, on every store: reserved of all parts or of none, settled once, and wakened by a higher cap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from celery_agents.flow import SpendCap
from celery_agents.worker.errors import StoreUnavailable
from celery_agents.worker.flow.caps import CapPart, cap_field, nanos
from celery_agents.worker.store.flow.caps import Overspent

from support.asking import now_ms
from support.points import Points
from support.store import Bench

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")

HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def _no_caps(bench: Bench) -> Any:
    yield
    for name in bench.store.flow.view().caps:
        bench.store.flow.remove_value(cap_field(name))


def made(bench: Bench, name: str = "c", usd: float = 1.0, **changes: Any) -> SpendCap:
    """Set a cap of a name that no other test has."""
    cap = SpendCap(f"{name}-{bench.session}", usd=usd, per="day", **changes)
    bench.store.flow.set_value(cap)
    return bench.store.flow.view().caps[cap.name]


def part(bench: Bench, cap: SpendCap, **labels: str) -> CapPart:
    found = cap.part_for("agent", labels, now_ms(bench))
    assert found is not None
    return found


def reserve(bench: Bench, parts: Sequence[CapPart], name: str, usd: float) -> Overspent | None:
    return bench.store.flow.reserve_spending(parts, name, nanos(usd), now_ms(bench))


def settle(bench: Bench, parts: Sequence[CapPart], name: str, usd: float | None) -> list[int]:
    return bench.store.flow.settle_spending(parts, name, None if usd is None else nanos(usd), now_ms(bench))


def spent(bench: Bench, cap: SpendCap) -> dict[str, float]:
    (found,) = bench.store.flow.spending_of([cap], now_ms(bench))
    return {each.value: round(each.usd, 9) for each in found.spent}


def test_what_would_go_beyond_a_cap_is_refused_and_counts_nothing(bench: Bench) -> None:
    cap = made(bench)
    parts = [part(bench, cap)]
    assert reserve(bench, parts, "r1", 0.6) is None
    assert reserve(bench, parts, "r2", 0.5) == Overspent(parts[0], nanos(0.6))
    assert reserve(bench, parts, "r3", 0.4) is None
    assert spent(bench, cap) == {"": 1.0}
    assert reserve(bench, parts, "r4", 0.0) == Overspent(parts[0], nanos(1.0)), "nothing is left, also for what is free"


def test_what_a_call_has_cost_takes_the_place_of_what_it_reserved_once(bench: Bench) -> None:
    cap = made(bench)
    parts = [part(bench, cap)]
    reserve(bench, parts, "r1", 0.6)
    reserve(bench, parts, "r2", 0.1)
    assert settle(bench, parts, "r1", 0.25) == [nanos(0.35)]
    assert settle(bench, parts, "r1", 0.9) == [nanos(0.35)], "it was settled"
    assert settle(bench, parts, "r2", None) == [nanos(0.35)], "not known: as it was reserved"
    assert settle(bench, parts, "r2", 0.0) == [nanos(0.35)]
    assert settle(bench, parts, "nobody", 5) == [nanos(0.35)]
    reserve(bench, parts, "r3", 0.1)
    assert settle(bench, parts, "r3", 2.0) == [nanos(2.35)], "more than reserved"
    assert reserve(bench, parts, "r4", 0.1) is not None


@pytest.mark.parametrize("usd", [0.2, None], ids=["cheaper", "not known"])
def test_a_call_settles_for_the_value_of_the_label_for_which_it_has_reserved(bench: Bench, usd: float | None) -> None:
    """The label of a session, or of a cap, may be another one when a job at a provider ends."""
    cap = made(bench, label="customer")
    acme, other = [part(bench, cap, customer="acme")], [part(bench, cap, customer="other")]
    reserve(bench, acme, "r1", 0.6)
    reserve(bench, other, "r2", 0.1)
    left = 0.6 if usd is None else usd
    assert settle(bench, other, "r1", usd) == [nanos(left)]
    assert spent(bench, cap) == {"acme": left, "other": 0.1}
    cap = made(bench)
    settle(bench, [part(bench, cap)], "r2", 0.05)
    assert spent(bench, cap) == {"acme": left, "other": 0.05}


def test_all_parts_are_reserved_or_none(bench: Bench) -> None:
    all_of, each = made(bench, "all", usd=1.0), made(bench, "each", usd=0.5, label="customer")
    acme, other = ([part(bench, all_of), part(bench, each, customer=name)] for name in ("acme", "other"))
    assert reserve(bench, acme, "r1", 0.5) is None
    refused = reserve(bench, acme, "r2", 0.1)
    assert refused is not None
    assert (refused.part.cap.name, refused.part.value) == (each.name, "acme")
    assert spent(bench, all_of) == {"": 0.5}
    assert reserve(bench, other, "r3", 0.5) is None
    refused = reserve(bench, [part(bench, all_of), part(bench, each, customer="third")], "r4", 0.1)
    assert refused is not None
    assert refused.part.cap.name == all_of.name
    assert (spent(bench, all_of), spent(bench, each)) == ({"": 1.0}, {"acme": 0.5, "other": 0.5})


def test_a_call_that_may_cost_more_than_the_cap_is_made_where_nothing_is_spent(bench: Bench) -> None:
    cap = made(bench)
    parts = [part(bench, cap)]
    assert reserve(bench, parts, "r1", 5.0) is None
    assert settle(bench, parts, "r1", 0.001) == [nanos(0.001)]
    assert reserve(bench, parts, "r2", 5.0) is not None


def test_a_cap_of_0_lets_nothing_begin(bench: Bench) -> None:
    assert reserve(bench, [part(bench, made(bench, usd=0))], "r1", 0.0) is not None


def test_a_lost_reply_reserves_and_settles_once(bench: Bench) -> None:
    cap = made(bench)
    parts = [part(bench, cap)]
    for point, ask in (
        (Points.CAPS_RESERVE, lambda: reserve(bench, parts, "r1", 0.6)),
        (Points.CAPS_SETTLE, lambda: settle(bench, parts, "r1", 0.3)),
    ):
        bench.spy.lose(point)
        with pytest.raises(StoreUnavailable):
            ask()
        ask()
    assert spent(bench, cap) == {"": 0.3}


def test_asking_again_beside_another_cap_reserves_of_each_once(bench: Bench) -> None:
    """Caps are set and removed between two attempts to create a job, which reserve under one key."""
    first, later = made(bench, "first"), made(bench, "later")
    known, new = part(bench, first), part(bench, later)
    for parts in ([known], [new, known], [known, new]):
        assert reserve(bench, parts, "r1", 0.6) is None
        assert spent(bench, first) == {"": 0.6}
    assert spent(bench, later) == {"": 0.6}
    settle(bench, [new, known], "r1", 0.1)
    assert (spent(bench, first), spent(bench, later)) == ({"": 0.1}, {"": 0.1})


def test_of_a_cap_that_is_set_later_a_reservation_that_stands_needs_room(bench: Bench) -> None:
    first, later = made(bench, "first"), made(bench, "later", usd=0)
    known, new = part(bench, first), part(bench, later)
    assert reserve(bench, [known], "r1", 0.6) is None
    assert reserve(bench, [known, new], "r1", 0.6) == Overspent(new, 0)
    assert spent(bench, first) == {"": 0.6}


def test_a_period_is_forgotten_a_day_behind_its_end(bench: Bench) -> None:
    cap = made(bench)
    parts = [part(bench, cap)]
    reserve(bench, parts, "r1", 0.6)
    keys = bench.store.context.fleet.cap(cap.name, parts[0].window)
    left = parts[0].ends_ms - now_ms(bench)
    for key in keys.all:
        assert left + 23 * HOUR_MS < bench.database("PTTL", key) <= left + 24 * HOUR_MS + 1000


def test_who_waits_for_a_cap_is_woken_when_it_is_raised_or_removed(bench: Bench) -> None:
    cap = made(bench)
    for change in (lambda: made(bench, usd=2.0), lambda: bench.store.flow.remove_value(cap.field)):
        current = bench.store.flow.view().caps[cap.name]
        claimed = bench.claim()
        bench.store.steps.release(
            claimed.claim, delay_ms=HOUR_MS, give_back=True, reason="no money", put_off=current.cause
        )
        due = bench.due()
        assert due is not None
        assert due > now_ms(bench) + HOUR_MS / 2
        change()
        assert len(bench.store.flow.bring_forward(current.field)) == 1
        due = bench.due()
        assert due is not None
        assert due < now_ms(bench) + HOUR_MS / 2


@pytest.mark.parametrize("change", ["raised", "damaged"])
def test_a_cap_that_is_changed_while_a_step_is_put_off_holds_it_no_longer(bench: Bench, change: str) -> None:
    cap = made(bench)
    claimed = bench.claim()
    damage = ("HSET", bench.store.context.fleet.flow, cap.field, b"{")
    bench.spy.before(
        Points.RELEASE_READ, lambda: made(bench, usd=2.0) if change == "raised" else bench.database(*damage)
    )
    bench.store.steps.release(claimed.claim, delay_ms=HOUR_MS, give_back=True, reason="no money", put_off=cap.cause)
    due = bench.due()
    assert due is not None
    assert due < now_ms(bench) + HOUR_MS / 2
    bench.store.flow.remove_value(cap.field)


def test_what_is_no_cap_is_left_out(bench: Bench) -> None:
    cap = made(bench)
    flow = bench.store.context.fleet.flow
    bench.database("HSET", flow, f"cap:{cap.name}", b"{")
    assert cap.name not in bench.store.flow.view().caps
    assert bench.store.flow.remove_value(cap.field)
    assert not bench.store.flow.remove_value(cap.field)
