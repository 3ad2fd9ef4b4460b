"""A web service that hands questions to an agent and streams what happens.

pip install fastapi uvicorn
celery-agents up --agents support_agents          (in ../support_agent)
uvicorn service:api

curl -X POST 'localhost:8000/questions?text=Order+17+arrived+broken&key=mail-1'
curl -N localhost:8000/sessions/<session_id>/events
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI, Header, HTTPException
from fastapi.responses import StreamingResponse

from celery_agents import AgentClient
from celery_agents.worker.errors import CeleryAgentsError, SessionNotFound

api = FastAPI()
client = AgentClient()


@api.post("/questions", status_code=202)
def ask(text: str, key: str | None = None) -> dict[str, str]:
    """Hand a question over. The same key makes one execution, however often the request is repeated."""
    try:
        job = client.submit("support", text, idempotency_key=key)
    except CeleryAgentsError as error:
        raise HTTPException(422, str(error)) from error
    return {"session_id": job.session_id, "execution_id": job.execution_id}


@api.get("/sessions/{session_id}")
def result(session_id: str) -> dict[str, Any]:
    """How the session's latest execution stands."""
    try:
        header = client.header(session_id)
    except SessionNotFound as error:
        raise HTTPException(404, str(error)) from error
    if header.status not in ("completed", "stopped", "failed"):
        return {"status": header.status}
    ended = client.job(session_id).result(timeout=5)
    return {"status": ended.status, "answer": ended.final_response, "errors": list(ended.errors)}


@api.get("/sessions/{session_id}/events")
def events(session_id: str, last_event_id: str | None = Header(default=None)) -> StreamingResponse:
    """Server-sent events; a browser that reconnects sends `Last-Event-ID` and misses nothing."""

    def stream() -> Iterator[str]:
        for event in client.job(session_id).events(from_id=last_event_id):
            data = json.dumps({"type": event.type, "step": event.step, **event.data})
            yield f"id: {event.id}\ndata: {data}\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")
