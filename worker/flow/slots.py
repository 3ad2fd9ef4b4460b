"""Decide about the slots of a schedule that have come: which are submitted, skipped, missed, or wait. Pure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice, takewhile
from typing import Final

from .schedules import MOST_MISSED, LastSlot, Schedule, ScheduleStatus, TakenSlot

LATE_MS: Final = 60_000
"""A slot that begins later than this is missed."""
LOOK_AGAIN_MS: Final = 1000
"""How long after it was found active the session of a slot is looked at again, where another slot waits for its end."""
_MOST_WAITING: Final = 200
_MOST_COUNTED: Final = 20_000


def decide(status: ScheduleStatus, now_ms: int, is_active: Callable[[str], bool]) -> ScheduleStatus:
    """Decide about all slots that have come by now, and take the one whose message is to be submitted.

    Args:
        status: Nothing of it is being submitted.
        is_active: Whether a session has an execution that runs or waits. Asked about the last slot's alone, and only
            where something may follow it.
    Returns:
        The status to store in place of the given one; the submission may begin once it is stored.
    """
    assert status.taken is None, status
    schedule = status.schedule
    come = _come(schedule, status.slot_ms, now_ms)
    late = [slot for slot in come if schedule.begin_ms(slot) < now_ms - LATE_MS]
    kept = [*late[max(0, len(late) - schedule.most_missed) :], *come[len(late) :]]
    if come:
        status = status.changed(
            slot_ms=next(schedule.slots_after(come[-1]), None), missed=status.missed + len(come) - len(kept)
        )
    waiting = (*status.waiting, *kept)
    if not waiting:
        return status
    follows = schedule.overlap == "queue"
    taken, rest = (waiting[0], waiting[1:]) if follows else (waiting[-1], waiting[:-1])
    last = "" if status.last is None else status.last.session_id
    # A session that has a queue lets its messages follow each other by itself.
    if last and not (follows and schedule.session_of(taken) == last) and is_active(last):
        kept_waiting = waiting[:_MOST_WAITING] if follows else ()
        return status.changed(waiting=kept_waiting, skipped=status.skipped + len(waiting) - len(kept_waiting))
    return status.changed(
        waiting=rest[:_MOST_WAITING] if follows else (),
        skipped=status.skipped + (max(0, len(rest) - _MOST_WAITING) if follows else len(rest)),
        taken=take(schedule, taken),
    )


def take(schedule: Schedule, slot_ms: int) -> TakenSlot:
    """Make what is submitted for a slot."""
    return TakenSlot(
        slot_ms=slot_ms,
        agent=schedule.agent,
        message=schedule.message_of(slot_ms),
        session=schedule.session_of(slot_ms),
    )


def settle(status: ScheduleStatus, at_ms: int, *, session_id: str = "", refused: str = "") -> ScheduleStatus:
    """Note what became of the slot that was taken.

    Args:
        session_id: The session that has its message.
        refused: Why there is none.
    """
    assert status.taken is not None, status
    last = LastSlot(slot_ms=status.taken.slot_ms, at_ms=at_ms, session_id=session_id, refused=refused)
    if refused:
        return status.changed(taken=None, last=last, refused=status.refused + 1)
    return status.changed(taken=None, last=last, submitted=status.submitted + 1)


def look_at_ms(status: ScheduleStatus, now_ms: int, *, is_blocked: bool = False) -> int | None:
    """When a worker has to look at a schedule (Redis ms). None: never, since it has no slot any more.

    Args:
        is_blocked: The session of the slot before was active just now.
    """
    if status.taken is not None:
        return now_ms
    next_ms = None if status.slot_ms is None else status.schedule.begin_ms(status.slot_ms)
    if not status.waiting:
        return next_ms
    again_ms = now_ms + LOOK_AGAIN_MS if is_blocked else now_ms
    return again_ms if next_ms is None else min(again_ms, next_ms)


def _come(schedule: Schedule, first_ms: int | None, now_ms: int) -> list[int]:
    """The slots that have come by now, from the first one on. Of more than 20 000, those in the middle are left out."""
    if first_ms is None:
        return []

    def has_come(slot_ms: int) -> bool:
        return schedule.begin_ms(slot_ms) <= now_ms

    slots = takewhile(has_come, chain((first_ms,), schedule.slots_after(first_ms)))
    found = list(islice(slots, _MOST_COUNTED))
    if len(found) == _MOST_COUNTED:
        newest_ms = now_ms - LATE_MS - 2 * (found[-1] - found[-MOST_MISSED])
        found += takewhile(has_come, schedule.slots_after(max(found[-1], newest_ms)))
    return found
