"""Questions with options, as the built-in tool `ask_user_question` asks them, and the check of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..errors import InvalidInput

MAX_QUESTIONS: Final = 4
MIN_OPTIONS: Final = 2
MAX_OPTIONS: Final = 12
MAX_HEADER_CHARS: Final = 40
MAX_QUESTION_CHARS: Final = 2_000
MAX_FREE_TEXT_CHARS: Final = 10_000
"""Characters of a free text in an answer; longer ones are refused."""

_TEXT_CHARS: Final = 1_000
_PREVIEW_CHARS: Final = 8_000
_STRICT: Final = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=False)


class UserQuestionOption(BaseModel):
    """One option of a question.

    Attributes:
        label: The text that the person sees.
        value: The text that the model gets. None: the label.
        description: More about the option, for the person.
        preview: The text of a preview, such as a draft; shown as it is.
    """

    model_config = _STRICT

    label: Annotated[str, Field(min_length=1, max_length=_TEXT_CHARS)]
    value: Annotated[str, Field(max_length=_TEXT_CHARS)] | None = None
    description: Annotated[str, Field(max_length=_TEXT_CHARS)] | None = None
    preview: Annotated[str, Field(max_length=_PREVIEW_CHARS)] | None = None

    @property
    def chosen_value(self) -> str:
        """The value that an answer gives for this option."""
        return self.label if self.value is None else self.value


class UserQuestionItem(BaseModel):
    """One question to a person.

    Attributes:
        question: The question itself; answers name it by this text or by its header.
        header: A short label, best of 12 characters.
        multi_select: More than one option may be chosen.
        placeholder: An example in the empty field of a free text.
        options: 2 to 12 options. None: only a free text is asked for.
        required: It must be answered.
    """

    model_config = _STRICT

    question: Annotated[str, Field(min_length=1, max_length=MAX_QUESTION_CHARS)]
    header: Annotated[str, Field(max_length=MAX_HEADER_CHARS)] | None = None
    multi_select: bool = False
    placeholder: Annotated[str, Field(max_length=_TEXT_CHARS)] | None = None
    options: Annotated[list[UserQuestionOption], Field(min_length=MIN_OPTIONS, max_length=MAX_OPTIONS)] | None = None
    required: bool = True

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        values = self.values
        if len(set(values)) != len(values):
            raise ValueError("two options have the same value; give each its own")
        return self

    @property
    def values(self) -> tuple[str, ...]:
        """The values of the options, in order."""
        return tuple(option.chosen_value for option in self.options or ())


class UserQuestionAnswer(BaseModel):
    """The answer to one question.

    Attributes:
        values: Values of the chosen options; one, unless the question allows more.
        free_text: A text of the person's own; None without one.
        notes: A remark on the answer; None without one.
    """

    model_config = _STRICT

    values: tuple[str, ...] = ()
    free_text: str | None = None
    notes: str | None = None


def check_items(items: Sequence[UserQuestionItem], *, allow_free_text: bool) -> None:
    """Check what no single question shows: how many there are, and that answers can name each.

    Raises:
        ValueError: They cannot be asked; the text says why.
    """
    if not 1 <= len(items) <= MAX_QUESTIONS:
        raise ValueError(f"questions: ask 1 to {MAX_QUESTIONS} questions in a call, not {len(items)}")
    names = [item.question for item in items]
    if len(set(names)) != len(names):
        raise ValueError("questions: two questions have the same text; ask each once")
    if not allow_free_text:
        bare = [number for number, item in enumerate(items) if not item.options]
        if bare:
            raise ValueError(f"questions.{bare[0]}.options: required, since people may not answer in free text here")


def read_user_answers(
    items: Sequence[UserQuestionItem], values: Any, *, allow_free_text: bool
) -> dict[str, UserQuestionAnswer]:
    """Check a person's answers to questions with options.

    Args:
        values: Question or header → the value of an option, a list of them, a free text, or the fields of a
            `UserQuestionAnswer`.
    Returns:
        The answers by the text of their question, in the order of the questions; without those left out.
    Raises:
        InvalidInput: An answer does not fit; the text names the question and says what fits.
    """
    if not isinstance(values, Mapping):
        raise InvalidInput("values", cast("object", values), "give a dict of question → answer.")
    named = _by_question(items, cast("Mapping[Any, Any]", values))
    answers: dict[str, UserQuestionAnswer] = {}
    for item in items:
        given = named.get(item.question)
        if given is not None:
            answer = _check_answer(item, _read_answer(item, given), allow_free_text=allow_free_text)
            if answer.values or answer.free_text:
                answers[item.question] = answer
                continue
        if item.required:
            raise InvalidInput(_place(item), None, f"it is required. {_advice(item, allow_free_text=allow_free_text)}")
    return answers


def _by_question(items: Sequence[UserQuestionItem], values: Mapping[Any, Any]) -> dict[str, Any]:
    """The values by the text of their question; a header names the first question that has it."""
    names = {item.header: item.question for item in reversed(items) if item.header}
    names |= {item.question: item.question for item in items}
    named: dict[str, Any] = {}
    for name, value in values.items():
        question = names.get(name)
        if question is None:
            known = "; ".join(item.question for item in items)
            raise InvalidInput(f"values[{str(name)[:80]!r}]", value, f"there is no such question. Asked: {known}")
        if question in named:
            raise InvalidInput(f"values[{str(name)[:80]!r}]", value, "this question is answered twice.")
        named[question] = value
    return named


def _read_answer(item: UserQuestionItem, given: Any) -> UserQuestionAnswer:
    """Read the short forms of an answer, too."""
    if isinstance(given, UserQuestionAnswer):
        return given
    if isinstance(given, str):
        has_options = bool(item.options)
        return UserQuestionAnswer(values=(given,)) if has_options else UserQuestionAnswer(free_text=given)
    fields: object = {"values": cast("object", given)} if isinstance(given, (list, tuple)) else given
    try:
        return UserQuestionAnswer.model_validate(fields)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join([_place(item), *map(str, problem["loc"])])
        advice = f"{problem['msg']}; give a text, a list of texts, or values, free_text and notes."
        raise InvalidInput(where, cast("object", given), advice) from None


def _check_answer(item: UserQuestionItem, answer: UserQuestionAnswer, *, allow_free_text: bool) -> UserQuestionAnswer:
    place, advice = _place(item), _advice(item, allow_free_text=allow_free_text)
    # A blank text that is no option is what a form sends where nothing was chosen.
    values = tuple(value for value in answer.values if value in item.values or value.strip())
    if len(values) > 1 and not item.multi_select:
        raise InvalidInput(place, len(values), f"only one option may be chosen. {advice}")
    if len(set(values)) != len(values):
        raise InvalidInput(place, len(values), "an option is chosen twice.")
    unknown = [value for value in values if value not in item.values]
    if unknown and not allow_free_text:
        raise InvalidInput(place, unknown[0], f"there is no such option. {advice}")
    text = (answer.free_text or "").strip()
    if text and not allow_free_text:
        raise InvalidInput(f"{place}.free_text", str, f"free text is not allowed here. {advice}")
    for name, given in (("free_text", text), ("notes", answer.notes or ""), *(("values", each) for each in unknown)):
        if len(given) > MAX_FREE_TEXT_CHARS:
            raise InvalidInput(f"{place}.{name}", len(given), f"write {MAX_FREE_TEXT_CHARS} characters at most.")
    return UserQuestionAnswer(values=values, free_text=text or None, notes=answer.notes or None)


def _place(item: UserQuestionItem) -> str:
    return f"values[{item.question[:80]!r}]"


def _advice(item: UserQuestionItem, *, allow_free_text: bool) -> str:
    options = f"Options: {', '.join(item.values)}." if item.options else ""
    return f"{options}{' Or a text of your own.' if allow_free_text and options else ''}" or "Write a text."
