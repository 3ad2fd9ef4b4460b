"""Looking for history that Redis has lost: sessions that this process has cached at a later version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any, Final

from ...errors import SessionNotFound, StateUnreadable
from ...moments import unix_ms
from ...state.execution.steps import StepExecution
from ...state.execution.tool_calls import ToolOutcome
from .. import fields
from ..bookkeeping import common_version
from ..cache import CachedSession
from ..context import SessionScope, StoreContext, StorePart
from ..database import Command, Guard, Reply
from ..event_records import EventType, NewEvent
from ..events import event_commands
from ..history_losses import LOST, HistoryLoss
from ..keys import ShardKeys
from ..primaries import REPLICATION, replication_id
from ..sessions.loading import MARK, LoadVerbs

_BATCH: Final = 500
_SHOWN: Final = 20
_NO_EFFECT: Final = frozenset({ToolOutcome.BLOCKED, ToolOutcome.NOT_RUN})

IsPure = Callable[[str, str], bool]
"""Whether a tool of an agent, both by name, has no effect."""


@dataclass(frozen=True, slots=True)
class FoundLosses:
    """The sessions that a check has found.

    Attributes:
        told: Sessions whose end was lost, and of which an event tells now.
        gone: Sessions that are gone, and nothing explains it.
    """

    told: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


class HistoryVerbs(StorePart):
    """Finding sessions of which Redis has lost the end, or all."""

    _primary = ""

    def check_histories(self, worker: str, is_pure: IsPure) -> FoundLosses:
        """Compare what this process has cached with what is stored, where Redis may have lost something.

        Nothing is sent unless a connection was lost, or a session was read that does not continue the cached one.

        Args:
            worker: Whom the event names.
            is_pure: Calls of such tools are not named.
        Raises:
            StoreUnavailable: No answer in time; the next call looks again.
        """
        context, server = self._context, self._context.server
        if not server.may_have_moved and not context.cache.has_doubts:
            return FoundLosses()
        known, suspects = self._primary, {}
        try:
            suspects = context.cache.take_doubted(every=server.may_have_moved and self._has_moved())
            return _look(context, suspects, worker, is_pure)
        except BaseException:  # the next call looks again
            self._primary, server.may_have_moved = known, True
            for session_id, cached in suspects.items():
                context.cache.doubt_again(session_id, cached)
            raise

    def _has_moved(self) -> bool:
        """Ask for the primary; whether it is another one than at the last time. In a cluster, any of them may be."""
        known, self._context.server.may_have_moved = self._primary, False  # a connection lost from here on counts again
        if self._context.fleet.is_apart:
            return True
        (info,) = self._context.database.pipeline("history.primary", [REPLICATION])
        self._primary = replication_id(info)
        return bool(known) and known != self._primary

    def list_lost(self) -> tuple[int, list[tuple[str, HistoryLoss]]]:
        """Count the sessions whose history was lost in part within the retention, and read the newest of them."""

        def reads(shard: ShardKeys) -> list[Command]:
            newest = ("ZREVRANGEBYSCORE", shard.lost, "+inf", "-inf", "WITHSCORES", "LIMIT", 0, _SHOWN)
            return [("ZCARD", shard.lost), newest]

        replies = self._context.read_shards("history.list", reads).values()
        entries = sorted(
            ((fields.score_ms(score), fields.name(member)) for _, flat in replies
             for member, score in zip(flat[::2], flat[1::2], strict=True)), reverse=True,
        )[:_SHOWN]  # fmt: skip
        names = [name for _, name in entries]
        stored = self._context.read_apart(
            "history.losses", [[("HGET", self._context.keys(name).session, LOST)] for name in names]
        )
        losses = [(name, HistoryLoss.read(found[0])) for name, found in zip(names, stored, strict=True)
                  if not isinstance(found, StateUnreadable)]  # fmt: skip
        return sum(count for count, _ in replies), [(name, loss) for name, loss in losses if loss is not None]


def _look(context: StoreContext, suspects: Mapping[str, CachedSession], worker: str, is_pure: IsPure) -> FoundLosses:
    told: list[str] = []
    gone: list[str] = []
    rest = iter(suspects.items())
    while some := list(islice(rest, _BATCH)):
        for scope, cached, replies, now_ms in _read_versions(context, some):
            if not fields.number(replies[0]):
                gone += [scope.session_id] if _is_unexplained(scope, cached, replies, now_ms) else []
            elif _tell_if_lost(scope, cached, replies, now_ms, worker, is_pure):
                told.append(scope.session_id)
    return FoundLosses(tuple(told), tuple(gone))


def forget_old_losses(context: StoreContext, shards: Sequence[ShardKeys], now_ms: int) -> None:
    """Take losses that are older than the retention out of the lists of shards."""
    if context.retention_ms is not None:
        until_ms = now_ms - context.retention_ms
        old: list[Command] = [("ZREMRANGEBYSCORE", shard.lost, "-inf", until_ms) for shard in shards]
        context.database.pipeline("prune.lost", old)


def _read_versions(
    context: StoreContext, suspects: Sequence[tuple[str, CachedSession]]
) -> Iterator[tuple[SessionScope, CachedSession, Sequence[Reply], int]]:
    """Read version, lineage, loss and deletion mark of sessions, and Redis's time (ms); damaged ones are left out."""
    scopes = [context.session(session_id) for session_id, _ in suspects]
    reads: list[list[Command]] = [[("HMGET", each.keys.session, "version", "lineage", LOST, MARK)] for each in scopes]
    *replies, now = context.read_apart("history.read", [*reads, [context.clock.now()]])
    if isinstance(now, StateUnreadable):
        return
    now_ms = context.clock.milliseconds(now[0])
    for scope, (_, cached), reply in zip(scopes, suspects, replies, strict=True):
        if not isinstance(reply, StateUnreadable):
            yield scope, cached, reply[0], now_ms


def _is_unexplained(scope: SessionScope, cached: CachedSession, replies: Sequence[Reply], now_ms: int) -> bool:
    """Whether neither a deletion mark nor a retention that has passed explains that a session is gone."""
    *_, mark = replies
    execution, retention_ms = cached.state.execution, scope.context.retention_ms
    if mark is not None or execution is None or execution.started_at is None:
        return False
    seen = [execution.started_at, *(done.completed_at for done in execution.step_executions[-1:])]
    return retention_ms is None or now_ms < unix_ms(max(seen)) + retention_ms


def _tell_if_lost(
    scope: SessionScope, cached: CachedSession, replies: Sequence[Reply], now_ms: int, worker: str, is_pure: IsPure
) -> bool:
    """Tell once that the end of a history was lost, if it was."""
    version, lineage, lost, _ = replies
    found = fields.number(version)
    common = common_version(lineage or b"", found, cached.bookkeeping.lineage, cached.version)
    if common is None and found > cached.version:
        return False  # what is cached is too old to tell
    at, mark = common or (None, b"")
    before = HistoryLoss.read(lost)
    if at == cached.version or (before is not None and before.mark == mark.hex()):
        return False
    steps = _lost_steps(scope, cached)
    loss = HistoryLoss(
        known_version=cached.version,
        found_version=found,
        common_version=at,
        mark=mark.hex(),
        at_ms=now_ms,
        steps=tuple(done.step.number for done in steps),
        calls=tuple(_effects(cached.agent, steps, is_pure)),
        worker=worker,
    )
    return _tell(scope, cached, loss, version, lost)


def _tell(scope: SessionScope, cached: CachedSession, loss: HistoryLoss, version: Reply, lost: Reply) -> bool:
    """Write a loss; False: the session was saved meanwhile, and is looked at again, or another worker has told it."""
    execution = cached.state.execution
    event = NewEvent(
        type=EventType.HISTORY_LOST,
        execution_id=execution.execution_id if execution is not None else "",
        step=loss.steps[0] if loss.steps else 0,
        data={name: value for name, value in loss.to_json().items() if name not in ("mark", "at_ms")},
    )
    keys = scope.keys
    guards: list[Guard] = [(("HMGET", keys.session, "version", LOST), (version, lost or ""))]
    commands: list[Command] = [
        ("HSET", keys.session, LOST, fields.to_json(loss.to_json())),
        ("ZADD", keys.shard.lost, loss.at_ms, scope.session_id),
        *event_commands(scope, [event], is_late=True),
    ]
    if scope.database.compare_and_apply("history.tell", guards, commands) is None:
        scope.cache.doubt_again(scope.session_id, cached)
        return False
    return True


def _lost_steps(scope: SessionScope, cached: CachedSession) -> Sequence[StepExecution]:
    """The steps of the cached execution that the stored one does not have."""
    execution = cached.state.execution
    if execution is None:
        return ()
    try:
        stored = LoadVerbs(scope.context).load(scope.session_id).state.execution
    except (SessionNotFound, StateUnreadable):
        return ()
    if stored is None or stored.execution_id != execution.execution_id:
        return ()
    pairs = zip(stored.step_executions, execution.step_executions, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0].step.id == pair[1].step.id, pairs))
    return execution.step_executions[same:]


def _effects(agent: str, steps: Sequence[StepExecution], is_pure: IsPure) -> Iterator[Mapping[str, Any]]:
    for done in steps:
        for call in done.step.tool_executions:
            tool = call.tool_call.name
            if call.outcome not in _NO_EFFECT and not is_pure(agent, tool):
                yield {"step": done.step.number, "tool": tool, "outcome": call.outcome.value}
