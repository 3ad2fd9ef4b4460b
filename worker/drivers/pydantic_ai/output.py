"""Structured output: what is asked for, and whether the answer fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import from_json

from ...errors import ConfigurationError, MissingExtra, UnusableAnswer
from ...state.conversation.context import ResponseFormat, ResponseFormatType
from ...state.values.frozen import FrozenDict, Json, freeze, thaw

if TYPE_CHECKING:
    from pydantic_ai.models import Model, ModelRequestParameters

OUTPUT_TOOL: Final = "final_result"
"""The tool by which a model gives a structured output, where its provider has no better way."""

_ANY_OBJECT: Final = {"type": "object", "additionalProperties": True}
_ANSWER_AGAIN: Final = "Correct this and give the whole answer again, in the form that was asked for."
_DETAIL_CHARS: Final = 500
_JOURNALED: Final = ("schema", "name", "any_object", "wrapped")
_DESCRIPTION: Final = "The final answer. Use it once everything else is done."


@dataclass(frozen=True)
class OutputShape:
    """The shape a final answer must have.

    Attributes:
        schema: Its JSON Schema; an object schema.
        name: What providers call it.
        strict: The provider must guarantee it; None leaves that to pydantic-ai.
        any_object: Any JSON object fits.
        wrapped: The answer is the member `response` of the object: its type is not an object, which providers ask for.
    """

    schema: FrozenDict
    name: str = ""
    strict: bool | None = None
    any_object: bool = False
    wrapped: bool = False

    def add_to(self, parameters: ModelRequestParameters, model: Model) -> ModelRequestParameters:
        """The request's parameters with this shape asked for.

        By the provider's own means where it has them (`response_format` with OpenAI), otherwise by a tool that takes
        the answer, or by asking in words: what pydantic-ai finds best for the model.
        """
        from dataclasses import replace

        from pydantic_ai.output import OutputObjectDefinition
        from pydantic_ai.tools import ToolDefinition

        schema = thaw(self.schema)
        shape = OutputObjectDefinition(json_schema=schema, name=self.name or None, strict=self.strict)
        if self.any_object:
            return replace(parameters, output_mode="prompted", output_object=shape)
        if _has_own_means(model, with_tools=bool(parameters.function_tools)):
            return replace(parameters, output_mode="native", output_object=shape)
        tool = ToolDefinition(
            name=OUTPUT_TOOL,
            parameters_json_schema=schema,
            description=_DESCRIPTION,
            kind="output",
            strict=self.strict,
        )
        asked = replace(parameters, output_mode="auto", output_object=shape, output_tools=[tool])
        return replace(asked, allow_text_output=False)

    def as_dict(self) -> dict[str, Any]:
        """As JSON, to be journaled with the answer."""
        return {name: getattr(self, name) for name in _JOURNALED}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OutputShape:
        """Read what `as_dict` gave."""
        fields: dict[str, Any] = {name: data[name] for name in _JOURNALED}
        fields["schema"] = FrozenDict(fields["schema"])
        return cls(**fields)

    def read(self, text: str) -> Json:
        """The output in a text.

        Raises:
            UnusableAnswer: It is no JSON, or does not fit the schema; the text says where.
        """
        try:
            value = from_json(_without_fence(text), allow_inf_nan=False)
        except ValueError as problem:
            raise _does_not_fit("The model's structured output is not JSON.", str(problem)) from None
        self._check(value)
        return freeze(value["response"] if self.wrapped else value, "output")

    def _check(self, value: Any) -> None:
        if self.any_object:
            if not isinstance(value, dict):
                raise _does_not_fit("The model's structured output is not a JSON object.")
            return
        problem = next(iter(self._validator.iter_errors(value)), None)
        if problem is not None:
            said = f"The model's structured output does not fit its schema at {problem.json_path}."
            raise _does_not_fit(said, problem.message)

    @cached_property
    def _validator(self) -> Any:
        try:
            from jsonschema.validators import validator_for
        except ImportError:
            raise MissingExtra("llm", "checking structured output") from None
        schema = thaw(self.schema)
        return validator_for(schema)(schema)


class OutputType:
    """A Python type as an output shape."""

    def __init__(self, output_type: Any) -> None:
        """Take a type.

        Raises:
            ConfigurationError: It has no JSON Schema.
        """
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(output_type)
            schema = self._adapter.json_schema()
        except PydanticUserError as problem:
            said = problem.message.partition(". ")[0]
            raise ConfigurationError(f"output_type {output_type!r:.80}: {said}") from problem
        self.shape = _shape_of(schema, getattr(output_type, "__name__", ""))

    def check(self, output: Json) -> None:
        """Validate an output by the type itself, which knows more than its schema.

        Raises:
            UnusableAnswer: It does not fit; the text says where.
        """
        try:
            self._adapter.validate_python(thaw(output))
        except ValidationError as problem:
            first = problem.errors(include_input=False, include_url=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the whole"
            said = f"The model's structured output does not fit: {where}: {first['msg']}."
            raise _does_not_fit(said) from None


def _does_not_fit(said: str, detail: str = "") -> UnusableAnswer:
    """The error of an output that was rejected, with the correction that the model reads when it is asked again.

    Args:
        detail: May repeat what the model wrote, so that only the model reads it.
    """
    detail = f" {detail[:_DETAIL_CHARS]}." if detail else ""
    return UnusableAnswer(said, correction=f"{said}{detail} {_ANSWER_AGAIN}")


def _shape_of(schema: dict[str, Any], name: str) -> OutputShape:
    if schema.get("type") == "object" or "$ref" in schema:
        return OutputShape(FrozenDict(schema), name)
    definitions = schema.pop("$defs", None)
    wrapped: dict[str, Any] = {"type": "object", "properties": {"response": schema}, "required": ["response"]}
    if definitions:
        wrapped["$defs"] = definitions
    return OutputShape(FrozenDict(wrapped), name, wrapped=True)


def shape_of_format(response_format: ResponseFormat) -> OutputShape | None:
    """The shape a session asks for; None for plain text.

    Raises:
        ConfigurationError: A JSON Schema is announced and missing.
    """
    if response_format.type is ResponseFormatType.TEXT:
        return None
    if response_format.type is ResponseFormatType.JSON_OBJECT:
        return OutputShape(FrozenDict(_ANY_OBJECT), response_format.name, any_object=True)
    if response_format.json_schema is None:
        raise ConfigurationError("response_format: its type is json_schema and there is no json_schema; give one")
    return OutputShape(response_format.json_schema, response_format.name, response_format.strict or None)


def _has_own_means(model: Model, *, with_tools: bool) -> bool:
    profile: Any = model.profile
    if with_tools and model.system.startswith("google") and not profile.get("google_supports_tool_combination", False):
        return False
    return bool(profile.get("supports_json_schema_output", False))


def _without_fence(text: str) -> str:
    """Models without a guarantee like to wrap JSON in a Markdown fence."""
    stripped = text.strip()
    if stripped.startswith("```") and stripped.endswith("```"):
        return stripped.partition("\n")[2].removesuffix("```")
    return stripped
