"""Breakages of concurrency limits. Seeds under such limits have to find each of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import inf
from typing import Any, Final
from unittest.mock import patch

from celery_agents.worker.engine.leases import ActiveLease, LeaseKeeper
from celery_agents.worker.store.database import Command, Reply, Word

from .mutants import Mutant
from .smart_mutants import patched
from .substitutes import EditedDatabase, Substitutes, blanked
from support.points import Points


class _EditedScript(EditedDatabase):
    """Edits what is asked of the script `holders`, and what it answers, each time on its own."""

    def script(self, point: str, name: str, keys: Sequence[str], args: Sequence[Word]) -> Reply:
        if name != "holders":
            return super().script(point, name, keys, args)
        return self.holders(point, keys, json.loads(str(args[0])))

    def script_command(self, name: str, keys: Sequence[str], args: Sequence[Word]) -> Command | None:
        return None if name == "holders" else super().script_command(name, keys, args)

    def holders(self, point: str, keys: Sequence[str], ask: dict[str, Any]) -> Reply:
        return self.inner.script(point, "holders", keys, [json.dumps(ask)])


class _NotCounted(_EditedScript):
    def holders(self, point: str, keys: Sequence[str], ask: dict[str, Any]) -> Reply:
        if ask["op"] != "take":
            return super().holders(point, keys, ask)
        (others,) = self.inner.pipeline("cheat", [("ZRANGE", keys[2], 0, -1, "WITHSCORES")])
        self.inner.pipeline("cheat", [("DEL", keys[2])])
        try:
            return super().holders(point, keys, ask)
        finally:
            pairs = zip(others[::2], others[1::2], strict=True)
            back: list[Command] = [("ZADD", keys[2], "NX", score, name) for name, score in pairs]
            self.inner.pipeline("cheat", [*back, ("EXISTS", keys[2])])


class _NobodyCalls(_EditedScript):
    def holders(self, point: str, keys: Sequence[str], ask: dict[str, Any]) -> Reply:
        reply = super().holders(point, keys, ask)
        return [] if ask["op"] in ("give", "call") else reply


class _NotKept(_EditedScript):
    def holders(self, point: str, keys: Sequence[str], ask: dict[str, Any]) -> Reply:
        return [1, 0, 0] if ask["op"] == "keep" else super().holders(point, keys, ask)


class _LostOnesGoOn(_EditedScript):
    def holders(self, point: str, keys: Sequence[str], ask: dict[str, Any]) -> Reply:
        reply = super().holders(point, keys, ask)
        return [1, 0, 0] if ask["op"] == "take" and ask["again"] and not reply[0] else reply


class _NobodyLeaves(_EditedScript):
    def holders(self, point: str, keys: Sequence[str], ask: dict[str, Any]) -> Reply:
        return [] if ask["op"] == "leave" else super().holders(point, keys, ask)


class _KeptOutOfTheLine(_EditedScript):
    def holders(self, point: str, keys: Sequence[str], ask: dict[str, Any]) -> Reply:
        reply = super().holders(point, keys, ask)
        if ask["op"] == "keep" and reply[0]:
            self.inner.pipeline("cheat", [("ZREM", key, ask["session"]) for key in keys[3:5]])
        return reply


class _OldClaimsTake(_EditedScript):
    def holders(self, point: str, keys: Sequence[str], ask: dict[str, Any]) -> Reply:
        return super().holders(point, keys, ask | ({"claimed": 2**53} if ask["op"] == "take" else {}))


class _UndefinedOnesForgotten(_EditedScript):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        is_undefined = point == "flow.put_off" and isinstance(reply, bytes) and reply.startswith(b"undefined:")
        return b"" if is_undefined else reply

    def holders(self, point: str, keys: Sequence[str], ask: dict[str, Any]) -> Reply:
        reply = super().holders(point, keys, ask)
        if ask["op"] == "take" and reply[0] == 0 and reply[3] < 0:
            self.inner.pipeline("cheat", [("ZREM", key, ask["session"]) for key in keys[3:]])
        return reply


class _StoppedOnesPutOff(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return blanked(command, reply, "cancel") if point == Points.RELEASE_READ else reply


_IS_FRESH: Final = LeaseKeeper.is_fresh


def _by_the_lease_alone(keeper: LeaseKeeper, lease: ActiveLease) -> bool:
    with patch.object(keeper, "holders_kept_at", lambda _: inf):
        return _IS_FRESH(keeper, lease)


HOLDING_MUTANTS: Final = (
    Mutant("holders_not_counted", "who takes a holder does not count the others", Substitutes(_NotCounted)),
    Mutant("nobody_calls", "neither a give nor the sweep calls who waits", Substitutes(_NobodyCalls)),
    Mutant("holders_not_kept", "the heartbeat keeps no holder", Substitutes(_NotKept), 105),
    Mutant(
        "late_holders_count", "a call begins under a holder that was not kept for as long as it counts",
        Substitutes(during=patched(LeaseKeeper, "is_fresh", _by_the_lease_alone)), 2719,
    ),
    Mutant(
        "lost_holders_go_on", "a step goes on although another one has its holder", Substitutes(_LostOnesGoOn), 548
    ),
    Mutant("nobody_leaves_the_line", "who will not come stays in the line", Substitutes(_NobodyLeaves)),
    Mutant(
        "kept_out_of_the_line", "a holder that is kept takes its session out of the line",
        Substitutes(_KeptOutOfTheLine), 74,
    ),
    Mutant(
        "old_claims_take", "a claim that was taken over takes its session out of the line",
        Substitutes(_OldClaimsTake), 3483,
    ),
    Mutant(
        "undefined_ones_forgotten", "who waits for a limit to be defined stands in no line, and is not brought forward",
        Substitutes(_UndefinedOnesForgotten), 26,
    ),
    Mutant("stopped_ones_put_off", "a step that was asked to stop is put off", Substitutes(_StoppedOnesPutOff), 142),
)  # fmt: skip
