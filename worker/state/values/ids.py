"""Typed ids. Each is text, so that it can be a key, a task id and a log field as it is."""

from __future__ import annotations

import re
from typing import Any, Self
from uuid import uuid4

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from ...errors import InvalidInput

ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Id(str):
    """Text of 1 to 64 letters, digits, `_` and `-`, beginning with a letter or digit.

    Raises:
        InvalidInput: Anything else, named after the kind of id.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        if not isinstance(text, str) or ID_PATTERN.fullmatch(text) is None:  # pyright: ignore[reportUnnecessaryIsInstance]
            advice = "use 1 to 64 letters, digits, '_' or '-', beginning with a letter or digit."
            raise InvalidInput(cls.__name__, text, advice)
        return super().__new__(cls, text)

    @classmethod
    def generate(cls) -> Self:
        """A new one: 32 random hexadecimal digits."""
        return super().__new__(cls, uuid4().hex)

    @classmethod
    def following(cls, *parts: object) -> Self:
        """The one that follows from these each time: their text, joined by `-`, or the end of it."""
        return cls("-".join(map(str, parts))[-64:].lstrip("-_"))

    @classmethod
    def of(cls, text: object) -> Self:
        """The id itself when it is one already."""
        return text if type(text) is cls else cls(text)  # pyright: ignore

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.of,
            json_schema_input_schema=core_schema.str_schema(pattern=ID_PATTERN.pattern, max_length=64),
            serialization=core_schema.to_string_ser_schema(),
        )


class AgentId(Id):
    """One agent instance, the same over all its executions."""

    __slots__ = ()


class ExecutionId(Id):
    """One execution: everything from a message to its answer."""

    __slots__ = ()


class AgentStepId(Id):
    """One step of an execution."""

    __slots__ = ()


class SessionId(Id):
    """One session: the conversation that executions follow one another in."""

    __slots__ = ()


class ToolExecutionId(Id):
    """One execution of a tool, whatever id the model gave to its call."""

    __slots__ = ()
