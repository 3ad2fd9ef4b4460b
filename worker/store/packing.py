"""Entries of a session's lists, compressed with zstd. What a step repeats of its messages takes no room.

A packed entry begins with a byte with which no JSON begins, so that each entry tells its form. Two forms:

    ALONE        the frame
    OVER         claim, spans, "\\n", the frame: compressed with the step's messages as its dictionary.
                 A tab separates the claim, and section, generation, start and stop of each span

Messages and items of parts are of the first form. So is a step that was not written together with its messages, or
that has asked: those who look for requests read it without the conversation. Every other step is of the second form:
the answer of its model and the results of its tools are in its messages already. A reader gets each JSON back byte for
byte.

RFC 8878 describes the frame.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from ..errors import StateUnreadable
from ..state.codec.split import ListChange
from ..state.conversation.messages import Span
from ..state.execution.steps import StepExecution
from . import fields
from .database import Command, Reply
from .keys import SessionKeys

if TYPE_CHECKING:
    from backports import zstd
else:
    try:
        from compression import zstd
    except ImportError:
        from backports import zstd

Messages = Callable[[Span], Sequence[object]]
"""Gives the messages of a span, as JSON or parsed; fewer where not all are there."""

_ALONE: Final = b"\x01"
_OVER: Final = b"\x02"
# Quick, and within three percent of the default level on entries of 0.3 to 6 kB.
_LEVEL: Final = 1
# Compressing gives up the interpreter's lock, and a worker has other threads that take it: packing every entry of short
# steps cost a tenth of their CPU. From this size on, what is saved on the way to Redis is more than that.
_LEAST_BYTES: Final = 1_000
# Redis has no larger value.
_MOST_BYTES: Final = 512 * 1024 * 1024

# What most entries have in common. Stored data depend on these very bytes: other ones need forms of their own.
_COMMON: Final = (
    b'"content":"","thinking":""}"errors":[{"kind":"tool_error","message":""}],"outcome":"error","cache_read":'
    b'{"role":"user","content":"'
    b'{"role":"assistant","tool_calls":[{"id":"call_","name":"","args":{"","metadata":{"step_id":"'
    b'{"role":"tool","content":"","tool_call_id":"call_","name":"","metadata":{"tool_execution_id":"-0","step_id":"",'
    b'"execution_id":"","agent_id":"","is_trace":true}}'
    b'{"id":"-1","step":{"id":"-1","number":1,"inputs":{"messages":[0,1]},"outputs":[["messages",0,1,3]],'
    b'"inference_response":{"tool_calls":[{"id":"call_","name":"","args":{}}],"usage":{"input":1,"output":1},"model":"",'
    b'"request_id":"","cost":0.0},"tool_executions":[{"id":"-1-0","tool_call":{"id":"call_","name":"","args":{}},'
    b'"outcome":"ok","value":"","started_at":"2026-09-21T15:13:20Z","completed_at":"2026-09-21T15:13:20Z"}]},'
    b'"started_at":"2026-09-21T15:13:20Z","completed_at":"2026-09-21T15:13:20Z","claim":"'
)
_ALONE_DICTIONARY: Final = zstd.ZstdDict(_COMMON, is_raw=True)
# Another dictionary than the one that was packed with gives other bytes, which the checksum finds.
_OPTIONS: Final[Mapping[int, int]] = {
    zstd.CompressionParameter.compression_level: _LEVEL,
    zstd.CompressionParameter.checksum_flag: 1,
}


class _Compressors(threading.local):
    """Each thread's compressor: making one takes longer than using it, and a fork must not find it locked."""

    def __init__(self) -> None:
        self.alone = zstd.ZstdCompressor(options=_OPTIONS, zstd_dict=_ALONE_DICTIONARY.as_digested_dict)


_compressors: Final = _Compressors()


def pack(item: bytes) -> bytes:
    """Pack JSON by itself; what gains nothing by it stays as it is."""
    if len(item) < _LEAST_BYTES:
        return item
    alone = _compressors.alone
    packed = _ALONE + alone.compress(item, alone.FLUSH_FRAME)
    return packed if len(packed) < len(item) else item


def unpack(entry: bytes, part: str = "an entry") -> bytes:
    """The JSON of an entry, packed by itself or not at all.

    Raises:
        StateUnreadable: It is damaged.
    """
    return _decompress(entry[1:], _ALONE_DICTIONARY, part) if entry[:1] == _ALONE else entry


def pack_step(step: StepExecution, item: bytes, sections: Mapping[str, ListChange], *, alone: bool) -> bytes:
    """Pack the JSON of a step over its messages, where these are written with it and it has not asked.

    Args:
        sections: What is appended to sections in the same transaction.
        alone: Pack any other step by itself; else it stays as it is.
    """
    packed = _pack_over(step, item, sections)
    if packed is None:
        return pack(item) if alone else item
    return packed if len(packed) < len(item) else item


def _pack_over(step: StepExecution, item: bytes, sections: Mapping[str, ListChange]) -> bytes | None:
    """Pack the JSON of a step over its messages; None where they cannot be relied on, and for a short one."""
    messages: list[bytes] = []
    header = step.claim
    for span in step.step.outputs:
        section = sections.get(span.section)
        if section is None or section.generation != span.generation or span.start < section.start:
            return None
        messages += section.items[span.start - section.start : span.stop - section.start]
        header += f"\t{span.section}\t{span.generation}\t{span.start}\t{span.stop}"
    if len(item) < _LEAST_BYTES or not messages or any(each.resolutions for each in step.step.tool_executions):
        return None
    head = header.encode() + b"\n"
    compressor = zstd.ZstdCompressor(options=_OPTIONS, zstd_dict=_dictionary(head, messages))
    return _OVER + head + compressor.compress(item, compressor.FLUSH_FRAME)


def _dictionary(header: bytes, messages: Iterable[bytes]) -> tuple[zstd.ZstdDict, int]:
    return zstd.ZstdDict(b"".join((_COMMON, *messages, header)), is_raw=True).as_prefix


def unpack_step(entry: bytes, messages: Messages, part: str) -> bytes | None:
    """The JSON of an entry of a list of steps.

    Returns:
        None: One of the messages is not there as JSON.
    Raises:
        StateUnreadable: It is damaged, or has other messages.
    """
    if entry[:1] != _OVER:
        return unpack(entry, part)
    needed: list[bytes] = []
    for span in step_spans(entry, part):
        found = messages(span)
        needed += (each for each in found if isinstance(each, bytes))
        if len(needed) < len(found) or len(found) != span.stop - span.start:
            return None
    begin = entry.index(b"\n") + 1
    return _decompress(entry[begin:], _dictionary(entry[1:begin], needed), part)


def step_spans(entry: bytes, part: str = "a step") -> tuple[Span, ...]:
    """The spans of the messages that an entry of a list of steps is packed over; none: it is read by itself."""
    return _read_header(entry, part)[1] if entry[:1] == _OVER else ()


def step_claim(entry: bytes) -> object:
    """The claim under which a step was committed, by its entry; its messages are not needed."""
    if entry[:1] == _OVER:
        return _read_header(entry, "a step")[0]
    step = fields.read_json(unpack(entry), "steps")
    return cast("dict[str, object]", step).get("claim") if isinstance(step, dict) else None


def _read_header(entry: bytes, part: str) -> tuple[str, tuple[Span, ...]]:
    try:
        claim, *words = entry[1 : entry.index(b"\n")].decode().split("\t")
        places = [words[at : at + 4] for at in range(0, len(words), 4)]
        return claim, tuple(Span._make((name, *map(int, numbers))) for name, *numbers in places)
    except (ValueError, TypeError):
        raise StateUnreadable(part, "what it is packed over cannot be read") from None


def read_steps(
    read: Callable[[str, Sequence[Command]], list[Reply]], keys: SessionKeys, entries: Sequence[bytes], first: int = 0
) -> list[bytes]:
    """The JSON of entries of a list of steps, with one further read where they are packed over messages.

    Args:
        read: As `Database.pipeline`.
        first: The place of the first entry in its list.
    Raises:
        StateUnreadable: One is damaged, or its messages are not kept any more.
    """
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    for span in (span for entry in entries for span in step_spans(entry)):
        start, stop = ranges.get((span.section, span.generation), (span.start, span.stop))
        ranges[span.section, span.generation] = min(start, span.start), max(stop, span.stop)
    commands: list[Command] = [
        ("LRANGE", keys.section(*place), start, stop - 1) for place, (start, stop) in ranges.items()
    ]
    lists = dict(zip(ranges, read("steps.messages", commands) if commands else (), strict=True))

    def messages(span: Span) -> list[bytes]:
        place = span.section, span.generation
        start = span.start - ranges[place][0]
        return [unpack(each) for each in lists[place][start : start + span.stop - span.start]]

    found: list[bytes] = []
    for place, entry in enumerate(entries, first):
        part = f"steps[{place}]"
        item = unpack_step(entry, messages, part)
        if item is None:
            raise StateUnreadable(part, "the messages that it is packed over are not kept any more")
        found.append(item)
    return found


def _decompress(frame: bytes, dictionary: Any, part: str) -> bytes:
    decompressor = zstd.ZstdDecompressor(zstd_dict=dictionary)
    try:
        found = decompressor.decompress(frame, max_length=_MOST_BYTES)
    except zstd.ZstdError:
        raise StateUnreadable(part, "it is packed and damaged, or packed over other messages") from None
    if not decompressor.eof:
        raise StateUnreadable(part, f"it is packed and cut off, or larger than {_MOST_BYTES} bytes")
    return found
