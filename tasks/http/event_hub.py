"""`EventHub`: the events of many sessions for many readers, by one blocked read of this process.

A subscriber reads what is stored first, at its own pace, and then gets what the hub reads. One that does not keep up
is not buffered for: its stream ends, and it comes back with the id of the last event that it has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ...worker.errors import CeleryAgentsError, SessionNotFound
from ...worker.store import Event, EventType
from ..client.async_client import AsyncAgentClient
from .problems import HttpProblem

if TYPE_CHECKING:
    from ..client.client import AgentClient

_log = logging.getLogger(__name__)

_BLOCK_MS: Final = 200
_PAGE: Final = 200
_MOST_WAITING: Final = 500
_LOST_CONNECTION_SECONDS: Final = 0.5
_CHECK_SECONDS: Final = 15.0


class Gap:
    """Stands for events that are not stored any more."""


@dataclass(slots=True)
class _Topic:
    """A session that somebody reads, and how far the hub has read it."""

    position: str
    readers: set[_Reader] = field(default_factory=set["_Reader"])


class _Reader:
    """The events that wait for one subscriber."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[Event] = asyncio.Queue(_MOST_WAITING)
        self.is_behind = False

    def put(self, event: Event) -> None:
        """Add an event; a subscriber that is too far behind gets no further ones."""
        try:
            self.waiting.put_nowait(event)
        except asyncio.QueueFull:
            self.is_behind = True


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
        self.streams = 0

    async def close(self) -> None:
        """End the reading."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @contextlib.asynccontextmanager
    async def subscribe(self, session_id: str, after: str | None) -> AsyncGenerator[AsyncGenerator[Event | Gap | None]]:
        """Follow the events of a session.

        Args:
            after: Id of the last event that the subscriber has seen. None: from the first one that is stored.
        Yields:
            Its events in order; a `Gap` where events between two of them are not stored any more; None when nothing has
            happened for a while. It ends when the session is gone, and when the subscriber is too far behind.
        Raises:
            HttpProblem: Too many streams are open.
            SessionNotFound: There is no such session.
        """
        if self.streams >= self._most:
            detail = f"This process serves {self._most} streams already. Try again, or start another one."
            raise HttpProblem(503, "too-many-streams", detail, headers={"Retry-After": "2"})
        await self._client.header(session_id)
        self.streams += 1
        events = self._follow(session_id, after)
        try:
            yield events
        finally:
            await events.aclose()
            self.streams -= 1

    async def _follow(self, session_id: str, after: str | None) -> AsyncGenerator[Event | Gap | None]:
        position = after or "0"
        if await self._has_gap(session_id, after):
            yield Gap()
        while page := await self._read_page(session_id, position):
            for event in page:
                position = event.id
                yield event
        reader = self._attach(session_id, position)
        try:
            # What came between the last page and this moment is stored, and not in the queue of a session that others
            # read already.
            for event in await self._read_page(session_id, position):
                position = event.id
                yield event
            async for event in self._live(session_id, reader):
                if event is None or event_order(event.id) > event_order(position):
                    position = position if event is None else event.id
                    yield event
        finally:
            self._detach(session_id, reader)

    async def _live(self, session_id: str, reader: _Reader) -> AsyncGenerator[Event | None]:
        while not (reader.is_behind and reader.waiting.empty()):
            try:
                event = await asyncio.wait_for(reader.waiting.get(), _CHECK_SECONDS)
            except TimeoutError:
                if not await self._is_there(session_id):
                    return
                event = None
            yield event

    async def _has_gap(self, session_id: str, after: str | None) -> bool:
        """Whether events after this one were there and are not stored any more."""
        first = await self._client.run(lambda client: client.store.sessions.events(session_id, None, 1))
        if not first:
            return after is not None
        if after is None:
            return first[0].type != EventType.EXECUTION_SUBMITTED
        return event_order(after) < event_order(first[0].id) and first[0].type != EventType.EXECUTION_SUBMITTED

    async def _read_page(self, session_id: str, position: str) -> list[Event]:
        return await self._client.run(lambda client: client.store.sessions.events(session_id, position, _PAGE))

    async def _is_there(self, session_id: str) -> bool:
        try:
            await self._client.header(session_id)
        except SessionNotFound:
            return False
        except CeleryAgentsError:  # Redis is away: nobody knows
            return True
        return True

    def _attach(self, session_id: str, position: str) -> _Reader:
        reader = _Reader()
        topic = self._topics.setdefault(session_id, _Topic(position))
        topic.readers.add(reader)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read())
        return reader

    def _detach(self, session_id: str, reader: _Reader) -> None:
        topic = self._topics.get(session_id)
        if topic is not None:
            topic.readers.discard(reader)
            if not topic.readers:
                del self._topics[session_id]

    async def _read(self) -> None:
        """Read for everybody until nobody is left."""
        try:
            while self._topics:
                positions = {session_id: topic.position for session_id, topic in self._topics.items()}
                for session_id, events in (await self._read_once(positions)).items():
                    self._hand_out(session_id, events)
        finally:  # without readers, or because of a bug: then their streams end, and they come back
            for topic in self._topics.values():
                for reader in topic.readers:
                    reader.is_behind = True

    async def _read_once(self, positions: Mapping[str, str]) -> dict[str, list[Event]]:
        try:
            return await self._client.run(functools.partial(_read_events, positions))
        except CeleryAgentsError as error:
            _log.warning("events cannot be read now: %s", error)
            await asyncio.sleep(_LOST_CONNECTION_SECONDS)
            return {}

    def _hand_out(self, session_id: str, events: list[Event]) -> None:
        topic = self._topics.get(session_id)
        if topic is None:
            return
        for event in events:
            if event_order(event.id) <= event_order(topic.position):
                continue  # the topic was given up and begun again meanwhile
            topic.position = event.id
            for reader in topic.readers:
                reader.put(event)


def _read_events(positions: Mapping[str, str], client: AgentClient) -> dict[str, list[Event]]:
    return client.store.sessions.watch_many(positions, _BLOCK_MS)


def event_order(event_id: str) -> tuple[int, int]:
    """Turn the id of an event into what sorts as the events were stored."""
    milliseconds, _, number = event_id.partition("-")
    return int(milliseconds), int(number or 0)
