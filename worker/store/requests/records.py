"""The values that actions on requests take and give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ...state.execution.answers import AnswerNote, AnswerRecord, GivenAnswer, RequestResolution
from ...state.execution.requests import Request, RequestKind, RequestStatus, RequestSummary
from ..pages import PageOf
from ..records import StepRef

CheckAnswer = Callable[[Request, GivenAnswer], GivenAnswer]
"""Checks an answer against its request, and gives the answer to store. Raises InvalidInput, which names the field."""


@dataclass(frozen=True, slots=True)
class AnswerAction:
    """Answers to requests of one session, given together: all of them are stored, or none.

    Attributes:
        answers: By request id, or by the model's id of the call where just one request of it is open.
        about: Who answers, and the operation id.
        check: Checks kind, values and size of each answer before anything is written; see `requests.check_answer`.
        expect: By the same ids: the digest of the arguments that the answer is meant for. Another digest is refused.
        seen: Number of the newest message that the answers' giver has seen; where a later one has come, they are
            refused. None: it is not compared.
    """

    answers: Mapping[str, GivenAnswer]
    about: AnswerNote
    check: CheckAnswer
    expect: Mapping[str, str] = field(default_factory=dict[str, str])
    seen: int | None = None


@dataclass(frozen=True, slots=True)
class AnswerResult:
    """The result of answering.

    Attributes:
        outcome: "woken": the session continues now. "recorded": it is stored, and the session finds it when it
            continues; it runs at this moment, is held or is parked. "again": the same operation had been stored before.
        requests: Ids of the requests that were answered.
        publish: A step to publish, where the transaction could not.
    """

    outcome: Literal["woken", "recorded", "again"]
    execution_id: str
    requests: tuple[str, ...]
    publish: StepRef | None = None


@dataclass(frozen=True, slots=True)
class LaterMessage:
    """A message that the agent reads when the request has its answer.

    Attributes:
        number: Its place among the messages behind the request, from 1.
        session_id: The session that got it: the one that asks, or one above it.
        operation_id: By which it is taken back.
        text: What it says; in a listing its first 200 characters.
        at_ms: Redis time at which it came; 0: an earlier version has taken it.
    """

    number: int
    session_id: str
    operation_id: str
    text: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class FoundRequest:
    """A request with what became of it.

    Attributes:
        call_id: The model's id of the call; None in the inbox, which does not show it.
        request: In full; None when its step is committed.
        answer: The journaled answer; None while it is open, and when its step is committed.
        resolution: What the committed step keeps of it; None before.
        messages: Of an open request: the messages that its session, or one above it, has not read yet, in their order.
        newest_message: Number of the newest of them that has come, for `answer(…, seen=…)`; 0: none has.
    """

    summary: RequestSummary
    status: RequestStatus
    call_id: str | None = None
    request: Request | None = None
    answer: AnswerRecord | None = None
    resolution: RequestResolution | None = None
    messages: tuple[LaterMessage, ...] = ()
    newest_message: int = 0


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Which requests to list. None: any.

    Attributes:
        session_id: Of this session; with `tree` of the sessions below it, too.
        to: Of this addressee.
        status: OPEN for every session. Another status, or None for all of them, needs a `session_id`.
        tree: Include the sessions below `session_id`, which reads the whole index of its shard.
    """

    session_id: str | None = None
    to: str | None = None
    kind: RequestKind | None = None
    status: RequestStatus | None = RequestStatus.OPEN
    tree: bool = False


@dataclass(frozen=True, slots=True)
class RequestPage(PageOf[FoundRequest]):
    """A page of requests, oldest first. A loop over it continues with the pages that follow.

    Attributes:
        requests: Those of this page.
    """

    requests: tuple[FoundRequest, ...] = ()

    @property
    def entries(self) -> tuple[FoundRequest, ...]:
        """The requests of this page."""
        return self.requests


@dataclass(frozen=True, slots=True)
class OpenCount:
    """How many requests are open in all sessions, and since when the oldest is (Redis ms; None: there is none)."""

    open: int
    oldest_ms: int | None
