"""Streams of Server-Sent Events as responses: they keep their place until they end, and slow readers are left."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Final

from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.types import Receive, Scope, Send

from ...worker.known_secrets import redact_known_json
from .endpoints import Call
from .memory import SMALL_BYTES
from .problems import HttpProblem

_log = logging.getLogger(__name__)

_PING_SECONDS: Final = 15
# A reader who takes nothing for this time is dropped; it comes back with the last id that it has seen.
_SEND_SECONDS: Final = 30


class EventStream(EventSourceResponse):
    """A stream of events: with comments while nothing happens, and without a reader that takes nothing."""

    def __init__(
        self,
        events: AsyncGenerator[ServerSentEvent],
        place: contextlib.AsyncExitStack,
        separator: str | None = None,
    ) -> None:
        """
        Args:
            place: Closed when the response ends, also where none of its events was asked for.
            separator: Of the lines. None: as the specification's authors write it.
        """
        super().__init__(  # pyright: ignore[reportUnknownMemberType] - its content may be a dict of anything
            events,
            ping=_PING_SECONDS,
            ping_message_factory=lambda: ServerSentEvent(comment="ping", sep=separator),
            send_timeout=_SEND_SECONDS,
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
            sep=separator,
        )
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they or the reader end."""
        try:
            async with self._place:
                await super().__call__(scope, receive, send)
        except (HttpProblem, SendTimeoutError):
            _log.info("a reader of events is too slow, and is left")


@contextlib.asynccontextmanager
async def while_sent(call: Call, write: Callable[[], str], size: int) -> AsyncGenerator[str]:
    """Write the text of an event without known secrets, and count it until the context ends.

    Args:
        write: Writes it; in a thread where it is long.
        size: About how long it is, in characters.
    Raises:
        HttpProblem: Too much is being sent to slow readers: the stream has to end, and its reader comes back.
    """
    if size <= SMALL_BYTES:
        yield redact_known_json(write())
        return
    with call.reading.responses.hold(call.access) as held:
        call.reading.check_room(held, size)
        yield await call.client.run(lambda _: redact_known_json(write()))
