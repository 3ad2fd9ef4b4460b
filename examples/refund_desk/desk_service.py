"""The web service for the people and the carrier that the desk asks.

pip install fastapi uvicorn
CELERY_AGENTS_TOKEN_SECRET=… uvicorn desk_service:api

curl -X POST 'localhost:8000/complaints?text=Order+18+arrived+broken&key=mail-1'
curl localhost:8000/inbox/managers
curl -X POST localhost:8000/requests/<session_id>/<id> -H 'Content-Type: application/json' \
     -d '{"by": "manager", "digest": "<digest>", "answer": {"approve": {"args": {"order": "18", "cents": 2000}}}}'
curl -X POST localhost:8000/carrier -H 'Content-Type: application/json' -d '{"token": "<token>", "day": "Friday"}'

Who may see and answer what is this service's to know: put your login before the first two of them.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from celery_agents import AgentClient
from celery_agents.worker.errors import CeleryAgentsError, RequestNotFound, RequestNotOpen, SessionNotFound

api = FastAPI()
client = AgentClient()


class Reply(BaseModel):
    """What a person answers: `answer` is {"approve": true}, {"deny": "reason"} or {"answer": {question: value}}."""

    by: str
    digest: str
    answer: dict[str, Any]


class Pickup(BaseModel):
    """What the carrier says: the token that it got, and the day; without a day it cannot come."""

    token: str
    day: str | None = None


@api.exception_handler(CeleryAgentsError)
def say(_: Request, error: Exception) -> JSONResponse:
    """Each error says in a sentence what is wrong: who answered first, which field does not fit, what has expired."""
    code = 409 if isinstance(error, RequestNotOpen) else 422
    return JSONResponse({"error": str(error)}, 404 if isinstance(error, SessionNotFound | RequestNotFound) else code)


@api.post("/complaints", status_code=202)
def complain(text: str, key: str) -> dict[str, str]:
    """Hand a complaint over; the same key makes one job."""
    return {"session_id": client.submit("desk", text, idempotency_key=key).session_id}


@api.get("/complaints/{session_id}")
def complaint(session_id: str) -> dict[str, Any]:
    """How it stands, and what it waits for."""
    header = client.header(session_id)
    waits = [found.summary.to_dict() for found in client.requests(session_id).requests]
    answer = client.job(session_id).result(timeout=5).final_response if header.status == "completed" else None
    return {"status": header.status, "waits_for": waits, "answer": answer}


@api.get("/inbox/{to}")
def inbox(to: str, cursor: str | None = None) -> dict[str, Any]:
    """A page of what waits for the customer or the managers, oldest first."""
    page = client.requests(to=to, cursor=cursor)
    return {"requests": [found.summary.to_dict() for found in page.requests], "cursor": page.cursor}


@api.get("/requests/{session_id}/{request_id}")
def request(session_id: str, request_id: str) -> dict[str, Any]:
    """One request with its arguments, options and digest: what a form shows."""
    found = client.request(session_id, request_id)
    return {"status": found.status, "request": None if found.request is None else found.request.to_dict()}


@api.post("/requests/{session_id}/{request_id}")
def reply(session_id: str, request_id: str, given: Reply) -> dict[str, str]:
    """Answer it. The digest is that of the form, so nobody approves other arguments than those they saw."""
    result = client.answer(session_id, {request_id: given.answer}, by=given.by, expect=given.digest)
    return {"outcome": result.outcome}


@api.post("/carrier")
def carrier(pickup: Pickup) -> dict[str, str]:
    """The carrier's own door: the token in its order is all that it needs, and it may call twice."""
    if pickup.day is None:
        return {"outcome": client.fail(pickup.token, "the carrier cannot come", by="carrier").outcome}
    return {"outcome": client.complete(pickup.token, f"fetched on {pickup.day}", by="carrier").outcome}
