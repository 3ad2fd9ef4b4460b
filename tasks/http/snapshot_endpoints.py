"""Operations on sessions as one JSON document: snapshots, sessions made from them, and traces."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from . import bodies, replies
from .access import Scope
from .endpoints import Call, Endpoint, send


async def take_snapshot(call: Call) -> Response:
    """Take a snapshot of a session as it stands after its last commit; the session goes on."""
    query: bodies.SnapshotQuery = call.query
    found = await call.client.snapshot(call.session_id, tag=query.tag)
    return send(found.to_dict(), headers={"ETag": f'"{found.version}"'})


async def make_trace(call: Call) -> Response:
    """Make the trace of the session's latest execution."""
    query: bodies.TraceQuery = call.query
    found = await call.client.trace(call.session_id, log_data=query.data, thread_id=query.thread)
    return send(found.to_dict())


async def resume_snapshot(call: Call) -> Response:
    """Create a session from a snapshot, and let its execution go on if it had not ended."""
    body: bodies.GivenSnapshot = call.body
    job = await call.client.resume_snapshot(
        body.snapshot, session_id=body.session_id, context=body.context, merge_context=body.merge_context
    )
    execution_id = await job.execution_id()
    value: dict[str, Any] = {"session_id": job.session_id, "execution_id": execution_id, "status": None, "result": None}
    return send(value, 201, headers={"Location": call.url(f"/v1/sessions/{job.session_id}")})


ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/v1/sessions/{session_id}/snapshot",
        scope=Scope.READ,
        handler=take_snapshot,
        reads_session=True,
        summary="Take a snapshot of it as it stands after its last commit.",
        query=bodies.SnapshotQuery,
        replies={200: replies.SnapshotReply},
    ),
    Endpoint(
        method="GET",
        path="/v1/sessions/{session_id}/trace",
        scope=Scope.READ,
        handler=make_trace,
        reads_session=True,
        summary="Make the trace of its latest execution.",
        query=bodies.TraceQuery,
        replies={200: replies.TraceReply},
    ),
    Endpoint(
        method="POST",
        path="/v1/snapshots",
        scope=Scope.ADMIN,
        handler=resume_snapshot,
        reads_session=True,
        summary="Create a session from a snapshot, and let its execution go on if it had not ended.",
        body=bodies.GivenSnapshot,
        replies={201: replies.JobReply},
    ),
)
