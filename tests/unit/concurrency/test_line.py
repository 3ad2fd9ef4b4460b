"""Who has waited for long goes on in order, when those with slots cannot, and needs none meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

from celery_agents.worker.concurrency import fibers
from celery_agents.worker.concurrency.fibers import Line

from support.counted import Counted
from support.fiber_thread import FiberThread, compute
from support.wait import wait_until

LONG, SHORT = 0.12, 0.01


@pytest.fixture
def line() -> Line:
    return Line(100)


@pytest.fixture
def thread(line: Line) -> Iterator[FiberThread]:
    with contextlib.closing(FiberThread(line=line)) as opened:
        yield opened


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody goes on for having waited long enough."""
    monkeypatch.setattr(fibers, "_PATIENCE_SECONDS", 60.0)


def numbered(count: int, body: Callable[[int], None]) -> list[Callable[[], None]]:
    return [lambda number=number: body(number) for number in range(count)]


def is_left_by_all(line: Line) -> None:
    wait_until(lambda: line.is_empty and line.without_slot == 0, "nobody has a place in line")


def test_who_was_there_first_goes_on_first(thread: FiberThread, line: Line) -> None:
    went_on, ended = list[int](), list[int]()

    def body(number: int) -> None:
        fibers.sleep(LONG)
        fibers.line_up()
        went_on.append(number)
        compute(3)
        ended.append(number)

    thread.together(numbered(20, body))
    assert went_on == ended == list(range(20))
    is_left_by_all(line)


@pytest.mark.usefixtures("patient")
def test_those_with_slots_go_on_before_those_in_line(thread: FiberThread, line: Line) -> None:
    went_on = list[str]()

    def waits_for_long() -> None:
        fibers.sleep(LONG)
        fibers.line_up()
        went_on.append("in line")

    def computes() -> None:
        while line.without_slot < 5:
            compute()
        compute(50)
        went_on.append("with a slot")

    thread.together([*[waits_for_long] * 5, *[computes] * 3])
    assert went_on == [*["with a slot"] * 3, *["in line"] * 5]
    is_left_by_all(line)


def test_however_busy_others_are_the_line_goes_on_in_the_end(thread: FiberThread, line: Line) -> None:
    went_on, waited = list[int](), list[float]()

    def waits_for_long(number: int) -> None:
        fibers.sleep(LONG)
        began = time.monotonic()
        fibers.line_up()
        waited.append(time.monotonic() - began)
        went_on.append(number)

    def computes() -> None:
        while len(went_on) < 5:
            compute()

    thread.together([*numbered(5, waits_for_long), computes])
    assert went_on == list(range(5))
    assert min(waited) > 0.2
    is_left_by_all(line)


def test_who_waits_for_redis_holds_nobody_up(thread: FiberThread, line: Line) -> None:
    waiting = Counted()

    def body(number: int) -> None:
        fibers.sleep(LONG)
        fibers.line_up()
        with waiting.one():
            fiber = fibers.current()
            assert fiber is not None
            fiber.among.loop.call_later(0.2, fiber.resume)
            fiber.park()

    thread.together(numbered(20, body))
    assert waiting.most == 20
    is_left_by_all(line)


def test_all_take_turns_that_have_not_waited_for_long(thread: FiberThread, line: Line) -> None:
    going, without_slot = Counted(), set[int]()

    def body(number: int) -> None:
        fibers.sleep(SHORT)
        fibers.line_up()
        without_slot.add(line.without_slot)
        with going.one():
            compute(3)

    thread.together(numbered(20, body))
    assert going.most == 20
    assert without_slot == {0}


def test_outside_of_a_fiber_nobody_stands_in_line() -> None:
    fibers.line_up()


def test_those_in_line_need_no_slot_and_their_coming_is_told(thread: FiberThread, line: Line) -> None:
    told = list[int]()
    line.on_entry = lambda: told.append(line.without_slot)

    def body(number: int) -> None:
        fibers.sleep(LONG)
        fibers.line_up()
        compute(3)

    thread.together(numbered(5, body))
    assert told == [1, 2, 3, 4, 5]
    is_left_by_all(line)


@pytest.mark.usefixtures("patient")
def test_who_is_beyond_the_places_goes_on_at_once_and_has_a_slot() -> None:
    line, went_on, without_slot, at_first = Line(4), list[int](), list[int](), list[int]()

    def waits_for_long(number: int) -> None:
        fibers.sleep(LONG)
        fibers.line_up()
        without_slot.append(line.without_slot)
        went_on.append(number)

    def computes() -> None:
        while len(went_on) < 16:
            compute()
        compute(50)
        at_first.extend(went_on)

    with contextlib.closing(FiberThread(line=line)) as thread:
        thread.together([*numbered(20, waits_for_long), computes])
    assert at_first == list(range(16))
    assert went_on == list(range(20))
    assert max(without_slot) == 4
    is_left_by_all(line)


def test_a_tool_that_takes_long_keeps_nobody_waiting_and_needs_a_slot(thread: FiberThread, line: Line) -> None:
    calling, without_slot, entries = Counted(), list[int](), list[int]()
    line.on_entry = lambda: entries.append(1)

    def body(number: int) -> None:
        fibers.sleep(LONG)
        fibers.line_up()
        with calling.one():
            fibers.sleep(0.5)
            without_slot.append(line.without_slot)
        fibers.line_up()
        compute(3)

    thread.together(numbered(10, body))
    assert calling.most == 10
    assert without_slot[0] == 0, "whose tool takes half a second has no place any more"
    assert len(entries) == 20, "before its tools and before its commit"
    is_left_by_all(line)


def test_a_tool_that_returns_at_once_keeps_the_place(thread: FiberThread, line: Line) -> None:
    entries = list[int]()
    line.on_entry = lambda: entries.append(1)

    async def tool() -> None:
        return None

    def body(number: int) -> None:
        fibers.sleep(LONG)
        fibers.line_up()
        fibers.result(thread.loop.submit(tool, 5))
        fibers.line_up()
        compute(2)

    thread.together(numbered(10, body))
    assert len(entries) == 10
    is_left_by_all(line)


def test_whoever_fails_leaves_the_line(thread: FiberThread, line: Line) -> None:
    def fails() -> None:
        fibers.sleep(LONG)
        fibers.line_up()
        compute()
        raise ValueError("this one")

    def waits_and_fails() -> None:
        fibers.sleep(LONG)
        fibers.line_up()
        fibers.result(thread.loop.submit(no_answer, 0.05))

    async def no_answer() -> None:
        raise ConnectionError("nobody there")

    ended = thread.together([*[fails] * 5, *[waits_and_fails] * 5, lambda: compute(2) or "fine"])
    assert [type(each) for each in ended] == [*[ValueError] * 5, *[ConnectionError] * 5, str]
    is_left_by_all(line)
