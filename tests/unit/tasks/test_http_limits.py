"""What one HTTP process keeps in memory for its callers: bodies that are read, and events for slow readers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import RootModel
from starlette.requests import Request
from starlette.types import Message, Receive, Send
from starlette.types import Scope as Scope_

from celery_agents.tasks.http import event_hub
from celery_agents.tasks.http.access import Access, Scope
from celery_agents.tasks.http.event_hub import MOST_WAITING_BYTES, MOST_WAITING_BYTES_OF_ALL, EventHub
from celery_agents.tasks.http.problems import HttpProblem, respond
from celery_agents.tasks.http.request_bodies import MOST_VALUES, RequestBodies, RequestLimits, count_values
from celery_agents.worker.store import Event, StreamPosition

# --- bodies -------------------------------------------------------------------------------------------------------


class Caller:
    """One request to an application that reads its body, and then waits until it may answer."""

    def __init__(self, app: Any, *, query: bytes = b"", path: str = "/") -> None:
        self.chunks: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: list[Message] = []
        headers = [(b"content-type", b"application/json")]
        scope = {
            "type": "http", "method": "POST", "headers": headers, "path": path, "raw_path": path.encode(),
            "query_string": query,
        }  # fmt: skip
        self.task = asyncio.create_task(app(scope, self.chunks.get, self._take))

    async def _take(self, message: Message) -> None:
        self.sent.append(message)

    def send(self, body: int | bytes, *, more: bool = True) -> None:
        """Send a piece of the body, or so many bytes of a text."""
        content = b'"' + b"x" * (body - 2) + b'"' if isinstance(body, int) else body
        self.chunks.put_nowait({"type": "http.request", "body": content, "more_body": more})

    async def status(self) -> int:
        await self.task
        return self.sent[0]["status"]


class Text(RootModel[Any]):
    """A body of any JSON."""


SERVICE, OPERATOR = Access(scopes=frozenset({Scope.READ})), Access(scopes=frozenset({Scope.ADMIN}))
VISITOR = Access(scopes=frozenset({Scope.READ}), session_id="s")


class Limited:
    """An application with limits, whose handler answers problems as the interface does."""

    def __init__(self, go_on: asyncio.Event, **limits: Any) -> None:
        self._go_on = go_on
        self._bodies = RequestBodies(**{"most_bytes": 1_000, "most_bytes_of_all": 5_000, **limits})

    def of(self, access: Access = OPERATOR) -> RequestLimits:
        """The application for callers with this access."""

        async def handler(scope: Scope_, receive: Receive, send: Send) -> None:
            try:
                async with self._bodies.read(Request(scope, receive), Text, access):
                    await self._go_on.wait()
            except HttpProblem as problem:
                await respond(problem)(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        return RequestLimits(handler, most_bytes=1_000)


def run(test: Callable[[asyncio.Event], Any]) -> None:
    async def whole() -> None:
        await asyncio.wait_for(test(asyncio.Event()), 10)

    asyncio.run(whole())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def test_bodies_that_are_read_together_have_a_limit_and_make_room_when_they_are_served() -> None:
    async def test(go_on: asyncio.Event) -> None:
        app = Limited(go_on).of()
        first, second = Caller(app), Caller(app)
        for each in (first, second):  # a text counts three times once it is parsed
            each.send(500, more=False)
        await until(lambda: first.chunks.empty() and second.chunks.empty())
        third = Caller(app)
        third.send(500, more=False)
        assert await third.status() == 429
        assert (b"retry-after", b"2") in third.sent[0]["headers"]
        go_on.set()
        assert [await each.status() for each in (first, second)] == [200, 200]
        fourth = Caller(app)
        fourth.send(900, more=False)
        assert await fourth.status() == 200

    run(test)


@pytest.mark.parametrize(
    ("holder", "other", "status"),
    [
        (VISITOR, VISITOR, 429), (VISITOR, SERVICE, 200), (VISITOR, OPERATOR, 200),
        (SERVICE, VISITOR, 429), (SERVICE, SERVICE, 429), (SERVICE, OPERATOR, 200),
    ],
)  # fmt: skip
def test_who_holds_all_of_their_share_leaves_room_for_those_with_a_larger_one(
    holder: Access, other: Access, status: int
) -> None:
    async def test(go_on: asyncio.Event) -> None:
        app = Limited(go_on, most_bytes_of_all=40_000)
        holders = [Caller(app.of(holder)) for _ in range(100)]
        for each in holders:
            each.send(b'"' + b"x" * 900)
        await until(lambda: all(each.chunks.empty() for each in holders))
        await until(lambda: any(each.sent for each in holders))
        late = Caller(app.of(other))
        late.send(600, more=False)
        go_on.set()
        assert await late.status() == status
        for each in holders:
            each.task.cancel()

    run(test)


def test_a_body_of_one_caller_still_has_its_own_limit() -> None:
    async def test(go_on: asyncio.Event) -> None:
        caller = Caller(Limited(go_on).of())
        caller.send(900)
        caller.send(200)
        assert await caller.status() == 413

    run(test)


def test_a_body_that_comes_too_slowly_is_given_up() -> None:
    async def test(go_on: asyncio.Event) -> None:
        caller = Caller(Limited(go_on, seconds=0.05).of())
        caller.send(10)
        assert await caller.status() == 408

    run(test)


def test_waiting_for_the_answer_has_no_time_limit_of_the_body() -> None:
    async def test(go_on: asyncio.Event) -> None:
        caller = Caller(Limited(go_on, seconds=0.05).of())
        caller.send(10, more=False)
        await asyncio.sleep(0.1)
        go_on.set()
        assert await caller.status() == 200

    run(test)


def test_a_body_that_is_cut_off_is_no_error_of_ours() -> None:
    async def test(go_on: asyncio.Event) -> None:
        caller = Caller(Limited(go_on).of())
        caller.send(b'"x')
        caller.chunks.put_nowait({"type": "http.disconnect"})
        assert await caller.status() == 400

    run(test)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[]", 1), ("[1,2,3]", 3), ("{}", 1), ('{"a": 1, "b": [1, 2]}', 4), ('"a,b,[{"', 1), (r'["\",[[", ",,"]', 2),
        ('["a,\\\\", 1]', 2), ("[[[[1]]]]", 5),
    ],
)  # fmt: skip
def test_values_are_counted_and_separators_within_texts_are_not(text: str, values: int) -> None:
    padded = f"[{text}, {json.dumps([0] * MOST_VALUES)}]".encode()  # so many that the count has to be exact
    assert values <= count_values(padded) - MOST_VALUES - 2 <= values + 2


def test_a_text_that_looks_like_many_values_is_counted_quickly_and_taken() -> None:
    began = time.process_time()
    for text in (b'"' + b"[{,\\" * 400_000 + b'"', b'"\\"' * 500_000, b'"' * 2_000_001):
        count_values(text)
    assert count_values(b'{"a": "' + b"[,{" * 600_000 + b'"}') < 5
    assert time.process_time() - began < 5


@pytest.mark.parametrize(("path", "query"), [("/", b"a=" + b"x" * 20_000), ("/" + "x" * 20_000, b"")])
def test_a_path_and_query_that_are_too_long_are_refused(path: str, query: bytes) -> None:
    async def test(go_on: asyncio.Event) -> None:
        assert await Caller(Limited(go_on).of(), path=path, query=query).status() == 414

    run(test)


# --- events -------------------------------------------------------------------------------------------------------


class Feed:
    """Sessions whose events come when the test says so, in place of a client of Redis."""

    def __init__(self) -> None:
        self.pages: asyncio.Queue[dict[str, list[Event]]] = asyncio.Queue()
        self.store = SimpleNamespace(
            sessions=SimpleNamespace(events=lambda *_: [], header=lambda _: None),
            live=SimpleNamespace(follow=self._follow),
        )
        self.number = 0

    async def header(self, session_id: str) -> None:
        """Find the session: it is always there."""

    async def run(self, function: Callable[[Any], Any]) -> Any:
        await asyncio.sleep(0)
        return function(self)

    def _follow(self, positions: Mapping[str, StreamPosition], block_ms: int | None) -> dict[str, list[Event]]:
        del positions
        return {} if block_ms is None or self.pages.empty() else self.pages.get_nowait()

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
            assert (await waiting).event.id == "1-0"
            for _n in range(100):
                feed.tell(16_000, "s")
            await told_all(feed)
            assert hub.waiting_bytes <= MOST_WAITING_BYTES
            first = await anext(events)
            for _n in range(20):  # there is room again; but what was dropped must not be skipped
                feed.tell(10, "s")
            await told_all(feed)
            seen = [first, *[each async for each in events]]
            ids = [int(each.event.id.partition("-")[0]) for each in seen]
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
                assert len((await waiting).event.data["text"]) == 2 * MOST_WAITING_BYTES
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


def test_a_reader_that_keeps_up_is_not_ended_for_slow_ones() -> None:
    async def test(_: asyncio.Event) -> None:
        feed = Feed()
        hub = EventHub(feed, 1_000)  # type: ignore[arg-type]
        sessions = [f"s{number}" for number in range(50)]
        opened = [hub.subscribe(each, None) for each in [*sessions, "quick"]]
        streams = [await each.__aenter__() for each in opened]
        waiting = [await begun(each) for each in streams]
        feed.tell(10, *sessions)
        await asyncio.gather(*waiting[:-1])
        feed.tell(MOST_WAITING_BYTES - 1_000, *sessions)
        await told_all(feed)
        for number in range(3, 20):
            feed.tell(40_000, "quick")
            assert (await waiting[-1]).event.id == f"{number}-0"
            waiting[-1] = await begun(streams[-1])
        assert hub.waiting_bytes <= MOST_WAITING_BYTES_OF_ALL
        waiting[-1].cancel()
        await asyncio.wait(waiting[-1:])
        for each in opened:
            await each.__aexit__(None, None, None)
        assert hub.waiting_bytes == 0
        await hub.close()

    run(test)


@pytest.mark.parametrize("is_busy", [True, False], ids=["busy", "idle"])
def test_a_subscriber_that_may_not_follow_any_more_is_ended(is_busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)  # an event takes a second
    if is_busy:
        monkeypatch.setattr(event_hub, "time", clock)
    monkeypatch.setattr(event_hub, "_CHECK_SECONDS", 4.0 if is_busy else 0.05)

    async def test(_: asyncio.Event) -> None:
        feed, asked, seen = Feed(), list[str](), 0
        hub = EventHub(feed, 10)  # type: ignore[arg-type]

        async def check() -> None:
            asked.append("once more")
            if len(asked) == 2:
                raise HttpProblem(401, "missing-token", "Its time is over.")

        async with hub.subscribe("s", None, check=check) as events:
            if is_busy:
                feed.tell(10, "s")
            async for _each in events:
                seen += 1
                clock.now += 1
                if is_busy:
                    feed.tell(10, "s")
        assert (len(asked), seen > 5 if is_busy else seen == 1) == (2, True)
        await hub.close()

    run(test)


class BusyFeed(Feed):
    """A session in which so many events more are stored at each read."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self.waits: list[int | None] = []

    def _follow(self, positions: Mapping[str, StreamPosition], block_ms: int | None) -> dict[str, list[Event]]:
        self.waits.append(block_ms)
        found: list[Event] = []
        for _ in range(self._count):
            self.tell(10, "s")
            found += super()._follow(positions, 0)["s"]
        return {"s": found}


def test_a_subscriber_of_a_session_that_is_always_ahead_is_served_by_the_read_for_all() -> None:
    async def test(_: asyncio.Event) -> None:
        feed = BusyFeed(1)
        hub = EventHub(feed, 10)  # type: ignore[arg-type]
        async with hub.subscribe("s", None) as events:
            seen = [(await anext(events)).event.id for _n in range(100)]
        assert seen == [f"{number}-0" for number in range(1, 101)]
        assert feed.waits.count(None) < 5, "it goes on reading for itself"
        await hub.close()

    run(test)


@pytest.mark.parametrize("count", [1, 200], ids=["short pages", "full pages"])
def test_a_subscriber_that_never_comes_to_an_end_of_what_is_stored_is_ended_by_the_check(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_hub, "_CHECK_SECONDS", 0.05)

    async def refuse() -> None:
        raise HttpProblem(401, "missing-token", "Its time is over.")

    async def test(_: asyncio.Event) -> None:
        hub, seen = EventHub(BusyFeed(count), 10), 0  # type: ignore[arg-type]
        async with hub.subscribe("s", None, check=refuse) as events:
            async for _each in events:
                seen += 1
                await asyncio.sleep(0.02)
        assert 0 < seen < 10
        await hub.close()

    run(test)


def test_streams_are_counted_before_anything_is_awaited_for_them() -> None:
    async def test(_: asyncio.Event) -> None:
        hub = EventHub(Feed(), 20)  # type: ignore[arg-type]
        places = [hub.subscribe(f"s{number}", None, for_visitor=number % 2 == 1) for number in range(60)]
        begun_ones = await asyncio.gather(*(each.__aenter__() for each in places), return_exceptions=True)
        assert sum(not isinstance(each, HttpProblem) for each in begun_ones) == hub.streams == 20
        for place, begin in zip(places, begun_ones, strict=True):
            if not isinstance(begin, HttpProblem):
                await place.__aexit__(None, None, None)
        assert hub.streams == 0
        visitors = [hub.subscribe("s", None, for_visitor=True) for _ in range(20)]
        refused = [await asyncio.gather(each.__aenter__(), return_exceptions=True) for each in visitors]
        assert sum(isinstance(each, HttpProblem) for (each,) in refused) == 2, "a tenth is kept for others"
        await hub.close()

    run(test)
