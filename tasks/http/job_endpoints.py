"""Endpoints that submit jobs and messages, wait for their ends, and act on executions."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from ...worker.store.event_records import EXECUTION_ENDS
from ..client.json_values import result_value
from ..client.stream_items import StreamItem
from ..client.verbs import Scope
from . import bodies, replies
from .endpoints import Call, endpoint, send
from .problems import HttpProblem

if TYPE_CHECKING:
    from ..client.async_client import AsyncJob

_PAUSE_SECONDS: Final = 0.1


@endpoint("GET", "/v1/sessions/{session_id}/executions", Scope.READ, replies.ExecutionsReply)
async def list_executions(call: Call) -> Response:
    """List the executions that are kept, with how they ended."""
    found = await call.client.run(lambda client: client.store.sessions.records(call.session_id))
    return send({"executions": [result_value(each) for each in found]})


@endpoint(
    "GET",
    "/v1/sessions/{session_id}/executions/{execution_id}",
    Scope.READ,
    replies.ExecutionReply,
    query=bodies.WaitQuery,
)
async def show_execution(call: Call) -> Response:
    """Read how an execution ended, and wait for its end if wanted."""
    execution_id = call.path["execution_id"]
    result = await _read_end(call, call.session_id, execution_id)
    if result is None:
        latest = (await call.client.header(call.session_id)).execution_id
        is_latest = execution_id == latest
        # Another one may have ended since; else nobody will ever read its end.
        result = await wait_for_end(call, call.session_id, execution_id, call.query.wait if is_latest else 0)
        if result is None and not is_latest:
            detail = f"The session keeps no execution {execution_id[:100]!r}; its latest is {latest or 'none'}."
            raise HttpProblem(404, "execution-not-found", detail)
    value = {
        "session_id": call.session_id,
        "execution_id": execution_id,
        "ended": result is not None,
        "result": result,
    }
    return send(value)


@endpoint(
    "POST", "/v1/sessions/{session_id}/stop", Scope.STOP, replies.StopReply, statuses=(200, 202), body=bodies.Stop
)
async def stop_execution(call: Call) -> Response:
    """End the running execution, with all sessions below it. Its results so far are kept."""
    body: bodies.Stop = call.body
    timeout = body.timeout_seconds
    if body.clear_queue:  # it takes messages back, whoever has sent them
        call.access.check(Scope.SUBMIT, call.session_id)
    wanted: dict[str, Any] = {
        "execution_id": body.execution_id,
        "by": call.access.name_caller(body.by),
        "clear_queue": body.clear_queue,
    }
    header = await call.client.header(call.session_id)
    execution_id = header.execution_id
    is_other = body.execution_id not in (None, execution_id)
    was_over = not execution_id or is_other or await _read_end(call, call.session_id, execution_id) is not None
    async with call.line():
        await call.client.stop(call.session_id, timeout=0, **wanted)
    if was_over:
        return send({"stopped": False, "result": None})
    # No thread waits for the end: as many callers as there are threads would keep all others out.
    result = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            ended = await wait_for_end(call, call.session_id, execution_id, timeout)
            while await call.client.run(lambda client: any(client.store.trees.active_below(call.session_id))):  # noqa: ASYNC110
                await asyncio.sleep(_PAUSE_SECONDS)
            result = ended
    return send({"stopped": result is not None, "result": _shown(call, result)}, 202 if result is None else 200)


async def reply_to(call: Call, job: AsyncJob) -> Response:
    """Reply with a job: 202, or 200 with its result when it ends while the caller waits."""
    execution_id = await job.execution_id()
    result = None
    if execution_id:
        result = await wait_for_end(call, job.session_id, execution_id, call.query.wait)
    path = f"/v1/sessions/{job.session_id}"
    headers = {"Location": call.url(f"{path}/executions/{execution_id}" if execution_id else path)}
    value = {
        "session_id": job.session_id,
        "execution_id": execution_id,
        "status": "submitted" if result is None else result["status"],
        "result": _shown(call, result),
        "notice": job.notice or None,
        "operation_id": job.operation_id or None,
        "placed": job.placed,
    }
    return send(value, 202 if result is None else 200, headers)


def _shown(call: Call, result: dict[str, Any] | None) -> dict[str, Any] | None:
    """The result of an execution as its caller may see it: a token of a session needs the scope `read` for it."""
    return result if call.access.has(Scope.READ) or not call.access.is_visitor else None


async def wait_for_end(call: Call, session_id: str, execution_id: str, seconds: float) -> dict[str, Any] | None:
    """Read how an execution ended; wait for it `seconds` at most. None: it has not ended.

    Where no further stream may be open, it does not wait.
    """
    result = await _read_end(call, session_id, execution_id)
    if result is not None or not seconds:
        return result
    following = call.hub.subscribe(session_id, None, for_visitor=call.access.is_visitor)
    with contextlib.suppress(TimeoutError, HttpProblem):
        async with asyncio.timeout(seconds), following as items:
            async for item in items:
                event = item.event if isinstance(item, StreamItem) else None
                if event is not None and event.type in EXECUTION_ENDS:
                    result = await _read_end(call, session_id, execution_id)
                    if result is not None:
                        return result
    return await _read_end(call, session_id, execution_id)


async def _read_end(call: Call, session_id: str, execution_id: str) -> dict[str, Any] | None:
    found = await call.client.run(lambda client: client.store.sessions.outcome(session_id, execution_id))
    return None if found is None else result_value(found)
