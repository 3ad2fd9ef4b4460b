"""`EventHub`: the events of many sessions for many readers, by one blocked read of this process.

A subscriber reads what is stored first, at its own pace, and then gets what the hub reads. One that does not keep up
is not buffered for: its stream ends, and it comes back with the id of the last event that it has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ...worker.errors import CeleryAgentsError, SessionNotFound, StoreForbidden
from ...worker.store.event_records import Event
from ...worker.store.live.streams import Entry, LiveDelta, StreamPosition, moved_on
from ...worker.store.store import Store
from ..client.async_client import AsyncAgentClient
from ..client.following import FOLLOW_MARK_SECONDS, SessionReader, committed_texts
from ..client.stream_items import StreamItem
from .problems import HttpProblem

_log = logging.getLogger(__name__)

_BLOCK_MS: Final = 200
_MOST_WAITING: Final = 500
MOST_WAITING_BYTES: Final = 1_000_000
"""Bytes of events and live text that wait for one subscriber; a larger one may wait alone."""
MOST_WAITING_BYTES_OF_ALL: Final = 32_000_000
"""The same for all subscribers of a process."""
_LOST_CONNECTION_SECONDS: Final = 0.5
_CHECK_SECONDS: Final = 15.0


Check = Callable[[], Awaitable[object]]
"""Raises `HttpProblem` or `SessionNotFound` where a subscriber may not follow the session any more."""


class Gap:
    """Marks a place in a stream whose events are not stored any more."""


_Delivery = tuple[Entry, str]
"""An event or a piece of live text, and with a committed step its whole text."""


@dataclass(slots=True)
class _Topic:
    """A session with subscribers, and how far the hub has read it."""

    position: StreamPosition
    readers: set[_Reader] = field(default_factory=set["_Reader"])

    @property
    def is_live(self) -> bool:
        """Whether a subscriber reads its live text."""
        return any(reader.is_live for reader in self.readers)


@dataclass(slots=True)
class _Sum:
    """Bytes that wait for all subscribers."""

    waiting: int = 0
    readers: set[_Reader] = field(default_factory=set["_Reader"])

    def make_room(self, size: int) -> None:
        """Give up those for whom the most waits, until so many bytes more may wait."""
        while self.waiting > 0 and self.waiting + size > MOST_WAITING_BYTES_OF_ALL:
            max(self.readers, key=lambda reader: reader.waiting_bytes).give_up()


class _Reader:
    """The events and the live text that wait for one subscriber."""

    def __init__(self, of_all: _Sum, *, is_live: bool) -> None:
        self._waiting: asyncio.Queue[tuple[_Delivery, int]] = asyncio.Queue(_MOST_WAITING)
        self.waiting_bytes = 0
        self._of_all = of_all
        of_all.readers.add(self)
        self.is_behind = False
        self.is_live = is_live

    @property
    def has_ended(self) -> bool:
        """Whether nothing comes any more."""
        return self.is_behind and self._waiting.empty()

    def put(self, delivery: _Delivery, size: int) -> None:
        """Add an entry of so many bytes; a subscriber that is too far behind gets no further ones."""
        waits = self.waiting_bytes
        self.is_behind |= self._waiting.full() or (waits > 0 and waits + size > MOST_WAITING_BYTES)
        if not self.is_behind:
            self._of_all.make_room(size)
        if self.is_behind:  # before, or because the most waits for this one
            return
        self._waiting.put_nowait((delivery, size))
        self._count(size)

    async def take(self) -> _Delivery:
        """Wait for the next entry."""
        delivery, size = await self._waiting.get()
        self._count(-size)
        return delivery

    def give_up(self) -> None:
        """Forget what waits; nothing comes any more."""
        self.is_behind = True
        while not self._waiting.empty():
            self._count(-self._waiting.get_nowait()[1])

    def leave(self) -> None:
        """Give up what waits for a subscriber that has gone."""
        self.give_up()
        self._of_all.readers.discard(self)

    def _count(self, size: int) -> None:
        self.waiting_bytes += size
        self._of_all.waiting += size


class EventHub:
    """Reads the events of all watched sessions for all subscribers of one process."""

    def __init__(self, client: AsyncAgentClient, most_streams: int) -> None:
        """
        Args:
            most_streams: Further subscribers are refused.
        """
        self._client = client
        self._most = most_streams
        self._topics: dict[str, _Topic] = {}
        self._task: asyncio.Task[None] | None = None
        self._followed_at: dict[str, float] = {}
        self._waiting = _Sum()
        self.streams = 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait for subscribers."""
        return self._waiting.waiting

    async def close(self) -> None:
        """End the reading."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @contextlib.asynccontextmanager
    async def subscribe(
        self,
        session_id: str,
        after: str | None,
        *,
        is_live: bool = False,
        for_visitor: bool = False,
        check: Check | None = None,
    ) -> AsyncGenerator[AsyncGenerator[StreamItem | Gap | None]]:
        """Follow the events of a session, with its live text or without.

        Args:
            after: Cursor of the last item that the subscriber has seen, or the id of an event. None: from the first
                event that is stored.
            for_visitor: It has a token of a session. A tenth of all streams is kept for others.
            check: Asked now and then whether it may still follow. None: it may.
        Yields:
            Its items in order; a `Gap` where events before the first one are not stored any more; None when nothing has
            happened for a while. It ends when the session is gone, when the subscriber may not follow it any more, and
            when it is too far behind.
        Raises:
            HttpProblem: Too many streams are open.
            SessionNotFound: There is no such session.
        """
        with self._place(for_visitor=for_visitor):
            client = await self._client.run(lambda client: client)
            reader = SessionReader(client.store, session_id, after, is_live=is_live)
            has_gap = await self._client.run(lambda _: reader.begin())
            items = self._follow(session_id, reader, has_gap, is_live)
            permitted = _while_permitted(items, lambda: self._may_go_on(session_id, check))
            async with contextlib.aclosing(items), contextlib.aclosing(permitted):
                yield permitted

    async def _follow(
        self, session_id: str, reader: SessionReader, has_gap: bool, is_live: bool
    ) -> AsyncGenerator[StreamItem | Gap | None]:
        if has_gap:
            yield Gap()
        # Up to a page that is not full: in a busy session an empty one may never come.
        while (page := await self._client.run(lambda _: reader.read(None))) and reader.has_more:
            for item in page:
                yield item
        waiting, delivered = self._attach(session_id, reader.position, is_live=is_live)
        try:
            for item in page:
                yield item
            # Entries that the hub has read before this moment are stored, and not in the queue.
            while reader.position.is_behind(delivered):
                for item in await self._client.run(lambda _: reader.read(None)):
                    yield item
                if reader.is_quiet:
                    break
            async for delivery in self._live(waiting):
                if delivery is None:
                    yield None
                elif reader.position.is_before(delivery[0].id, is_event=isinstance(delivery[0], Event)):
                    for item in reader.items_of(delivery[0], {delivery[0].id: delivery[1]}):
                        yield item
        finally:
            self._detach(session_id, waiting)

    @contextlib.contextmanager
    def _place(self, *, for_visitor: bool) -> Generator[None]:
        """Count a stream from before anything is awaited for it until it ends."""
        if self.streams >= self._most - (self._most // 10 if for_visitor else 0):
            detail = f"This process serves {self.streams} streams already. Try again, or start another one."
            raise HttpProblem(503, "too-many-streams", detail, headers={"Retry-After": "2"})
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1

    async def _live(self, reader: _Reader) -> AsyncGenerator[_Delivery | None]:
        while not reader.has_ended:
            try:
                delivery = await asyncio.wait_for(reader.take(), _CHECK_SECONDS)
            except TimeoutError:
                delivery = None
            yield delivery

    async def _may_go_on(self, session_id: str, check: Check | None) -> bool:
        """Whether the session is there, and its subscriber may still follow it."""
        try:
            await self._client.header(session_id)
            if check is not None:
                await check()
        except (SessionNotFound, HttpProblem):
            return False
        except CeleryAgentsError:  # Redis is away, so it may be there
            return True
        return True

    def _attach(self, session_id: str, position: StreamPosition, *, is_live: bool) -> tuple[_Reader, StreamPosition]:
        """Begin to deliver to a subscriber, and tell up to where entries are not delivered to it any more."""
        reader = _Reader(self._waiting, is_live=is_live)
        topic = self._topics.setdefault(session_id, _Topic(position))
        if is_live and not topic.is_live:
            topic.position = replace(topic.position, live=position.live)
        topic.readers.add(reader)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read())
        return reader, topic.position

    def _detach(self, session_id: str, reader: _Reader) -> None:
        reader.leave()
        topic = self._topics.get(session_id)
        if topic is not None:
            topic.readers.discard(reader)
            if not topic.readers:
                del self._topics[session_id]

    async def _read(self) -> None:
        """Read for all subscribers until none is left."""
        try:
            while self._topics:
                positions = {session_id: topic.position for session_id, topic in self._topics.items()}
                for session_id, deliveries in (await self._read_once(positions)).items():
                    self._deliver(session_id, deliveries)
        finally:  # without readers, or because of a bug: then their streams end, and they come back
            for topic in self._topics.values():
                for reader in topic.readers:
                    reader.is_behind = True

    async def _read_once(self, positions: Mapping[str, StreamPosition]) -> dict[str, list[_Delivery]]:
        live = [session_id for session_id, topic in self._topics.items() if topic.is_live]
        try:
            return await self._client.run(lambda client: self._read_entries(client.store, positions, live))
        except CeleryAgentsError as error:
            _log.warning("events cannot be read now: %s", error)
            await asyncio.sleep(_LOST_CONNECTION_SECONDS)
            return {}

    def _read_entries(
        self, store: Store, positions: Mapping[str, StreamPosition], live: Sequence[str]
    ) -> dict[str, list[_Delivery]]:
        """Read what is new, and renew the mark of sessions whose live text is followed."""
        now = time.monotonic()
        self._followed_at = {name: at for name, at in self._followed_at.items() if name in positions}
        for session_id in live:
            if now - self._followed_at.get(session_id, -FOLLOW_MARK_SECONDS) >= FOLLOW_MARK_SECONDS:
                self._followed_at[session_id] = now
                with contextlib.suppress(StoreForbidden):
                    store.live.keep_followed(session_id)
        found = store.live.follow(positions, _BLOCK_MS)
        deliveries: dict[str, list[_Delivery]] = {}
        for session_id, entries in found.items():
            texts = committed_texts(store, session_id, entries) if session_id in live else {}
            deliveries[session_id] = [(entry, texts.get(entry.id, "")) for entry in entries]
        return deliveries

    def _deliver(self, session_id: str, deliveries: list[_Delivery]) -> None:
        topic = self._topics.get(session_id)
        if topic is None:
            return
        for delivery in deliveries:
            is_event = isinstance(delivery[0], Event)
            if not topic.position.is_before(delivery[0].id, is_event=is_event):
                continue  # the topic was given up and begun again meanwhile
            topic.position = moved_on(topic.position, delivery[0])
            size = _bytes_of(delivery)
            for reader in topic.readers:
                if is_event or reader.is_live:
                    reader.put(delivery, size)


async def _while_permitted(
    items: AsyncGenerator[StreamItem | Gap | None], may_go_on: Callable[[], Awaitable[bool]]
) -> AsyncGenerator[StreamItem | Gap | None]:
    """The items until the subscriber may not go on; asked where nothing has happened, and else now and then."""
    asked = time.monotonic()
    async for item in items:
        if item is None or time.monotonic() - asked >= _CHECK_SECONDS:
            if not await may_go_on():
                return
            asked = time.monotonic()
        yield item


def _bytes_of(delivery: _Delivery) -> int:
    """About how much an entry takes, as JSON."""
    entry, text = delivery
    own = entry.text if isinstance(entry, LiveDelta) else ""
    return len(own) + len(text) + len(json.dumps(entry.data, default=str))
