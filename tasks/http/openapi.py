"""The OpenAPI 3.1 document, made from the endpoints and the models of their bodies."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind, models_json_schema

from ... import __version__
from .endpoints import Endpoint
from .problems import MEDIA_TYPE
from .replies import Problem
from .responses import JSON

_REF: Final = "#/components/schemas/{model}"
_DESCRIPTION: Final = (
    "Durable AI-agent jobs. A job is handed to an agent and carried on by workers, one step at a time, for minutes or "
    "days. Errors are problem documents (RFC 9457)."
)


class _SchemaGenerator(GenerateJsonSchema):
    """Leaves out defaults that are no JSON, without a warning."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


def describe(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Make the document of these endpoints."""
    models = {model for each in endpoints for model in _models(each)} | {Problem}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, schemas = models_json_schema(
        [(model, "validation") for model in ordered], ref_template=_REF, schema_generator=_SchemaGenerator
    )
    paths: dict[str, dict[str, Any]] = {}
    for each in sorted(endpoints, key=lambda each: (each.path, each.method)):
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "celery-agents", "version": __version__, "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": _with_short_names(schemas.get("$defs", {})),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _with_short_names(schemas: dict[str, Any]) -> dict[str, Any]:
    """The schemas without the modules that pydantic names where AG-UI and this package have types of the same name."""
    text = re.sub(r"\bcelery_agents__\w+__(\w+)", r"\1", json.dumps(schemas))
    short: dict[str, dict[str, Any]] = json.loads(re.sub(r"\bag_ui_\w+__(\w+)", r"AgUi\1", text))
    return {name: {**schema, "title": name} for name, schema in short.items()}


def _models(endpoint: Endpoint) -> list[type[BaseModel]]:
    found: list[type[BaseModel]] = [reply for reply in endpoint.replies.values() if reply is not None]
    return [*found, endpoint.body] if endpoint.body is not None else found


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint), *_header_parameters(endpoint)],
        "responses": {
            **{str(status): _response(endpoint, reply) for status, reply in endpoint.replies.items()},
            "default": {"description": "An error.", "content": {MEDIA_TYPE: {"schema": _ref(Problem)}}},
        },
    }
    operation["security"] = [] if endpoint.scope is None else [{"token": []}]
    if endpoint.scope is not None:
        or_chat = ", or `chat` in a token of the session" if endpoint.for_chat else ""
        operation["description"] = f"Needs the scope `{endpoint.scope.value}`{or_chat}."
    if endpoint.body is not None:
        is_required = any(each.is_required() for each in endpoint.body.model_fields.values())
        operation["requestBody"] = {"required": is_required, "content": {JSON: {"schema": _ref(endpoint.body)}}}
    return operation


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)}", endpoint.path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    schema = endpoint.query.model_json_schema()
    needed = schema.get("required", ())
    return [
        {
            "name": name,
            "in": "query",
            "required": name in needed,
            "schema": {k: v for k, v in each.items() if k != "title"},
        }
        for name, each in schema.get("properties", {}).items()
    ]


def _header_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in endpoint.headers.items()
    ]


def _response(endpoint: Endpoint, reply: type[BaseModel] | None) -> dict[str, Any]:
    if reply is None:
        return {"description": "Done."}
    if endpoint.is_stream:
        return {"description": "Events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    description = (reply.__doc__ or "").partition("\n")[0]
    return {"description": description, "content": {JSON: {"schema": _ref(reply)}}}


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}
