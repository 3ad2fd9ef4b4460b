"""Results of a server as the library takes them: it refuses the whole one for a part that it does not know."""

from __future__ import annotations

from typing import Any, Final, cast

GIVEN_SCHEMA: Final = "x-celery-agents-given"
"""The place of a tool's input schema, as the server gave it, in one that the library takes."""


def prepare_tools(result: Any) -> None:
    """Change a page of a server's list of tools so that the library takes it, whatever one of the tools is like.

    The library refuses the whole page for one tool that breaks the protocol, and would run a tool's output schema, with
    its regular expressions, on each result. So a tool keeps what is used of it here, and its input schema goes along
    under `GIVEN_SCHEMA` where the library would not take it.
    """
    tools: Any = result.get("tools")
    if isinstance(tools, list):
        result["tools"] = [_prepare(each) for each in cast("list[Any]", tools)]


def prepare_result(result: Any) -> None:
    """Change the result of a call so that the library takes it, whatever one of its parts is like: texts are kept."""
    if {"content", "structuredContent", "isError"}.isdisjoint(result):
        return
    parts: Any = result.get("content") or []
    if isinstance(parts, (list, dict, str)):
        texts = map(_text_of, cast("list[Any]", parts if isinstance(parts, list) else [parts]))
        result["content"] = [{"type": "text", "text": each} for each in texts]
    structured: Any = result.get("structuredContent")
    if structured is not None and not isinstance(structured, dict):
        result["structuredContent"] = {"result": structured}  # in the older protocol it is an object
    if result.get("isError") is None:
        result["isError"] = False


def _text_of(part: Any) -> str:
    """The text of a part of a result, or the address of a linked one; else which kind is left out."""
    named = cast("dict[str, Any]", part if isinstance(part, dict) else {"text": part})
    resource = named.get("resource")
    inner = cast("dict[str, Any]", resource if isinstance(resource, dict) else {})
    for text in (named.get("text"), inner.get("text"), named.get("uri")):
        if isinstance(text, str):
            return text
    kind = named.get("mimeType") or inner.get("mimeType") or named.get("type") or "a part"
    return f"[{kind!s:.60} is left out: only text can be stored]"


def _prepare(given: Any) -> dict[str, Any]:
    tool = cast("dict[str, Any]", given if isinstance(given, dict) else {})
    name, description, hints = tool.get("name"), tool.get("description"), tool.get("annotations")
    kept: dict[str, Any] = {"name": name if isinstance(name, str) else ""}
    if isinstance(description, str):
        kept["description"] = description
    if isinstance(hints, dict):
        kept["annotations"] = {hint: each for hint, each in cast("Any", hints).items() if isinstance(each, bool)}
    schema = tool.get("inputSchema")
    kept["inputSchema"] = schema if _is_plain(schema) else {"type": "object", GIVEN_SCHEMA: schema}
    return kept


def _is_plain(schema: Any) -> bool:
    """Whether the library takes this input schema, in every version of the protocol."""
    if not isinstance(schema, dict):
        return False
    named = cast("dict[str, Any]", schema)
    properties, required = named.get("properties", {}), named.get("required", [])
    return (
        named.get("type") == "object"
        and isinstance(named.get("$schema", ""), str)
        and isinstance(properties, dict)
        and all(isinstance(each, (dict, bool)) for each in cast("Any", properties).values())
        and isinstance(required, list)
        and all(isinstance(each, str) for each in cast("list[Any]", required))
    )
