"""The journal of a step: what it has already obtained.

First writer wins, whoever holds the claim: an answer that was paid for counts even when it comes from a worker whose
lease has ended. What begins something needs the claim.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ... import crash_points
from ...errors import ClaimLost, StoreFull, StoreUnavailable
from .. import decoding, fields
from ..context import StoreContext
from ..database import Changed, Command, Reply, Word
from ..keys import SessionKeys
from ..records import BeginRecord, Claim

_CONFLICTS: Final = 50
# Of the control hash: what tells whether a step is past.
_STANDING: Final = ("execution", "step", "phase")


@dataclass(frozen=True, slots=True)
class BeginResult:
    """What may begin.

    Attributes:
        mine: Indexes of the calls that this claim began now, or had begun under the same claim.
        others: Calls that another claim began before, with their records.
        results: Calls that have a result meanwhile.
        cancel: A stop was asked for; nothing may begin and nothing was recorded.
    """

    mine: frozenset[int]
    others: Mapping[int, BeginRecord]
    results: Mapping[int, bytes]
    cancel: str | None


def record_answer(context: StoreContext, claim: Claim, raw: bytes) -> bytes:
    """Store the driver's raw answer. See `StepStore.record_answer`."""
    keys, journal = _keys(context, claim)
    try:
        first, control = context.database.transaction(
            "journal.answer", [("HSETNX", journal, "llm", raw), ("HMGET", keys.ctl, *_STANDING)]
        )
        bury_if_past(context, claim, control)
    except StoreFull:
        first = _record_when_full(context, claim, keys, ("llm", raw))[0]
    crash_points.at("c3")
    if first:
        return raw
    # None: the step is long past, and its journal with it; the commit will say so.
    return context.database.pipeline("journal.adopt", [("HGET", journal, "llm")])[0] or raw


def begin_calls(
    context: StoreContext, claim: Claim, timeouts_ms: Mapping[int, int], at_ms: int, again: Collection[int]
) -> BeginResult:
    """Record that tool calls begin. See `StepStore.begin_calls`."""
    keys, journal = _keys(context, claim)
    wanted = sorted(timeouts_ms)
    record = {i: f"{claim.id} {at_ms} {timeouts_ms[i]}" for i in wanted}
    commands: list[Command] = [("HSET" if i in again else "HSETNX", journal, f"t{i}:s", record[i]) for i in wanted]
    whole: list[Command] = [
        ("HMGET", keys.ctl, *_STANDING, "claim", "cancel"),
        ("HMGET", journal, *(f"t{i}:r" for i in wanted)),
        *commands,
        ("HMGET", journal, *(f"t{i}:s" for i in wanted)),
    ]
    replies = (
        _begin_again(context, claim, keys, whole) if again else context.database.transaction("journal.begin", whole)
    )
    control, results, begun = replies[0], replies[1], replies[-1]
    finished = {i: value for i, value in zip(wanted, results, strict=True) if value is not None}
    records = {i: decoding.begun_record(value) for i, value in zip(wanted, begun, strict=True)}
    fresh = [i for i, written in zip(wanted, replies[2:-1], strict=True) if written]
    cancel = fields.text(control[4])
    cancel = cancel if cancel == claim.ref.execution_id else ""
    lost = fields.text(control[3]) != claim.id
    if lost:
        # A record that stays reads as a call that may have happened, which is the safe way to be wrong.
        bury_if_past(context, claim, control)
        raise _lost(claim)
    if cancel or finished:
        _take_back(context, journal, {i: record[i] for i in fresh if cancel or i in finished})
    crash_points.at("c4")
    mine = (
        frozenset(i for i in wanted if records[i].claim == claim.id and i not in finished)
        if not cancel
        else frozenset[int]()
    )
    others = {i: records[i] for i in wanted if records[i].claim != claim.id and i not in finished}
    return BeginResult(mine, others, finished, cancel or None)


def result_commands(context: StoreContext, claim: Claim, results: Mapping[int, bytes]) -> list[Command]:
    """Commands that record results; they may travel with the commit's first reads."""
    _, journal = _keys(context, claim)
    return [("HSETNX", journal, f"t{i}:r", value) for i, value in sorted(results.items())]


def record_results(context: StoreContext, claim: Claim, results: Mapping[int, bytes]) -> None:
    """Store results of tool calls. See `StepStore.record_results`."""
    keys, _ = _keys(context, claim)
    try:
        replies = context.database.transaction(
            "journal.result",
            [*result_commands(context, claim, results), ("HMGET", keys.ctl, *_STANDING)],
        )
        bury_if_past(context, claim, replies[-1])
    except StoreFull:
        words = [word for i, value in sorted(results.items()) for word in (f"t{i}:r", value)]
        _record_when_full(context, claim, keys, words)
    crash_points.at("c6")


def record_failure(context: StoreContext, claim: Claim, number: int, failure: bytes) -> None:
    """Note a driver attempt that gave no answer. See `StepStore.record_failure`."""
    keys, journal = _keys(context, claim)
    replies = context.database.transaction(
        "journal.failure",
        [("HSETNX", journal, f"err:{claim.id}:{number}", failure), ("HMGET", keys.ctl, *_STANDING)],
    )
    bury_if_past(context, claim, replies[-1])


def drop_answer(context: StoreContext, claim: Claim) -> bool:
    """Forget an answer that cannot be parsed, as long as no tool of it has begun. See `StepStore.drop_answer`."""
    keys, journal = _keys(context, claim)
    reads: list[Command] = [("HGET", keys.ctl, "claim"), ("HGETALL", journal)]
    for _ in range(_CONFLICTS):
        try:
            # Watched: after a pause another claim's answer may stand in its place.
            with context.database.watch("journal.look", (keys.ctl, journal), reads) as watched:
                control, stored = fields.text(watched.replies[0]), decoding.journal(watched.replies[1])
                if control != claim.id or stored.begun or stored.results:
                    return False
                watched.commit("journal.drop", [("HDEL", journal, "llm")])
                return True
        except Changed:
            continue
    return False


def bury_if_past(context: StoreContext, claim: Claim, control: Sequence[bytes | None] | None = None) -> None:
    """A worker that slept through the commit of its step may have revived the journal: give it its end again.

    Watched: a retry that brings the step back at this moment needs its journal.

    Args:
        control: The standing of the session as it was read; None: not read.
    """
    if control is not None and not _is_past(claim, control):
        return
    keys, journal = _keys(context, claim)
    for _ in range(_CONFLICTS):
        try:
            with context.database.watch("journal.past", (keys.ctl,), [("HMGET", keys.ctl, *_STANDING)]) as watched:
                if _is_past(claim, watched.replies[0]):
                    watched.commit("journal.bury", [("PEXPIRE", journal, context.journal_ms)])
                return
        except Changed:
            continue


def _keys(context: StoreContext, claim: Claim) -> tuple[SessionKeys, str]:
    keys = context.keys(claim.ref.session_id)
    return keys, keys.journal(claim.ref.execution_id, claim.ref.step)


def _begin_again(context: StoreContext, claim: Claim, keys: SessionKeys, commands: Sequence[Command]) -> list[Reply]:
    """Records of an earlier claim are overwritten, so the claim must be mine in the very transaction that does it."""
    for _ in range(_CONFLICTS):
        try:
            with context.database.watch("journal.again", (keys.ctl,), [("HGET", keys.ctl, "claim")]) as watched:
                if fields.text(watched.replies[0]) != claim.id:
                    raise _lost(claim)
                return watched.commit("journal.begin", commands)
        except Changed:
            continue
    raise StoreUnavailable(f"session {claim.ref.session_id} changes too fast to begin a call")


def _take_back(context: StoreContext, journal: str, mine: Mapping[int, str]) -> None:
    """A record that begins nothing must not stay, as long as it is still mine."""
    names = [f"t{i}:s" for i in mine]
    if not names:
        return
    try:
        with context.database.watch("journal.mine", (journal,), [("HMGET", journal, *names)]) as watched:
            still = [
                name
                for name, stored, written in zip(names, watched.replies[0], mine.values(), strict=True)
                if fields.text(stored) == written
            ]
            if still:
                watched.commit("journal.unbegin", [("HDEL", journal, *still)])
    except Changed:
        return  # somebody else writes there now; a record that stays reads as a call that may have happened


def _lost(claim: Claim) -> ClaimLost:
    return ClaimLost(f"step {claim.ref.step} of session {claim.ref.session_id} has another claim by now")


def _record_when_full(context: StoreContext, claim: Claim, keys: SessionKeys, words: Sequence[Word]) -> list[Reply]:
    _, journal = _keys(context, claim)
    first = context.database.script("journal.full", "journal_when_full", (journal, keys.events), words)
    bury_if_past(context, claim)
    return first


def _is_past(claim: Claim, control: Sequence[bytes | None]) -> bool:
    here = (claim.ref.execution_id, claim.ref.step)
    return (fields.text(control[0]), fields.number(control[1])) != here or fields.text(control[2]) == "end"
