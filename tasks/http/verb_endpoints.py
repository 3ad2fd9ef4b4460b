"""Operations that follow from methods of `AgentClient` with the decorator `@verb`."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from operator import methodcaller
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, create_model
from starlette.responses import Response

from ...worker.errors import SessionConflict, SessionNotFound
from ...worker.flow.caps import SpendCap
from ...worker.flow.concurrency import ConcurrencyLimit
from ...worker.flow.shares import FairShares, Priority
from ...worker.flow.values import FleetValue, ProviderLimit
from ..client.client import AgentClient
from ..client.inputs import derive_id
from ..client.json_values import (
    bucket_value,
    cap_value,
    concurrency_value,
    found_value,
    pause_value,
    schedule_value,
    shares_value,
    timeline_value,
    waiting_value,
)
from ..client.verbs import VERBS, Verb, needed_scopes
from . import replies, request_replies
from .access import Access
from .bodies import (
    Budget,
    Cap,
    Concurrency,
    Debouncing,
    ModelLimit,
    ModelSchedule,
    Moment,
    Shares,
    TranscriptMessage,
    WaitQuery,
)
from .endpoints import IF_MATCH, KEY, Body, Call, Endpoint, Handler, NoQuery, send
from .job_endpoints import reply_to
from .problems import HttpProblem

assert AgentClient  # its import defines the verbs

T = TypeVar("T")

_FLEET: Final[Mapping[type[FleetValue], type[Body]]] = {
    ProviderLimit: ModelLimit, ConcurrencyLimit: Concurrency, SpendCap: Cap, FairShares: Shares
}  # fmt: skip
"""The bodies that have the arguments of a value."""


def _make_value(kind: type[FleetValue], body: Any) -> FleetValue:
    return kind(**body.model_dump())


WIRE: Final[Mapping[str, Any]] = {
    "bool": bool,
    "int": int,
    "int | None": int | None,
    "str | int | None": str | int | None,
    "str | int": str | int,
    "Sequence[Edit | Mapping[str, Any]]": list[dict[str, Any]],
    "str": str,
    "str | None": str | None,
    "str | Message": str,
    "datetime | None": Moment | None,  # pyright: ignore[reportOperatorIssue]
    "timedelta | None": float | None,
    "ExecutionBudget | None": Budget | None,
    "ExecutionBudget": Budget,
    **{kind.__name__: body for kind, body in _FLEET.items()},
    "Priority | None": Priority | None,
    "Schedule": ModelSchedule,
    "Debounce | None": Debouncing | None,
    "Mapping[str, Any] | None": dict[str, Any] | None,
    "Mapping[str, str] | None": dict[str, str] | None,
    "Mapping[str, str]": dict[str, str],
    "float | None": float | None,
    "Mapping[str, str | None]": dict[str, str | None],
    "Mapping[str, str | None] | None": dict[str, str | None] | None,
    "Sequence[Message]": list[TranscriptMessage],
    "GivenAnswer | Mapping[str, Any]": dict[str, Any],
}
"""The type of a field of a body or query by the annotation of its parameter."""

READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "timedelta | None": lambda seconds: timedelta(seconds=seconds),
    "ExecutionBudget | None": lambda budget: budget.value(),
    "ExecutionBudget": lambda budget: budget.value(),
    **{kind.__name__: partial(_make_value, kind) for kind in _FLEET},
    "Schedule": lambda schedule: schedule.value(),
    "Debounce | None": lambda debounce: debounce.value(),
    "Sequence[Message]": lambda messages: [message.value() for message in messages],
}
"""How the value of a field becomes that of the parameter, where it differs."""

_BY_QUERY: Final = ("GET", "DELETE")  # some proxies drop their bodies
_HEADERS: Final = {"expected_version": IF_MATCH, "idempotency_key": KEY}


@dataclass(frozen=True, slots=True)
class Writer:
    """How what a verb returns becomes a response.

    Attributes:
        replies: The body of the response by its status. None: there is none.
        waits: It waits for the end of the job, in a query and outside the line of those who read whole sessions.
    """

    replies: Mapping[int, type[BaseModel] | None]
    write: Callable[[Call, Any], Response | Awaitable[Response]]
    waits: bool = False


def _tag(version: int) -> dict[str, str]:
    return {"ETag": f'"{version}"'}


def _listing(reply: type[BaseModel], name: str, value: Callable[[Any], Any]) -> Writer:
    return Writer({200: reply}, lambda _, found: send({name: [value(each) for each in found]}))


WRITERS: Final[Mapping[str, Writer]] = {
    "None": Writer({204: None}, lambda _, __: Response(status_code=204)),
    "bool": Writer({200: replies.ChangedReply}, lambda _, changed: send({"changed": changed})),
    "Placement": Writer({200: replies.PlacedReply}, lambda _, placed: send({"placed": placed})),
    "MessagesInLine": Writer({200: replies.QueueReply}, lambda _, line: send(line.to_dict())),
    "int": Writer(  # the session's version afterwards
        {204: None}, lambda _, version: Response(status_code=204, headers=_tag(version))
    ),
    "Fork": Writer(
        {201: replies.ForkReply},
        lambda call, fork: send(fork.to_dict(), 201, {"Location": call.url(f"/v1/sessions/{fork}")}),
    ),
    "SessionSnapshot": Writer({200: replies.SnapshotReply}, lambda _, it: send(it.to_dict(), headers=_tag(it.version))),
    "AgentState": Writer({200: replies.StepStateReply}, lambda _, state: send({"state": state.to_dict()})),
    "ModelRequest": Writer({200: replies.StepRequestReply}, lambda _, request: send(request.to_dict())),
    "tuple[Grant, ...]": _listing(replies.GrantsReply, "grants", methodcaller("to_dict")),
    "FoundRequest": Writer({200: request_replies.RequestReply}, lambda _, found: send(found_value(found))),
    "AnswerResult": Writer({200: replies.OutcomeReply}, lambda _, result: send({"outcome": result.outcome})),
    "Job": Writer({200: replies.JobReply, 202: replies.JobReply}, reply_to, waits=True),
    "Trace": Writer({200: replies.TraceReply}, lambda _, trace: send(trace.to_dict())),
    "WaitingCounts": Writer({200: replies.WaitingReply}, lambda _, counts: send(waiting_value(counts))),
    "Timeline": Writer({200: replies.TimelineReply}, lambda _, timeline: send(timeline_value(timeline))),
    "tuple[str, ...]": Writer({200: replies.NotesReply}, lambda _, notes: send({"notes": notes})),
    "tuple[Pause, ...]": _listing(replies.PausesReply, "pauses", pause_value),
    "tuple[BucketStatus, ...]": _listing(replies.LimitsReply, "limits", bucket_value),
    "tuple[ConcurrencyStatus, ...]": _listing(replies.ConcurrencyLimitsReply, "concurrency", concurrency_value),
    "tuple[CapStatus, ...]": _listing(replies.CapsReply, "caps", cap_value),
    "SharesStatus": Writer({200: replies.SharesReply}, lambda _, status: send(shares_value(status))),
    "tuple[ScheduleStatus, ...]": _listing(replies.SchedulesReply, "schedules", schedule_value),
    "Erasure": Writer({200: replies.ErasureReply}, lambda _, erasure: send(erasure.to_dict())),
    "ActReport": Writer({200: replies.ActReply}, lambda _, report: send(report.to_dict())),
    "CostReport": Writer({200: replies.CostsReply}, lambda _, report: send(report.to_dict())),
    "dict[str, str]": Writer({200: replies.LabelsReply}, lambda _, labels: send({"labels": labels})),
    "dict[str, dict[str, Any]]": Writer({200: replies.NamedReply}, lambda _, facts: send(facts)),
}
"""How a response is written, by the annotation of what the verb returns."""


def make_endpoint(verb: Verb) -> Endpoint:
    """Make the operation of a verb.

    Raises:
        TypeError: A parameter or the result has a type that is not in `WIRE` or `WRITERS`.
    """
    writer = _look_up(verb, "return", verb.call.__annotations__["return"], WRITERS)
    given = _make_model(verb) if verb.http else None
    has_query = verb.method in _BY_QUERY
    query = WaitQuery if writer.waits else given if has_query and given else NoQuery
    return Endpoint(
        method=verb.method,
        path=verb.path,
        scope=verb.scope,
        handler=_make_handler(verb, writer),
        replies=writer.replies,
        body=None if has_query else given,
        query=query,
        headers={name: text for each in verb.headers for name, text in _HEADERS[each].items()},
        token=verb.token,
        for_chat=verb.for_chat,
        for_label=verb.for_label,
        reads_session=verb.reads_session is True and not writer.waits,
    )


def _make_model(verb: Verb) -> type[Body]:
    fields: dict[str, Any] = {}
    for name, limits in verb.http.items():
        parameter = verb.parameter(name)
        kind = _look_up(verb, name, parameter.annotation, WIRE)
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[name] = (Annotated[kind, limits], default)
    name, doc = verb.body
    return create_model(name or verb.name, __base__=Body, __doc__=doc, **fields)


def _make_handler(verb: Verb, writer: Writer) -> Handler:
    readers = {name: READERS.get(verb.parameter(name).annotation) for name in verb.http}

    async def handle(call: Call) -> Response:
        given = call.query if verb.method in _BY_QUERY else call.body
        call.access.check_fields(**{name: getattr(given, name) for name in verb.service_only})
        for scope in needed_scopes(verb.needs, {name: getattr(given, name) for name, _ in verb.needs}):
            call.access.check(scope, call.session_id)
        arguments = {
            **{name: call.path[name] for name in verb.path_names},
            **{name: getattr(given, name) for name in verb.http},
            **{name: getattr(call, name) for name in verb.headers},
        }
        arguments |= _people(verb, call.access, arguments)
        if call.access.label is not None and "labels" in arguments:
            arguments |= await _labelled(call, arguments)
        read = {name: reader for name, reader in readers.items() if reader and arguments[name] is not None}
        if read:  # in a thread, since a body may hold many values
            arguments |= await call.client.run(lambda _: {name: read[name](arguments[name]) for name in read})
        is_long = writer.waits and (
            verb.reads_session is True or any(arguments[name] for name in verb.reads_session or ())
        )
        try:
            async with call.line() if is_long else contextlib.nullcontext():
                client = getattr(call.client, verb.part) if verb.part else call.client
                result = await getattr(client, verb.name)(**arguments)
        except SessionConflict as conflict:
            if "expected_version" not in arguments:
                raise
            raise HttpProblem(412, "precondition-failed", str(conflict)) from None
        response = writer.write(call, result)
        return response if isinstance(response, Response) else await response

    handle.__name__, handle.__doc__ = verb.operation, verb.call.__doc__
    return handle


def _people(verb: Verb, access: Access, arguments: Mapping[str, Any]) -> dict[str, str | None]:
    """The arguments that say who asks, and whose a message has to be."""
    found: dict[str, str | None] = {}
    if "by" in arguments:
        name = access.name_sender if verb.own == "by" else access.name_caller
        found["by"] = name(arguments["by"])
    if verb.own == "own":
        found["own"] = access.name_owner(verb.scope)
    return found


async def _labelled(call: Call, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a token of a label: what it makes has the label, and it reaches no other session.

    Raises:
        HttpProblem: It gives another value of the label, or a debounce key, which all callers share.
        SessionNotFound: A session that it names has another label.
    """
    access, given = call.access, arguments["labels"]
    if arguments.get("debounce") is not None:
        raise HttpProblem(403, "other-label", "debounce: its keys are of all callers. Leave it out.")
    if "session_id" in call.path:
        return {} if given is None else {"labels": access.bind_labels(given)}
    labels = access.bind_labels(given or {})
    if (named := arguments.get("session_id")) is None:
        key, own = arguments.get("idempotency_key"), "=".join(access.label or ())
        # Session and execution follow from the key: another customer's of the same name is another one.
        return {"labels": labels, "idempotency_key": None if key is None else derive_id(key, own)}
    try:
        is_own = await access.has_label_of(named, call.client)
    except SessionNotFound:
        return {"labels": labels, "new_only": True}  # who makes it meanwhile may be another customer
    if not is_own:
        raise SessionNotFound(named)
    return {}


def _look_up(verb: Verb, name: str, annotation: str, table: Mapping[str, T]) -> T:
    if annotation not in table:
        raise TypeError(f"@verb of {verb.name}: {name} is {annotation!r}, which HTTP cannot carry; add it to the table")
    return table[annotation]


ENDPOINTS: Final = tuple(make_endpoint(verb) for verb in VERBS if verb.path)
