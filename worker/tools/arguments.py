"""The arguments of a tool call: their JSON Schema, and their validation."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, PydanticJsonSchemaWarning
from pydantic_core import PydanticSerializationError, from_json, to_json

from ..errors import CeleryAgentsError, ConfigurationError
from ..state.values.value import models
from .signature import Parameter

MAX_PROBLEMS: Final = 10
"""Problems listed to the model in one answer; a model that got more wrong starts over anyway."""

MAX_SHOWN_CHARS: Final = 80
"""Characters of a wrong value that are shown back to the model."""


class InvalidArguments(CeleryAgentsError):
    """The arguments of a call do not fit the tool. The text is written for the model, one line per problem.

    Attributes:
        tool: Name of the tool.
        problems: One sentence each.
    """

    def __init__(self, tool: str, problems: tuple[str, ...]) -> None:
        self.tool = tool
        self.problems = problems
        listed = "\n".join(f"- {problem}" for problem in problems)
        super().__init__(f"Invalid arguments for {tool}:\n{listed}\nCall it again with arguments that fit.")


class _Untitled(GenerateJsonSchema):
    """JSON Schema without the titles that repeat each name: a model pays for every token of it, in every request."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Leave every title out."""
        return False


class Arguments:
    """Validates what a model gave for one tool. Strict: "5" is no integer, and what is not a parameter is refused."""

    __slots__ = ("_fields", "_tool", "_validate", "schema")

    def __init__(self, tool: str, parameters: tuple[Parameter, ...]) -> None:
        """Build the validator.

        Raises:
            ConfigurationError: A parameter's type has no JSON Schema.
        """
        self._tool = tool
        # Fields get names of their own, so that a parameter may be called `schema`, `copy` or `_private`.
        self._fields = tuple((f"arg_{i}", parameter.name) for i, parameter in enumerate(parameters))
        model = _model(tool, self._fields, parameters)
        self.schema = _schema(tool, model)
        self._validate = models.strict_json_reader(model)

    def bind(self, args: Mapping[str, Any] | str) -> dict[str, Any]:
        """Validate arguments and fill in the defaults.

        Args:
            args: A JSON object; or the raw text, where the model's arguments were none.

        Raises:
            InvalidArguments: They do not fit.
        """
        raw = self._read(args) if isinstance(args, str) else args
        try:
            values = self._validate(to_json(raw)).__dict__
        except ValidationError as problem:
            raise InvalidArguments(self._tool, _problems(problem)) from None
        except PydanticSerializationError as problem:
            raise InvalidArguments(self._tool, (f"the arguments are not JSON: {problem}",)) from None
        return {name: values[field] for field, name in self._fields}

    def _read(self, text: str) -> Any:
        """The object in raw text. Models send nothing at all for a call without arguments."""
        if not text.strip():
            return {}
        try:
            return from_json(text, allow_inf_nan=False)
        except (ValueError, TypeError) as problem:  # TypeError: half a surrogate pair
            raise InvalidArguments(
                self._tool, (f"the arguments are not valid JSON ({problem}); give one JSON object",)
            ) from None


def _model(tool: str, fields: tuple[tuple[str, str], ...], parameters: tuple[Parameter, ...]) -> type[BaseModel]:
    definitions: dict[str, Any] = {
        field: _field(parameter) for (field, _), parameter in zip(fields, parameters, strict=True)
    }
    try:
        return create_model("Arguments", __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **definitions)
    except PydanticUserError as problem:
        raise ConfigurationError(
            f"tool {tool}: a parameter's type cannot be validated: {_first_sentence(problem)}"
        ) from problem


def _first_sentence(problem: PydanticUserError) -> str:
    """The first sentence; what follows is advice for people who use pydantic itself."""
    return problem.message.partition(". ")[0]


def _field(parameter: Parameter) -> tuple[Any, Any]:
    """A field as `create_model` takes it: its annotation, and its default (`...` for none)."""
    given: dict[str, Any] = {"alias": parameter.name}
    if parameter.description is not None and not _describes_itself(parameter):
        given["description"] = parameter.description
    default = ... if parameter.default is inspect.Parameter.empty else parameter.default
    return Annotated[parameter.annotation, Field(**given)], default


def _describes_itself(parameter: Parameter) -> bool:
    """Tell whether a `Field(description=…)` describes the parameter; it wins over the docstring."""
    metadata = (*getattr(parameter.annotation, "__metadata__", ()), parameter.default)
    return any(isinstance(each, FieldInfo) and each.description for each in metadata)


def _schema(tool: str, model: type[BaseModel]) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            # A default without a JSON form is simply not told to the model.
            warnings.simplefilter("ignore", PydanticJsonSchemaWarning)
            schema = model.model_json_schema(schema_generator=_Untitled)
    except PydanticUserError as problem:
        raise ConfigurationError(
            f"tool {tool}: a parameter's type has no JSON Schema: {_first_sentence(problem)}"
        ) from problem
    schema.pop("title", None)
    schema.setdefault("properties", {})
    return schema


def _problems(error: ValidationError) -> tuple[str, ...]:
    found = error.errors(include_url=False, include_context=False)
    listed = [_problem(e["loc"], e["type"], e["msg"], e["input"]) for e in found[:MAX_PROBLEMS]]
    if len(found) > MAX_PROBLEMS:
        listed.append(f"and {len(found) - MAX_PROBLEMS} more")
    return tuple(listed)


def _problem(location: tuple[int | str, ...], kind: str, message: str, given: Any) -> str:
    where = ".".join(str(part) for part in location)
    if kind == "missing":
        return f"{where}: required, but missing"
    if kind == "extra_forbidden":
        return f"{where}: there is no such parameter"
    if not where:
        return f"the arguments must be one JSON object, not {_show_value(given)}"
    return f"{where}: {message}, not {_show_value(given)}"


def _show_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"
