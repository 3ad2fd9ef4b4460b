"""Check an answer against its request; one that does not fit raises InvalidInput and is not stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never, cast

from pydantic import ValidationError
from pydantic_core import to_json

from ..errors import InvalidInput, StateUnreadable
from ..state.execution.answers import KINDS_OF_ANSWERS, Answer, Approve, Complete, Deny, Fail, GivenAnswer, Remember
from ..state.execution.requests import MAX_REQUEST_BYTES, Request, RequestKind
from ..state.values.frozen import FrozenDict, freeze, thaw
from .questions import UserQuestionItem, read_user_answers
from .schemas import check_schema

MAX_REASON_CHARS: Final = 10_000
"""Characters of a reason, an error or a note."""

MAX_RESULT_BYTES: Final = 262_144
"""Bytes of a result that comes later, as JSON."""

QUESTIONS: Final = "questions"
FREE_TEXT: Final = "allow_free_text"


def check_answer(request: Request, answer: GivenAnswer) -> GivenAnswer:
    """Check an answer against the request it is for.

    Returns:
        The answer as it is stored: answers to questions with options in one form, whichever form they were given in.
    Raises:
        InvalidInput: It does not fit; the text names the field and says what fits.
    """
    accepted = KINDS_OF_ANSWERS[request.kind]
    if not isinstance(answer, accepted):
        names = " or ".join(f"{kind.__name__}(…)" for kind in accepted) or "nothing from outside"
        raise InvalidInput("answer", type(answer), f"this is a request of kind {request.kind}: answer it with {names}.")
    match answer:
        case Approve():
            return _check_approval(request, answer)
        case Deny(reason):
            return Deny(check_text("reason", reason))
        case Answer(values):
            return Answer(check_values(request, values))
        case Complete(value):
            return Complete(_check_size(request, "value", freeze(value, "value")))
        case Fail(error):
            return Fail(check_text("error", error))
        case _ as never:
            assert_never(never)


def check_values(request: Request, values: Any) -> Any:
    """Check the values that answer a question, by its options or by its schema."""
    if is_asked_with_options(request):
        items, allow_free_text = questions_of(request)
        answers = read_user_answers(items, values, allow_free_text=allow_free_text)
        stored = FrozenDict({name: each.model_dump(mode="json") for name, each in answers.items()})
        return _check_size(request, "values", stored)
    schema = request.answer_schema
    checked = freeze(values, "values") if schema is None else check_schema(values, schema, "values")
    return _check_size(request, "values", checked)


def check_remember(answer: GivenAnswer, remember: Remember | str) -> Remember:
    """Check for how long an answer is to count.

    Raises:
        InvalidInput: There is no such duration, or the answer is no approval of the arguments as asked.
    """
    try:
        wanted = Remember(remember)
    except ValueError:
        advice = f"give one of {', '.join(Remember)}."
        raise InvalidInput("remember", str(remember), advice) from None
    if wanted is not Remember.CALL and not isinstance(answer, Approve):
        raise InvalidInput("remember", wanted.value, "only an approval can be remembered; leave it out.")
    return wanted


def check_text(field: str, text: object) -> str:
    """A reason, an error or a note.

    Raises:
        InvalidInput: It is no text, or too long.
    """
    if not isinstance(text, str):
        raise InvalidInput(field, cast("type[Any]", type(text)), "give a text.")
    if len(text) > MAX_REASON_CHARS:
        raise InvalidInput(field, len(text), f"write {MAX_REASON_CHARS} characters at most.")
    return cast("str", freeze(text, field))


def is_asked_with_options(request: Request) -> bool:
    """Whether a request asks questions with options."""
    options: object = request.options
    return request.kind is RequestKind.QUESTION and isinstance(options, Mapping) and QUESTIONS in options


def questions_of(request: Request) -> tuple[Sequence[UserQuestionItem], bool]:
    """The questions of a request with options, and whether a free text may answer them.

    Raises:
        StateUnreadable: The stored questions are damaged.
    """
    options = cast("Mapping[str, Any]", request.options)
    try:
        items = [UserQuestionItem.model_validate(thaw(item)) for item in options[QUESTIONS]]
        return items, bool(options[FREE_TEXT])
    except (ValidationError, KeyError, TypeError):
        raise StateUnreadable(f"request {request.id}", "its questions are damaged") from None


def _check_approval(request: Request, answer: Approve) -> Approve:
    if answer.args is None:
        return answer
    if not request.edits_allowed:
        advice = "this request takes no other arguments: approve it as it is, or deny it with a reason."
        raise InvalidInput("args", type(answer.args), advice)
    if not isinstance(answer.args, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput("args", type(answer.args), "give a dict of the arguments.")
    args = check_schema(answer.args, request.answer_schema or {}, "args")
    return Approve(cast("FrozenDict", _check_size(request, "args", args)))


def _check_size(request: Request, field: str, value: Any) -> Any:
    size = len(to_json(value))
    limit = MAX_RESULT_BYTES if request.kind is RequestKind.EXTERNAL else MAX_REQUEST_BYTES
    if size > limit:
        raise InvalidInput(field, f"{size} bytes", f"it may have {limit} bytes as JSON; store the rest elsewhere.")
    return value
