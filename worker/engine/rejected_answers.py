"""Answers that were paid for and could not be used: they are counted, and the model is told what was wrong with them.

The journal keeps a record of each in the transaction that drops the answer, so that whoever runs the step again counts
it once and asks with the same corrections.
"""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from ..drivers.protocol import InferenceRequest
from ..errors import InvalidInput, UnusableAnswer
from ..state.conversation.messages import Message
from ..state.execution.execution import ExecutionState
from ..state.execution.inference import InferenceResponse
from ..state.execution.usage import NO_USAGE, InferenceUsage
from ..state.values.field_types import Amount, Text
from ..state.values.value import Value
from ..store.journal import Journal

_MOST_CHARS: Final = 20_000
_NO_TEXT: Final = "(an answer without text)"


class RejectedAnswer(Value):
    """The journal's record of an answer that could not be used.

    Attributes:
        text: What the model had answered, cut to 20 000 characters.
        correction: What the model is told when it is asked again; "" where it is asked the same question.
    """

    usage: InferenceUsage = NO_USAGE
    cost: Amount | None = None
    text: Text = ""
    correction: Text = ""

    @classmethod
    def of(cls, error: UnusableAnswer) -> RejectedAnswer:
        """The record of an answer that a driver could not use."""
        usage = error.usage if isinstance(error.usage, InferenceUsage) else NO_USAGE
        text, correction = error.text[:_MOST_CHARS], error.correction[:_MOST_CHARS]
        try:
            return cls(usage=usage, cost=error.cost, text=text, correction=correction)
        except InvalidInput:  # a driver of the user's gave a price or a text that cannot be stored
            return cls(usage=usage)

    def messages(self) -> tuple[Message, ...]:
        """The exchange that follows the question when the model is asked again."""
        if not self.correction:
            return ()
        return (Message.assistant(self.text or _NO_TEXT), Message.user(self.correction))


def read_rejected(journal: Journal) -> list[RejectedAnswer]:
    """The rejected answers that earlier attempts have journaled; one that cannot be read counts nothing."""
    return [_read_record(raw) for raw in journal.rejected]


def with_corrections(request: InferenceRequest, rejected: list[RejectedAnswer]) -> InferenceRequest:
    """The question, followed by the rejected answers and what was wrong with them."""
    exchange = [message for each in rejected for message in each.messages()]
    return request.with_messages((*request.messages, *exchange)) if exchange else request


def charge_rejected(execution: ExecutionState, step: int, rejected: list[RejectedAnswer]) -> ExecutionState:
    """The execution with every rejected answer of the step charged, each once."""
    for number, each in enumerate(rejected):
        execution = execution.with_auxiliary_charge(step, f"rejected:{number}", each.usage, each.cost)
    return execution


def as_response(error: UnusableAnswer) -> InferenceResponse | None:
    """The cost of a rejected answer as a response without content, for metrics; None when nobody can tell it."""
    if not isinstance(error.usage, InferenceUsage):
        return None
    return InferenceResponse(usage=error.usage, cost=error.cost)


def _read_record(raw: bytes) -> RejectedAnswer:
    try:
        return RejectedAnswer.from_json(raw)
    except ValidationError:
        return RejectedAnswer()
