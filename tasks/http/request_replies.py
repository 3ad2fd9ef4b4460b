"""Bodies of responses about requests. Optional fields are null, or left out, where there is no value."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from ...worker.state.execution.answers import AnswerRecord, RequestResolution
from ...worker.state.execution.children import ChildOrder
from ...worker.state.execution.requests import ExpiryAction, OnExpiry, RequestKind, RequestStatus, WhileWaiting
from .endpoints import Reply


class LaterMessageReply(Reply):
    """A message that the agent reads when the request has its answer."""

    number: int
    session_id: str
    operation_id: str
    text: str
    at: datetime | None


class RequestReply(Reply):
    """Something that a session waits for. An inbox has `call` in place of the fields of the call."""

    id: str
    session_id: str
    kind: RequestKind
    status: RequestStatus
    agent: str
    execution_id: str
    step: int
    tool: str
    to: str | None = Field(description="The addressee; null: anybody.")
    text: str = Field(description="What the addressee is asked. An inbox has its first 200 characters.")
    asked_at_ms: int = Field(description="Time of Redis.")
    expires_at_ms: int | None = Field(description="Time of Redis; null: never.")
    on_expiry: ExpiryAction | OnExpiry = Field(description="What counts as the answer then; an inbox has its name.")
    call: str | None = Field(None, description="Of an inbox: the call in short, such as refund(cents=400).")
    index: int | None = Field(None, description="Place of the call in the model's answer, from 0.")
    round: int | None = Field(None, description="0 for the first request of the call, then counted on.")
    call_id: str | None = Field(None, description="The model's id of the call.")
    args: dict[str, Any] | None = Field(None, description="The arguments with which an approved call runs.")
    digest: str | None = Field(None, description="Of tool and arguments, for `expect`.")
    options: Any = Field(None, description="What a form shows besides the schema, such as questions with options.")
    answer_schema: dict[str, Any] | None = Field(None, description="JSON Schema of the answer; null: anything.")
    edits_allowed: bool | None = Field(None, description="An approval may give other arguments.")
    needs_seen: bool | None = Field(None, description="An approval has to name the newest message that was seen.")
    while_waiting: WhileWaiting | None = Field(None, description="What a message does that comes before the answer.")
    child: ChildOrder | None = Field(None, description="The child session whose end is the answer.")
    answer: AnswerRecord | RequestResolution | None = Field(None, description="None: it is open.")
    messages: list[LaterMessageReply] = Field(
        [],
        description="Of an open request: the messages that its session, or one above it, has not read yet, in their "
        "order. A listing has the first 200 characters of each.",
    )
    newest_message: int = Field(0, description="Number of the newest of them that has come, for `seen`; 0: none has.")


class RequestsReply(Reply):
    """A page of requests, the oldest first."""

    requests: list[RequestReply]
    cursor: str | None
    unread: int = Field(0, description="Parts of the store that are missing: their node of a cluster is away.")
