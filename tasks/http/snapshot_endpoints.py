"""Operations on sessions as one JSON document: snapshots, sessions made from them, and traces."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from ..client.verbs import Scope
from . import bodies, replies
from .endpoints import Call, endpoint, send


@endpoint(
    "GET",
    "/v1/sessions/{session_id}/trace",
    Scope.READ,
    replies.TraceReply,
    query=bodies.TraceQuery,
    reads_session=True,
)
async def make_trace(call: Call) -> Response:
    """Make the trace of its latest execution."""
    query: bodies.TraceQuery = call.query
    found = await call.client.trace(call.session_id, log_data=query.data, thread_id=query.thread)
    return send(found.to_dict())


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
    value: dict[str, Any] = {"session_id": job.session_id, "execution_id": execution_id, "status": None, "result": None}
    return send(value, 201, headers={"Location": call.url(f"/v1/sessions/{job.session_id}")})
