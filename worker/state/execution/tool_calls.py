"""Tool calls that a model asks for, and their executions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Final, assert_never, cast

from pydantic import Field
from pydantic_core import from_json, to_json

from ...errors import InvalidInput
from ..values.error_info import ErrorInfo
from ..values.field_types import Checked, Count, Flag, JsonField, Text, UtcDatetime, default_from
from ..values.frozen import MAX_DEPTH, FrozenDict, Json, check_text, freeze
from ..values.ids import ToolExecutionId
from ..values.value import Value
from .answers import RequestResolution


def _args(value: Any) -> FrozenDict | str:
    if isinstance(value, FrozenDict):
        return value
    if isinstance(value, str):
        return check_text(value, "args")
    frozen = freeze(value, "args")
    if isinstance(frozen, FrozenDict):
        return frozen
    raise InvalidInput("args", type(cast("object", value)), "give a dict, or the text the model wrote in its place.")


_MOST_LEVELS: Final = 64
"""Deeper arguments of a model stay text: traces and other records hold arguments some levels further down."""


def _read_args(text: str) -> FrozenDict | str:
    try:
        read = freeze(from_json(text or "{}", allow_inf_nan=False), "args", MAX_DEPTH - _MOST_LEVELS)
    except (ValueError, TypeError):  # TypeError: half a surrogate pair, which the field refuses by its name
        return text
    return read if isinstance(read, FrozenDict) else text


class ToolCall(Value):
    """A call the model asks for.

    Attributes:
        id: The model's id of the call; unique within one answer, not beyond.
        name: The tool.
        args: A JSON object, or the raw text when the model wrote something else.
    """

    id: Annotated[Text, Field(min_length=1)]
    name: Text
    args: Annotated[FrozenDict | str, Checked(_args)] = FrozenDict()

    if TYPE_CHECKING:
        # A type checker takes the parameters of a constructor from the fields, and a dict is no FrozenDict.
        def __init__(self, *, id: str, name: str, args: Mapping[str, Any] | str = ...) -> None: ...  # noqa: A002

    @classmethod
    def from_text(cls, call_id: str, name: str, args: str) -> ToolCall:
        """A call whose arguments the model wrote as text; what is no JSON object is kept as it is."""
        return cls(id=call_id, name=name, args=_read_args(args))

    def with_id(self, call_id: str) -> ToolCall:
        """The same call with another id."""
        return self if call_id == self.id else self._with(id=call_id)

    def args_json(self) -> str:
        """The arguments as the text a provider expects."""
        return self.args if isinstance(self.args, str) else to_json(self.args).decode()


def unique_call_ids(ids: Iterable[str]) -> tuple[str, ...]:
    """Make the ids of an answer's calls unique, in their order; those that are unique stay as they are.

    Providers match results with calls by these ids, and some servers repeat them or leave them empty. The same ids give
    the same result in every worker.
    """
    given = tuple(ids)
    taken = set(given) | {""}
    if len(taken) > len(given):
        return given
    seen: set[str] = set()
    made: list[str] = []
    for position, each in enumerate(given):
        unique = each
        if not each or each in seen:
            numbers = count(position)
            while unique in taken:
                unique = f"{each or 'call'}_{next(numbers)}"
            taken.add(unique)
        seen.add(each)
        made.append(unique)
    return tuple(made)


class ToolOutcome(StrEnum):
    """How a tool's execution ended.

    ok: it returned. error: it failed, or its arguments did not fit. unknown: a worker died over it and nobody can
    tell whether it happened. not_run: the step ended before its turn. blocked: a guard or a person refused it.
    """

    OK = "ok"
    ERROR = "error"
    UNKNOWN = "unknown"
    NOT_RUN = "not_run"
    BLOCKED = "blocked"


ERROR_WORDS: Final = "Error in tool call: "
"""The words before the reason of a failed call, for the model."""

_FALLBACK_MESSAGE = {
    ToolOutcome.OK: "",
    ToolOutcome.ERROR: "The tool failed without saying why.",
    ToolOutcome.UNKNOWN: "The outcome is unknown: the call may or may not have happened.",
    ToolOutcome.NOT_RUN: "The call was not run.",
    ToolOutcome.BLOCKED: "The call was not allowed.",
}


class ToolExecution(Value):
    """One call, carried out or not.

    Attributes:
        value: What the tool returned, as JSON; None too when it returned None or nothing.
        error: Why it has no value; None when it is ok.
        index: Place of the call in the model's answer, from 0.
        resolutions: How the requests of this call were resolved, by round; empty for a call without requests.
        idempotent_cache_hit: The tool did not run; the result is that of an equal call of this execution.
    """

    id: ToolExecutionId = default_from(ToolExecutionId.generate)
    tool_call: ToolCall
    outcome: ToolOutcome
    value: JsonField = None
    error: ErrorInfo | None = None
    started_at: UtcDatetime
    completed_at: UtcDatetime
    index: Count = 0
    resolutions: tuple[RequestResolution, ...] = ()
    idempotent_cache_hit: Flag = False

    @property
    def duration(self) -> float:
        """Seconds."""
        return (self.completed_at - self.started_at).total_seconds()

    def with_call_id(self, call_id: str) -> ToolExecution:
        """The same with another id of its call."""
        return self if call_id == self.tool_call.id else self._with(tool_call=self.tool_call.with_id(call_id))

    def with_resolutions(self, resolutions: tuple[RequestResolution, ...]) -> ToolExecution:
        """The same with how its requests were resolved."""
        return self._with(resolutions=resolutions)

    def with_outcome_of(self, value: Json, error: ErrorInfo | None) -> ToolExecution:
        """The record with another value and another error.

        Raises:
            InvalidInput: The value is no JSON.
        """
        return self.model_copy(update={"value": value, "error": error})

    def with_result(self, value: Json) -> ToolExecution:
        """The same as if the tool had returned this."""
        return self.model_copy(update={"outcome": ToolOutcome.OK, "value": value, "error": None})

    def as_cache_hit(self) -> ToolExecution:
        """The same, marked as the recorded result of an equal call."""
        return self._with(idempotent_cache_hit=True)

    def has_error(self) -> bool:
        """It failed, was blocked, or its outcome is unknown. A call that was merely not run is no error."""
        return self.outcome in (ToolOutcome.ERROR, ToolOutcome.UNKNOWN, ToolOutcome.BLOCKED)

    def was_blocked(self) -> bool:
        """Tell whether a hook kept the call from being made."""
        return self.outcome is ToolOutcome.BLOCKED

    def error_message(self) -> str:
        """Why it has no value; empty when it is ok."""
        if self.outcome is ToolOutcome.OK:
            return ""
        return (self.error.message if self.error else "") or _FALLBACK_MESSAGE[self.outcome]

    def error_info(self) -> ErrorInfo | None:
        """Its error as listed in a step's errors; None without `has_error()`."""
        if not self.has_error():
            return None
        return self.error or ErrorInfo(kind=f"tool_{self.outcome}", message=self.error_message())

    def as_message(self) -> str:
        """The text the model reads: text as it is, other values as JSON, failures in a sentence."""
        match self.outcome:
            case ToolOutcome.OK:
                return as_text(self.value)
            case ToolOutcome.UNKNOWN:
                why = self.error.message if self.error else ""
                return f"Outcome unknown: the call may or may not have happened. {why}".rstrip()
            case ToolOutcome.ERROR | ToolOutcome.NOT_RUN | ToolOutcome.BLOCKED:
                return f"{ERROR_WORDS}{self.error_message()}"
            case _ as never:
                assert_never(never)


def as_text(value: Json) -> str:
    """A JSON value as text: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else to_json(value).decode()
