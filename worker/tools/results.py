"""Converting the result of a tool to the JSON value that is stored and shown to the model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final, cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from ..state.values.frozen import MAX_INT_BITS

Json = Any

DEFAULT_MAX_RESULT_CHARS: Final = 32_000
"""Characters of one result that reach the model and the store. About eight thousand tokens."""

MAX_DEPTH: Final = 64
"""Levels of nesting of a stored result; deeper than that is a cycle more often than data."""


class UnusableResult(ValueError):
    """A tool returned something that has no JSON form. The tool has run; only its result is lost."""


def to_json_value(result: Any, limit_chars: int | None = DEFAULT_MAX_RESULT_CHARS) -> Json:
    """Turn what a tool returned into a JSON value.

    Pydantic models, dataclasses, enums, dates, UUIDs, decimals, paths, sets and tuples get their usual JSON form; NaN
    and infinities, which JSON lacks, become the texts "NaN", "Infinity", "-Infinity"; lone surrogates become U+FFFD.

    Args:
        result: What the tool returned.
        limit_chars: Characters kept. Longer text is cut, longer structures become the beginning of their JSON text;
            both end in a marker that says how much is missing. None keeps everything.

    Raises:
        UnusableResult: Something in it is not JSON (bytes, a generator, a cycle) or cannot be read; the text says what.
    """
    try:
        value = _convert(result, "result", 0)
    except UnusableResult:
        raise
    except Exception as error:  # its own iteration, length or attributes may raise anything
        raise UnusableResult(f"result: reading it raised {type(error).__name__}; return plain data") from error
    return value if limit_chars is None else _limit_size(value, limit_chars)


def _limit_size(value: Json, limit: int) -> Json:
    if isinstance(value, str):
        return _truncate(value, limit)
    if value is None or isinstance(value, (bool, float)):
        return value
    text = json.dumps(value, ensure_ascii=False)
    return value if len(text) <= limit else _truncate(text, limit)


def _truncate(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}[… {len(text) - limit} characters left out]"


def _convert(value: Any, path: str, depth: int) -> Json:
    kind = cast("type[Any]", type(value))
    if kind is str:
        return _text(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return _check_integer(value, path)
    if kind is float:
        return value if math.isfinite(value) else _number_as_text(value)
    if depth >= MAX_DEPTH:
        raise UnusableResult(f"{path[:200]}: nested deeper than {MAX_DEPTH} levels, or a cycle; return a flatter value")
    return _convert_structure(value, path, depth + 1)


def _convert_structure(value: Any, path: str, depth: int) -> Json:
    if isinstance(value, Mapping):
        return _convert_mapping(value, path, depth)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, (list, tuple, Set)):
        return [_convert(item, f"{path}[{i}]", depth) for i, item in enumerate(value)]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, BaseModel):
        return _convert(value.model_dump(), path, depth)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _convert(getattr(value, f.name), f"{path}.{f.name}", depth) for f in fields(value)}
    return _convert_leaf(value, path, depth)


def _convert_mapping(mapping: Mapping[Any, Any], path: str, depth: int) -> dict[str, Json]:
    converted: dict[str, Json] = {}
    for key, item in mapping.items():
        name = _key(key, path)
        if name in converted:
            raise UnusableResult(f"{path}: two keys become {name!r} in JSON; use text keys")
        converted[name] = _convert(item, f"{path}.{name}", depth)
    return converted


def _key(key: Any, path: str) -> str:
    if isinstance(key, str) and not isinstance(key, Enum):
        return _text(key)
    text = _convert(key, f"{path} (a key)", MAX_DEPTH - 1)
    if isinstance(text, (dict, list)) or text is None:
        raise UnusableResult(f"{path}: a key of type {type(key).__name__} has no JSON form; use text keys")
    return text if isinstance(text, str) else json.dumps(text)


def _convert_leaf(value: Any, path: str, depth: int) -> Json:
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise UnusableResult(f"{path}: bytes have no JSON form; decode them, or store them and return where")
    if isinstance(value, Enum):
        return _convert(value.value, path, depth)
    if isinstance(value, str):
        return _text(str(value))
    if isinstance(value, int):
        return _check_integer(int(value), path)
    if isinstance(value, float):
        return _convert(float(value), path, depth)
    return _convert_known(value, path)


def _convert_known(value: Any, path: str) -> Json:
    """Dates, UUIDs, decimals, paths, URLs: what pydantic knows how to write."""
    if hasattr(value, "__next__") or hasattr(value, "__anext__") or callable(value):
        raise UnusableResult(f"{path}: a {type(value).__name__} has no JSON form; return a list, or the values")
    try:
        return to_jsonable_python(value, inf_nan_mode="strings")
    except (PydanticSerializationError, ValueError, RecursionError) as problem:
        raise UnusableResult(
            f"{path}: a {type(value).__name__} has no JSON form; return text, a dict, a dataclass or a pydantic model"
        ) from problem


def _check_integer(value: int, path: str) -> int:
    if value.bit_length() > MAX_INT_BITS:
        raise UnusableResult(f"{path}: a number of more than {MAX_INT_BITS} bits cannot be stored; return it as text")
    return value


def _text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _number_as_text(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"
