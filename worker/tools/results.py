"""Converting the result of a tool to the JSON value that is stored and shown to the model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final, cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from ..known_secrets import NO_SECRETS, SecretMatcher, current_matcher
from ..redaction import whole_unicode
from ..state.values.frozen import MAX_INT_BITS

Json = Any

DEFAULT_MAX_RESULT_CHARS: Final = 32_000
"""Characters of one result that reach the model and the store. About eight thousand tokens."""

MAX_DEPTH: Final = 64
"""Levels of nesting of a stored result; deeper than that is a cycle more often than data."""

# This part of a longer result is read, for the sake of secrets and of the count of what is left out.
_LOOKED_AT_TIMES: Final = 2
_LOOKED_AT_CHARS: Final = 1_000_000
# What an item of a list or an object counts besides its texts.
_ITEM_CHARS: Final = 4
_SHOWN_PATH_CHARS: Final = 200


class UnusableResult(ValueError):
    """A tool returned something that has no JSON form. The tool has run; only its result is lost."""


def to_json_value(
    result: Any,
    limit_chars: int | None = DEFAULT_MAX_RESULT_CHARS,
    *,
    limit_bytes: int | None = None,
    keeps_secrets: bool = False,
) -> Json:
    """Turn what a tool returned into a JSON value.

    Pydantic models, dataclasses, enums, dates, UUIDs, decimals, paths, sets and tuples get their usual JSON form; NaN
    and infinities, which JSON lacks, become the texts "NaN", "Infinity", "-Infinity"; lone surrogates become U+FFFD.

    Args:
        result: What the tool returned.
        limit_chars: Characters kept. Longer text is cut, longer structures become the beginning of their JSON text;
            both end in a marker that says how much is missing. None keeps everything.
        limit_bytes: Bytes kept, as UTF-8; None: only characters count.
        keeps_secrets: Leave secrets of this process in texts; otherwise they become `[redacted]`.

    Raises:
        UnusableResult: Something in it is not JSON (bytes, a generator, a cycle) or cannot be read; the text says what.
    """
    if limit_bytes is not None:  # a character has at least one byte, so no more has to be looked at
        limit_chars = limit_bytes if limit_chars is None else min(limit_chars, limit_bytes)
    limits = _Limits(limit_chars, limit_bytes)
    conversion = _Conversion(limits.most_chars, NO_SECRETS if keeps_secrets else current_matcher())
    if type(result) is str:  # cut before it is read: a tool may return a hundred megabytes
        return limits.cut(conversion.text(result[: limits.most_chars]), len(result))
    try:
        value = conversion.convert(result, "result", 0)
    except UnusableResult:
        raise
    except Exception as error:  # its own iteration, length or attributes may raise anything
        raise UnusableResult(f"result: reading it raised {type(error).__name__}; return plain data") from error
    if limit_chars is None or value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, str):
        return limits.cut(value, len(value))
    text = json.dumps(value, ensure_ascii=False)
    if conversion.is_cut:
        return f"{limits.beginning_of(text)}[… the rest is left out: the result is very large]"
    return value if limits.fits(text) else limits.cut(text, len(text))


class _Limits:
    """How much of a result is kept.

    Attributes:
        most_chars: Characters of a result that are looked at; a secret that begins before the cut is seen whole.
    """

    __slots__ = ("bytes", "chars", "most_chars")

    def __init__(self, chars: int | None, most_bytes: int | None) -> None:
        self.chars = chars
        self.bytes = most_bytes
        self.most_chars = None if chars is None else max(_LOOKED_AT_TIMES * chars, _LOOKED_AT_CHARS)

    def fits(self, text: str) -> bool:
        return self.beginning_of(text) == text

    def beginning_of(self, text: str) -> str:
        kept = text if self.chars is None else text[: self.chars]
        return kept if self.bytes is None else kept.encode()[: self.bytes].decode(errors="ignore")

    def cut(self, text: str, whole_chars: int) -> str:
        """The beginning of a text, with a marker where it is not all of it.

        Args:
            whole_chars: Characters of the whole, of which the text may be the part that was looked at.
        """
        kept = self.beginning_of(text)
        is_whole = self.most_chars is None or whole_chars <= self.most_chars
        if is_whole and len(kept) == len(text):
            return text
        # Redaction may have changed the length of a text that was looked at in full.
        return f"{kept}[… {(len(text) if is_whole else whole_chars) - len(kept)} characters left out]"


class _Conversion:
    """Converts one result; stops at a number of characters, so that a huge structure is not copied."""

    def __init__(self, most_chars: int | None, secrets: SecretMatcher) -> None:
        self._left = math.inf if most_chars is None else most_chars
        self._secrets = secrets
        self.is_cut = False

    def convert(self, value: Any, path: str, depth: int) -> Json:
        kind = cast("type[Any]", type(value))
        if kind is str:
            return self.text(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return _check_integer(value, path)
        if kind is float:
            return value if math.isfinite(value) else json.dumps(value)  # NaN, Infinity, -Infinity
        if depth >= MAX_DEPTH:
            raise UnusableResult(
                f"{path[:_SHOWN_PATH_CHARS]}: nested deeper than {MAX_DEPTH} levels, or a cycle; return a flatter value"
            )
        return self._structure(value, path, depth + 1)

    def text(self, text: str) -> str:
        """A text that UTF-8 can hold, without secrets; no more of it than is looked at."""
        if len(text) > self._left:
            text, self.is_cut = text[: int(self._left)], True
        self._left -= len(text)
        return self._secrets.redact(whole_unicode(text))

    def _structure(self, value: Any, path: str, depth: int) -> Json:
        if isinstance(value, Mapping):
            return self._mapping(value, path, depth)  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(value, (list, tuple, Set)):
            return self._list(value, path, depth)  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(value, BaseModel):
            return self.convert(value.model_dump(), path, depth)
        if is_dataclass(value) and not isinstance(value, type):
            return {f.name: self.convert(getattr(value, f.name), f"{path}.{f.name}", depth) for f in fields(value)}
        return self._leaf(value, path, depth)

    def _list(self, items: Iterable[Any], path: str, depth: int) -> list[Json]:
        converted: list[Json] = []
        for i, item in enumerate(items):
            if not self._has_room():
                break
            converted.append(self.convert(item, f"{path}[{i}]", depth))
        return converted

    def _mapping(self, mapping: Mapping[Any, Any], path: str, depth: int) -> dict[str, Json]:
        converted: dict[str, Json] = {}
        for key, item in mapping.items():
            if not self._has_room():
                break
            name = self._key(key, path)
            if name in converted:
                raise UnusableResult(f"{path}: two keys become {name!r} in JSON; use text keys")
            converted[name] = self.convert(item, f"{path}.{name}", depth)
        return converted

    def _has_room(self) -> bool:
        """Whether another item is looked at."""
        self._left -= _ITEM_CHARS
        if self._left > 0:
            return True
        self.is_cut = True
        return False

    def _key(self, key: Any, path: str) -> str:
        if type(key) is str:
            return self.text(key)
        text = self.convert(key, f"{path} (a key)", MAX_DEPTH - 1)
        if isinstance(text, (dict, list)) or text is None:
            raise UnusableResult(f"{path}: a key of type {type(key).__name__} has no JSON form; use text keys")
        return text if isinstance(text, str) else json.dumps(text)

    def _leaf(self, value: Any, path: str, depth: int) -> Json:
        if isinstance(value, (bytes, bytearray, memoryview)):
            raise UnusableResult(f"{path}: bytes have no JSON form; decode them, or store them and return where")
        if isinstance(value, Enum):
            return self.convert(value.value, path, depth)
        if isinstance(value, str):
            return self.text(str(value))
        if isinstance(value, int):
            return _check_integer(int(value), path)
        if isinstance(value, float):
            return self.convert(float(value), path, depth)
        # It may be a list: pydantic knows other sequences than those above.
        return self.convert(_convert_known(value, path), path, depth)


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
