"""Writing live text: the entries of many attempts in one script for each shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ....config.settings import Settings
from ..context import StoreContext
from ..database import Word
from .values import Attempt, NewDelta

_ENTRY_BYTES: Final = 200
"""About what an entry takes besides its text: the names of its fields, ids and numbers."""


def write(context: StoreContext, texts: Mapping[Attempt, Sequence[NewDelta]]) -> int:
    """Write live text. See `LiveText.write`."""
    shards: dict[int, list[Word]] = {}
    for attempt, deltas in texts.items():
        keys = context.keys(attempt.claim.ref.session_id)
        words = shards.setdefault(keys.shard.shard, [_life_ms(context)])
        ref, claim = attempt.claim.ref, attempt.claim.id
        words += [keys.session, claim, ref.step, attempt.mark, _count_kept(context.settings, deltas), len(deltas)]
        for delta in deltas:
            entry = _entry(attempt, delta)
            words += [len(entry), *entry]
    return sum(context.database.script("live.write", "write_live", (), words) for words in shards.values())


def _entry(attempt: Attempt, delta: NewDelta) -> list[Word]:
    ref = attempt.claim.ref
    named: list[Word] = ["x", ref.execution_id, "n", ref.step, "a", attempt.claim.id]
    named += ["c", delta.call, "p", delta.part, "o", delta.offset]
    return [*named, "t", delta.text] if delta.data is None else [*named, "d", delta.data]


def _count_kept(settings: Settings, deltas: Sequence[NewDelta]) -> int:
    """The entries that a session keeps: fewer where they are large, since Redis trims a stream by number alone."""
    largest = max((_bytes_of(delta) for delta in deltas), default=0)
    return max(1, min(settings.live_kept, settings.live_bytes // (_ENTRY_BYTES + largest)))


def _bytes_of(delta: NewDelta) -> int:
    return len(delta.data) if delta.data is not None else len(delta.text.encode(errors="replace"))


def _life_ms(context: StoreContext) -> int:
    return round(context.settings.live_seconds * 1000)
