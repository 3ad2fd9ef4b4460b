"""Finds the place in a request that a provider complains about, such as `messages[1].tool_calls`.

A provider's sentence may repeat what it was sent. A path of known names and numbers repeats nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

_ROOTS: Final = (
    *("messages", "input", "contents", "tools", "tool_choice", "tool_config", "toolConfig", "system", "instructions"),
    *("system_instruction", "response_format", "text", "reasoning", "thinking", "model", "metadata", "stream_options"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "temperature", "top_p", "stop", "body"),
    *("generationConfig", "generation_config", "GenerateContentRequest"),
)
_MEMBERS: Final = (
    *("arguments", "call_id", "content", "custom", "data", "description", "effort", "enum", "file", "file_data"),
    *("file_url", "format", "function", "function_call", "function_declarations", "function_response", "functionCall"),
    *("functionDeclarations", "functionResponse", "id", "image", "image_url", "input_schema", "inputSchema", "items"),
    *("json_schema", "media_type", "name", "output", "parameters", "parts", "properties", "refusal", "required"),
    *("response", "role", "schema", "signature", "source", "strict", "summary", "tool_call_id", "tool_calls", "type"),
    *("tool_result", "tool_use", "tool_use_id", "toolResult", "toolSpec", "toolUse", "toolUseId", "url", "verbosity"),
)
_NAMES: Final = frozenset([*_ROOTS, *_MEMBERS])
"""The names that a path may have: those of the interfaces, none that a user has chosen."""

_PATH: Final = re.compile(rf"(?<![\w.$])(?:{'|'.join(_ROOTS)})(?:\.?\[\d{{1,6}}\]|\.\d{{1,6}}|\.[A-Za-z_]{{2,24}})*")
_PIECE: Final = re.compile(r"\.?\[\d+\]|\.\d+|\.?[A-Za-z_]+")
_MOST_CHARS: Final = 4000


def request_path(body: object) -> str | None:
    """The first path in a provider's error; None where it names none.

    Args:
        body: The body of its answer, as read from JSON, or as text.
    """
    for text in _texts(body):
        for found in _PATH.finditer(text[:_MOST_CHARS]):
            path = _known_part(found.group())
            if text == path or "." in path or "[" in path:  # a word alone is one of the sentence
                return path
    return None


def _texts(body: object) -> Iterator[str]:
    """The texts of an error that may hold a path: what is made for it first, then the sentence."""
    if isinstance(body, str):
        yield body
        return
    if not isinstance(body, Mapping):
        return
    given = cast("Mapping[str, Any]", body)
    inner = given.get("error")
    if isinstance(inner, (Mapping, str)):
        yield from _texts(cast("object", inner))
    for name in ("param", "message", "Message", "detail"):
        if isinstance(given.get(name), str):
            yield given[name]


def _known_part(path: str) -> str:
    """The beginning of a path up to the first name that is none of an interface."""
    kept: list[str] = []
    for piece in _PIECE.findall(path):
        name = piece.lstrip(".")
        if name[0].isalpha() and name not in _NAMES:
            break
        kept.append(piece)
    return "".join(kept)
