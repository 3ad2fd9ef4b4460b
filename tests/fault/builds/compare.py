"""Compares what two builds say of the same sessions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, cast

Fields = dict[str, Any]

ADDED: Final[Mapping[str, Any]] = {
    "labels": {},
    "history_lost": None,
    "confirmed": None,
    "is_archived": False,
    "unread": 0,
    "tokens": ...,  # a sum over what was stored
    "default_steps": None,
    "rewound_to": None,
    "expires_at": None,
    "tags": None,
    "completion_window": None,
    "newest_message": ...,  # those that came while the session waited were stored, too
    "messages": ...,
    "needs_seen": False,
    "while_waiting": "hold",
}
"""Fields that later builds have added, each with what it says of what was stored before; `...`: anything."""

_TAKEN_AT: Final = "snapshot.created_at"
_SHOWN: Final = 200
_AGO: Final = re.compile(r"\b\d+ (s|min|h) ago\b")


@dataclass(frozen=True, slots=True)
class Difference:
    """A place where two builds do not say the same."""

    place: str
    before: str
    after: str


def differences(before: Any, after: Any, place: str = "") -> Iterator[Difference]:
    """The places where `after` says something else than `before`, apart from fields that were added."""
    if _is_mended(place, before):
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _of_fields(cast("Fields", before), cast("Fields", after), place)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):  # type: ignore[arg-type]
        for one, other in zip(before, after, strict=True):  # type: ignore[arg-type]
            yield from differences(one, other, f"{place}[]")
    elif place != _TAKEN_AT and (type(before) is not type(after) or _plain(before) != _plain(after)):
        yield Difference(place, repr(before)[:_SHOWN], repr(after)[:_SHOWN])


def _of_fields(before: Fields, after: Fields, place: str) -> Iterator[Difference]:
    kept = [name for name in after if name in before]
    if kept != list(before):
        yield Difference(f"{place} (names)", f"{list(before)}", f"{kept}")
    for name in kept:
        yield from differences(before[name], after[name], f"{place}.{name}".lstrip("."))
    for name in after.keys() - before.keys():
        if name not in ADDED or ADDED[name] not in (..., after[name]):
            yield Difference(f"{place}.{name}", "absent", repr(after[name])[:_SHOWN])


def _is_mended(place: str, before: Any) -> bool:
    """Whether the earlier build was wrong here: it took a fork that had not run for deleted, and gave no reason of a stop."""
    is_fork = place == "GET /requests" and before[0] == HTTPStatus.GONE
    return is_fork or (place.startswith("GET /tree") and place.endswith(".reason") and before == "")


def _plain(value: object) -> object:
    """A value without what depends on when it is read."""
    return _AGO.sub("ago", value) if isinstance(value, str) else value
