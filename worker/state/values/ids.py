"""Typed ids. Each is text, so that it can be a key, a task id and a log field as it is."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Self
from uuid import uuid4

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from ...errors import InvalidInput

ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


CHILD_ID_PATTERN = re.compile(ID_PATTERN.pattern + r"\.[0-9a-f]{32}")


class Id(str):
    """Text of 1 to 64 letters, digits, `_` and `-`, beginning with a letter or digit.

    Raises:
        InvalidInput: Anything else, named as parameters with such an id are.
    """

    __slots__ = ()

    pattern: ClassVar[re.Pattern[str]] = ID_PATTERN
    advice: ClassVar[str] = "use 1 to 64 letters, digits, '_' or '-', beginning with a letter or digit."
    max_length: ClassVar[int] = 64
    field: ClassVar[str] = "id"

    def __new__(cls, text: str) -> Self:
        if not isinstance(text, str) or cls.pattern.fullmatch(text) is None:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(cls.field, text, cls.advice)
        return super().__new__(cls, text)

    @classmethod
    def generate(cls) -> Self:
        """A new id of 32 random hexadecimal digits; a child's is made by `ChildSessionId.under`."""
        return cls(uuid4().hex)

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
            json_schema_input_schema=core_schema.str_schema(pattern=cls.pattern.pattern, max_length=cls.max_length),
            serialization=core_schema.to_string_ser_schema(),
        )


class AgentId(Id):
    """One agent instance, the same over all its executions."""

    __slots__ = ()

    field = "agent_id"


class ExecutionId(Id):
    """One execution: everything from a message to its answer."""

    __slots__ = ()

    field = "execution_id"


class AgentStepId(Id):
    """One step of an execution."""

    __slots__ = ()

    field = "step_id"


class SessionId(Id):
    """The id of a session that a user may choose. A session is a conversation; executions follow each other in it."""

    __slots__ = ()

    field = "session_id"


class ChildSessionId(Id):
    """The id of a session that the product makes for a child or a fork: `<root>.<32 hexadecimal digits>`."""

    __slots__ = ()

    pattern = CHILD_ID_PATTERN
    advice = (
        "use 1 to 64 letters, digits, '_' or '-'; behind a '.' come only the 32 hexadecimal digits of a child or a "
        "fork, which callers do not choose."
    )
    max_length = 128
    field = "session_id"

    @classmethod
    def under(cls, root: SessionId) -> Self:
        """A new id below a root; a child of a child has the same root."""
        return cls(f"{root}.{uuid4().hex}")

    @property
    def root(self) -> SessionId:
        """The session at the top of the tree, whose shard the child shares."""
        return SessionId(self.partition(".")[0])


def read_session_id(text: object) -> SessionId | ChildSessionId:
    """The id of a stored session, whichever program made it.

    Raises:
        InvalidInput: It is neither kind of id.
    """
    if isinstance(text, str) and "." in text:
        return ChildSessionId.of(text)
    return SessionId.of(text)


class ToolExecutionId(Id):
    """One execution of a tool, whatever id the model gave to its call."""

    __slots__ = ()

    field = "tool_execution_id"
