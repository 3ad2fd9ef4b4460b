"""The context of an agent, which stays between executions: its messages, its prompt, its metadata."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, Final, cast

from pydantic.functional_validators import AfterValidator

from ...errors import InvalidInput
from ..values.field_types import Flag, Text
from ..values.frozen import FrozenDict
from ..values.value import Value
from .messages import DEFAULT, Message, MessageStore

MAX_METADATA_BYTES: Final = 1_000_000
"""Bytes of all metadata of a session together, as JSON. They are written with each step."""


class ResponseFormatType(StrEnum):
    """The kinds of answers that a model may be held to."""

    TEXT = "text"
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"


class ResponseFormat(Value):
    """The shape the agent's final answer must have.

    Attributes:
        type: Any text, any JSON object, or JSON that fits `json_schema`.
        json_schema: JSON Schema of the answer; None unless the type asks for it.
        name: What providers call the shape.
        strict: The provider is to guarantee the schema, where it can; each answer is checked in any case.
    """

    type: ResponseFormatType = ResponseFormatType.TEXT
    json_schema: FrozenDict | None = None
    name: Text = ""
    strict: Flag = True


_SECRET_NAMES = frozenset({"api_key", "apikey", "authorization", "x-api-key", "password", "secret", "token"})


def _without_secrets(settings: FrozenDict) -> FrozenDict:
    _refuse_secrets(settings, "settings")
    return settings


def _refuse_secrets(value: object, path: str) -> None:
    if isinstance(value, tuple):
        for item in cast("tuple[object, ...]", value):
            _refuse_secrets(item, path)
    elif isinstance(value, FrozenDict):
        for name, item in value.items():
            if name.lower() in _SECRET_NAMES:
                raise InvalidInput(
                    f"{path}.{name}", str, "state is stored; give keys to the workers' environment instead."
                )
            _refuse_secrets(item, f"{path}.{name}")


class LLMConfig(Value):
    """A model for this agent alone, instead of its definition's.

    Attributes:
        model: As `provider:name`; None keeps the definition's.
        base_url: Where the provider's API is; None is the provider's own.
        settings: Temperature and the like, added to the definition's. Never a key: state is stored.
    """

    model: Text | None = None
    base_url: Text | None = None
    settings: Annotated[FrozenDict, AfterValidator(_without_secrets)] = FrozenDict()


class AgentContext(Value):
    """The values of an agent that stay across executions.

    Attributes:
        metadata: Whatever the application wants to keep with the conversation; JSON.
        response_format: None is the agent's own.
    """

    store: MessageStore = MessageStore()
    metadata: FrozenDict = FrozenDict()
    system_prompt: Text = ""
    response_format: ResponseFormat | None = None

    def with_store(self, store: MessageStore) -> AgentContext:
        """The same context with another store of messages."""
        return self if store is self.store else self._with(store=store)

    def with_messages_added(self, messages: Iterable[Message], section: str = DEFAULT) -> AgentContext:
        """Append messages to a section."""
        return self.with_store(self.store.append(messages, section))

    def with_metadata(self, key: str, value: Any) -> AgentContext:
        """Raises `InvalidInput`, with the path, when the value is no JSON."""
        metadata = self.metadata.with_item(key, value)
        size = len(json.dumps(metadata, ensure_ascii=False).encode())
        if size > MAX_METADATA_BYTES:
            advice = f"all of it together may have {MAX_METADATA_BYTES} bytes as JSON; keep large data elsewhere."
            raise InvalidInput("metadata", f"{size} bytes", advice)
        return self._with(metadata=metadata)

    def without_metadata(self, key: str) -> AgentContext:
        """Remove one entry of the metadata."""
        return self._with(metadata=self.metadata.without(key))

    def with_system_prompt(self, prompt: str) -> AgentContext:
        """Set the prompt."""
        return self.model_copy(update={"system_prompt": prompt})

    def with_response_format(self, response_format: ResponseFormat | None) -> AgentContext:
        """Set the shape of the final answer."""
        return self.model_copy(update={"response_format": response_format})
