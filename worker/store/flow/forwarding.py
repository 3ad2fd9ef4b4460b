"""Bringing forward the steps that a limit, a provider or a pause has put off: what held them back has ended."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from ...errors import StateUnreadable, StoreUnavailable
from ...flow.caps import SpendCap, is_cap
from ...flow.concurrency import is_concurrency
from ...flow.values import AT_PROVIDER, REPLICAS, Pause, is_pause
from .. import fields
from ..context import SessionScope, StoreContext, TooManyConflicts
from ..control import ControlFields, control_command
from ..database import Command, WatchedTransaction
from ..fields import is_session_id
from ..keys import ShardKeys
from ..records import StepRef
from ..waking import WakeUp, wake
from .lines import may_go
from .stored_values import read_stored

TOLD: Final = "told"
"""The control field of a step whose provider has told that its job has ended, while the step was not put off."""
_LATE_MS: Final = 1000
"""By how much a step comes behind the end of its pause, since some time has passed before its release."""


def bring_forward(context: StoreContext, causes: Collection[str], page: int = 500) -> list[StepRef | None]:
    """Let all steps that were put off by these become due now, the one that would have come first before the others.

    Args:
        page: Sessions that are read in one round trip.
    Returns:
        For each of these steps: the step to publish, or None where the transaction has published it.
    """
    found = {name: at for found in _pages(context, page) for name, at in found if is_session_id(name)}
    scopes = [context.session(name.decode()) for name in sorted(found, key=found.__getitem__)]
    reads: list[list[Command]] = [[("HGET", scope.keys.ctl, "put_off")] for scope in scopes]
    publish: list[StepRef | None] = []
    for start in range(0, len(scopes), page):
        batch = slice(start, start + page)
        for scope, reply in zip(scopes[batch], context.read_apart("flow.put_off", reads[batch]), strict=True):
            put_off = "" if isinstance(reply, StateUnreadable) else fields.or_else(fields.text, reply[0], "")
            # A step that changes all the time or cannot be read comes at its own time.
            with contextlib.suppress(StateUnreadable, TooManyConflicts):
                # Of a concurrency limit, its parts have put off; of a cap, it as it was then.
                is_several = is_concurrency(put_off) or is_cap(put_off)
                is_meant = put_off in causes or (is_several and put_off.partition("|")[0] in causes)
                woken = wake_put_off(scope, put_off) if is_meant else None
                publish += [] if woken is None else [woken.publish]
    return publish


def look_again(scope: SessionScope, put_off: str) -> StepRef | None:
    """Wake a step that was put off just now, if what holds it back has ended since that was looked at.

    Who ended it may have brought forward what was put off a moment before this step.

    Returns:
        The step to publish, where the transaction could not publish it.
    """
    if put_off == REPLICAS:
        return None
    with contextlib.suppress(StoreUnavailable, TooManyConflicts):  # it comes at its own time
        if _may_go(scope, put_off):
            woken = wake_put_off(scope, put_off, goes_first=is_concurrency(put_off))
            return None if woken is None else woken.publish
    return None


def _may_go(scope: SessionScope, put_off: str) -> bool:
    if put_off == AT_PROVIDER:  # it has told meanwhile
        return bool(scope.database.pipeline("release.look", [("HDEL", scope.keys.ctl, TOLD)])[0])
    if is_concurrency(put_off):
        return may_go(scope.context, scope.session_id, put_off)
    if is_cap(put_off):
        field = put_off.partition("|")[0]
        stored = scope.database.pipeline("release.look", [("HGET", scope.context.fleet.flow, field)])[0]
        cap = read_stored(SpendCap, stored)
        return cap is None or cap.cause != put_off
    if is_pause(put_off):
        return _pause_has_changed(scope, put_off)
    held_by: Command = ("ZSCORE", scope.context.fleet.rate(put_off).line, scope.session_id)
    return scope.database.pipeline("release.look", [held_by])[0] is None


def _pause_has_changed(scope: SessionScope, field: str) -> bool:
    """Whether a pause has ended, is told to the model by now, or ends sooner than the step comes."""
    reads: list[Command] = [("HGET", scope.context.fleet.flow, field), ("HGET", scope.keys.ctl, "not_before")]
    stored, not_before = scope.database.pipeline("release.look", reads)
    pause = read_stored(Pause, stored)
    if pause is None or pause.tell:
        return True
    comes_ms = fields.or_else(fields.milliseconds, not_before, 0)
    return pause.until_ms is not None and pause.until_ms + _LATE_MS < comes_ms


def _pages(context: StoreContext, most: int) -> Iterator[list[tuple[bytes, float]]]:
    """The delayed sessions of all shards, with the times at which they are due; those of a page's end come twice."""
    places: dict[ShardKeys, tuple[float, int]] = dict.fromkeys(context.shards, (context.now_ms("flow.now"), most))
    while places:
        reads: list[Command] = [
            ("ZRANGEBYSCORE", shard.delayed, low, "+inf", "WITHSCORES", "LIMIT", 0, size)
            for shard, (low, size) in places.items()
        ]
        replies = context.database.pipeline("flow.delayed", reads)
        for (shard, (low, size)), flat in zip(list(places.items()), replies, strict=True):
            page = [(name, float(at)) for name, at in zip(flat[::2], flat[1::2], strict=True)]
            yield page
            if len(page) < size:
                del places[shard]
            else:  # a pause with an end puts all off until the same millisecond
                places[shard] = (page[-1][1], size * 2 if page[-1][1] == low else most)


def wake_put_off(scope: SessionScope, *causes: str, goes_first: bool = False) -> WakeUp | None:
    """Let one step become due now; None where it is not put off by one of these any more, or is held.

    Args:
        goes_first: It goes in front of its queue, where it has stood before: what is free for it is idle meanwhile.
    """
    return scope.retry(lambda: _try_to_wake(scope, causes, goes_first), "bring a step forward")


def _try_to_wake(scope: SessionScope, causes: Collection[str], goes_first: bool) -> WakeUp | None:
    keys = scope.keys
    with scope.database.watch("flow.read", (keys.ctl,), [control_command(keys), scope.clock.now()]) as watched:
        control, now_ms = ControlFields.read(watched.replies[0]), scope.clock.milliseconds(watched.replies[1])
        is_put_off = control.put_off in causes and control.phase == "run" and not control.claim
        if not is_put_off or control.not_before_ms <= now_ms or control.is_held(now_ms):
            return None
        publication = _publish_in_front(scope, control, now_ms, watched) if goes_first else ()
        woken = wake(scope, control, now_ms, {}, publication=publication)
        watched.commit("flow.forward", woken.commands)
        return woken


def _publish_in_front(
    scope: SessionScope, control: ControlFields, now_ms: int, watched: WatchedTransaction
) -> Sequence[Command]:
    publisher = scope.context.publisher
    reads = publisher.next_commands(control.queue)
    if not reads:
        return ()
    (following,) = watched.pipeline("flow.next", reads)
    return publisher.commands_in_front(control.ref(scope.session_id), now_ms, following)
