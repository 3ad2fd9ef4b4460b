"""The one text of a JSON value, from which ids and digests are derived."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


def is_same_json(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON; Python takes 1, 1.0 and True for equal."""
    return one is other or _encode(one) == _encode(other)


def canonical_digest(values: Sequence[Any]) -> str:
    """Derive 64 hexadecimal digits from JSON values; the order of an object's keys does not matter."""
    return sha256(_encode(list(values)).encode("ascii")).hexdigest()
