"""The old values of a session: what a save adds to them, and how they stay within their bound.

They are in the hash `…:h`, each under `<name>:<execution>.<step>`, the last committed step at which it held. A field
`~<name>` holds the last step of the newest value of that name that was dropped. `=<digest>` is a text that a question
to the model has named: a prompt or a list of tools, packed where that is shorter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..errors import StateUnreadable
from ..state.agent_state import AgentState
from ..state.past.old_values import ABSENT, Position, continues, old_values, position_of
from ..state.past.past_states import Entry, OldValues
from .asked import Asked
from .bookkeeping import Bookkeeping
from .context import SessionScope
from .database import Command
from .packing import pack, unpack

_BEGIN: Final = Position(0, 0)
_FIRST: Final = Position(1, 0)
_DROPPED: Final = "~"
_TEXT: Final = "="
# So many values that were dropped are remembered by name; then all that is older is refused as a whole.
_MOST_DROPPED: Final = 200
# What is kept of the bound when the oldest are dropped, so that not each save has to.
_SHARE: Final = 3 / 4


class Past(NamedTuple):
    """The bookkeeping of a session about its old values.

    Attributes:
        version: The version of the save that has written it. Where the session has another one, a save by an earlier
            version of this package has kept no old values, and everything before it is unknown.
        is_committed: The session is as its last step has committed it; nothing was saved since.
        size: Bytes of the old values; an upper bound.
        since: The first step at which the state is known.
    """

    version: int
    is_committed: bool = False
    size: int = 0
    since: Position = _BEGIN

    @classmethod
    def read(cls, stored: bytes | None) -> Past | None:
        """Parse the field `past` of a session; None where it has none.

        Raises:
            StateUnreadable: It is damaged.
        """
        if not stored:
            return None
        try:
            version, is_committed, size, since = stored.decode().split(" ")
            return cls(
                version=int(version),
                is_committed=is_committed == "1",
                size=int(size),
                since=parse_position(since),
            )
        except ValueError:
            raise StateUnreadable("past", "it is no record of old values") from None

    def to_stored(self) -> bytes:
        """The field `past`."""
        return f"{self.version} {int(self.is_committed)} {self.size} {_place(self.since)}".encode()


def parse_position(text: str) -> Position:
    """Parse `<execution>.<step>`; raises `ValueError`."""
    execution, step = text.split(".")
    return Position(int(execution), int(step))


def _place(position: Position) -> str:
    return f"{position.execution}.{position.step}"


@dataclass(frozen=True, slots=True)
class PastChange:
    """The changes that a save makes to the old values.

    Attributes:
        stored: The field `past` of the next version; empty where none are kept.
        commands: For the transaction of the save.
        asked: The field `asked` of the next version; None or empty where it is not known.
    """

    stored: bytes
    commands: list[Command]
    asked: bytes | None = None


def begin_past(scope: SessionScope, at: Position) -> PastChange:
    """The old values of a new session that is a copy of another one, as a step has committed it: none yet.

    Args:
        at: The step; those before it are known of the other session alone.
    """
    kept = Past(version=1, is_committed=at.step > 0, since=at).to_stored() if scope.settings.history_bytes else b""
    return PastChange(kept, [])


def is_over(stored: bytes | None, limit: int) -> bool:
    """Whether the old values are beyond their bound, so that the next save reads them and drops the oldest."""
    past = Past.read(stored)
    return past is not None and past.size > limit > 0


def change_past(
    scope: SessionScope,
    known: Bookkeeping,
    states: Sequence[tuple[AgentState | None, AgentState]],
    version: int,
    asked: Asked | None,
    stored: Sequence[bytes] | None = None,
) -> PastChange:
    """Keep the old values that a save replaces.

    Args:
        known: As stored.
        states: Pairs of a state and the next one; the first state is None for a new session.
        version: That the save makes.
        asked: The question of the step that the save commits; None: it commits none.
        stored: The hash, field and value in turn, where the oldest values have to be dropped.
    """
    key, limit = scope.keys.old_values, scope.settings.history_bytes
    if not limit:
        return PastChange(b"", [("DEL", key)] if known.past else [])
    commands: list[Command] = []
    past, facts = Past.read(known.past), known.asked or None
    if past is not None and stored is not None:
        past = _drop_oldest(key, past, stored, limit, (known.asked, commands))
    if past is not None and past.version != version - 1:
        past = None  # the old values of another save are missing
    for before, after in states:
        added = 0
        if before is None:
            past = Past(version, since=position_of(after))
        elif past is None or not continues(before, after):
            commands.clear()
            commands.append(("DEL", key))
            facts = None
            past = Past(version, since=_next_known(before, after))
        else:
            old = old_values(before, after, is_committed=past.is_committed)
            added = _keep(key, old, position_of(before), limit, commands) if old else 0
        past = past._replace(version=version, is_committed=_is_step(before, after), size=past.size + added)
    assert past is not None
    if asked is not None and asked.facts != facts:
        at = position_of(states[0][0]) if states[0][0] is not None else _BEGIN
        # Steps that were committed without a question that is known, by a fork's origin for example, keep that, too.
        old = {"request": facts or ABSENT} if at > _FIRST else {}
        size = _keep(key, old, at, limit, commands) + _keep_texts(key, asked, facts, limit, commands)
        past, facts = past._replace(size=past.size + size), asked.facts
    return PastChange(past.to_stored(), commands, facts)


def _keep_texts(key: str, asked: Asked, known: bytes | None, limit: int, commands: list[Command]) -> int:
    """Add the commands that keep the texts of a question, but for those of the one before; the bytes of these."""
    size = 0
    for digest, text in asked.texts.items():
        if known is not None and digest.encode() in known:
            continue
        value = pack(text)
        if len(value) <= limit:
            commands.append(("HSETNX", key, _TEXT + digest, value))
            size += len(value) + len(digest)
    return size


def _is_step(before: AgentState | None, after: AgentState) -> bool:
    """Whether a save commits a step."""
    done, position = position_of(before) if before is not None else _BEGIN, position_of(after)
    return position.step > (done.step if done.execution == position.execution else 0)


def _next_known(before: AgentState, after: AgentState) -> Position:
    """The first step whose state is known when old values begin with this save."""
    position = position_of(after)
    return position if _is_step(before, after) else Position(position.execution, position.step + 1)


def _keep(key: str, old: Mapping[str, bytes], at: Position, limit: int, commands: list[Command]) -> int:
    """Add the commands that keep values; the bytes that these add. The first value that is kept for a step stays."""
    size = 0
    for name, value in old.items():
        if len(value) > limit:
            commands.append(("HSET", key, _DROPPED + name, _place(at)))
            size += len(name)
        else:
            field = f"{name}:{_place(at)}"
            commands.append(("HSETNX", key, field, value))
            size += len(field) + len(value)
    return size


def read_old_values(stored: Sequence[bytes]) -> OldValues:
    """Parse the hash, field and value in turn.

    Raises:
        StateUnreadable: It is damaged.
    """
    parsed = _parse(stored)
    by_name: dict[str, list[Entry]] = {}
    for name, entry in parsed.entries:
        by_name.setdefault(name, []).append(entry)
    return OldValues(
        by_name, parsed.dropped, {digest: unpack(value, "old values") for digest, value in parsed.texts.items()}
    )


@dataclass(slots=True)
class _Parsed:
    """The hash by the kinds of its fields."""

    entries: list[tuple[str, Entry]]
    dropped: dict[str, Position]
    texts: dict[str, bytes]


def _parse(stored: Sequence[bytes]) -> _Parsed:
    parsed = _Parsed([], {}, {})
    try:
        for field, value in zip(stored[::2], stored[1::2], strict=True):
            text = field.decode()
            if text.startswith(_TEXT):
                parsed.texts[text.removeprefix(_TEXT)] = value
            elif text.startswith(_DROPPED):
                parsed.dropped[text.removeprefix(_DROPPED)] = parse_position(value.decode())
            else:
                name, _, until = text.rpartition(":")
                parsed.entries.append((name, Entry(parse_position(until), value)))
    except ValueError:
        raise StateUnreadable("old values", "a field is no old value") from None
    return parsed


def _drop_oldest(
    key: str, past: Past, stored: Sequence[bytes], limit: int, change: tuple[bytes | None, list[Command]]
) -> Past:
    """Add the commands that drop the oldest values, and remember up to which step those of their names are gone.

    Args:
        change: The field `asked` as stored, and the commands of the save.
    """
    asked, commands = change
    parsed, size = _parse(stored), sum(len(each) for each in stored)
    gone: list[str] = []
    entries = sorted(parsed.entries, key=lambda each: each[1].until)
    while entries and size > limit * _SHARE:
        name, entry = entries.pop(0)
        gone.append(f"{name}:{_place(entry.until)}")
        size -= len(gone[-1]) + len(entry.value)
        parsed.dropped[name] = entry.until
    named = b" ".join((asked or b"", *(entry.value for name, entry in entries if name == "request")))
    unnamed = [digest for digest in parsed.texts if digest.encode() not in named]
    size -= sum(len(digest) + len(parsed.texts[digest]) for digest in unnamed)
    gone += [_TEXT + digest for digest in unnamed]
    if gone:
        commands.append(("HDEL", key, *gone))
    since, dropped = past.since, parsed.dropped
    if len(dropped) > _MOST_DROPPED:
        since = max(since, *(Position(at.execution, at.step + 1) for at in dropped.values()))
        commands.append(("HDEL", key, *(_DROPPED + name for name in dropped)))
    elif gone:
        places = [word for name, at in dropped.items() for word in (_DROPPED + name, _place(at))]
        commands.append(("HSET", key, *places))
    return past._replace(size=size, since=since)
