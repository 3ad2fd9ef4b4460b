"""AG-UI 1.0, the protocol between agents and user interfaces: a run takes a message or answers, and sends events."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any, Final, cast

from ag_ui import core
from sse_starlette.event import ServerSentEvent
from starlette.responses import Response

from ... import __version__
from ...worker.errors import InvalidInput, SessionNotFound, UnknownAgent
from ...worker.state.execution.answers import Answer, Approve, Deny, GivenAnswer
from ...worker.state.execution.requests import RequestKind
from ...worker.store.event_records import Event, EventType
from ...worker.store.records import MessageMode
from ...worker.store.requests.records import FoundRequest
from ..client.answer_inputs import check_seen
from ..client.messages import INTERRUPTING, read_mode
from ..client.verbs import Scope, needed_scopes
from . import replies
from .agui_run import AguiRun
from .endpoints import Call, endpoint, send
from .event_streams import EventStream, while_sent
from .request_endpoints import check_addressee, hide_messages_above
from .session_endpoints import read_last_event_id

_PAGE: Final = 1000
# What a message takes besides its text.
_MESSAGE_CHARS: Final = 200
_SAID: Final = ("user", "assistant", "tool")
_PAYLOAD_FIELDS: Final = frozenset({"approved", "reason", "editedArgs", "seen"})
_DATA_END: Final = "\n"
"""The official client splits a stream at empty lines of this kind, and at no others."""


@endpoint(
    "POST",
    "/agui/{agent}",
    Scope.SUBMIT,
    replies.NamedReply,
    body=core.RunAgentInput,
    session_field="thread_id",
    headers={"Last-Event-ID": "Id of the last event seen; the same run goes on after it."},
    is_stream=True,
)
async def run_agent(call: Call) -> Response:
    """Run an agent for a user interface that speaks AG-UI, and follow the run as a stream."""
    given: core.RunAgentInput = call.body
    call.access.check(Scope.READ, given.thread_id)
    if given.resume:
        call.access.check(Scope.ANSWER, given.thread_id)
    _check_input(given)
    run = await _begin(call, given, read_last_event_id(call))
    place = contextlib.AsyncExitStack()
    check = partial(call.check_again, run.thread_id)
    subscription = call.hub.subscribe(
        run.thread_id, run.after, is_live=True, for_visitor=call.access.is_visitor, check=check
    )
    events = await place.enter_async_context(subscription)

    async def write() -> AsyncGenerator[ServerSentEvent]:
        async with contextlib.aclosing(run.stream(events)) as sent:
            async for some, cursor in sent:
                for number, event in enumerate(some, 1):
                    last_id = cursor if number == len(some) else None
                    to_json = partial(event.model_dump_json, by_alias=True)
                    async with while_sent(call, to_json, _size_of(event)) as text:
                        yield ServerSentEvent(text, id=last_id, sep=_DATA_END)

    return EventStream(write(), place, separator=_DATA_END)


def _size_of(event: core.BaseEvent) -> int:
    """About how long an event is as JSON; only those that hold whole texts are long."""
    if isinstance(event, core.MessagesSnapshotEvent):
        return sum(len(str(message.content)) + _MESSAGE_CHARS for message in event.messages)
    return len(str(getattr(event, "delta", None) or getattr(event, "content", None) or ""))


@endpoint("GET", "/agui/{agent}", Scope.READ, replies.NamedReply)
async def describe_agent(call: Call) -> Response:
    """Read what an agent can do, in AG-UI's words."""
    name = call.path["agent"]
    agents = await call.client.agents()
    if name not in agents:
        raise UnknownAgent(name, tuple(agents))
    found = core.AgentCapabilities(
        identity=core.IdentityCapabilities(name=name, type="celery-agents", version=__version__),
        transport=core.TransportCapabilities(streaming=True, resumable=True, websocket=False, http_binary=False),
        tools=core.ToolsCapabilities(supported=True, client_provided=False),
        state=core.StateCapabilities(snapshots=False, deltas=False),
        multi_agent=core.MultiAgentCapabilities(supported=True, delegation=True),
        human_in_the_loop=core.HumanInTheLoopCapabilities(
            supported=True, approvals=True, interventions=True, interrupts=True, approve_with_edits=True
        ),
    )
    return send(found.model_dump(mode="json", by_alias=True, exclude_none=True))


async def _begin(call: Call, given: core.RunAgentInput, cursor: str | None) -> AguiRun:
    """Do what the run asks for, once for each run id, and find the event after which it begins.

    Args:
        cursor: Id of the last event that the caller has seen; None: it does not say.
    """
    key = f"agui:{given.thread_id}:{given.run_id}"
    text = None if given.resume else _new_message(given)
    run = AguiRun(
        client=call.client,
        read_line=call.line,
        show=partial(hide_messages_above, call),
        thread_id=given.thread_id,
        run_id=given.run_id,
        with_history=cursor is not None,
    )
    if text is not None:
        await _check_thread(call, given)
        async with call.line():
            job = await call.client.submit(
                call.path["agent"], text, session_id=given.thread_id, idempotency_key=key,
                when=_read_mode(call, given), by=call.access.name_sender(None),
            )  # fmt: skip
        run.operation_id, run.execution_id = job.operation_id, await job.execution_id()
        if cursor is not None:
            run.begin_after(cursor, await _stored_events(call, given.thread_id))
        return run
    run.execution_id = (await call.client.header(given.thread_id)).execution_id or ""
    stored = await _stored_events(call, given.thread_id)
    open_before = {found.summary.id for found in await run.list_requests()}
    is_new = await _answer(call, given, key)
    if cursor is None and is_new:  # the run before this one has ended where the execution began to wait
        waits = [event.id for event in stored if event.type == EventType.EXECUTION_WAITING]
        cursor = waits[-1] if waits else None
    run.with_history = run.with_history or cursor is None
    run.begin_after(cursor or (stored[-1].id if stored else "0"), stored)
    if is_new:  # the events that follow end the run, unless other requests are open, too
        run.looks_first = bool(open_before - {entry.interrupt_id for entry in given.resume or ()})
    run.waits = True
    return run


async def _check_thread(call: Call, given: core.RunAgentInput) -> None:
    try:
        await call.client.header(given.thread_id)
    except SessionNotFound:
        if call.access.session_id is not None:  # a token is for a session that is there
            raise
        _check_first(given)


async def _answer(call: Call, given: core.RunAgentInput, key: str) -> bool:
    """Answer the interrupts that the run names.

    Returns:
        Whether this request did it; not when there is nothing to answer, and when it comes again.
    """
    by_session: dict[str, dict[str, GivenAnswer]] = {}
    seen: dict[str, int] = {}
    for entry in given.resume or ():
        found = await call.client.request(given.thread_id, entry.interrupt_id)
        check_addressee(call.access, found)
        session = found.summary.session_id
        by_session.setdefault(session, {})[found.summary.id] = _read_resume(entry, found)
        if (number := _read_seen(entry, found)) is not None:
            seen[session] = min(number, seen.get(session, number))
    by = call.access.name_caller(None)
    async with call.line():
        outcomes = [
            (
                await call.client.answer(
                    session, answers, by=by, seen=seen.get(session), idempotency_key=f"{key}:{session}"
                )
            ).outcome
            for session, answers in by_session.items()
        ]
    return any(outcome != "again" for outcome in outcomes)


async def _stored_events(call: Call, session_id: str) -> list[Event]:
    found: list[Event] = []
    while True:
        position = found[-1].id if found else None
        page = await call.client.run(
            lambda client, after=position: client.store.sessions.events(session_id, after, _PAGE)
        )
        found += page
        if len(page) < _PAGE:
            return found


# --- what a run is given --------------------------------------------------------------------------------------------


def _check_input(given: core.RunAgentInput) -> None:
    """Refuse what a caller would expect to have an effect, and has none: agents bring their own tools and state.

    Raises:
        InvalidInput: One of these fields is not empty, or there is another forwarded property than the mode.
    """
    for field, value in (("tools", given.tools), ("context", given.context), ("state", given.state)):
        if value:
            raise InvalidInput(field, type(value).__name__, "leave it out: an agent's tools and state are its own.")
    if forwarded := _forwarded(given):
        if set(forwarded) != {"when"}:
            advice = 'give {"when": …}, the mode of the message, or nothing.'
            raise InvalidInput("forwardedProps", ", ".join(forwarded), advice)
        if given.resume or _new_message(given) is None:
            raise InvalidInput("forwardedProps", "when", "leave it out: the run sends no message.")


def _forwarded(given: core.RunAgentInput) -> Mapping[str, Any]:
    """The forwarded properties.

    Raises:
        InvalidInput: They are no object.
    """
    found: Any = given.forwarded_props or {}
    if not isinstance(found, dict):
        raise InvalidInput("forwardedProps", type(found).__name__, "give an object, or nothing.")
    return cast("Mapping[str, Any]", found)


def _read_mode(call: Call, given: core.RunAgentInput) -> str:
    """The mode of the run's message.

    Raises:
        InvalidInput: There is no such mode.
        HttpProblem: It interrupts a step, and the token may not do that.
    """
    mode = read_mode(_forwarded(given).get("when", MessageMode.STEER))
    for scope in needed_scopes(INTERRUPTING, {"when": mode}):
        call.access.check(scope, given.thread_id)
    return mode


def _new_message(given: core.RunAgentInput) -> str | None:
    """The message that a run sends: the last one, when it is the user's. None: the run sends nothing.

    Raises:
        InvalidInput: It holds other parts than text.
    """
    if not given.messages or not isinstance(given.messages[-1], core.UserMessage):
        return None
    content = given.messages[-1].content
    if isinstance(content, str):
        return content
    field = f"messages[{len(given.messages) - 1}].content"
    texts: list[str] = []
    for part in content:
        if not isinstance(part, core.TextPart):
            raise InvalidInput(field, part.type, "give text; agents take no other parts.")
        texts.append(part.text)
    return "\n".join(texts)


def _check_first(given: core.RunAgentInput) -> None:
    """Refuse the history of a thread that has no session: a session tells its own history.

    Raises:
        InvalidInput: There are further messages.
    """
    if sum(message.role in _SAID for message in given.messages) > 1:
        advice = "this thread is not known here, or its time is over. Begin a new one with one message of the user."
        raise InvalidInput("threadId", given.thread_id, advice)


def _read_seen(entry: core.ResumeEntry, found: FoundRequest) -> int | None:
    """Read the number of the newest message that was shown with an approval; None where the payload has none.

    Raises:
        InvalidInput: It is none.
    """
    given: object = entry.payload
    if found.summary.kind is RequestKind.QUESTION or not isinstance(given, Mapping):
        return None
    return check_seen(cast("Mapping[str, Any]", given).get("seen"))


def _read_resume(entry: core.ResumeEntry, found: FoundRequest) -> GivenAnswer:
    """Read the answer to an interrupt.

    Raises:
        InvalidInput: The payload does not fit; the error names the interrupt.
    """
    field = f"resume.{entry.interrupt_id}"
    if entry.status == "cancelled":
        return Deny("The user has cancelled this.")
    if found.summary.kind is RequestKind.QUESTION:
        return Answer(entry.payload)
    given: object = entry.payload
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{field}.payload", type(given).__name__, 'give {"approved": true} or false.')
    payload = cast("Mapping[str, Any]", given)
    unknown = sorted(set(payload) - _PAYLOAD_FIELDS)
    if unknown:
        known = ", ".join(sorted(_PAYLOAD_FIELDS))
        raise InvalidInput(f"{field}.payload", unknown, f"the fields are {known}.")
    approved, edited = payload.get("approved"), payload.get("editedArgs")
    if not isinstance(approved, bool):
        raise InvalidInput(f"{field}.payload.approved", type(approved).__name__, "give true or false.")
    if not approved:
        return Deny(str(payload.get("reason") or ""))
    return Approve() if edited is None else Approve(args=edited)
