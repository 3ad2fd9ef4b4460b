"""Reading sessions, following their events, and changing what they keep."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from sse_starlette.event import ServerSentEvent
from starlette.responses import Response

from ...worker.errors import SessionConflict
from ...worker.known_secrets import redact_known
from ...worker.store import EXECUTION_ENDS, Event, StreamPosition
from ..client.json_values import delta_value, event_value, header_value, session_value, tree_value
from ..observability.listed_sessions import listed_sessions, listed_value
from ..observability.waiting_reasons import waiting_reason
from . import bodies, replies
from .access import Scope
from .chat_view import chat_event, chat_header, chat_messages, is_chat_text
from .endpoints import IF_MATCH, Call, Endpoint, send
from .event_hub import Gap
from .event_streams import EventStream, while_sent
from .problems import HttpProblem

if TYPE_CHECKING:
    from ..client.client import AgentClient

_RETRY_MS: Final = 1000
_DELETE_SECONDS: Final = 20.0


async def list_sessions(call: Call) -> Response:
    """List sessions by last update, newest first."""
    query: bodies.SessionsQuery = call.query

    def read(client: AgentClient) -> dict[str, Any]:
        page = client.list(
            status=query.status, agent=query.agent, since=query.since, limit=query.limit, cursor=query.cursor
        )
        rows = listed_sessions(client.store, page.items)
        return {"sessions": [listed_value(each) for each in rows], "cursor": page.cursor}

    return send(await call.client.run(read))


async def show_session(call: Call) -> Response:
    """Read a session without its content, and why it waits."""
    value = await call.client.run(lambda client: _read_session(client, call))
    return send(value, headers={"ETag": f'"{value["version"]}"'})


async def show_state(call: Call) -> Response:
    """Read a session with its whole state."""

    def read(client: AgentClient) -> dict[str, Any]:
        header = client.header(call.session_id)
        stored = client.show(header.session_id)
        return session_value(header, stored.state, _reason(client, header))

    return send(await call.client.run(read))


async def list_messages(call: Call) -> Response:
    """Read the messages of the conversation, the oldest first."""
    query: bodies.MessagesQuery = call.query
    stored = await call.client.show(call.session_id)
    messages = stored.state.store.section().messages
    sees_all = call.access.has(Scope.READ)
    shown = [message.to_dict() for message in messages] if sees_all else chat_messages(messages)
    return send({"messages": shown[query.offset : query.offset + query.limit], "total": len(shown)})


async def list_steps(call: Call) -> Response:
    """Read the steps of the session's latest execution."""
    execution = (await call.client.show(call.session_id)).state.execution
    steps = () if execution is None else execution.step_executions
    return send({"steps": [step.to_dict() for step in steps]})


async def show_tree(call: Call) -> Response:
    """Read a session with the sessions below it, what they have used, and why they have not ended."""

    def read(client: AgentClient) -> dict[str, Any]:
        found, workers = client.tree(call.session_id), client.store.registry.workers()
        reasons = {node.session_id: waiting_reason(client.store, node.header, workers) for node in found.walk()}
        return tree_value(found, reasons)

    return send(await call.client.run(read))


async def follow_events(call: Call) -> Response:
    """Follow the events of a session as a stream of Server-Sent Events."""
    query: bodies.EventsQuery = call.query
    after = read_last_event_id(call) or query.after
    if query.live:
        return await _follow_live(call, after, until_end=query.until == "end")
    place = contextlib.AsyncExitStack()
    event_id = None if after is None else StreamPosition.read(after).event
    events = await place.enter_async_context(
        call.hub.subscribe(call.session_id, event_id, for_visitor=call.access.is_visitor)
    )

    async def write() -> AsyncGenerator[ServerSentEvent]:
        yield ServerSentEvent(retry=_RETRY_MS, comment="events")
        async for event in events:
            if isinstance(event, Event):
                text = redact_known(_text(_event_value(call, event)))
                yield ServerSentEvent(text, event=str(event.type), id=event.id)
                if query.until == "end" and event.type in EXECUTION_ENDS and await _has_ended(call):
                    return
            elif isinstance(event, Gap):
                yield await _snapshot(call)

    return EventStream(write(), place)


async def _follow_live(call: Call, after: str | None, *, until_end: bool) -> Response:
    place = contextlib.AsyncExitStack()
    items = await place.enter_async_context(
        call.hub.subscribe_live(call.session_id, after, for_visitor=call.access.is_visitor)
    )

    async def write() -> AsyncGenerator[ServerSentEvent]:
        yield ServerSentEvent(retry=_RETRY_MS, comment="events")
        async for item in items:
            if item is None:
                continue
            if item.snapshot is not None:
                yield await _snapshot(call)
            elif item.delta is not None:
                if call.access.has(Scope.READ) or is_chat_text(item.delta):
                    yield ServerSentEvent(redact_known(_text(delta_value(item.delta))), event="live", id=item.cursor)
            elif item.event is not None:
                value = {**_event_value(call, item.event), **({"text": item.text} if item.text else {})}
                async with while_sent(call, lambda value=value: _text(value), len(item.text)) as text:
                    yield ServerSentEvent(text, event=str(item.event.type), id=item.cursor)
                if until_end and item.event.type in EXECUTION_ENDS and await _has_ended(call):
                    return

    return EventStream(write(), place)


async def _snapshot(call: Call) -> ServerSentEvent:
    value = await call.client.run(lambda client: _read_session(client, call))
    return ServerSentEvent(redact_known(_text(value)), event="snapshot")


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


async def delete_session(call: Call) -> Response:
    """Delete a session and those below it; what runs is stopped first, unless a version is expected."""
    expected = call.expected_version
    try:
        await call.client.delete(call.session_id, expected_version=expected, timeout=_DELETE_SECONDS)
    except SessionConflict as conflict:
        raise HttpProblem(412, "precondition-failed", str(conflict)) from None
    except TimeoutError as late:
        raise HttpProblem(503, "not-ended", f"{late}. Send the request again.", headers={"Retry-After": "2"}) from None
    return Response(status_code=204)


async def fork_session(call: Call) -> Response:
    """Copy a session as it stands after its last commit."""
    try:
        fork = await call.client.fork(
            call.session_id, idempotency_key=call.idempotency_key, expected_version=call.expected_version
        )
    except SessionConflict as conflict:
        raise HttpProblem(412, "precondition-failed", str(conflict)) from None
    return send({"session_id": fork}, 201, headers={"Location": call.url(f"/v1/sessions/{fork}")})


async def clear_session(call: Call) -> Response:
    """Remove the conversation of a session of which nothing runs."""
    try:
        version = await call.client.clear(call.session_id, expected_version=call.expected_version)
    except SessionConflict as conflict:
        raise HttpProblem(412, "precondition-failed", str(conflict)) from None
    return Response(status_code=204, headers={"ETag": f'"{version}"'})


async def write_metadata(call: Call) -> Response:
    """Keep a JSON value with the session."""
    call.access.check_fields(metadata=True)
    await call.client.write_metadata(call.session_id, call.path["key"], call.body.value)
    return Response(status_code=204)


async def change_system_prompt(call: Call) -> Response:
    """Give the session a system prompt of its own."""
    await call.client.change_system_prompt(call.session_id, call.body.prompt)
    return Response(status_code=204)


async def change_model(call: Call) -> Response:
    """Give the session a model of its own, from its next step on."""
    await call.client.change_model(call.session_id, call.body.value())
    return Response(status_code=204)


async def create_session_token(call: Call) -> Response:
    """Make a token with which a browser may use the interface for this session alone."""
    body: bodies.NewSessionToken = call.body
    ttl = timedelta(seconds=body.ttl_seconds)
    token = await call.client.session_token(
        call.session_id, body.scopes, ttl, answer_to=body.answer_to, subject=body.subject
    )
    return send({"token": token}, 201)


async def _has_ended(call: Call) -> bool:
    header = await call.client.header(call.session_id)
    return str(header.status) in ("completed", "stopped", "failed", "idle", "parked")


def _read_session(client: AgentClient, call: Call) -> dict[str, Any]:
    header = client.header(call.session_id)
    value = {**header_value(header), "reason": _reason(client, header)}
    return value if call.access.has(Scope.READ) else chat_header(value)


def _reason(client: AgentClient, header: Any) -> str:
    return waiting_reason(client.store, header, client.store.registry.workers())


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=lambda other: other.isoformat())


def _change(path: str, handler: Any, summary: str, body: type[bodies.Body], scope: Scope) -> Endpoint:
    """An endpoint that changes what a session keeps."""
    return Endpoint(
        method="PUT",
        path=path,
        scope=scope,
        handler=handler,
        summary=summary,
        body=body,
        replies={204: None},
        reads_session=True,
    )


def _read(
    path: str, handler: Any, reply: type[replies.Reply], query: type[bodies.Body] = bodies.NoQuery, **more: Any
) -> Endpoint:
    """An endpoint that only reads."""
    return Endpoint(
        method="GET", path=path, scope=Scope.READ, handler=handler, query=query, replies={200: reply}, **more
    )


_SESSION: Final = "/v1/sessions/{session_id}"

ENDPOINTS: Final = (
    _read(
        "/v1/sessions",
        list_sessions,
        replies.SessionsReply,
        bodies.SessionsQuery,
        summary="List sessions by last update, newest first.",
    ),
    _read(_SESSION, show_session, replies.SessionReply, summary="Read a session without its content.", for_chat=True),
    _read(f"{_SESSION}/state", show_state, replies.StateReply, summary="Read its whole state.", reads_session=True),
    _read(
        f"{_SESSION}/messages",
        list_messages,
        replies.MessagesReply,
        bodies.MessagesQuery,
        summary="Read the conversation.",
        for_chat=True,
        reads_session=True,
    ),
    _read(
        f"{_SESSION}/steps",
        list_steps,
        replies.StepsReply,
        summary="Read the latest execution's steps.",
        reads_session=True,
    ),
    _read(f"{_SESSION}/tree", show_tree, replies.TreeReply, summary="Read it with the sessions below it."),
    Endpoint(
        method="GET",
        path=f"{_SESSION}/events",
        scope=Scope.READ,
        handler=follow_events,
        for_chat=True,
        summary="Follow its events as a stream.",
        query=bodies.EventsQuery,
        headers={"Last-Event-ID": "Id of the last event seen; the stream goes on after it."},
        replies={200: replies.NamedReply},
        is_stream=True,
    ),
    Endpoint(
        method="DELETE",
        path=_SESSION,
        scope=Scope.ADMIN,
        handler=delete_session,
        summary="Delete it with the sessions below it; what runs is stopped first.",
        headers=IF_MATCH,
        replies={204: None},
    ),
    Endpoint(
        method="POST",
        path=f"{_SESSION}/fork",
        scope=Scope.ADMIN,
        handler=fork_session,
        reads_session=True,
        summary="Copy it as it stands after its last commit.",
        headers={**IF_MATCH, "Idempotency-Key": "The same key makes one fork."},
        replies={201: replies.ForkReply},
    ),
    Endpoint(
        method="POST",
        path=f"{_SESSION}/clear",
        scope=Scope.ADMIN,
        handler=clear_session,
        reads_session=True,
        summary="Remove its conversation; prompt, model and metadata stay.",
        headers=IF_MATCH,
        replies={204: None},
    ),
    _change(f"{_SESSION}/metadata/{{key}}", write_metadata, "Keep a JSON value.", bodies.Metadata, Scope.SUBMIT),
    _change(f"{_SESSION}/system-prompt", change_system_prompt, "Give it a prompt.", bodies.SystemPrompt, Scope.ADMIN),
    _change(f"{_SESSION}/model", change_model, "Give it a model.", bodies.Model, Scope.ADMIN),
    Endpoint(
        method="POST",
        path=f"{_SESSION}/tokens",
        scope=Scope.ADMIN,
        handler=create_session_token,
        summary="Make a token with which a browser may use the interface for this session alone.",
        body=bodies.NewSessionToken,
        replies={201: replies.TokenReply},
    ),
)
