"""Reading sessions, following their events, changing what they keep; snapshots, traces, and whether all works."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncGenerator
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sse_starlette.event import ServerSentEvent
from starlette.responses import Response

from ... import __version__
from ...worker.errors import SessionConflict
from ...worker.known_secrets import redact_known_json
from ...worker.state.values.ids import read_session_id
from ...worker.store.event_records import EXECUTION_ENDS, Event, EventType
from ...worker.store.labels import read_pairs
from ...worker.store.live.streams import StreamPosition
from ..client.json_values import delta_value, event_value, header_value, session_value, tree_value
from ..client.stream_items import StreamItem
from ..client.verbs import Scope
from ..observability.listed_sessions import listed_sessions, listed_value
from ..observability.waiting_reasons import tree_reasons, waiting_reason
from . import bodies, replies
from .chat_view import chat_event, chat_header, chat_messages, is_chat_text
from .endpoints import IF_MATCH, Call, endpoint, send
from .event_hub import Gap
from .event_streams import EventStream, while_sent
from .problems import HttpProblem

if TYPE_CHECKING:
    from ..client.client import AgentClient

_RETRY_MS: Final = 1000
_DELETE_SECONDS: Final = 20.0
_PAUSE_SECONDS: Final = 0.2
_LAST_EVENTS: Final = (*EXECUTION_ENDS, EventType.SESSION_SAVED)  # the last one of a session without an execution
_ENDED: Final = ("completed", "stopped", "failed", "idle", "parked")


@endpoint("GET", "/v1/sessions", Scope.READ, replies.SessionsReply, query=bodies.SessionsQuery, for_label=True)
async def list_sessions(call: Call) -> Response:
    """List sessions by last update, newest first."""
    query: bodies.SessionsQuery = call.query
    labels = call.access.bind_labels(read_pairs("label", query.label or ()))

    def read(client: AgentClient) -> dict[str, Any]:
        page = client.list(
            status=query.status,
            agent=query.agent,
            label=labels,
            text=query.text,
            error=query.error,
            waits_for=query.waits_for,
            since=query.since,
            until=query.until,
            limit=query.limit,
            cursor=query.cursor,
        )
        rows = listed_sessions(client.store, page.items)
        return {"sessions": [listed_value(each) for each in rows], "cursor": page.cursor, "unread": page.unread}

    return send(await call.client.run(read))


@endpoint("GET", "/v1/sessions/{session_id}", Scope.READ, replies.SessionReply, for_chat=True)
async def show_session(call: Call) -> Response:
    """Read a session without its content."""
    value = await call.client.run(lambda client: _read_session(client, call))
    return send(value, headers={"ETag": f'"{value["version"]}"'})


@endpoint(
    "GET",
    "/v1/sessions/{session_id}/state",
    Scope.READ,
    replies.StateReply,
    query=bodies.StateQuery,
    reads_session=True,
)
async def show_state(call: Call) -> Response:
    """Read its whole state."""
    query: bodies.StateQuery = call.query

    def read(client: AgentClient) -> dict[str, Any]:
        header = client.header(call.session_id)
        state = (
            client.show(header.session_id).state if query.whole else client.store.sessions.outline(header.session_id)
        )
        return session_value(header, state, _reason(client, header))

    return send(await call.client.run(read))


@endpoint(
    "GET",
    "/v1/sessions/{session_id}/messages",
    Scope.READ,
    replies.MessagesReply,
    query=bodies.MessagesQuery,
    for_chat=True,
    reads_session=True,
)
async def list_messages(call: Call) -> Response:
    """Read the conversation."""
    query: bodies.MessagesQuery = call.query
    if call.access.has(Scope.READ):
        session = read_session_id(call.session_id)
        found = await call.client.run(lambda client: client.store.sessions.messages(session, query.offset, query.limit))
        return send({"messages": [message.to_dict() for message in found.messages], "total": found.total})
    stored = await call.client.show(call.session_id)
    shown = chat_messages(stored.state.store.section().messages)
    return send({"messages": shown[query.offset : query.offset + query.limit], "total": len(shown)})


@endpoint("GET", "/v1/sessions/{session_id}/steps", Scope.READ, replies.StepsReply, reads_session=True)
async def list_steps(call: Call) -> Response:
    """Read the latest execution's steps."""
    execution = (await call.client.show(call.session_id)).state.execution
    steps = () if execution is None else execution.step_executions
    return send({"steps": [step.to_dict() for step in steps]})


@endpoint("GET", "/v1/sessions/{session_id}/tree", Scope.READ, replies.TreeReply)
async def show_tree(call: Call) -> Response:
    """Read it with the sessions below it."""

    def read(client: AgentClient) -> dict[str, Any]:
        found = client.tree(call.session_id)
        return tree_value(found, tree_reasons(client.store, found))

    return send(await call.client.run(read))


@endpoint(
    "GET",
    "/v1/sessions/{session_id}/events",
    Scope.READ,
    replies.NamedReply,
    query=bodies.EventsQuery,
    for_chat=True,
    is_stream=True,
    headers={"Last-Event-ID": "Id of the last event seen; the stream goes on after it."},
)
async def follow_events(call: Call) -> Response:
    """Follow its events as a stream."""
    query: bodies.EventsQuery = call.query
    after = read_last_event_id(call) or query.after
    place = contextlib.AsyncExitStack()
    check = partial(call.check_again, call.session_id)
    items = await place.enter_async_context(
        call.hub.subscribe(call.session_id, after, is_live=query.live, for_visitor=call.access.is_visitor, check=check)
    )

    async def write() -> AsyncGenerator[ServerSentEvent]:
        yield ServerSentEvent(retry=_RETRY_MS, comment="events")
        seen = None if after is None else StreamPosition.read(after).event
        if query.until == "end" and seen is not None and await _has_end(call, seen, must_be_stored=True):
            return
        async for item in items:
            async with contextlib.aclosing(_frames(call, item)) as frames:
                async for frame in frames:
                    yield frame
            event = item.event if isinstance(item, StreamItem) else None
            seen = seen if event is None else event.id
            may_be_over = item is None or (event is not None and event.type in _LAST_EVENTS)
            if query.until == "end" and may_be_over and seen is not None and await _has_end(call, seen):
                return

    return EventStream(write(), place)


async def _frames(call: Call, item: StreamItem | Gap | None) -> AsyncGenerator[ServerSentEvent]:
    """The frame of an item; none of text that the reader may not see, and where nothing has happened."""
    if isinstance(item, Gap):
        yield await _snapshot(call)
    elif item is not None and item.delta is not None:
        if call.access.has(Scope.READ) or is_chat_text(item.delta):
            yield ServerSentEvent(redact_known_json(_text(delta_value(item.delta))), event="live", id=item.cursor)
    elif item is not None and item.event is not None:
        value = {**_event_value(call, item.event), **({"text": item.text} if item.text else {})}
        async with while_sent(call, lambda: _text(value), len(item.text)) as text:
            yield ServerSentEvent(text, event=str(item.event.type), id=item.cursor)


async def _snapshot(call: Call) -> ServerSentEvent:
    value = await call.client.run(lambda client: _read_session(client, call))
    return ServerSentEvent(redact_known_json(_text(value)), event="snapshot")


def _event_value(call: Call, event: Event) -> dict[str, Any]:
    return event_value(event) if call.access.has(Scope.READ) else chat_event(event, call.access)


def read_last_event_id(call: Call) -> str | None:
    """Read the header by which a reader says what it has seen last; None without it.

    Raises:
        HttpProblem: It is no id of an event.
    """
    after = call.request.headers.get("last-event-id") or None
    if after is not None and not re.fullmatch(bodies.CURSOR, after):
        raise HttpProblem(422, "invalid-input", "Last-Event-ID: give the id of an event, as the stream sent it.")
    return after


@endpoint("DELETE", "/v1/sessions/{session_id}", Scope.ADMIN, headers=IF_MATCH)
async def delete_session(call: Call) -> Response:
    """Delete it with the sessions below it; what runs is stopped first."""
    expected = call.expected_version
    ends = time.monotonic() + _DELETE_SECONDS
    while True:
        try:
            await call.client.delete(call.session_id, expected_version=expected, timeout=0)
            return Response(status_code=204)
        except SessionConflict as conflict:
            raise HttpProblem(412, "precondition-failed", str(conflict)) from None
        except TimeoutError as late:
            if time.monotonic() >= ends:
                advice = f"{late}. Send the request again."
                raise HttpProblem(503, "not-ended", advice, headers={"Retry-After": "2"}) from None
        await asyncio.sleep(_PAUSE_SECONDS)  # without a thread, which others need


@endpoint("PUT", "/v1/sessions/{session_id}/metadata/{key}", Scope.SUBMIT, body=bodies.Metadata, reads_session=True)
async def write_metadata(call: Call) -> Response:
    """Keep a JSON value."""
    call.access.check_fields(metadata=True)
    await call.client.write_metadata(call.session_id, call.path["key"], call.body.value)
    return Response(status_code=204)


@endpoint("PUT", "/v1/sessions/{session_id}/model", Scope.ADMIN, body=bodies.Model, reads_session=True)
async def change_model(call: Call) -> Response:
    """Give it a model."""
    await call.client.change_model(call.session_id, call.body.value())
    return Response(status_code=204)


@endpoint(
    "POST",
    "/v1/sessions/{session_id}/tokens",
    Scope.ADMIN,
    replies.TokenReply,
    statuses=(201,),
    body=bodies.NewSessionToken,
)
async def create_session_token(call: Call) -> Response:
    """Make a token with which a browser may use the interface for this session alone."""
    body: bodies.NewSessionToken = call.body
    ttl = timedelta(seconds=body.ttl_seconds)
    token = await call.client.session_token(
        call.session_id, body.scopes, ttl, answer_to=body.answer_to, subject=body.subject
    )
    return send({"token": token}, 201)


@endpoint(
    "POST",
    "/v1/snapshots",
    Scope.ADMIN,
    replies.JobReply,
    statuses=(201,),
    body=bodies.GivenSnapshot,
    reads_session=True,
)
async def resume_snapshot(call: Call) -> Response:
    """Create a session from a snapshot, and let its execution go on if it had not ended."""
    body: bodies.GivenSnapshot = call.body
    job = await call.client.resume_snapshot(
        body.snapshot, session_id=body.session_id, context=body.context, merge_context=body.merge_context
    )
    execution_id = await job.execution_id()
    value: dict[str, Any] = {
        "session_id": job.session_id,
        "execution_id": execution_id,
        "status": None,
        "result": None,
        "notice": job.notice or None,
    }
    return send(value, 201, headers={"Location": call.url(f"/v1/sessions/{job.session_id}")})


@endpoint("GET", "/v1/health", Scope.READ, replies.HealthReply)
async def check_health(call: Call) -> Response:
    """Tell whether the interface and its Redis answer."""
    await call.client.run(lambda client: client.store.housekeeping.now_ms())
    return send({"ok": True, "version": __version__})


async def _has_end(call: Call, seen: str, *, must_be_stored: bool = False) -> bool:
    """Whether the session has ended, and a reader has the end of its latest execution.

    Args:
        seen: Id of the last event that the reader has.
        must_be_stored: Not where this event is not stored any more: the reader lacks what a snapshot gives.
    """

    def look(client: AgentClient) -> bool:
        store, place = client.store, seen
        if str(client.header(call.session_id).status) not in _ENDED:
            return False
        if must_be_stored and store.live.event_at(call.session_id, seen) is None:
            return False
        while page := store.sessions.events(call.session_id, place):
            if any(each.type in EXECUTION_ENDS for each in page):
                return False
            place = page[-1].id
        return True

    return await call.client.run(look)


def _read_session(client: AgentClient, call: Call) -> dict[str, Any]:
    header = client.header(call.session_id)
    value = {**header_value(header), "reason": _reason(client, header)}
    return value if call.access.has(Scope.READ) else chat_header(value)


def _reason(client: AgentClient, header: Any) -> str:
    return waiting_reason(client.store, header, client.store.registry.workers())


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=lambda other: other.isoformat())
