"""Parsing stored journals and inboxes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final, TypeVar, cast

from pydantic import ValidationError

from ..errors import StateUnreadable
from ..state import AnswerRecord, Request, Value
from . import fields
from .journal import BeginRecord, Journal
from .records import InboxKind, Operation

V = TypeVar("V", bound=Value)
# A policy's decision about a call, the note that a service has it; a request of a round, an answer to it, the id of
# its child, the time at which the child was asked to stop.
_ASKED_FIELD: Final = re.compile(r"t(\d{1,4}):(?:([ph])|([qack])(\d{1,4}))")
# Parsed values that are kept, and the largest of them: 5 MB at most.
_KEPT: Final = 512
_KEPT_BYTES: Final = 4_096


def journal(reply: list[bytes]) -> Journal:
    """Parse a step's journal, the reply to HGETALL."""
    if not reply:
        return Journal()
    answer = None
    begun: dict[int, BeginRecord] = {}
    results: dict[int, bytes] = {}
    auxiliary: dict[str, bytes] = {}
    asked: dict[str, bytes] = {}
    rejected: dict[str, bytes] = {}
    tools: bytes | None = None
    for name, value in fields.pairs(reply).items():
        if name == "llm":
            answer = value
        elif name == "tools":
            tools = value
        elif name.startswith("x:"):
            auxiliary[name[2:]] = value
        elif name.startswith("rej:"):
            rejected[name] = value
        elif name.startswith(("try:", "err:")):
            continue  # for those who account for model calls
        elif name.endswith(":s"):
            begun[_call_index(name)] = begun_record(value)
        elif name.endswith(":r"):
            results[_call_index(name)] = value
        else:
            asked[name] = value
    found = Journal(
        answer=answer, begun=begun, results=results, auxiliary=auxiliary, tools=tools,
        rejected=tuple(rejected[name] for name in sorted(rejected, key=lambda name: (len(name), name))),
    )  # fmt: skip
    return _with_asked(found, asked) if asked else found


def _with_asked(found: Journal, asked: Mapping[str, bytes]) -> Journal:
    """Add what the step has asked of people and services, and their answers."""
    decisions: dict[int, bytes] = {}
    requests: list[Request] = []
    answers: dict[tuple[int, int], AnswerRecord] = {}
    started_calls: set[int] = set()
    made: set[tuple[int, int]] = set()
    stopped: dict[tuple[int, int], int] = {}
    for name, value in asked.items():
        match = _ASKED_FIELD.fullmatch(name)
        if match is None:
            continue  # of a newer version
        index, kind, round_ = int(match[1]), match[2] or match[3], int(match[4] or 0)
        if kind == "p":
            decisions[index] = value
        elif kind == "h":
            started_calls.add(index)
        elif kind == "q":
            requests.append(_value(Request, value, name))
        elif kind == "a":
            answers[index, round_] = _value(AnswerRecord, value, name)
        elif kind == "c":
            made.add((index, round_))
        else:
            stopped[index, round_] = fields.milliseconds(value)
    return replace(
        found.with_requests(requests),
        begun=found.begun,
        decisions=decisions,
        answers=answers,
        started_calls=frozenset(started_calls),
        made=frozenset(made),
        stopped=stopped,
        ending=asked.get("end"),
    )


def _value(kind: type[V], value: bytes, name: str) -> V:
    try:
        return cast("V", _read_again(kind, value)) if len(value) <= _KEPT_BYTES else kind.from_json(value)
    except ValidationError:
        raise StateUnreadable(f"journal {name}", f"it is no {kind.__name__}") from None


@lru_cache(_KEPT)
def _read_again(kind: type[Value], value: bytes) -> Value:
    """Parse a value that each leg of a waiting step parses anew: a parent has one for each of its children."""
    return kind.from_json(value)


def begun_record(value: bytes) -> BeginRecord:
    """Parse a begin record: `<claim> <redis ms> <timeout ms>`."""
    try:
        claim, at_ms, timeout_ms = value.decode().split(" ")
        return BeginRecord(claim=claim, at_ms=int(at_ms), timeout_ms=int(timeout_ms))
    except ValueError:
        raise StateUnreadable("journal", "a begin record has not three words") from None


def _call_index(name: str) -> int:
    """Parse the index of a call from the name of its field, such as `t3:s`."""
    try:
        return int(name[1:-2])
    except ValueError:
        raise StateUnreadable("journal", "a field of a call has no number") from None


def inbox(entries: Iterable[bytes], known: Iterable[str]) -> tuple[Operation, ...]:
    """Parse inbox entries and leave out those that were applied before."""
    seen = set(known)
    fresh: list[Operation] = []
    for entry in entries:
        operation = _parse_operation(entry)
        if operation.id not in seen:
            seen.add(operation.id)
            fresh.append(operation)
    return tuple(fresh)


def _parse_operation(entry: bytes) -> Operation:
    data = fields.read_json(entry, "inbox")
    try:
        operation = Operation(id=data["id"], kind=InboxKind(data["kind"]), payload=data["payload"])
    except (KeyError, TypeError, ValueError):
        raise StateUnreadable("inbox", "an entry is no operation") from None
    named = isinstance(cast("object", operation.id), str) and fields.is_text(operation.id)
    if not isinstance(operation.payload, dict) or not named:
        raise StateUnreadable("inbox", "an entry is no operation")
    return operation


def inbox_entry(operation: Operation) -> bytes:
    """Encode an operation as it is stored."""
    return fields.to_json({"id": operation.id, "kind": operation.kind, "payload": operation.payload})
