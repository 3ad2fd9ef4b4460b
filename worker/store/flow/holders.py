"""Holders of concurrency limits: taken before a step or a call begins, given back behind it, by the script `holders`.

Who gets none stands in a line and is put off. Whoever gives a holder back calls who may go now, and wakes it. The sweep
calls, too: what a dead process has left undone is done by it.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...errors import ClaimLost, StateUnreadable
from ...flow.concurrency import ConcurrencyLimit, LimitPart, concurrency_field, is_concurrency, undefined_cause
from .. import fields, primaries
from ..children.above import tree_roots
from ..context import StorePart, TooManyConflicts
from ..control import ControlFields, control_command
from ..database import Command, Reply, run_scripts
from ..labels import LABELS, read_labels
from ..records import StepRef
from .forwarding import wake_put_off
from .lines import script_words
from .stored_values import read_stored

_ANOTHER: Final = -2
_TAKEN_OVER: Final = -3
_CALL_MS: Final = 0.5
_MOST_PARTS: Final = 100
"""Lines that one pass of the sweep looks at, those first that it has not looked at for longest."""
_MOST_CLEARED: Final = 10
"""Sessions of each of these lines that it looks at."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A step or a call that counts for concurrency limits.

    Attributes:
        id: Unique: that of its claim, and for a call its index behind it.
        parts: The parts of limits, in the order in which they are asked.
        since_ms: For each part, since when its limit is known to be set (Redis ms); 0: it was removed; -1: nobody
            has defined it, as far as its worker knows.
        claimed_ms: When its claim was made (Redis ms).
    """

    id: str
    session_id: str
    parts: tuple[LimitPart, ...]
    since_ms: tuple[int, ...]
    claimed_ms: int

    @property
    def stands_by(self) -> float:
        """By what its session stands in a line: the time of the claim, and half a millisecond for a call."""
        return self.claimed_ms + _CALL_MS if " " in self.id else self.claimed_ms


@dataclass(frozen=True, slots=True)
class Taken:
    """A holder was taken, or kept.

    Attributes:
        others_wait: Somebody stands in one of the lines.
    """

    others_wait: bool


@dataclass(frozen=True, slots=True)
class NoneFree:
    """No holder is free.

    Attributes:
        part: The part that refuses.
        most: Its limit. None: nobody has defined the limit.
        held: How many hold.
        publish: Steps of others to publish, who may go since this one stands elsewhere.
    """

    part: LimitPart
    most: int | None
    held: int = 0
    publish: tuple[StepRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A session that may go now.

    Attributes:
        is_again: It was called some time before, and did not come.
        mark: When it was called (Redis ms).
    """

    part: LimitPart
    session_id: str
    is_again: bool
    mark: int


class HolderVerbs(StorePart):
    """Taking and giving back holders, and calling who may go."""

    def keep_holder(self, holder: Holder, *, lease_ms: int) -> Taken | None:
        """Let a holder count for as long again; one round trip. None: it has ended, and nothing was written.

        Raises:
            StoreUnavailable: No answer in time; asking again is safe.
        """
        asked = {"op": "keep", "id": holder.id, "session": holder.session_id, "lease": lease_ms}
        reply: list[Any] = self._run("holders.keep", holder.parts, asked)
        return Taken(bool(reply[2])) if reply[0] else None

    def take_holder(
        self, holder: Holder, *, lease_ms: int, stand: bool = True, again: bool = False
    ) -> Taken | NoneFree | None:
        """Take a holder for all parts; who has it already keeps it for as long again. One round trip.

        Args:
            lease_ms: So long it counts, unless it is kept.
            stand: A session that gets none stands in the line of the part that refuses it; it has to be put off by
                the part's cause, and is called then. False: it waits nowhere.
            again: It has ended while its process was paused. Its session stays in the line, where a later claim of
                it may wait by now.
        Returns:
            None: A limit is another one by now, with other parts maybe; nothing was written.
        Raises:
            StoreUnavailable: No answer in time; asking again is safe.
            StoreForbidden: The user may run no scripts.
            ClaimLost: A later claim of the session stands in a line; nothing was written.
        """
        asked = {"op": "take", "id": holder.id, "session": holder.session_id, "lease": lease_ms, "stand": stand}
        asked |= {"again": again, "since": holder.since_ms, "claimed": holder.stands_by}
        reply: list[Any] = self._run("holders.take", holder.parts, asked)
        if reply[0] > 0:
            return Taken(bool(reply[2]))
        if reply[0] == _ANOTHER:
            return None
        if reply[0] == _TAKEN_OVER:
            raise ClaimLost(f"session {holder.session_id} has another claim by now, which waits for a holder")
        part, most = holder.parts[int(reply[2]) - 1], int(reply[3])
        publish = self.wake_called(_read_calls(holder.parts, reply[5]))
        return NoneFree(part, None if most < 0 else most, held=int(reply[4]), publish=tuple(publish))

    def give_holder(self, holder: Holder) -> list[StepRef]:
        """Give a holder back, and wake who may go now.

        Returns:
            Steps to publish, where the transactions could not.
        Raises:
            StoreUnavailable: No answer in time. The holder ends with its lease, or is given back already.
        """
        reply = self._run("holders.give", holder.parts, {"op": "give", "id": holder.id})
        return self.wake_called(_read_calls(holder.parts, reply))

    def call_waiting(self) -> list[StepRef]:
        """Drop the holders of dead claims, and wake who may go; for the sweep.

        Returns:
            Steps to publish, where the transactions could not.
        """
        context = self._context
        names = context.database.pipeline("holders.lines", [("ZRANGE", context.fleet.lines, 0, _MOST_PARTS - 1)])[0]
        parts = [LimitPart.parse(fields.name(name)) for name in names]
        if not parts:
            return []
        settled = self._has_settled()
        runs = [script_words(context, (part,), {"op": "call", "settled": settled}) for part in parts]
        replies = run_scripts(context.database, "holders.call", "holders", runs)
        calls = [each for part, reply in zip(parts, replies, strict=True) for each in _read_calls((part,), reply)]
        return self.wake_called([*calls, *self._clear_lines(parts)])

    def _clear_lines(self, parts: Sequence[LimitPart]) -> list[Call]:
        """Let some sessions leave whose execution has ended: where nobody is called, they would stay.

        Returns:
            Who may go instead of them.
        """
        context, calls = self._context, list[Call]()
        claims = [context.fleet.holders(str(part)).claims for part in parts]
        counts = context.database.pipeline("holders.count", [("ZCARD", key) for key in claims])
        starts = [random.randrange(max(1, count - _MOST_CLEARED + 1)) for count in counts]
        places = zip(claims, starts, strict=True)
        reads = [("ZRANGE", key, start, start + _MOST_CLEARED - 1, "WITHSCORES") for key, start in places]
        found = zip(parts, context.database.pipeline("holders.stand", reads), strict=True)
        standing = [
            (part, fields.name(stands[at]), stands[at + 1]) for part, stands in found for at in range(0, len(stands), 2)
        ]
        looks = [[control_command(context.keys(name))] for _, name, _ in standing]
        for (part, name, claimed), control in zip(standing, context.read_apart("holders.look", looks), strict=True):
            if not isinstance(control, StateUnreadable) and _has_ended(control[0]):
                asked = {"op": "leave", "session": name, "claimed": float(claimed)}
                calls += _read_calls((part,), self._run("holders.leave", (part,), asked))
        return calls

    def wake_called(self, calls: Iterable[Call]) -> list[StepRef]:
        """Wake sessions that were called; who will not come leaves the line, and another one is called.

        Returns:
            Steps to publish, where the transactions could not.
        """
        publish, waiting = list[StepRef](), deque(calls)
        while waiting:
            each = waiting.popleft()
            # A session that changes all the time, or cannot be read, is called again.
            with contextlib.suppress(StateUnreadable, TooManyConflicts):
                causes = (each.part.cause, undefined_cause(each.part.name))
                woken = wake_put_off(self._context.session(each.session_id), *causes, goes_first=True)
                if woken is not None:
                    publish += [] if woken.publish is None else [woken.publish]
                elif not self._comes(each):
                    asked = {"op": "leave", "session": each.session_id, "mark": each.mark}
                    waiting += _read_calls((each.part,), self._run("holders.leave", (each.part,), asked))
        return publish

    def labels_of(self, session_id: str) -> dict[str, str]:
        """The labels by which a session is limited: its own, and those of the root of its tree that it lacks."""
        root = tree_roots(self._context, [session_id])[session_id]
        names = dict.fromkeys((root, session_id))
        reads = [("HGET", self._context.keys(name).session, LABELS) for name in names]
        found = self._context.database.pipeline("holders.labels", reads)
        return {key: value for raw in found for key, value in read_labels(raw).items()}

    def _comes(self, called: Call) -> bool:
        """Whether a session that cannot be woken is on its way, or waits in another line."""
        keys, clock = self._context.keys(called.session_id), self._context.clock
        reply, now = self._context.database.pipeline("holders.look", [control_command(keys), clock.now()])
        control, now_ms = ControlFields.read(reply), clock.milliseconds(now)
        if control.phase != "run" or control.is_held(now_ms):
            return False
        if control.not_before_ms > now_ms:
            return is_concurrency(control.put_off) and self._keeps_place(called, control.put_off)
        # Refused a moment ago, it is about to be put off. Called again, it runs without having needed the holder.
        return not (control.claim and called.is_again)

    def _keeps_place(self, called: Call, put_off: str) -> bool:
        """Whether a session that waits in another line stays: it will come, and something may begin in the other line.

        Of an earlier claim it needs only what it has waited for to make a call, where it now waits for its step.
        """
        fleet, awaited = self._context.fleet, LimitPart.parse(put_off.partition(":")[2])
        claims = [fleet.holders(str(part)).claims for part in (called.part, awaited)]
        reads: list[Command] = [("ZSCORE", key, called.session_id) for key in claims]
        reads.append(("HGET", fleet.flow, concurrency_field(awaited.name)))
        here, there, raw = self._context.database.pipeline("holders.look", reads)
        if called.part == awaited or None in (here, there):
            return True
        limit = read_stored(ConcurrencyLimit, raw)
        may_begin = raw == b"" or (limit is not None and limit.most_of(awaited) != 0)
        comes = float(here) >= float(there) or (_is_of_call(here) and not _is_of_call(there))
        return may_begin and comes

    def _run(self, point: str, parts: Sequence[LimitPart], asked: dict[str, Any]) -> Reply:
        return self._context.database.script(point, "holders", *script_words(self._context, parts, asked))

    def _has_settled(self) -> bool:
        """Whether holders whose lease has ended are gone: after a start or a failover of Redis they may come back."""
        context, clock = self._context, self._context.clock
        reads = [clock.now(), clock.uptime(), *primaries.reads(context.fleet)]
        now, uptime, info, stored = context.database.pipeline("holders.settled", reads)
        now_ms = clock.milliseconds(now)
        primary = primaries.read_primary(context.fleet, now_ms, info, stored)
        if primary.notes:
            context.database.pipeline("holders.primary", primary.notes)
        is_old = clock.uptime_seconds(uptime) >= context.settings.lease_seconds
        return is_old and primary.has_settled(now_ms, context.lease_ms)


def _has_ended(control: Reply) -> bool:
    """Whether a session has gone, or nothing of it runs or waits; one that cannot be read may."""
    try:
        return ControlFields.read(control).phase not in ("run", "wait")
    except StateUnreadable:
        return False


def _is_of_call(stands_by: bytes) -> bool:
    return float(stands_by) % 1 == _CALL_MS


def _read_calls(parts: Sequence[LimitPart], reply: Sequence[Any]) -> list[Call]:
    groups = zip(reply[::4], reply[1::4], reply[2::4], reply[3::4], strict=True)
    return [
        Call(parts[int(index) - 1], fields.name(name), is_again=bool(again), mark=int(mark))
        for index, name, again, mark in groups
    ]
