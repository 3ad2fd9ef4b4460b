"""A reader of an execution ends when it has everything, and not before, whenever the end comes."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from celery_agents import Agent
from celery_agents.tasks.client.following import follow_session
from celery_agents.tasks.client.job import Job
from celery_agents.worker.engine import operation_transition
from celery_agents.worker.errors import DriverError, StoreUnavailable
from celery_agents.worker.state import AgentState
from celery_agents.worker.store import Event, EventType, LiveDelta, Store, StreamPosition

from support.engine import Bench
from support.store import an_operation

READERS: dict[str, Callable[[Job], list[EventType | str]]] = {
    "events": lambda job: [event.type for event in job.events(timeout=20)],
    "stream": lambda job: [item.event.type for item in job.stream(timeout=20) if item.event is not None],
}


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(Agent("quick", driver=lambda state: "done"))
    yield bench
    bench.close()


@dataclass
class Part:
    """A trade of the store where a read goes as the test says; everything else goes to the store."""

    inner: Any
    read: Callable[..., Any]
    names: tuple[str, ...] = ("watch", "follow")

    def __getattr__(self, name: str) -> Any:
        return self.read if name in self.names else getattr(self.inner, name)


def store_that_reads(store: Store, read: Callable[[Callable[[], Any]], Any]) -> Store:
    """A store whose readers get what `read` makes of the real reply, without waiting for it."""

    def watch(session_id: str, after: str, block_ms: int) -> Any:
        return read(lambda: store.sessions.watch(session_id, after, 1))

    def follow(positions: dict[str, StreamPosition], block_ms: int | None) -> Any:
        return read(lambda: store.live.follow(positions, None))

    read_otherwise: Any = copy.copy(store)
    read_otherwise.sessions = Part(store.sessions, watch)
    read_otherwise.live = Part(store.live, follow)
    return read_otherwise


@pytest.mark.parametrize("is_live", [True, False])
def test_a_reader_beyond_what_a_failover_has_left_goes_on_behind_it(bench: Bench, is_live: bool) -> None:
    session_id = bench.submit()
    bench.run(session_id)
    reading = follow_session(bench.store, session_id, "9999999999999-0", time.monotonic() + 5, is_live=is_live)
    if is_live:
        assert [item.snapshot is not None for item in next(reading)] == [True]
    assert next(reading) == []
    bench.store.sessions.act(session_id, an_operation("go on"), operation_transition)  # its event has a smaller id
    assert [item.event.type for item in next(reading) if item.event is not None][:1] == ["message_joined"]


def test_a_reader_that_was_cut_off_is_given_what_is_true_behind_the_failover(bench: Bench) -> None:
    session_id = bench.submit()
    bench.run(session_id)
    kept = bench.store.sessions.events(session_id)[0].id
    is_lost = False

    def events(session_id: str, after: str | None = None, limit: int = 1000) -> list[Event]:
        found = bench.store.sessions.events(session_id, after, limit)
        return [event for event in found if not is_lost or event.id == kept]

    def event_at(session_id: str, event_id: str) -> Event | None:
        return next(iter(event for event in events(session_id) if event.id == event_id), None)

    def follow(positions: dict[str, StreamPosition], block_ms: int | None) -> Any:
        nonlocal is_lost
        if positions[session_id].event > kept and not is_lost:
            is_lost = True
            raise StoreUnavailable("the primary is gone")
        return {} if is_lost else bench.store.live.follow(positions, None)

    store: Any = copy.copy(bench.store)
    store.sessions = Part(bench.store.sessions, events, ("events",))
    store.live = Part(Part(bench.store.live, follow, ("follow",)), event_at, ("event_at",))
    reading = follow_session(store, session_id, None, time.monotonic() + 5)
    assert len(next(reading)) > 1
    assert next(reading) == []
    (item,) = next(reading)
    assert item.snapshot is not None
    assert item.cursor == f"{kept}+{kept}"


@pytest.mark.parametrize("reader", READERS)
def test_an_end_right_after_an_empty_reply_is_read(reader: str, bench: Bench) -> None:
    session_id = bench.submit()

    def read(reply: Callable[[], Any]) -> Any:
        found = reply()
        if not found:
            bench.run(session_id)  # after the reply, and before the reader asks whether the execution has ended
        return found

    seen = READERS[reader](Job(store_that_reads(bench.store, read), session_id, "", "e1"))
    assert seen[-2:] == ["step_committed", "execution_completed"]


@pytest.mark.parametrize("reader", READERS)
def test_an_end_behind_which_the_execution_was_retried_is_not_the_last_event(reader: str) -> None:
    def driver(state: AgentState) -> str:
        if bench.execution(session_id).retries == 0:
            raise DriverError("refused", "no", transient=False)
        return "done"

    bench = Bench(Agent("flaky", driver=driver))
    session_id = bench.submit()
    bench.run(session_id)
    bench.retry(session_id)
    bench.run(session_id)

    def read(reply: Callable[[], Any]) -> Any:
        """One event at a time, as where a page ends with it."""
        return {name: entries[:1] for name, entries in reply().items()}

    seen = READERS[reader](Job(store_that_reads(bench.store, read), session_id, "", "e1"))
    bench.close()
    assert [each for each in seen if each.startswith("execution_")] == [
        "execution_submitted", "execution_started", "execution_failed", "execution_completed",
    ]  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_an_end_while_redis_is_away_is_read(reader: str, bench: Bench) -> None:
    session_id = bench.submit()
    ended: list[object] = []

    def read(reply: Callable[[], Any]) -> Any:
        if not ended:
            ended.append(bench.run(session_id))
            raise StoreUnavailable("away")
        return reply()

    seen = READERS[reader](Job(store_that_reads(bench.store, read), session_id, "", "e1"))
    assert seen[-2:] == ["step_committed", "execution_completed"]


def test_an_end_behind_text_that_does_not_count_is_read(bench: Bench) -> None:
    session_id = bench.submit()
    bench.run(session_id)
    from_its_middle = LiveDelta(
        id="1-1", at_ms=1, session_id=session_id, execution_id="e1", step=1, attempt="a", call=1, part="text",
        offset=7, text="of an attempt that another worker made void",
    )  # fmt: skip
    pages = [{session_id: [from_its_middle]}]
    store = store_that_reads(bench.store, lambda reply: pages.pop() if pages else reply())
    seen = READERS["stream"](Job(store, session_id, "", "e1"))
    assert seen[-2:] == ["step_committed", "execution_completed"]


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_whose_end_is_not_stored_any_more_ends_all_the_same(reader: str, bench: Bench) -> None:
    session_id = bench.submit()
    bench.run(session_id)
    asked: list[object] = []

    def read(reply: Callable[[], Any]) -> Any:
        asked.append(reply)
        return type(reply())()

    assert READERS[reader](Job(store_that_reads(bench.store, read), session_id, "", "e1")) == []
    assert len(asked) == 2, "once more after the execution was seen to have ended"
