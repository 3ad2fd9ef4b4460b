"""Structured output: what is asked for, and whether the answer fits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from ...errors import ConfigurationError, MissingExtra, UnusableAnswer
from ...state.conversation.context import ResponseFormat, ResponseFormatType
from ...state.values.frozen import FrozenDict, Json, freeze, thaw
from ...tool_schemas.checking import (
    PATTERN_RULES,
    bounded_type,
    empty_registry,
    iterate_errors,
    no_rule,
    problem_as_checked,
)
from ...tool_schemas.mending import as_object_schema
from .provider_rules import NameRule
from .sent_schemas import fit_schemas, is_guaranteed

if TYPE_CHECKING:
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

OUTPUT_TOOL: Final = "final_result"
"""The tool by which a model gives a structured output, where its provider has no better way."""

_ANY_OBJECT: Final = {"type": "object", "additionalProperties": True}
_ANSWER_AGAIN: Final = "Correct this and give the whole answer again, in the form that was asked for."
_DETAIL_CHARS: Final = 500
# "'response_format.json_schema.name': string does not match pattern '^[a-zA-Z0-9_-]+$'", at most 64 (OpenAI)
_NAMES: Final = NameRule(64)
_JOURNALED: Final = ("schema", "name", "any_object", "wrapped")
_OF_ROOT: Final = ("$schema", "$id", "$defs", "definitions")
_OF_ANY: Final = frozenset({"$ref", "anyOf", "oneOf", "enum", "const"})
"""Rules that may take other values than objects, where a schema has no type."""
_PLACE: Final = "#/properties/response"
_ANSWER: Final = re.compile(r"#(?!/\$defs/|/definitions/)(/|$)")
_DESCRIPTION: Final = "The final answer. Use it once everything else is done."


@dataclass(frozen=True)
class OutputShape:
    """The shape a final answer must have.

    Attributes:
        schema: Its JSON Schema; an object schema.
        name: What providers call it.
        strict: The provider is to guarantee it, where it can; None leaves that to pydantic-ai.
        any_object: Any JSON object fits.
        wrapped: The answer is the member `response` of the object: its type is not an object, which providers ask for.
    """

    schema: FrozenDict
    name: str = ""
    strict: bool | None = None
    any_object: bool = False
    wrapped: bool = False

    def add_to(
        self, parameters: ModelRequestParameters, model: Model, settings: ModelSettings | None = None
    ) -> ModelRequestParameters:
        """The request's parameters with this shape asked for.

        By the provider's own means where it has them (`response_format` with OpenAI) and can guarantee the schema,
        otherwise by a tool that takes the answer, or by asking in words: what pydantic-ai finds best for the model.
        """
        from pydantic_ai.output import OutputObjectDefinition
        from pydantic_ai.tools import ToolDefinition

        schema = thaw(self.schema)
        guaranteed = is_guaranteed(schema)
        strict = self.strict if guaranteed else None
        name = _NAMES.fit(self.name) if self.name else None
        shape = OutputObjectDefinition(json_schema=schema, name=name, strict=strict)
        in_words = replace(parameters, output_mode="prompted", output_object=shape)
        if self.any_object:
            return in_words
        if guaranteed and _has_own_means(model, with_tools=bool(parameters.function_tools)):
            return replace(parameters, output_mode="native", output_object=shape)
        tool = ToolDefinition(
            name=OUTPUT_TOOL, parameters_json_schema=schema, description=_DESCRIPTION, kind="output", strict=strict
        )
        asked = replace(parameters, output_mode="auto", output_object=shape, output_tools=[tool])
        asked = replace(asked, allow_text_output=False)
        return asked if guaranteed or _is_asked_by_tool(asked, model, settings) else in_words

    def as_dict(self) -> dict[str, Any]:
        """As JSON, to be journaled with the answer."""
        return {name: getattr(self, name) for name in _JOURNALED}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OutputShape:
        """Read what `as_dict` gave."""
        fields: dict[str, Any] = {name: data[name] for name in _JOURNALED}
        fields["schema"] = FrozenDict(fields["schema"])
        return cls(**fields)

    def read(self, text: str, *, is_checked_next: bool = False) -> Json:
        """The output in a text.

        Args:
            is_checked_next: The type that the schema is of checks the output next, and reads its own patterns.
        Raises:
            UnusableAnswer: It is no JSON, or does not fit the schema; the text says where.
        """
        try:
            value = from_json(_without_fence(text), allow_inf_nan=False)
        except ValueError as problem:
            raise _does_not_fit("The model's structured output is not JSON.", str(problem)) from None
        if self.any_object:
            if not isinstance(value, dict):
                raise _does_not_fit("The model's structured output is not a JSON object.")
        elif (problem := self._find_problem(value, len(text), is_checked_next=is_checked_next)) is not None:
            said = f"The model's structured output does not fit its schema at {problem.json_path}."
            raise _does_not_fit(said, problem.message)
        return freeze(value["response"] if self.wrapped else value, "output")

    def _find_problem(self, value: Any, chars: int, *, is_checked_next: bool) -> Any:
        try:
            from jsonschema.validators import validator_for
        except ImportError:
            raise MissingExtra("llm", "checking structured output") from None
        schema = thaw(self.schema)
        kind = _reading(cast("Any", validator_for)(schema), is_checked_next=is_checked_next)
        try:
            return next(iterate_errors(kind(schema, registry=empty_registry()), value, chars), None)
        except Exception as problem:  # of the library: references that lead nowhere, patterns of other languages
            if is_checked_next:
                return None
            said = f"The schema of the output cannot be applied: {type(problem).__name__}."
            raise UnusableAnswer(said, permanent=True) from problem


@cache
def _reading(kind: Any, *, is_checked_next: bool) -> Any:
    without = {"pattern": no_rule, "patternProperties": no_rule} if is_checked_next else {}
    return bounded_type(kind, {**PATTERN_RULES, **without})


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
            self._adapter.validate_json(to_json(thaw(output)))  # a strict model takes a date from JSON alone
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
    target = schema
    while (reference := target.get("$ref")) is not None:  # of a type that holds itself
        target = schema["$defs"][reference.removeprefix("#/$defs/")]
    if target.get("type") == "object":
        return OutputShape(FrozenDict({**target, **{name: schema[name] for name in schema if name != "$ref"}}), name)
    return _inside_object(schema, name)


def _inside_object(schema: dict[str, Any], name: str) -> OutputShape:
    apart = {place: schema.pop(place) for place in _OF_ROOT if place in schema}
    properties = {"response": _moved(schema)}
    wrapped = {"type": "object", "properties": properties, "required": ["response"], **_moved(apart)}
    return OutputShape(FrozenDict(wrapped), name, wrapped=True)


def _moved(rules: Any) -> Any:
    """Rules whose references to places in the answer lead to its place in the object."""
    if isinstance(rules, dict):
        return {
            name: f"{_PLACE}{rule[1:]}" if name == "$ref" and _ANSWER.match(str(rule)) else _moved(rule)
            for name, rule in cast("dict[str, Any]", rules).items()
        }
    return [_moved(each) for each in cast("list[Any]", rules)] if isinstance(rules, list) else rules


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
    problem = _problem_of(response_format.json_schema)
    if problem is not None:
        raise ConfigurationError(f"response_format.json_schema is no JSON Schema: {problem}")
    schema, strict = thaw(response_format.json_schema), response_format.strict or None
    if as_object_schema(schema).get("type") != "object" or ("type" not in schema and not _OF_ANY.isdisjoint(schema)):
        return replace(_inside_object(schema, response_format.name), strict=strict)
    return OutputShape(response_format.json_schema, response_format.name, strict)


@lru_cache(maxsize=200)
def _problem_of(schema: FrozenDict) -> str | None:
    return problem_as_checked(thaw(schema))


def _is_asked_by_tool(asked: ModelRequestParameters, model: Model, settings: ModelSettings | None) -> bool:
    """Whether pydantic-ai asks by the tool: where that would keep a model from thinking, it does not."""
    try:
        return model.prepare_request(settings, fit_schemas(asked))[1].output_mode == "tool"
    except Exception:  # noqa: BLE001 - of the provider's library, about a schema that it cannot guarantee
        return False


def _has_own_means(model: Model, *, with_tools: bool) -> bool:
    profile: Any = model.profile
    if with_tools and model.system.startswith("google") and not profile.get("google_supports_tool_combination", False):
        return False
    return bool(profile.get("supports_json_schema_output", False))


def _without_fence(text: str) -> str:
    """Models without a guarantee like to wrap JSON in a Markdown fence, and to write around that."""
    before, fence, rest = text.partition("```")
    return text if not fence or before.lstrip()[:1] in tuple('{["') else rest.partition("\n")[2].rpartition("```")[0]
