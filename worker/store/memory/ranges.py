"""Streams, and ranges of lists and sorted sets, as Redis's commands name them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

from ..database import Reply, Word

Score = tuple[float, bytes]


def scores_between(scores: Mapping[bytes, float], low: Word, high: Word) -> list[Score]:
    """Members with scores between two bounds of ZRANGEBYSCORE, in order."""
    (lowest, is_above), (highest, is_below) = _bound(low), _bound(high)
    excluded = {score for score, is_out in ((lowest, is_above), (highest, is_below)) if is_out}
    return sorted((at, member) for member, at in scores.items() if lowest <= at <= highest and at not in excluded)


def members_between(scores: Mapping[bytes, float], low: bytes, high: bytes, options: Sequence[Word]) -> list[bytes]:
    """Members between two bounds of ZRANGEBYLEX, in order."""
    members = sorted(member for member in scores if _is_within(member, low, high))
    return members[int(options[1]) : int(options[1]) + int(options[2])] if options else members


class Stream(list[tuple[tuple[int, int], list[bytes]]]):
    """The entries of a stream: their ids, and their fields and values."""

    last = (0, 0)

    def add(self, now_ms: int, words: list[bytes], limit: int | None, wanted: bytes = b"*") -> tuple[int, int]:
        """Append an entry, with the wanted id or the next one, and keep no more than `limit`; its id."""
        if wanted != b"*":
            self.last = _parse_stream_id(wanted.decode())
        else:
            self.last = (now_ms, 0) if now_ms > self.last[0] else (self.last[0], self.last[1] + 1)
        self.append((self.last, words))
        if limit is not None:
            self.trim(limit)
        return self.last

    def trim(self, most: int) -> int:
        """Keep the newest entries; how many were removed."""
        before = len(self)
        del self[: max(0, before - most)]
        return before - len(self)

    def drop(self, ids: Collection[bytes]) -> int:
        """Remove the entries with these ids; how many there were."""
        before = len(self)
        self[:] = [each for each in self if stream_id(each[0]) not in ids]
        return before - len(self)

    def entries_from(self, first: str, count: int | None) -> list[Reply]:
        """Entries from the first bound of XRANGE on."""
        lowest, is_above = _parse_stream_id(first.lstrip("(-")), first.startswith("(")
        found = (each for each in self if each[0] > lowest or (each[0] == lowest and not is_above))
        return [[stream_id(entry_id), words] for entry_id, words in itertools.islice(found, count)]


def _is_within(member: bytes, low: bytes, high: bytes) -> bool:
    """Whether a member is between two bounds of ZRANGEBYLEX."""
    above = low == b"-" or (member >= low[1:] if low.startswith(b"[") else member > low[1:])
    below = high == b"+" or (member <= high[1:] if high.startswith(b"[") else member < high[1:])
    return above and below


def position(index: int, items: Sequence[object]) -> int:
    """The position in a list that an index names; a negative one counts from the end."""
    return max(0, len(items) + int(index)) if int(index) < 0 else int(index)


def _bound(word: Word) -> tuple[float, bool]:
    """A bound of ZRANGEBYSCORE, and whether it is excluded."""
    text = str(word)
    return float(text.lstrip("(")), text.startswith("(")


def page(items: list[Score], options: Sequence[Word]) -> list[Reply]:
    """The reply to ZRANGEBYSCORE with these options, LIMIT and WITHSCORES."""
    plain = [option for option in options if option != "WITHSCORES"]
    if plain:
        items = items[int(plain[1]) : int(plain[1]) + int(plain[2])]
    if "WITHSCORES" in options:
        return [part for score, member in items for part in (member, score_text(score))]
    return [member for _, member in items]


def score_text(score: float) -> bytes:
    """A number as Redis writes it."""
    return repr(int(score) if score.is_integer() else score).encode()


def stream_id(entry_id: tuple[int, int]) -> bytes:
    """The id of an entry as Redis writes it."""
    return b"%d-%d" % entry_id


def _parse_stream_id(text: str) -> tuple[int, int]:
    milliseconds, _, number = text.partition("-")
    return int(milliseconds or 0), int(number or 0)


def stream_positions(args: Sequence[Word]) -> tuple[dict[str, str], int | None]:
    """The positions after which XREAD reads, by key, and its COUNT."""
    named = [str(word) for word in args[args.index("STREAMS") + 1 :]]
    half = len(named) // 2
    count = int(args[args.index("COUNT") + 1]) if "COUNT" in args else None
    return dict(zip(named[:half], named[half:], strict=True)), count
