"""Answers to requests: as they are given, as the journal keeps them, and as the committed call remembers them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, assert_never

from ..values.field_types import Count, DocumentField, Flag, Text
from ..values.frozen import FrozenDict, Json, freeze
from ..values.value import Value
from .children import ChildEnd
from .requests import Request, RequestKind, RequestStatus


@dataclass(frozen=True, slots=True)
class Approve:
    """The call may run.

    Attributes:
        args: Other arguments, where the request allows edits; None: as asked.
    """

    args: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Deny:
    """The call may not run, or a question is not answered.

    Attributes:
        reason: The model reads it.
    """

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The values that a question asked for.

    Attributes:
        values: They fit the request's `answer_schema`.
    """

    values: Any


@dataclass(frozen=True, slots=True)
class Complete:
    """The result of a call that a service carried out."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class Fail:
    """The error of a call that a service carried out."""

    error: str = ""


GivenAnswer = Approve | Deny | Answer | Complete | Fail
"""Every answer that may come from outside."""


class AnswerVerb(StrEnum):
    """The kinds of stored answers.

    Attributes:
        APPROVE: `value` has edited arguments, or None.
        DENY: `reason` says why.
        ANSWER: `value` has the values of a question.
        COMPLETE: `value` is the result of an external call, or how a child ended (`ChildEnd`).
        FAIL: `reason` is the error of an external call, or why the execution fails at an expiry.
        PASS_ON: Another addressee was asked; the call's next round is open.
        CANCEL: The execution was stopped, a message came first, or a child did not end in time; no answer came.
            `reason` may say why.
    """

    APPROVE = "approve"
    DENY = "deny"
    ANSWER = "answer"
    COMPLETE = "complete"
    FAIL = "fail"
    PASS_ON = "pass_on"  # noqa: S105  (no password)
    CANCEL = "cancel"


MESSAGE_CAME_FIRST: Final = "The call was not run: a message came first. Call again if it is still wanted."
"""Why a call did not run that a message has interrupted, or whose request a message has closed."""


class Remember(StrEnum):
    """For how long a decision counts: for the call, for later calls of the execution, or of the session."""

    CALL = "call"
    EXECUTION = "execution"
    SESSION = "session"


KINDS_OF_ANSWERS: Mapping[RequestKind, tuple[type[GivenAnswer], ...]] = {
    RequestKind.APPROVAL: (Approve, Deny),
    RequestKind.QUESTION: (Answer, Deny),
    RequestKind.EXTERNAL: (Complete, Fail),
    RequestKind.CHILD: (),
}
"""The answers that a request of each kind accepts from outside. A child's end is its answer."""


class AnswerRecord(Value):
    """An answer as the journal keeps it. A request has at most one.

    Attributes:
        value: See `AnswerVerb`.
        by: The person or service that answered; "" for the clock or a stop.
        note: For the record; the model does not read it.
        at_ms: Redis time.
        operation_id: The id of the action; "" when a worker wrote the record.
        remember: For how long the decision counts.
        by_expiry: The request's time was over, and this is what its `on_expiry` says.
    """

    verb: AnswerVerb
    value: DocumentField = None
    reason: Text = ""
    by: Text = ""
    note: Text = ""
    at_ms: Count
    operation_id: Text = ""
    remember: Remember = Remember.CALL
    by_expiry: Flag = False

    @property
    def status(self) -> RequestStatus:
        """The status of a request with this answer, as long as its step is not committed."""
        if self.verb is AnswerVerb.PASS_ON:
            return RequestStatus.PASSED_ON
        if self.verb is AnswerVerb.CANCEL:
            return RequestStatus.CANCELLED
        if self.by_expiry:
            return RequestStatus.EXPIRED
        return RequestStatus.DENIED if self.verb is AnswerVerb.DENY else RequestStatus.ANSWERED

    def child_end(self) -> ChildEnd | None:
        """How the child of the request ended; None where it gave no end, or the request is of another kind."""
        if self.verb is not AnswerVerb.COMPLETE or not isinstance(self.value, FrozenDict):
            return None
        return ChildEnd.from_stored(self.value)

    def resolve(self, request: Request) -> RequestResolution:
        """The resolution that the committed call keeps when its journal goes."""
        return RequestResolution(
            request_id=request.id,
            kind=request.kind,
            round=request.round,
            digest=request.digest,
            to=request.to,
            asked_at_ms=request.asked_at_ms,
            status=self.status,
            verb=self.verb,
            reason=self.reason,
            by=self.by,
            note=self.note,
            at_ms=self.at_ms,
            operation_id=self.operation_id,
        )


def withdrawal(now_ms: int, note: str = "") -> AnswerRecord:
    """The record of a request that a message closes."""
    return AnswerRecord(verb=AnswerVerb.CANCEL, reason=MESSAGE_CAME_FIRST, note=note, at_ms=now_ms)


class RequestResolution(Value):
    """One resolved request in the record of a committed call: enough to say later what became of it.

    Attributes:
        status: As it was when the step was committed: answered, denied, expired, passed_on or cancelled.
        asked_at_ms: Redis time.
        at_ms: Redis time of the answer.
    """

    request_id: Text
    kind: RequestKind
    round: Count = 0
    digest: Text = ""
    to: Text | None = None
    asked_at_ms: Count = 0
    status: RequestStatus
    verb: AnswerVerb
    reason: Text = ""
    by: Text = ""
    note: Text = ""
    at_ms: Count
    operation_id: Text = ""


@dataclass(frozen=True, slots=True)
class AnswerNote:
    """The facts about an answer besides its content.

    Attributes:
        by: Who answers.
        note: For the record.
        operation_id: Made by the caller and the same when the answer is sent again.
        remember: For how long the decision counts.
    """

    operation_id: str
    by: str = ""
    note: str = ""
    remember: Remember = Remember.CALL


def record_answer(answer: GivenAnswer, about: AnswerNote, at_ms: int) -> AnswerRecord:
    """Make the record of an answer from outside.

    Raises:
        InvalidInput: A value is no JSON; the error names the field.
    """
    verb, value, reason = _content(answer)
    return AnswerRecord(
        verb=verb,
        value=value,
        reason=reason,
        by=about.by,
        note=about.note,
        at_ms=at_ms,
        operation_id=about.operation_id,
        remember=about.remember,
    )


def _content(answer: GivenAnswer) -> tuple[AnswerVerb, Json, str]:
    match answer:
        case Approve(args):
            return AnswerVerb.APPROVE, None if args is None else FrozenDict(args), ""
        case Deny(reason):
            return AnswerVerb.DENY, None, reason
        case Answer(values):
            return AnswerVerb.ANSWER, freeze(values, "values"), ""
        case Complete(value):
            return AnswerVerb.COMPLETE, freeze(value, "value"), ""
        case Fail(error):
            return AnswerVerb.FAIL, None, error
        case _ as never:
            assert_never(never)
