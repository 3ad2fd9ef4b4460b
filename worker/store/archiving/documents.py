"""Documents: every key of a session as one value, read from a database and written back byte for byte.

A document is a line of JSON, with the form, the keys and the lengths of their words, and behind it all words without
anything in between. Keys are named as they are behind the name of the session's hash. It holds no times to live: the
keys of a session that has ended have the life of the session. Journals of committed steps and live text, which have a
time to live of their own, are not in it, and neither is the field that an archived session leaves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...errors import StateTooNew, StateUnreadable
from .. import fields
from ..context import SessionScope
from ..database import Command, Reply, Word
from ..keys import SessionKeys
from ..labels import NO_LABELS, index_commands, read_labels
from ..sessions.loading import ARCHIVED, MARK
from ..sessions.parking import key_names, key_reads

_FORM: Final = 1
_AT_ONCE: Final = 1_000
_HASH, _LIST, _STREAM = "hash", "list", "stream"

Read = Callable[[str, Sequence[Command]], Sequence[Reply]]
"""A round trip, such as `Database.pipeline` or that of a WATCH."""


@dataclass(frozen=True, slots=True)
class Document:
    """A session with all its keys.

    Attributes:
        values: By the name of the key behind that of the session's hash: of a hash its fields and values, in the order
            of the fields; of a list its entries; of a stream its entries, each an id with fields and values.
    """

    values: Mapping[str, Sequence[Any]]

    @property
    def session(self) -> Mapping[bytes, bytes]:
        """The session's hash."""
        return _pairs(self.values[""])

    @property
    def control(self) -> Mapping[bytes, bytes]:
        """The control fields."""
        return _pairs(self.values.get(":ctl", ()))

    @property
    def created_ms(self) -> int:
        """When the session was created (Redis ms)."""
        return fields.milliseconds(self.session.get(MARK.encode()))

    def to_bytes(self) -> bytes:
        """The document as it is stored; the same session gives the same bytes."""
        keys: list[Any] = []
        words: list[bytes] = []
        for name, value in sorted(self.values.items()):
            parts = value if _kind(name) is _STREAM else [value]
            keys.append([name, [[len(word) for word in part] for part in parts]])
            words += (word for part in parts for word in part)
        head = json.dumps({"form": _FORM, "keys": keys}, separators=(",", ":"))
        return b"\n".join((head.encode(), b"".join(words)))

    @classmethod
    def from_bytes(cls, name: str, stored: bytes) -> Document:
        """Read a stored document.

        Args:
            name: Of the session, for the error.
        Raises:
            StateTooNew: A newer version of this package has written it.
            StateUnreadable: It is damaged.
        """
        head, _, words = stored.partition(b"\n")
        what = f"the document of session {name} in the archive"
        try:
            found: Any = json.loads(head)
            if found["form"] > _FORM:
                raise StateTooNew(found["form"], _FORM)
            return cls(dict(_cut(found["keys"], words)))
        except (ValueError, KeyError, TypeError):
            raise StateUnreadable(what, "it is damaged; restore it from a backup of the archive") from None

    def write_commands(self, keys: SessionKeys) -> Iterator[Command]:
        """Commands that write the session where none of its keys is there, and its entries of the indexes."""
        for name, value in self.values.items():
            key, kind = keys.session + name, _kind(name)
            if kind is _STREAM:
                yield from (("XADD", key, *entry) for entry in value)
                continue
            for start in range(0, len(value), _AT_ONCE):
                yield ("HSET" if kind is _HASH else "RPUSH", key, *value[start : start + _AT_ONCE])
        session, name = self.session, keys.session_id
        updated: Word = fields.milliseconds(session.get(b"updated"))
        yield ("ZADD", keys.shard.sessions, updated, name)
        if session.get(b"parent"):
            yield ("ZADD", keys.shard.children, 0, name)
        elif session.get(b"status") == b"failed":
            yield ("ZADD", keys.shard.failed, updated, name)
        yield from index_commands(keys, NO_LABELS, read_labels(session.get(b"labels")))


def read_document(scope: SessionScope, read: Read) -> Document | None:
    """Read a session with all its keys, in two round trips; None where there is none.

    Raises:
        StateUnreadable: A key holds another type, or the session does not say which keys it has.
    """
    keys = scope.keys
    named = [("HGETALL", keys.session), ("HGETALL", keys.ctl), *key_reads(scope)]
    session, control, *replies = read("document.read", named)
    stored = _pairs(session)
    if b"version" not in stored:
        return None
    kept = [key for key in key_names(scope, replies) if key not in (keys.session, keys.ctl, keys.live)]
    kept = [key for key in kept if ":j:" not in key] + list(_open_journal(keys, stored))
    names = [key.removeprefix(keys.session) for key in kept]
    found = dict(zip(names, read("document.lists", [_read(keys.session, name) for name in names]), strict=True))
    values = {name: _parse(name, value) for name, value in found.items() if value}
    stored.pop(ARCHIVED.encode(), None)
    return Document({"": _sorted(stored), ":ctl": _sorted(_pairs(control)), **values})


def _open_journal(keys: SessionKeys, session: Mapping[bytes, bytes]) -> Iterator[str]:
    """The journal behind the last committed step, which a retry needs."""
    head: Any = fields.read_json(session.get(b"head") or b"null", "head")
    try:
        execution = head["state"].get("execution")
        if execution is not None:
            yield keys.journal(execution["execution_id"], execution.get("step_count", 0) + 1)
    except (AttributeError, KeyError, TypeError):
        raise StateUnreadable("head", "it does not say which keys the session has") from None


def _kind(name: str) -> str:
    """The type of a key, by its name behind that of the session's hash."""
    if name == ":events":
        return _STREAM
    return _LIST if name in (":inbox", ":next") or name.startswith((":m:", ":p:", ":x:")) else _HASH


def _read(session: str, name: str) -> Command:
    kind, key = _kind(name), session + name
    if kind is _STREAM:
        return ("XRANGE", key, "-", "+")
    return ("HGETALL", key) if kind is _HASH else ("LRANGE", key, 0, -1)


def _parse(name: str, value: Reply) -> Sequence[Any]:
    kind = _kind(name)
    if kind is _STREAM:
        return [[entry_id, *words] for entry_id, words in value]
    return _sorted(_pairs(value)) if kind is _HASH else value


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _sorted(values: Mapping[bytes, bytes]) -> list[bytes]:
    return [word for pair in sorted(values.items()) for word in pair]


def _cut(keys: Sequence[Any], words: bytes) -> Iterator[tuple[str, Sequence[Any]]]:
    """Cut the words of a document into those of its keys."""
    place = 0
    for name, parts in keys:
        found: list[list[bytes]] = []
        for lengths in parts:
            ends = [place := place + length for length in lengths]
            found.append([words[end - length : end] for end, length in zip(ends, lengths, strict=True)])
        yield name, found if _kind(name) is _STREAM else found[0]
    if place != len(words):
        raise ValueError(place)
