"""Schedules as values: their slots through daylight saving time, their templates, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any

import pytest

from celery_agents.flow import Schedule, ScheduleStatus
from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.flow.slots import LATE_MS, LOOK_AGAIN_MS, decide, look_at_ms, settle

MINUTE = 60_000


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def made(**changes: Any) -> Schedule:
    values: dict[str, Any] = {"cron": "* * * * *", "agent": "report", "message": "Report of {date}"}
    return Schedule("nightly", **{**values, **changes})


def slots(cron: str, zone: str, after: str, count: int) -> list[str]:
    found = islice(made(cron=cron, zone=zone).slots_after(ms(after)), count)
    return [f"{datetime.fromtimestamp(each / 1000, UTC):%m-%dT%H:%M}" for each in found]


# --- slots ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        # In spring the clock goes from 02:00 to 03:00: what was to be in between comes at once, and once.
        ("30 2 * * *", "2026-03-28T12:00Z", ["03-29T01:00", "03-30T00:30"]),
        ("0,30 2 * * *", "2026-03-28T12:00Z", ["03-29T01:00", "03-30T00:00"]),
        ("0 * * * *", "2026-03-28T23:30Z", ["03-29T00:00", "03-29T01:00", "03-29T02:00"]),
        # In autumn 02:00 to 03:00 comes twice: a fixed time comes once, an interval goes on.
        ("30 2 * * *", "2026-10-24T12:00Z", ["10-25T00:30", "10-26T01:30"]),
        ("*/30 * * * *", "2026-10-25T00:15Z", ["10-25T00:30", "10-25T01:00", "10-25T01:30", "10-25T02:00"]),
        ("30 2 * * *", "2026-10-25T01:00Z", ["10-26T01:30"]),
        # With a star in the minute or the hour neither holds, as in Debian's cron.
        ("*/30 2 * * *", "2026-03-28T12:00Z", ["03-30T00:00", "03-30T00:30"]),
        ("*/30 2 * * *", "2026-10-25T00:15Z", ["10-25T00:30", "10-25T01:00", "10-25T01:30", "10-26T01:00"]),
        ("46-46/3 2-2/9 * * *", "2026-05-01T00:00Z", ["05-01T00:46", "05-02T00:46"]),
        ("5-55/25 2 * JUL-JUL/2 *", "2026-05-01T00:00Z", ["07-01T00:05", "07-01T00:30", "07-01T00:55", "07-02T00:05"]),
    ],
)
def test_slots_follow_the_clock_of_their_zone(cron: str, after: str, expected: list[str]) -> None:
    assert slots(cron, "Europe/Berlin", after, len(expected)) == expected


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        ("0 */6 * * *", "2024-04-06T14:00Z", ["04-06T19:30", "04-07T01:30", "04-07T07:30"]),
        ("0 */6 * * *", "2024-10-05T14:00Z", ["10-05T19:00", "10-06T01:00", "10-06T07:00"]),
        ("10 */2 * * *", "2024-04-06T14:00Z", ["04-06T15:40", "04-06T17:40"]),
        ("40 * * * *", "2024-04-06T14:00Z", ["04-06T14:40", "04-06T15:10", "04-06T16:10"]),
    ],
)
def test_no_slot_of_an_interval_is_lost_where_the_clock_is_shifted_by_half_an_hour(
    cron: str, after: str, expected: list[str]
) -> None:
    assert slots(cron, "Australia/Lord_Howe", after, len(expected)) == expected


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        # The day begins at 01:00.
        ("* 1 * * SUN", "2024-10-05T14:00Z", ["10-06T04:00", "10-06T04:01"]),
        ("*/30 1-5/2 6 * *", "2024-10-05T14:00Z", ["10-06T04:00", "10-06T04:30", "10-06T06:00"]),
        ("0 0 1 6 * *", "2024-10-01T14:00Z", ["10-06T04:00", "11-06T04:00"]),
        ("0 0 1 * OCT SUN", "2024-09-01T14:00Z", ["10-06T04:00", "10-13T04:00"]),
        ("0 0 0 6 * *", "2024-10-01T14:00Z", ["10-06T04:00", "11-06T03:00"]),
        ("0 0 * * SUN", "2024-10-05T14:00Z", ["10-06T04:00", "10-13T03:00"]),
    ],
)
def test_no_slot_is_lost_on_a_day_that_the_clock_begins_later(cron: str, after: str, expected: list[str]) -> None:
    assert slots(cron, "America/Asuncion", after, len(expected)) == expected


def test_no_slot_comes_twice_or_goes_back_whatever_the_clock_does() -> None:
    for cron in ("*/7 * * * *", "15 1,2,3 * * *", "0 2 * * SUN", "59 23 L * *", "*/20 * * * * *"):
        for zone in ("Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "UTC"):
            for after in ("2026-03-28T22:00Z", "2026-10-24T22:00Z", "2026-04-04T10:00Z"):
                found = list(islice(made(cron=cron, zone=zone).slots_after(ms(after)), 300))
                assert found == sorted(set(found))
                # The next slot follows from any slot, as from the one before: nothing depends on when one asks.
                for before, slot in pairwise(found):
                    assert next(made(cron=cron, zone=zone).slots_after(before)) == slot, (cron, zone, before)


def test_jitter_follows_from_name_and_slot_and_keeps_the_order() -> None:
    schedule = made(cron="*/5 * * * *", jitter=timedelta(minutes=4))
    found = list(islice(schedule.slots_after(ms("2026-01-01T00:00Z")), 200))
    begins = [schedule.begin_ms(slot) for slot in found]
    assert begins == sorted(begins)
    assert all(0 <= begin - slot < 4 * MINUTE for begin, slot in zip(begins, found, strict=True))
    assert len({begin - slot for begin, slot in zip(begins, found, strict=True)}) > 150
    again = made(cron="*/5 * * * *", jitter=timedelta(minutes=4), message="another")
    assert begins == [again.begin_ms(slot) for slot in found]


def test_templates_tell_the_slot_in_its_zone() -> None:
    schedule = made(
        zone="Europe/Berlin", message="{name} {date} {time} {slot} {{x}}", session="r-{date}-{hour}{minute}{second}"
    )
    slot = ms("2026-07-01T22:30:05Z")
    assert schedule.message_of(slot) == "nightly 2026-07-02 00:30 2026-07-02T00:30:05+02:00 {x}"
    assert schedule.session_of(slot) == "r-2026-07-02-003005"
    assert made().session_of(slot) is None


@pytest.mark.parametrize(
    ("given", "field", "advice"),
    [
        ({"cron": "0 0 30 2 *"}, "cron", "never fires"),
        ({"cron": "46-46/0 * * * *"}, "cron", "bad minute"),
        ({"cron": f"1-{'9' * 5000} * * * *"}, "cron", "give minute, hour"),
        ({"cron": "0 0 31 4,6 *"}, "cron", "never fires"),
        ({"cron": "61 * * * *"}, "cron", "bad minute"),
        ({"cron": "nightly"}, "cron", "wrong number of fields"),
        ({"cron": ""}, "cron", "wrong number of fields"),
        ({"zone": "Mars/Olympus"}, "zone", "Europe/Berlin"),
        ({"zone": "../../etc/passwd"}, "zone", "Europe/Berlin"),
        ({"message": "of {day}"}, "message", "it names {day}; the fields are {name}"),
        ({"message": "of {date:%d}"}, "message", "it names {date}"),
        ({"message": "of {0.x}"}, "message", "it names {0.x}"),
        ({"message": "an open {"}, "message", "write a brace twice"),
        ({"message": " "}, "message", "say something"),
        ({"session": "report-{time}"}, "session", "{time} and {slot} do not"),
        ({"session": "a b"}, "session", "letters, digits"),
        ({"overlap": "both"}, "overlap", "'skip' or 'queue'"),
        ({"missed": -1}, "missed", "a number from 0 to 100"),
        ({"missed": True}, "missed", "a number from 0 to 100"),
        ({"missed": "all"}, "missed", "'none', 'one'"),
        ({"missed": 101}, "missed", "a number from 0 to 100"),
        ({"jitter": timedelta(minutes=1)}, "jitter", "0:01:00 apart"),
        ({"jitter": timedelta(seconds=-1)}, "jitter", "from 0"),
        ({"jitter": 5}, "jitter", "give a timedelta"),
        ({"agent": "a b"}, "agent", "letters, digits"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_field_and_the_advice(
    given: dict[str, Any], field: str, advice: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        made(**given)
    assert refused.value.field == f"Schedule.{field}"
    assert advice in refused.value.advice


def test_a_schedule_is_stored_without_loss_and_knows_its_agent() -> None:
    schedule = made(zone="Europe/Berlin", session="s", overlap="queue", missed=5, jitter=timedelta(seconds=5))
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert ScheduleStatus.from_json(ScheduleStatus(schedule=schedule, slot_ms=5).to_json()).schedule == schedule
    assert made(agent="").of_agent("report") == made()
    with pytest.raises(InvalidInput, match="it is given to 'other'"):
        made().of_agent("other")


# --- what becomes of slots --------------------------------------------------------------------------------------------

START = ms("2026-01-01T00:00Z")
IDLE: Callable[[str], bool] = lambda _: False  # noqa: E731
BUSY: Callable[[str], bool] = lambda _: True  # noqa: E731


def status(last: str = "", **changes: Any) -> ScheduleStatus:
    """A schedule of each minute whose next slot is the first one, after one that a session has got."""
    found = ScheduleStatus(schedule=made(**changes), slot_ms=START)
    if not last:
        return found
    before = found.changed(taken=decide(found, START, IDLE).taken)
    return settle(before, START, session_id=last).changed(submitted=0)


def test_a_slot_is_taken_when_it_has_come_and_the_next_one_follows_from_it() -> None:
    assert decide(status(), START - 1, IDLE) == status()
    found = decide(status(), START + 30_000, IDLE)
    assert found.taken is not None
    assert (found.taken.slot_ms, found.taken.message, found.slot_ms) == (START, "Report of 2026-01-01", START + MINUTE)
    assert look_at_ms(found, START) == START, "it is looked at until its message is submitted"
    settled = settle(found, START + 40_000, session_id="s1")
    assert (settled.taken, settled.submitted, look_at_ms(settled, START)) == (None, 1, START + MINUTE)


@pytest.mark.parametrize(
    ("missed", "taken", "waiting", "dropped"),
    [("none", None, 0, 10), (0, None, 0, 10), ("one", 9, 0, 9), (3, 7, 2, 7), (100, 0, 9, 0)],
)
def test_slots_that_are_late_are_made_up_for_as_far_as_it_is_said(
    missed: Any, taken: int | None, waiting: int, dropped: int
) -> None:
    found = decide(status(missed=missed, overlap="queue"), START + 9 * MINUTE + LATE_MS + 1, IDLE)
    # The tenth slot is late by now, and the eleventh has come in time.
    assert found.slot_ms == START + 11 * MINUTE
    newest = [START + 10 * MINUTE]
    made_up = [] if taken is None else [START + n * MINUTE for n in range(taken, 10)]
    assert found.taken is not None
    assert [found.taken.slot_ms, *found.waiting] == [*made_up, *newest]
    assert (found.missed, len(found.waiting)) == (dropped, waiting + (taken is not None))


def test_a_slot_is_skipped_while_the_one_before_is_active() -> None:
    given = status("s1")
    found = decide(given, START, BUSY)
    assert (found.taken, found.waiting, found.skipped, found.slot_ms) == (None, (), 1, START + MINUTE)
    idle = decide(given, START, IDLE)
    assert (idle.taken is not None, idle.skipped) == (True, 0)


def test_of_several_slots_of_which_none_may_overlap_the_newest_is_taken() -> None:
    found = decide(status("s1", missed=5), START + 3 * MINUTE, IDLE)
    assert found.taken is not None
    assert (found.taken.slot_ms, found.waiting, found.skipped) == (START + 3 * MINUTE, (), 3)


def test_a_slot_waits_where_it_may_follow_and_is_taken_at_the_end_of_the_one_before() -> None:
    given = status("s1", overlap="queue")
    waiting = decide(given, START, BUSY)
    assert (waiting.taken, waiting.waiting, waiting.skipped) == (None, (START,), 0)
    assert look_at_ms(waiting, START, is_blocked=True) == START + LOOK_AGAIN_MS
    more = decide(waiting, START + MINUTE, BUSY)
    assert more.waiting == (START, START + MINUTE)
    found = decide(more, START + MINUTE + 1, IDLE)
    assert found.taken is not None
    assert (found.taken.slot_ms, found.waiting) == (START, (START + MINUTE,))


def test_a_session_that_has_a_queue_is_not_waited_for() -> None:
    found = decide(status("s1", overlap="queue", session="s1"), START, BUSY)
    assert found.taken is not None
    assert (found.taken.session, found.waiting) == ("s1", ())


def test_two_hundred_slots_wait_and_those_behind_them_are_skipped() -> None:
    given = status("s1", overlap="queue", missed=100)
    full = given.changed(waiting=tuple(START - n * MINUTE for n in range(200, 0, -1)))
    found = decide(full, START, BUSY)
    assert (len(found.waiting), found.skipped) == (200, 1)
    assert found.waiting == full.waiting


def test_a_fleet_that_was_away_for_years_counts_what_it_can_and_takes_the_newest() -> None:
    given = status(missed=100, overlap="queue", cron="* * * * * *")
    late = START + 400 * 24 * 60 * MINUTE
    found = decide(given, late, IDLE)
    assert found.slot_ms == late + 1000
    assert found.waiting[-1] == late
    assert len(found.waiting) == 100 + LATE_MS // 1000, (
        "with those that are not late, and without the one that is taken"
    )
    assert found.missed > 19_000


def test_a_refused_slot_is_counted_and_does_not_hold_up_the_next() -> None:
    found = settle(decide(status(), START, IDLE), START, refused="the session belongs to another agent")
    assert (found.refused, found.submitted, found.taken) == (1, 0, None)
    assert found.last is not None
    assert found.last.refused
    assert decide(found, START + MINUTE, BUSY).taken is not None, "there is no session that could be active"
