"""Labels of sessions: in a session's hash, and in an index of its shard by which the sessions of a label are found.

The index is a sorted set in the order of bytes, in which each label of a session has two members:

    =<key>=<value> LF <session>    gives the sessions of a label
    @<session> LF <key>=<value>    gives the labels of a session: one that has expired is taken out by them

Labels change rarely, so that commits write nothing for them: listings get the order from the times of the sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, cast

from ..errors import InvalidInput, StateUnreadable
from ..state.values.frozen import FrozenMap
from . import fields
from .database import Command, Word
from .keys import SessionKeys, ShardKeys

LABELS: Final = "labels"
"""The field of a session's hash with its labels, as a JSON object; missing where it has none."""

NO_LABELS: Final[Mapping[str, str]] = FrozenMap[str]()
MOST_LABELS: Final = 16
_KEY_CHARS: Final = 64
_VALUE_CHARS: Final = 128
_VALUE_ADVICE: Final = f"a value is one line of 1 to {_VALUE_CHARS} characters, without spaces around it."


def check_labels(given: object, field: str = "labels") -> dict[str, str]:
    """Check labels that a caller gives; None is none.

    Args:
        field: Its name, for the error.
    Raises:
        InvalidInput: They are no labels; the error names the key.
    """
    labels: dict[str, str] = {}
    for key, value in check_changes({} if given is None else given, field).items():
        if value is None:
            raise InvalidInput(f"{field}[{key!r}]", value, _VALUE_ADVICE)
        labels[key] = value
    return labels


def read_pairs(field: str, pairs: Iterable[str]) -> dict[str, str]:
    """Read labels that are written as `key=value`.

    Raises:
        InvalidInput: One is no such pair, or a key is given twice.
    """
    labels: dict[str, str] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or key in labels:
            raise InvalidInput(field, pair, "give key=value, and each key once.")
        labels[key] = value
    return labels


def check_changes(given: object, field: str = "labels") -> dict[str, str | None]:
    """Check changes of labels that a caller gives: a value of None removes the label.

    Args:
        field: Its name, for the error.
    Raises:
        InvalidInput: They are no labels; the error names the key.
    """
    if not isinstance(given, Mapping):
        raise InvalidInput(field, given, "give a dict of texts, such as {'customer': '42'}.")
    labels: dict[str, str | None] = {}
    for key, value in cast("Mapping[object, object]", given).items():
        if not isinstance(key, str) or not 0 < len(key) <= _KEY_CHARS or "=" in key or not _is_line(key):
            advice = f"a key is one line of 1 to {_KEY_CHARS} characters, without '=' and without spaces around it."
            raise InvalidInput(field, key, advice)
        if value is not None and not (isinstance(value, str) and 0 < len(value) <= _VALUE_CHARS and _is_line(value)):
            raise InvalidInput(f"{field}[{key!r}]", value, _VALUE_ADVICE)
        labels[key] = value
    check_number(len(labels))
    return labels


def check_number(number: int) -> None:
    """Refuse more labels than a session may have.

    Raises:
        InvalidInput: There are more.
    """
    if number > MOST_LABELS:
        raise InvalidInput("labels", f"{number} labels", f"a session has at most {MOST_LABELS}; remove some first.")


def _is_line(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return text == text.strip() and text.isprintable()


def read_labels(stored: bytes | None) -> Mapping[str, str]:
    """Parse the field of a session's hash.

    Raises:
        StateUnreadable: It is damaged.
    """
    if not stored:
        return NO_LABELS
    found = fields.read_json(stored, LABELS)
    try:
        return FrozenMap[str].of(check_labels(found))
    except InvalidInput as error:
        raise StateUnreadable(LABELS, str(error)) from None


def label_words(labels: Mapping[str, str]) -> list[Word]:
    """The field of a new session's hash; none where it has no labels."""
    return [LABELS, fields.to_json(dict(labels))] if labels else []


def index_commands(keys: SessionKeys, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Command]:
    """Bring the index from the labels that a session had to those that it has."""
    added, gone = after.items() - before.items(), before.items() - after.items()
    if added:
        words: list[Word] = [each for label in sorted(added) for name in _members(keys, *label) for each in (0, name)]
        yield ("ZADD", keys.shard.labels, *words)
    if gone:
        yield ("ZREM", keys.shard.labels, *(name for label in sorted(gone) for name in _members(keys, *label)))


def _members(keys: SessionKeys, key: str, value: str) -> tuple[bytes, bytes]:
    label = f"{key}={value}"
    return f"={label}\n{keys.session_id}".encode(), f"@{keys.session_id}\n{label}".encode()


def sessions_range(key: str, value: str) -> tuple[bytes, bytes]:
    """The bounds in which the index holds the sessions of a label, for ZRANGEBYLEX and ZLEXCOUNT."""
    label = f"={key}={value}".encode()
    return b"[" + label + b"\n", b"(" + label + b"\x0b"


def labels_range(session_id: str) -> tuple[bytes, bytes]:
    """The bounds in which the index holds the labels of a session."""
    own = f"@{session_id}".encode()
    return b"[" + own + b"\n", b"(" + own + b"\x0b"


def session_of(member: bytes) -> bytes:
    """The session that a member within `sessions_range` names."""
    return member.rpartition(b"\n")[2]


def removal(shard: ShardKeys, session_id: str, members: list[bytes]) -> Iterator[Command]:
    """Take a session out of the index, by its members within `labels_range`."""
    if members:
        labels = [member.partition(b"\n")[2] for member in members]
        yield ("ZREM", shard.labels, *members, *(b"=" + label + b"\n" + session_id.encode() for label in labels))


def is_member(member: bytes) -> bool:
    """Whether the index may hold a member."""
    left, line, right = member.partition(b"\n")
    label, session = (left, right) if left[:1] == b"=" else (b"=" + right, left[1:])
    return bool(line) and left[:1] in (b"=", b"@") and b"=" in label[1:] and fields.is_session_id(session)
