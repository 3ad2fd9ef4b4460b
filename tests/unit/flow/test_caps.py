"""The periods of spend caps, who spends from which part, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from celery_agents.config.settings import Settings
from celery_agents.flow import SpendCap
from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.flow.caps import nanos, period_of
from celery_agents.worker.store import memory_store


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def at(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="minutes")


@pytest.mark.parametrize(
    ("per", "zone", "now", "name", "ends"),
    [
        ("day", "UTC", "2026-11-28T23:59:59Z", "2026-11-28", "2026-11-29T00:00+00:00"),
        ("day", "Europe/Berlin", "2026-11-28T23:30:00Z", "2026-11-29", "2026-11-29T23:00+00:00"),
        ("day", "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-29", "2026-03-29T22:00+00:00"),
        ("day", "Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-25", "2026-10-25T23:00+00:00"),
        ("month", "UTC", "2026-12-31T12:00:00Z", "2026-12", "2027-01-01T00:00+00:00"),
        ("month", "America/New_York", "2026-02-01T02:00:00Z", "2026-01", "2026-02-01T05:00+00:00"),
        ("hour", "UTC", "2026-11-28T23:59:59Z", "2026-11-28T23:00Z", "2026-11-29T00:00+00:00"),
        ("hour", "Asia/Kolkata", "2026-11-28T10:10:00Z", "2026-11-28T09:30Z", "2026-11-28T10:30+00:00"),
        # The hour that comes twice is two periods.
        ("hour", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25T00:00Z", "2026-10-25T01:00+00:00"),
        ("hour", "Europe/Berlin", "2026-10-25T01:30:00Z", "2026-10-25T01:00Z", "2026-10-25T02:00+00:00"),
    ],
)
def test_a_period_follows_the_clock_of_its_zone(per: Any, zone: str, now: str, name: str, ends: str) -> None:
    found, ends_ms = period_of(per, zone, ms(now))
    assert (found, at(ends_ms)) == (name, ends)


@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "America/Santiago", "UTC"]
)
@pytest.mark.parametrize("per", ["hour", "day", "month"])
def test_periods_follow_each_other_without_a_gap(per: Any, zone: str) -> None:
    now, names = ms("2026-01-15T00:00:00Z"), list[str]()
    last = ms("2026-01-25T00:00:00Z") if per == "hour" else ms("2027-02-01T00:00:00Z")
    while now < last:
        name, ends = period_of(per, zone, now)
        assert ends > now
        assert period_of(per, zone, ends - 1) == (name, ends)
        assert period_of(per, zone, ends)[0] != name
        names.append(name)
        now = ends
    assert len(set(names)) == len(names)


def test_who_spends_from_which_part() -> None:
    now = ms("2026-11-28T10:00:00Z")
    cap = SpendCap("c", usd=20, per="day", label="customer", values={"acme": 100, "trial": 0})
    parts = {value: cap.part_for("any", {"customer": value}, now) for value in ("acme", "trial", "other")}
    assert {value: part and part.most for value, part in parts.items()} == {
        "acme": nanos(100), "trial": 0, "other": nanos(20),
    }  # fmt: skip
    assert cap.part_for("any", {}, now) is None, "a session without the label"
    only = SpendCap("c", per="day", label="customer", values={"acme": 100})
    assert only.part_for("any", {"customer": "other"}, now) is None
    mine = SpendCap("c", usd=1, per="hour", agent="mine")
    assert mine.part_for("other", {}, now) is None
    part = mine.part_for("mine", {"customer": "acme"}, now)
    assert part is not None
    assert (part.value, part.window) == ("", "hour:2026-11-28T10:00Z")


def test_a_cap_is_stored_without_loss() -> None:
    cap = SpendCap("c", usd=0.5, per="month", zone="Europe/Berlin", label="customer", values={"a": 1}, then="stop")
    stored = cap.set_by("ann", 5)
    assert SpendCap.from_json(stored.to_json()) == stored
    assert stored.cause.startswith("cap:c|")
    assert len({stored.cause, cap.set_by("ann", 6).cause, cap.cause}) == 3
    assert nanos(1e-12) == 1, "what costs something counts something"
    assert nanos(1e300) == nanos(1e9), "a driver may name any cost"


def test_a_cap_holds_by_utc_where_its_zone_is_not_known() -> None:
    """A client with a newer time zone database has set it."""
    store, now = memory_store(Settings.build()), ms("2026-11-28T23:59:59Z")
    cap = SpendCap("c", usd=1, per="day")
    store.flow.set_value(SpendCap.from_dict({**cap.to_dict(), "zone": "Mars/Base"}))
    store.flow.set_value(SpendCap("d", usd=1, per="day"))
    assert [each.cap.name for each in store.flow.caps()] == ["c", "d"]
    assert {part.window for part in store.flow.view().cap_parts("a", {}, now)} == {"day:2026-11-28"}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "SpendCap.name"),
        ({"name": "a|b"}, "SpendCap.name"),
        ({"usd": None}, "SpendCap.usd"),
        ({"usd": -1}, "SpendCap.usd"),
        ({"usd": True}, "SpendCap.usd"),
        ({"usd": "20"}, "SpendCap.usd"),
        ({"usd": float("nan")}, "SpendCap.usd"),
        ({"usd": 10_000_000}, "SpendCap.usd"),
        ({"per": "week"}, "SpendCap.per"),
        ({"then": "pause"}, "SpendCap.then"),
        ({"zone": "Mars/Base"}, "SpendCap.zone"),
        ({"zone": 5}, "SpendCap.zone"),
        ({"agent": 5}, "SpendCap.agent"),
        ({"label": "a|b"}, "SpendCap.label"),
        ({"values": {"acme": 5}}, "SpendCap.values"),
        ({"label": "customer", "values": {"acme": -5}}, "SpendCap.values['acme']"),
        ({"label": "customer", "values": {str(n): 1 for n in range(1001)}}, "SpendCap.values"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_name(changes: dict[str, Any], field: str) -> None:
    given: dict[str, Any] = {"name": "c", "usd": 20, "per": "day", **changes}
    with pytest.raises(InvalidInput) as refused:
        SpendCap(given.pop("name"), **given)
    assert refused.value.field == field
