"""Exceptions that a tool raises before its effect when it needs something first: an approval, an answer, a later time.

The worker stores a request, gives everything else back, and runs the tool again from its start when the request is
answered. So a tool asks before it does anything that must not happen twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from ..errors import ConfigurationError, InvalidInput
from ..requests.questions import UserQuestionItem, check_items
from ..requests.schemas import schema_of
from .approval import Ask, ExpiryRule, MessageRule, check_expiry, check_while_waiting


class NeedsReply(Exception):
    """The base of what a tool raises to be run again later.

    Attributes:
        memo: JSON that the call gets back when it runs again, in `ctx.replies.memos`; people who answer can see it.
        has_begun: The effect goes on elsewhere meanwhile: where the execution is stopped, its outcome is unknown.
    """

    memo: Mapping[str, Any] | None = None
    has_begun: bool = False

    def with_memo(self, memo: Mapping[str, Any]) -> Self:
        """The same with JSON that the call leaves for its next run."""
        self.memo = memo
        return self


class NeedsApproval(NeedsReply):
    """Raised by a tool that must not go on without a person's approval; `ctx.approval` has it when the tool runs again.

    Attributes:
        ask: The addressee, the expiry and the text of the request.
    """

    def __init__(
        self,
        note: str = "",
        *,
        to: str | None = None,
        expires: timedelta | None = None,
        on_expiry: ExpiryRule = "deny",
        edits: bool = True,
        seen: bool = False,
        while_waiting: MessageRule = "hold",
    ) -> None:
        """Ask for an approval of this call.

        Args:
            note: The question to the person.
            to: The addressee. None: anybody.
            expires: The time in which an answer must arrive. None: no end.
            on_expiry: The rule for the end of that time.
            edits: The person may change the arguments.
            seen: An approval has to name the newest message that the person has seen.
            while_waiting: What a message does that comes before the answer: "hold" or "withdraw", see `Ask`.
        """
        self.ask = Ask(
            to=to,
            expires=expires,
            on_expiry=on_expiry,
            edits=edits,
            text=note,
            seen=seen,
            while_waiting=while_waiting,
        )
        super().__init__(note or "the call needs an approval")


@dataclass(frozen=True, slots=True)
class UserQuestions:
    """Questions with options, asked together.

    Attributes:
        items: 1 to 4 questions.
        allow_free_text: People may answer in a text of their own.
    """

    items: tuple[UserQuestionItem, ...]
    allow_free_text: bool = True

    @classmethod
    def of(cls, items: Sequence[UserQuestionItem], *, allow_free_text: bool = True) -> UserQuestions:
        """Check the questions and keep them.

        Raises:
            ValueError: They cannot be asked; the text says why.
        """
        check_items(items, allow_free_text=allow_free_text)
        return cls(tuple(items), allow_free_text)


class NeedsAnswer(NeedsReply):
    """Raised by a tool that needs an answer from a person; `ctx.answer(Model)` has it when the tool runs again.

    Attributes:
        prompt: The question.
        schema: JSON Schema of the answer; None for questions with options.
        questions: Questions with options; None for an answer by schema.
        to: The addressee. None: anybody.
        expires: The time in which an answer must arrive. None: no end.
        on_expiry: The rule for the end of that time.
        while_waiting: What a message does that comes before the answer: "hold" or "withdraw", see `Ask`.
    """

    def __init__(
        self,
        prompt: str,
        schema: Any = None,
        *,
        questions: UserQuestions | None = None,
        to: str | None = None,
        expires: timedelta | None = None,
        on_expiry: ExpiryRule = "deny",
        while_waiting: MessageRule = "hold",
    ) -> None:
        """Ask a person.

        Args:
            prompt: The question.
            schema: A pydantic model, another type, or a JSON Schema of the answer. None: any text.
            questions: Ask these instead, with options to choose from.
            to: The addressee. None: anybody.
            expires: The time in which an answer must arrive. None: no end.
            on_expiry: The rule for the end of that time; a `UseValue` counts as the answer.
            while_waiting: What a message does that comes before the answer: "hold" or "withdraw", see `Ask`.
        """
        if questions is not None and schema is not None:
            raise ConfigurationError("NeedsAnswer: give schema= or questions=, not both")
        check_expiry("NeedsAnswer", expires, on_expiry)
        check_while_waiting("NeedsAnswer", while_waiting)
        if on_expiry == "approve":
            raise ConfigurationError("NeedsAnswer: on_expiry='approve' is for approvals; use UseValue(…)")
        self.prompt = prompt
        self.schema: Mapping[str, Any] | None = None if questions is not None else schema_of(schema)
        self.questions = questions
        self.to, self.expires = to, expires
        self.on_expiry: ExpiryRule = on_expiry
        self.while_waiting: MessageRule = while_waiting
        super().__init__(prompt)


class NeedsTime(NeedsReply):
    """Raised by `ctx.wait_until`: the tool runs again at that time.

    Attributes:
        until: The time, with timezone; or how long from now, which is the same whatever clock a machine has.
        why: What the call waits for, for people; "" when only the time has to come.
        has_begun: The effect goes on elsewhere meanwhile: where the execution is stopped, its outcome is unknown.
    """

    def __init__(self, until: datetime | timedelta, *, why: str = "", has_begun: bool = False) -> None:
        if not _is_time(until):
            advice = "give a timedelta from now, or a datetime with a timezone; before the year 10 000."
            raise InvalidInput("wait_until", until, advice)
        self.until = until
        self.why = why
        self.has_begun = has_begun
        when = f"in {until}" if isinstance(until, timedelta) else f"at {until.isoformat()}"
        super().__init__(f"the call goes on {when}")


def _is_time(until: object) -> bool:
    if not isinstance(until, timedelta):
        return isinstance(until, datetime) and until.utcoffset() is not None
    try:
        return bool(datetime.now(UTC) + until)
    except OverflowError:
        return False


class NeedsResult(NeedsReply):
    """Raised by a tool whose work has begun elsewhere: a service brings the result, and the tool does not run again.

    A tool that asks in this way has `defers = True`, by which `ctx.completion_token` works before the request is there.

    Attributes:
        text: What the call waits for, for people.
        expires: The time in which the result must come; the call fails afterwards. None: no end.
    """

    has_begun = True

    def __init__(self, text: str = "", *, expires: timedelta | None = None) -> None:
        check_expiry("NeedsResult", expires, "deny")
        self.text, self.expires = text, expires
        super().__init__(text or "the result comes later")


class OutcomeUnknown(Exception):
    """Raised by a tool that cannot tell whether its effect happened: it does not run again, the model reads why."""


class AnswerRefused(Exception):
    """Raised by `ctx.answer` when the person declined or no answer came in time. Uncaught, the model reads the reason.

    Attributes:
        reason: The reason, for the model.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)
