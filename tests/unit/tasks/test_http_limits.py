"""What one HTTP process keeps in memory for its callers: bodies that are read, and events for slow readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from celery_agents.tasks.http.event_hub import MOST_WAITING_BYTES, MOST_WAITING_BYTES_OF_ALL, EventHub
from celery_agents.tasks.http.problems import HttpProblem, respond
from celery_agents.tasks.http.request_limits import RequestLimits
from celery_agents.worker.store import Event, StreamPosition

# --- bodies -------------------------------------------------------------------------------------------------------


class Caller:
    """One request to an application that reads its body, and then waits until it may answer."""

    def __init__(self, app: Any, *, query: bytes = b"", path: str = "/") -> None:
        self.chunks: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: list[Message] = []
        scope = {"type": "http", "headers": [], "path": path, "raw_path": path.encode(), "query_string": query}
        self.task = asyncio.create_task(app(scope, self.chunks.get, self._take))

    async def _take(self, message: Message) -> None:
        self.sent.append(message)

    def send(self, size: int, *, more: bool = True) -> None:
        self.chunks.put_nowait({"type": "http.request", "body": b"x" * size, "more_body": more})

    async def status(self) -> int:
        await self.task
        return self.sent[0]["status"]


def limited(go_on: asyncio.Event, **limits: Any) -> RequestLimits:
    """An application with limits, whose handler answers problems as the interface does."""

    async def handler(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            while (await receive()).get("more_body"):
                pass
            await go_on.wait()
        except HttpProblem as problem:
            await respond(problem)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return RequestLimits(handler, **{"most_bytes": 1_000, "most_bytes_of_all": 2_500, **limits})


def run(test: Callable[[asyncio.Event], Any]) -> None:
    async def whole() -> None:
        await asyncio.wait_for(test(asyncio.Event()), 10)

    asyncio.run(whole())


def test_bodies_that_are_read_together_have_a_limit_and_make_room_when_they_are_served() -> None:
    async def test(go_on: asyncio.Event) -> None:
        app = limited(go_on)
        first, second, third = (Caller(app) for _ in range(3))
        for each in (first, second):
            each.send(900)
        await asyncio.sleep(0)
        third.send(900)
        assert await third.status() == 429
        assert (b"retry-after", b"2") in third.sent[0]["headers"]
        for each in (first, second):
            each.send(50, more=False)
        go_on.set()
        assert [await each.status() for each in (first, second)] == [200, 200]
        fourth = Caller(app)
        fourth.send(900, more=False)
        assert await fourth.status() == 200

    run(test)


def test_a_body_of_one_caller_still_has_its_own_limit() -> None:
    async def test(go_on: asyncio.Event) -> None:
        caller = Caller(limited(go_on))
        caller.send(900)
        caller.send(200)
        assert await caller.status() == 413

    run(test)


def test_a_body_that_comes_too_slowly_is_given_up() -> None:
    async def test(go_on: asyncio.Event) -> None:
        caller = Caller(limited(go_on, body_seconds=0.05))
        caller.send(10)
        assert await caller.status() == 408

    run(test)


def test_waiting_for_the_answer_has_no_time_limit_of_the_body() -> None:
    async def test(go_on: asyncio.Event) -> None:
        caller = Caller(limited(go_on, body_seconds=0.05))
        caller.send(10, more=False)
        await asyncio.sleep(0.1)
        go_on.set()
        assert await caller.status() == 200

    run(test)


@pytest.mark.parametrize(("path", "query"), [("/", b"a=" + b"x" * 20_000), ("/" + "x" * 20_000, b"")])
def test_a_path_and_query_that_are_too_long_are_refused(path: str, query: bytes) -> None:
    async def test(go_on: asyncio.Event) -> None:
        assert await Caller(limited(go_on), path=path, query=query).status() == 414

    run(test)


# --- events -------------------------------------------------------------------------------------------------------


class Feed:
    """Sessions whose events come when the test says so, in place of a client of Redis."""

    def __init__(self) -> None:
        self.pages: asyncio.Queue[dict[str, list[Event]]] = asyncio.Queue()
        self.store = SimpleNamespace(
            sessions=SimpleNamespace(events=lambda *_: []), live=SimpleNamespace(follow=self._follow)
        )
        self.number = 0

    async def header(self, session_id: str) -> None:
        del session_id

    async def run(self, function: Callable[[Any], Any]) -> Any:
        await asyncio.sleep(0)
        return function(self)

    def _follow(self, positions: Mapping[str, StreamPosition], block_ms: int | None) -> dict[str, list[Event]]:
        del positions, block_ms
        return {} if self.pages.empty() else self.pages.get_nowait()

    def tell(self, size: int, *sessions: str) -> None:
        """Let the next read bring an event of so many bytes for each session."""
        self.number += 1
        data = {"text": "x" * size}
        self.pages.put_nowait(
            {each: [Event(session_id=each, id=f"{self.number}-0", type="capability", at_ms=self.number, execution_id="e", step=1,
                          data=data)] for each in sessions}
        )  # fmt: skip


async def told_all(feed: Feed) -> None:
    while not feed.pages.empty():
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)


async def begun(events: AsyncGenerator[Any]) -> asyncio.Task[Any]:
    """A reader that waits for its first event."""
    task = asyncio.create_task(anext(events))
    for _ in range(5):
        await asyncio.sleep(0)
    return task


def test_a_slow_reader_of_large_events_is_ended_and_has_lost_nothing_in_between() -> None:
    async def test(_: asyncio.Event) -> None:
        feed = Feed()
        hub = EventHub(feed, 10)  # type: ignore[arg-type]
        async with hub.subscribe("s", None) as events:
            waiting = await begun(events)
            feed.tell(10, "s")
            assert (await waiting).id == "1-0"
            for _n in range(100):
                feed.tell(16_000, "s")
            await told_all(feed)
            assert hub.waiting_bytes <= MOST_WAITING_BYTES
            first = await anext(events)
            for _n in range(20):  # there is room again; but what was dropped must not be skipped
                feed.tell(10, "s")
            await told_all(feed)
            ids = [int(first.id.partition("-")[0])] + [int(each.id.partition("-")[0]) async for each in events]
        assert ids == list(range(2, 2 + len(ids)))
        assert len(ids) < 100
        assert hub.waiting_bytes == 0
        await hub.close()

    run(test)


def test_an_event_that_is_larger_than_the_limit_reaches_a_reader_that_keeps_up() -> None:
    async def test(_: asyncio.Event) -> None:
        feed = Feed()
        hub = EventHub(feed, 10)  # type: ignore[arg-type]
        async with hub.subscribe("s", None) as events:
            waiting = await begun(events)
            for n in range(3):
                feed.tell(2 * MOST_WAITING_BYTES, "s")
                assert len((await waiting).data["text"]) == 2 * MOST_WAITING_BYTES
                waiting = waiting if n == 2 else await begun(events)
        await hub.close()

    run(test)


def test_all_slow_readers_together_have_a_limit() -> None:
    async def test(_: asyncio.Event) -> None:
        feed = Feed()
        hub = EventHub(feed, 1_000)  # type: ignore[arg-type]
        sessions = [f"s{number}" for number in range(100)]
        opened = [hub.subscribe(each, None) for each in sessions]
        waiting = [await begun(await each.__aenter__()) for each in opened]
        feed.tell(10, *sessions)
        await asyncio.gather(*waiting)
        feed.tell(MOST_WAITING_BYTES - 1_000, *sessions)
        await told_all(feed)
        assert 0 < hub.waiting_bytes <= MOST_WAITING_BYTES_OF_ALL
        for each in opened:
            await each.__aexit__(None, None, None)
        assert hub.waiting_bytes == 0
        await hub.close()

    run(test)
