"""`AskUser`: gives the model the tool `ask_user_question`, with which it asks a person and waits for the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import Field

from ..capability import Capability
from ..errors import ConfigurationError
from ..requests.questions import MAX_QUESTIONS, UserQuestionAnswer, UserQuestionItem
from ..tools.approval import ExpiryRule, MessageRule, check_expiry, check_while_waiting
from ..tools.context import ToolContext
from ..tools.definition import tool
from ..tools.needs import AnswerRefused, NeedsAnswer, UserQuestions
from ..tools.protocol import Tool

ASK_USER_QUESTION: Final = "ask_user_question"
_DESCRIPTION: Final = (
    "Ask the user up to four questions at once and wait for the answers. Use it when you need a decision or a fact "
    "that only the user knows. Give options where the answers are known."
)
_WITHOUT_FREE_TEXT: Final = " The user can only choose from the options, so every question needs some."

Questions = Annotated[
    list[UserQuestionItem], Field(min_length=1, max_length=MAX_QUESTIONS, description="The questions to ask together.")
]


@dataclass(frozen=True)
class AskUser(Capability):
    """Lets the model ask a person.

    Attributes:
        to: The addressee of the questions. None: anybody.
        allow_free_text: People may answer in a text of their own, not only by an option.
        expires: The time in which an answer must arrive. None: no end.
        on_expiry: The rule for the end of that time.
        while_waiting: What a message does that comes before the answers: "hold" or "withdraw", see `Ask`.
    """

    to: str | None = None
    allow_free_text: bool = True
    expires: timedelta | None = None
    on_expiry: ExpiryRule = "deny"
    while_waiting: MessageRule = "hold"

    def __post_init__(self) -> None:
        check_expiry("AskUser", self.expires, self.on_expiry)
        check_while_waiting("AskUser", self.while_waiting)
        if self.on_expiry == "approve":
            raise ConfigurationError("AskUser: on_expiry='approve' is for approvals; use UseValue({question: value})")

    def tools(self) -> Sequence[Tool | Callable[..., Any]]:
        """The one tool `ask_user_question`."""
        description = _DESCRIPTION if self.allow_free_text else _DESCRIPTION + _WITHOUT_FREE_TEXT

        def ask(ctx: ToolContext, questions: Questions) -> Mapping[str, Any]:
            asked = UserQuestions.of(questions, allow_free_text=self.allow_free_text)
            try:
                answers = ctx.answer()
            except AnswerRefused as refused:
                return {"status": "cancelled", "message": refused.reason}
            if answers is None:
                raise NeedsAnswer(
                    " ".join(item.question for item in questions),
                    questions=asked,
                    to=self.to,
                    expires=self.expires,
                    on_expiry=self.on_expiry,
                    while_waiting=self.while_waiting,
                )
            return {"status": "answered", "answers": _in_order(questions, answers), **_note(ctx)}

        return (tool(effect="pure", name=ASK_USER_QUESTION, description=description)(ask),)


def _in_order(questions: Sequence[UserQuestionItem], answers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The answers in the order of the questions, each with what its question is called."""
    given = [(item, answers[item.question]) for item in questions if item.question in answers]
    return [_describe_answer(item, UserQuestionAnswer.model_validate(answer)) for item, answer in given]


def _describe_answer(item: UserQuestionItem, answer: UserQuestionAnswer) -> dict[str, Any]:
    fields = {
        "question": item.question,
        "header": item.header,
        "values": list(answer.values),
        "free_text": answer.free_text,
        "notes": answer.notes,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _note(ctx: ToolContext) -> dict[str, str]:
    reply = ctx.replies.received[-1] if ctx.replies.received else None
    return {"reviewer_notes": reply.note} if reply is not None and reply.note else {}
