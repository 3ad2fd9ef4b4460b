"""Requests under the names and fields of Cognipeer's agent SDK: pending approvals and questions, and their resolution.

They are views: each is made of the stored request and of what became of it. A resolution is an answer, so a second one
is refused and says by whom the first was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, cast

from ...worker.moments import moment
from ...worker.requests.answers import is_asked_with_options, questions_of
from ...worker.requests.questions import UserQuestionAnswer, UserQuestionItem
from ...worker.state.agent_state import AgentState
from ...worker.state.execution.answers import Answer, AnswerVerb, Approve, Deny
from ...worker.state.execution.requests import RequestKind, RequestStatus
from ...worker.state.execution.tool_calls import ToolExecution
from ...worker.state.values.frozen import thaw
from ...worker.store.event_records import Event
from ...worker.store.requests.records import AnswerResult, FoundRequest
from .requests import RequestVerbs

ApprovalStatus = Literal["pending", "approved", "rejected", "executed"]
QuestionStatus = Literal["pending", "answered", "cancelled", "executed"]

_ASK_USER: Final = "ask_user_question"
_PAGE: Final = 1000
_ANSWER_FIELDS: Final = tuple(UserQuestionAnswer.model_fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingToolApproval:
    """A call of a tool that a person approves or rejects.

    Attributes:
        args: The arguments that were asked about.
        approved_args: The arguments that run; None unless it was approved while its step waits.
        metadata: `prompt`: what the person is asked; `to`: the addressee; `digest`: of the arguments; `newest_message`:
            the number of the newest message that the agent has not read.
    """

    id: str
    tool_call_id: str
    tool_name: str
    args: Mapping[str, Any]
    status: ApprovalStatus
    requested_at: datetime
    decided_at: datetime | None = None
    decided_by: str | None = None
    approved_args: Mapping[str, Any] | None = None
    comment: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolApprovalResolution:
    """A decision about a call.

    Attributes:
        id: Of the approval, or of its tool call.
        approved_args: Other arguments; None: as asked.
        comment: With a rejection the model reads it; with an approval it is kept as a note.
        seen: Number of the newest message that the person has seen; None: it is not compared.
    """

    id: str
    approved: bool
    approved_args: Mapping[str, Any] | None = None
    decided_by: str | None = None
    comment: str | None = None
    seen: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingUserQuestion:
    """A call of `ask_user_question` that a person answers.

    Attributes:
        answers: By the text of the question; None before it is answered.
        metadata: `to`: the addressee.
    """

    id: str
    tool_call_id: str
    questions: tuple[UserQuestionItem, ...]
    status: QuestionStatus
    requested_at: datetime
    tool_name: str = _ASK_USER
    answered_at: datetime | None = None
    answered_by: str | None = None
    answers: Mapping[str, UserQuestionAnswer] | None = None
    cancelled: bool = False
    notes: str | None = None
    allow_free_text: bool | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class UserQuestionResolution:
    """A person's answers to a pending question.

    Attributes:
        id: Of the question, or of its tool call.
        answers: By the text or the header of the question.
        cancelled: The person does not answer; the model reads that.
    """

    id: str
    answers: Mapping[str, UserQuestionAnswer | Mapping[str, Any] | str] | None = None
    answered_by: str | None = None
    notes: str | None = None
    cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UserQuestionEvent:
    """An event about a question: it was asked, answered or cancelled."""

    status: Literal["pending", "answered", "cancelled"]
    id: str
    tool_call_id: str
    questions: tuple[UserQuestionItem, ...] = ()
    answers: Mapping[str, UserQuestionAnswer] | None = None
    answered_by: str | None = None
    allow_free_text: bool | None = None
    type: Literal["user_question"] = "user_question"


class ResolvingVerbs(RequestVerbs):
    """Resolves approvals and questions under the names of Cognipeer's agent SDK."""

    def resolve_tool_approval(self, session_id: str, resolution: ToolApprovalResolution) -> AnswerResult:
        """Approve or reject a call; it runs, or the model reads the comment.

        Raises:
            RequestNotFound: The session has no such approval.
            RequestNotOpen: It was decided before; the error says by whom and when.
            MessagesUnseen: A further message has come.
            InvalidInput: The arguments do not fit the tool.
        """
        comment = resolution.comment or ""
        answer = Approve(resolution.approved_args) if resolution.approved else Deny(comment)
        note = comment if resolution.approved else ""
        return self.answer(
            session_id, {resolution.id: answer}, by=resolution.decided_by, note=note, seen=resolution.seen
        )

    def resolve_user_question(self, session_id: str, resolution: UserQuestionResolution) -> AnswerResult:
        """Answer or cancel a question.

        Raises:
            RequestNotFound: The session has no such question.
            RequestNotOpen: It was answered before; the error says by whom and when.
            InvalidInput: An answer does not fit; the error names the question.
        """
        notes = resolution.notes or ""
        answer = Deny(notes) if resolution.cancelled else Answer(dict(resolution.answers or {}))
        return self.answer(session_id, {resolution.id: answer}, by=resolution.answered_by, note=notes)


resolve_tool_approval = ResolvingVerbs.resolve_tool_approval
resolve_user_question = ResolvingVerbs.resolve_user_question


def pending_approvals(client: RequestVerbs, session_id: str) -> tuple[PendingToolApproval, ...]:
    """List the approvals of a session, oldest first, whatever became of them.

    Raises:
        SessionNotFound: There is no such session, or it has expired.
    """
    state = client.store.sessions.load(session_id).state
    return tuple(_approval(found, state) for found in _list(client, session_id, RequestKind.APPROVAL))


def pending_user_questions(client: RequestVerbs, session_id: str) -> tuple[PendingUserQuestion, ...]:
    """List the questions with options of a session, oldest first, whatever became of them.

    Raises:
        SessionNotFound: There is no such session, or it has expired.
    """
    state = client.store.sessions.load(session_id).state
    found = _list(client, session_id, RequestKind.QUESTION)
    return tuple(_question(each, state) for each in found if each.summary.tool == _ASK_USER)


def user_question_event(client: RequestVerbs, event: Event) -> UserQuestionEvent | None:
    """Turn an event of a job into the event of a question; None for every other event.

    Raises:
        SessionNotFound: The session has expired.
    """
    statuses: dict[str, Literal["pending", "answered", "cancelled"]] = {
        "request_opened": "pending",
        "request_answered": "cancelled" if event.data.get("verb") == AnswerVerb.DENY else "answered",
        "request_expired": "cancelled" if event.data.get("verb") == AnswerVerb.DENY else "answered",
        "request_cancelled": "cancelled",
    }
    if event.type not in statuses or event.data.get("tool") != _ASK_USER:
        return None
    found = client.store.requests.find(event.session_id, str(event.data["id"]))
    question = _question(found, client.store.sessions.load(event.session_id).state)
    is_pending = event.type == "request_opened"
    return UserQuestionEvent(
        status=statuses[event.type],
        id=question.id,
        tool_call_id=question.tool_call_id,
        questions=question.questions,
        answers=None if is_pending else question.answers,
        answered_by=None if is_pending else question.answered_by,
        allow_free_text=question.allow_free_text,
    )


def _list(client: RequestVerbs, session_id: str, kind: RequestKind) -> Iterator[FoundRequest]:
    page = client.requests(session_id, kind=kind, status=None, tree=False, limit=_PAGE)
    return (found for found in page.requests if found.status is not RequestStatus.PASSED_ON)


def _approval(found: FoundRequest, state: AgentState) -> PendingToolApproval:
    summary, request, answer = found.summary, found.request, found.answer or found.resolution
    executed = _execution_of(found, state)
    args: Any = request.args if request is not None else executed.tool_call.args if executed is not None else None
    status: ApprovalStatus = "pending"
    if found.status is RequestStatus.USED:
        status = "executed"
    elif answer is not None:
        status = "approved" if answer.verb is AnswerVerb.APPROVE else "rejected"
    edited = found.answer.value if found.answer is not None else None
    return PendingToolApproval(
        id=summary.id,
        tool_call_id=found.call_id or "",
        tool_name=summary.tool,
        args=_plain(args),
        status=status,
        requested_at=moment(summary.asked_at_ms),
        decided_at=None if answer is None else moment(answer.at_ms),
        decided_by=None if answer is None else answer.by or None,
        approved_args=_plain(args if edited is None else edited) if status == "approved" else None,
        comment=None if answer is None else answer.reason or answer.note or None,
        metadata={
            "prompt": summary.text,
            "to": summary.to,
            "digest": request.digest if request is not None else None,
            "newest_message": found.newest_message,
        },
    )


def _question(found: FoundRequest, state: AgentState) -> PendingUserQuestion:
    summary, request, answer = found.summary, found.request, found.answer or found.resolution
    executed = _execution_of(found, state)
    questions, allow_free_text = tuple[UserQuestionItem, ...](), None
    if request is not None and is_asked_with_options(request):
        items, allow_free_text = questions_of(request)
        questions = tuple(items)
    elif executed is not None:
        asked = cast("list[Any]", _plain(executed.tool_call.args).get("questions", []))
        questions = tuple(UserQuestionItem.model_validate(item) for item in asked)
    cancelled = answer is not None and answer.verb in (AnswerVerb.DENY, AnswerVerb.CANCEL)
    values = found.answer.value if found.answer is not None else executed.value if executed is not None else None
    status: QuestionStatus = "pending"
    if found.status is RequestStatus.USED:
        status = "executed"
    elif answer is not None or found.status is RequestStatus.CANCELLED:
        status = "cancelled" if cancelled or answer is None else "answered"
    return PendingUserQuestion(
        id=summary.id,
        tool_call_id=found.call_id or "",
        questions=questions,
        status=status,
        requested_at=moment(summary.asked_at_ms),
        answered_at=None if answer is None else moment(answer.at_ms),
        answered_by=None if answer is None else answer.by or None,
        answers=None if cancelled else _answers(values, questions),
        cancelled=cancelled,
        notes=None if answer is None else answer.note or answer.reason or None,
        allow_free_text=allow_free_text,
        metadata={"to": summary.to},
    )


def _answers(values: Any, questions: tuple[UserQuestionItem, ...]) -> Mapping[str, UserQuestionAnswer] | None:
    """Answers by question, from the stored answer or from the result of the call that asked."""
    if not isinstance(values, Mapping):
        return None
    named = _plain(values)
    if isinstance(named.get("answers"), list):
        shown = cast("list[dict[str, Any]]", named["answers"])
        named = {each["question"]: {name: each[name] for name in _ANSWER_FIELDS if name in each} for each in shown}
    asked = {item.question for item in questions}
    return {name: UserQuestionAnswer.model_validate(value) for name, value in named.items() if name in asked}


def _execution_of(found: FoundRequest, state: AgentState) -> ToolExecution | None:
    """The committed call that asked; None while it waits, or when it belongs to an earlier execution."""
    calls = (call for step in state.steps for call in step.tool_executions)
    return next((call for call in calls if any(r.request_id == found.summary.id for r in call.resolutions)), None)


def _plain(values: Any) -> dict[str, Any]:
    """Values as plain JSON; {} for arguments that are no object."""
    if not isinstance(values, Mapping):
        return {}
    return {name: thaw(value) for name, value in cast("Mapping[str, Any]", values).items()}
