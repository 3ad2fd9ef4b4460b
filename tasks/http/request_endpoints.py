"""The inbox of requests, answers to them, links for others, and remembered approvals."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from starlette.responses import Response

from ...worker.requests.tokens import TokenPurpose
from ...worker.state.execution.requests import RequestKind
from ...worker.store.keys import root_of
from ...worker.store.requests.records import FoundRequest
from ..client.json_values import answer_value, found_value
from ..client.verbs import Scope
from . import bodies, replies, request_replies
from .access import Access
from .endpoints import KEY, Call, endpoint, send
from .problems import HttpProblem
from .reach import is_in_tree


@endpoint("GET", "/v1/requests", Scope.READ, request_replies.RequestsReply, query=bodies.RequestsQuery)
async def list_requests(call: Call) -> Response:
    """List open requests of all sessions, oldest first."""
    return await _list(call, None)


@endpoint(
    "GET",
    "/v1/sessions/{session_id}/requests",
    Scope.READ,
    request_replies.RequestsReply,
    query=bodies.RequestsQuery,
    for_chat=True,
)
async def list_session_requests(call: Call) -> Response:
    """List requests of a session and of those below it, oldest first."""
    return await _list(call, call.session_id)


@endpoint(
    "GET", "/v1/sessions/{session_id}/requests/{request_id}", Scope.READ, request_replies.RequestReply, for_chat=True
)
async def show_request(call: Call) -> Response:
    """Read one request in full, and what became of it."""
    found = await call.client.request(call.session_id, call.path["request_id"])
    if not call.access.has(Scope.READ):
        check_addressee(call.access, found)
    return send(found_value(await hide_messages_above(call, found)))


async def hide_messages_above(call: Call, found: FoundRequest) -> FoundRequest:
    """The request without the texts of messages to sessions above that of the token: it does not reach these.

    That they have come stays: the number of the newest one is needed for an answer.
    """
    own = call.access.session_id
    if own is None or own == root_of(own) or not found.messages:
        return found
    names = {each.session_id for each in found.messages}
    reached = await call.client.run(lambda client: {name for name in names if is_in_tree(client, name, own)})
    shown = (each if each.session_id in reached else replace(each, text="") for each in found.messages)
    return replace(found, messages=tuple(shown))


def check_addressee(access: Access, found: FoundRequest) -> None:
    """Refuse a request that is not for the bearer of a session's token.

    Raises:
        HttpProblem: It is another addressee's, or a service's.
    """
    if not access.may_answer(found.summary.kind, found.summary.to):
        raise _other_addressee(access, found.summary.id)


def _other_addressee(access: Access, name: str) -> HttpProblem:
    return HttpProblem(403, "other-addressee", f"{name}: this token answers what is for {access.answer_to!r} only.")


@endpoint(
    "POST",
    "/v1/sessions/{session_id}/requests/{request_id}/links",
    Scope.ADMIN,
    replies.TokenReply,
    statuses=(201,),
    body=bodies.NewLink,
)
async def create_link(call: Call) -> Response:
    """Make a token whose bearer may answer this one request and do nothing else."""
    found = await call.client.request(call.session_id, call.path["request_id"])
    seconds = call.body.ttl_seconds
    token = await call.client.token(found, None if seconds is None else timedelta(seconds=seconds))
    return send({"token": token}, 201, {"Location": call.url(f"/v1/answers/{token}")})


@endpoint(
    "POST",
    "/v1/sessions/{session_id}/answers",
    Scope.ANSWER,
    replies.AnswerReply,
    body=bodies.Answers,
    headers=KEY,
    for_chat=True,
    reads_session=True,
)
async def answer_requests(call: Call) -> Response:
    """Answer requests of a session: all of the given answers are stored, or none."""
    body: bodies.Answers = call.body
    answers, expect = body.answers, body.expect
    if call.access.session_id is not None:
        # By the ids of what was looked at: a call's id would also be that of what is asked next, of another person.
        found = {name: await call.client.request(call.session_id, name) for name in answers}
        for each in found.values():
            check_addressee(call.access, each)
        answers = {found[name].summary.id: answer for name, answer in answers.items()}
        if isinstance(expect, dict):
            expect = {found[name].summary.id if name in found else name: digest for name, digest in expect.items()}
    result = await call.client.answer(
        call.session_id,
        answers,
        by=call.access.name_caller(body.by),
        note=body.note,
        expect=expect,
        remember=body.remember,
        seen=body.seen,
        idempotency_key=call.idempotency_key,
    )
    return send(answer_value(call.session_id, result))


@endpoint("DELETE", "/v1/sessions/{session_id}/grants/{grant_id}", Scope.ANSWER, reads_session=True)
async def revoke_grant(call: Call) -> Response:
    """Take a remembered approval back: from the next step on, calls of its tool ask again."""
    grant_id = call.path["grant_id"]
    if call.access.session_id is not None:
        for each in await call.client.grants(call.session_id):
            if each.id == grant_id and not call.access.may_answer(RequestKind.APPROVAL, each.to):
                raise _other_addressee(call.access, grant_id)
    await call.client.revoke_grant(call.session_id, grant_id)
    return Response(status_code=204)


@endpoint(
    "POST",
    "/v1/completions/{token}",
    None,
    replies.OutcomeReply,
    token=TokenPurpose.COMPLETE,
    body=bodies.Completion,
    reads_session=True,
)
async def complete_call(call: Call) -> Response:
    """Bring the result of a call whose tool has handed out this completion token, or its error."""
    body: bodies.Completion = call.body
    token = call.path["token"]
    if body.error is not None:
        result = await call.client.fail(token, body.error, by=body.by)
    else:
        result = await call.client.complete(token, body.value, by=body.by)
    return send({"outcome": result.outcome})


async def _list(call: Call, session_id: str | None) -> Response:
    query: bodies.RequestsQuery = call.query
    status = None if query.status == "all" else query.status
    page = await call.client.requests(
        session_id, to=query.to, kind=query.kind, status=status, limit=query.limit, cursor=query.cursor
    )
    sees_all = call.access.has(Scope.READ)
    shown = [each for each in page.requests if sees_all or call.access.may_answer(each.summary.kind, each.summary.to)]
    values = [found_value(await hide_messages_above(call, each)) for each in shown]
    return send({"requests": values, "cursor": page.cursor, "unread": page.unread})
