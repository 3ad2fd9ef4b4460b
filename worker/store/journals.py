"""The journal of a step: what it has already obtained.

First writer wins, whoever holds the claim: an answer that was paid for counts even when it comes from a worker whose
lease has ended. What begins something needs the claim.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from .. import crash_points
from ..errors import ClaimLost, StoreFull
from . import fields
from .ground import Ground
from .keys import SessionKeys
from .records import Begun, Claim
from .tables import Command


@dataclass(frozen=True, slots=True)
class Beginnings:
    """What may begin.

    Attributes:
        mine: Indexes of the calls that this claim began now, or had begun under the same claim.
        others: Calls that another claim began before, with their records.
        results: Calls that have a result meanwhile.
        cancel: A stop was asked for; nothing may begin and nothing was recorded.
    """

    mine: frozenset[int]
    others: Mapping[int, Begun]
    results: Mapping[int, bytes]
    cancel: str | None


def record_answer(ground: Ground, claim: Claim, raw: bytes) -> bytes:
    """Store the driver's raw answer. See `StepStore.record_answer`."""
    keys, journal = _keys(ground, claim)
    try:
        first, step = ground.tables.apply(
            "journal.answer", [("HSETNX", journal, "llm", raw), ("HMGET", keys.ctl, "execution", "step")]
        )
        _bury_if_past(ground, claim, journal, step)
    except StoreFull:
        first = ground.tables.script("journal.full", "journal_when_full", (journal, keys.events), ("llm", raw))[0]
    crash_points.at("c3")
    if first:
        return raw
    return ground.tables.ask("journal.adopt", [("HGET", journal, "llm")])[0]


def begin_calls(
    ground: Ground, claim: Claim, timeouts_ms: Mapping[int, int], at_ms: int, again: Collection[int]
) -> Beginnings:
    """Record that tool calls begin. See `StepStore.begin_calls`."""
    keys, journal = _keys(ground, claim)
    wanted = sorted(timeouts_ms)
    record = {i: f"{claim.id} {at_ms} {timeouts_ms[i]}" for i in wanted}
    commands: list[Command] = [("HSET" if i in again else "HSETNX", journal, f"t{i}:s", record[i]) for i in wanted]
    replies = ground.tables.apply(
        "journal.begin",
        [
            ("HMGET", keys.ctl, "execution", "step", "claim", "cancel"),
            ("HMGET", journal, *(f"t{i}:r" for i in wanted)),
            *commands,
            ("HMGET", journal, *(f"t{i}:s" for i in wanted)),
        ],
    )
    control, results, begun = replies[0], replies[1], replies[-1]
    finished = {i: value for i, value in zip(wanted, results, strict=True) if value is not None}
    records = {i: fields.begun_record(value) for i, value in zip(wanted, begun, strict=True)}
    fresh = [i for i, written in zip(wanted, replies[2:-1], strict=True) if written]
    cancel = fields.text(control[3])
    cancel = cancel if cancel == claim.ref.execution_id else ""
    lost = fields.text(control[2]) != claim.id
    if lost or cancel:
        _take_back(ground, claim, journal, fresh, control)
    elif finished:
        _take_back(ground, claim, journal, [i for i in fresh if i in finished], control)
    if lost:
        raise ClaimLost(f"step {claim.ref.step} of session {claim.ref.session_id} has another claim by now")
    crash_points.at("c4")
    mine = (
        frozenset(i for i in wanted if records[i].claim == claim.id and i not in finished)
        if not cancel
        else frozenset[int]()
    )
    others = {i: records[i] for i in wanted if records[i].claim != claim.id and i not in finished}
    return Beginnings(mine, others, finished, cancel or None)


def result_commands(ground: Ground, claim: Claim, results: Mapping[int, bytes]) -> list[Command]:
    """Commands that record results; they may travel with the commit's first reads."""
    _, journal = _keys(ground, claim)
    return [("HSETNX", journal, f"t{i}:r", value) for i, value in sorted(results.items())]


def record_results(ground: Ground, claim: Claim, results: Mapping[int, bytes]) -> None:
    """Store results of tool calls. See `StepStore.record_results`."""
    keys, journal = _keys(ground, claim)
    try:
        replies = ground.tables.apply(
            "journal.result",
            [*result_commands(ground, claim, results), ("HMGET", keys.ctl, "execution", "step")],
        )
        _bury_if_past(ground, claim, journal, replies[-1])
    except StoreFull:
        words = [word for i, value in sorted(results.items()) for word in (f"t{i}:r", value)]
        ground.tables.script("journal.full", "journal_when_full", (journal, keys.events), words)
    crash_points.at("c6")


def record_failure(ground: Ground, claim: Claim, number: int, failure: bytes) -> None:
    """Note a driver attempt that gave no answer. See `StepStore.record_failure`."""
    keys, journal = _keys(ground, claim)
    replies = ground.tables.apply(
        "journal.failure",
        [("HSETNX", journal, f"err:{claim.id}:{number}", failure), ("HMGET", keys.ctl, "execution", "step")],
    )
    _bury_if_past(ground, claim, journal, replies[-1])


def drop_answer(ground: Ground, claim: Claim) -> bool:
    """Forget an answer that cannot be parsed, as long as no tool of it has begun. See `StepStore.drop_answer`."""
    keys, journal = _keys(ground, claim)
    control, everything = ground.tables.apply("journal.look", [("HGET", keys.ctl, "claim"), ("HGETALL", journal)])
    stored = fields.journal(everything)
    if fields.text(control) != claim.id or stored.begun or stored.results:
        return False
    ground.tables.apply("journal.drop", [("HDEL", journal, "llm")])
    return True


def _keys(ground: Ground, claim: Claim) -> tuple[SessionKeys, str]:
    keys = ground.keys(claim.ref.session_id)
    return keys, keys.journal(claim.ref.execution_id, claim.ref.step)


def _take_back(ground: Ground, claim: Claim, journal: str, fresh: Sequence[int], control: Sequence[bytes]) -> None:
    """A record that begins nothing must not stay: it would read as a call whose outcome is unknown."""
    if fresh:
        ground.tables.apply("journal.unbegin", [("HDEL", journal, *(f"t{i}:s" for i in fresh))])
    _bury_if_past(ground, claim, journal, control)


def _bury_if_past(ground: Ground, claim: Claim, journal: str, control: Sequence[bytes | None]) -> None:
    """A worker that slept through the commit of its step may have revived the journal: give it its end again."""
    if fields.text(control[0]) != claim.ref.execution_id or fields.number(control[1]) != claim.ref.step:
        ground.tables.apply("journal.bury", [("PEXPIRE", journal, ground.journal_ms)])
