"""Waiting: a step whose calls need something from outside gives its claim back and keeps its journal.

    WATCH session, ctl, inbox, journal → check → MULTI … EXEC

The next claim of the same step finds the model's answer, the results and the replies, and continues from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from ... import crash_points
from ...moments import unix_ms
from ...state.agent_state import AgentState
from ...state.execution.budget import ExecutionBudget
from ...state.execution.children import MAX_TREE_SESSIONS
from ...state.execution.requests import Request, RequestKind
from ...state.execution.status import ExecutionStatus
from .. import fields
from ..bookkeeping import Bookkeeping
from ..children.above import tree_roots
from ..children.making import NO_CHILDREN, ChildPlan, MadeChild, make
from ..children.trees import Trees
from ..context import SessionScope, StorePart
from ..control import LONGEST_WAIT_MS, ControlFields, forget_changes
from ..database import Command, WatchedTransaction, Word
from ..event_records import EventType, NewEvent
from ..events import attempt_of
from ..inbox import read_inbox
from ..journal import SAW, Journal, read_journal
from ..keys import request_note, root_of, tree_range
from ..records import Claim, LoadedSession, Snapshot, StepRef, Transition, claim_lost
from ..requests.index import add_commands
from ..requests.yielding import find_message, find_yielding, withdraw_commands, withdrawals
from ..session_records import REQUEST_KINDS
from ..sessions.watched_sessions import WatchedSession
from .journals import StepJournal


@dataclass(frozen=True, slots=True)
class StoredWait:
    """The step waits; the claim is given back.

    Attributes:
        until_ms: Redis time at which a worker looks at it again, at the latest.
        open: The requests that it waits for.
        publish: The first steps of the children that were made, where the transaction could not publish them.
    """

    version: int
    until_ms: int
    open: tuple[Request, ...]
    publish: tuple[StepRef, ...] = ()


@dataclass(frozen=True, slots=True)
class RefusedWait:
    """The step must not wait; only requests that a message closes were closed: the caller continues with its claim.

    Attributes:
        journal: As it is stored now; an answer may have come.
        cancel: The execution, when it was asked to stop.
        refused: Requests whose children cannot be made, by id, with the reason.
        budget: The budget that was set since the step knows it; None: none was.
        is_interrupted: A message has come that interrupts the step.
    """

    journal: Journal
    cancel: str | None
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    budget: ExecutionBudget | None = None
    is_interrupted: bool = False


WaitResult = StoredWait | RefusedWait


class WaitVerbs(StorePart):
    """Letting a step wait."""

    def wait(
        self,
        claim: Claim,
        base: LoadedSession,
        transition: Transition,
        *,
        seen: Journal,
        results: Mapping[int, bytes],
        plan: ChildPlan = NO_CHILDREN,
    ) -> WaitResult:
        """Give a claim back and keep the journal, until an answer, an expiry, a stop or a resume wakes the session.

        The session is due at the earliest expiry of its open requests, at its deadline, or in 30 days.

        Args:
            base: The version that `transition` starts from.
            transition: Pure. Gives the stored state with its execution waiting, and nothing that hooks did; the store
                adds the events.
            seen: The journal as the step knows it. With an answer that it does not know, the step must not wait.
            results: Results not yet journaled, those of pure calls too; they are journaled now.
            plan: The children that this transaction makes. Their sessions must not exist.
        Returns:
            `RefusedWait` when an answer came, no request is open, a stop was asked for, the budget was changed, a
            message interrupts the step that it does not know, a message has closed a request, or a child cannot be
            made: the claim stays.
        Raises:
            ClaimLost: Another worker took over, or the wait was applied and its reply lost: leave the step.
            VersionConflict: The session was saved meanwhile; nothing was written. `reload` and wait again.
            StoreFull: Nothing was written; ask again when there is room.
            StoreUnavailable: No answer in time. The step may wait already; asking again is safe.
        """
        scope = self._context.session(claim.ref.session_id)
        attempts = _Wait(
            scope=scope, claim=claim, base=base, transition=transition, seen=seen, results=results, plan=plan
        )
        result = scope.apply_once(attempts.run, "wait")
        if isinstance(result, StoredWait):
            crash_points.at("w1")
            if plan.new:
                crash_points.at("w4")
        return result


def wait_id(claim: Claim) -> str:
    """The mark that a wait leaves in the session, so that its own worker recognizes it after a lost reply."""
    return f"{claim.ref.step}:{claim.id}:wait"


def remaining_ends_field(plan: ChildPlan, opened: Sequence[Request]) -> tuple[Word, ...]:
    """The control field `rest` of a step that waits for children: how many ends must not wake it; empty without."""
    if not any(request.child is not None for request in opened):
        return ()
    return ("rest", len(opened) - 1 if plan.waits_for_all else 0)


@dataclass(frozen=True, slots=True)
class _Wait:
    """One wait and its attempts."""

    scope: SessionScope
    claim: Claim
    base: LoadedSession
    transition: Transition
    seen: Journal
    results: Mapping[int, bytes]
    plan: ChildPlan

    @property
    def _journal(self) -> str:
        ref = self.claim.ref
        return self.scope.keys.journal(ref.execution_id, ref.step)

    def run(self) -> WaitResult:
        """Make one attempt."""
        scope, keys = self.scope, self.scope.keys
        reads: list[Command] = [
            *WatchedSession.reads(scope),
            ("HGETALL", self._journal),
            *self._inbox_reads,
            *self._child_reads,
        ]
        watching = (keys.session, keys.ctl, keys.inbox, self._journal, *self._child_keys)
        with scope.database.watch("wait.read", watching, reads) as watched:
            journal, *others = watched.replies[3:]
            inbox, children = others[: len(self._inbox_reads)], others[len(self._inbox_reads) :]
            found, stored = WatchedSession.parse_if_there(scope, watched.replies[:3]), read_journal(journal)
            control = found.control
            if found.last == wait_id(self.claim) and control.phase == "wait":
                return StoredWait(found.version, control.not_before_ms, stored.open_requests)
            if control.phase != "run":
                raise claim_lost(self.claim)
            found.check_claim(self.claim, self.base.version)
            refused = self._refuse(control, stored) or self._yield(found, stored, inbox, watched)
            if refused is not None:
                return refused
            unmade = self._refuse_children(children)
            if unmade:
                return RefusedWait(stored, control.requested_stop, unmade)
            return self._apply(found, stored, watched)

    def _refuse(self, control: ControlFields, journal: Journal) -> RefusedWait | None:
        """The news that the step has to look at first; None where it knows all."""
        refused = RefusedWait(journal, control.requested_stop)
        is_stopped = control.requested_stop is not None and not self.plan.is_ending
        if is_stopped or not journal.open_requests or journal.answers.keys() - self.seen.answers:
            return refused
        if control.changed_budget != self.base.budget:  # reached already, it would let nobody answer
            return replace(refused, budget=control.changed_budget)
        if control.is_interrupted and not self.base.is_interrupted:
            return replace(refused, is_interrupted=True)
        return None

    @property
    def _inbox_reads(self) -> list[Command]:
        """The read of the messages that may close what the step waits for; none where none may."""
        looks = not self.plan.is_ending and find_yielding(self.seen)
        return [("LRANGE", self.scope.keys.inbox, 0, -1)] if looks else []

    def _yield(
        self, found: WatchedSession, journal: Journal, replies: Sequence[Any], watched: WatchedTransaction
    ) -> RefusedWait | None:
        """Close the requests of which a message takes the place that has come already; None where none does."""
        message = find_message(read_inbox(replies[0], found.bookkeeping.operations)) if replies else None
        requests = find_yielding(journal)
        if message is None or not requests:
            return None
        records = withdrawals(requests, message, found.now_ms)
        watched.commit("wait.yield", withdraw_commands(self.scope, self._journal, requests, records))
        return RefusedWait(journal.with_answers(records), found.control.requested_stop)

    # --- children ---------------------------------------------------------------------------------------------

    @property
    def _child_keys(self) -> list[str]:
        """The keys that must not exist when the children are made."""
        return [self.scope.context.keys(child.session_id).session for child in self.plan.new]

    @property
    def _child_reads(self) -> list[Command]:
        """The reads that tell whether the children can be made; none where none is to be made."""
        if not self.plan.new:
            return []
        below = tree_range(root_of(self.scope.session_id))
        checks: list[Command] = [("EXISTS", key) for key in self._child_keys]
        return [("ZLEXCOUNT", self.scope.keys.shard.children, *below), *checks]

    def _refuse_children(self, replies: Sequence[Any]) -> dict[str, str]:
        """Why children cannot be made, by request id; empty where all can."""
        if not replies:
            return {}
        count, *exist = replies
        refused: dict[str, str] = {}
        if count + len(exist) >= MAX_TREE_SESSIONS:
            count -= self._count_others()
        room = MAX_TREE_SESSIONS - 1 - count
        for child, exists in zip(self.plan.new, exist, strict=True):
            if exists:
                refused[child.request.id] = f"session {child.session_id} exists already, or was deleted"
            elif room <= 0:
                refused[child.request.id] = f"a tree may have {MAX_TREE_SESSIONS} sessions, and this one is full"
            else:
                room -= 1
        return refused

    def _count_others(self) -> int:
        """Count the children with the root's id that are in other trees: what a fork has started is in the fork's."""
        context, name = self.scope.context, self.scope.session_id
        roots = tree_roots(context, [name, *Trees(context).members(name)])
        return sum(root not in (roots[name], each) for each, root in roots.items())

    def _apply(self, found: WatchedSession, journal: Journal, watched: WatchedTransaction) -> StoredWait:
        base, opened, now_ms = self.base, journal.open_requests, found.now_ms
        made = [make(self.scope.context, child, now_ms) for child in self.plan.new]
        snapshot = Snapshot(state=base.state, inbox=(), entries=0, now_ms=now_ms, cancel=None)
        next_state = self.transition(snapshot)
        assert next_state.state.status is ExecutionStatus.WAITING, "the transition lets the execution wait"
        until_ms = self._until_ms(next_state.state, journal, now_ms)
        events = (*(each.event for each in made), self._event(opened, until_ms))
        save = found.prepare_save(
            base.state,
            replace(next_state, events=(*next_state.events, *events), asked=None),
            extra=("last", wait_id(self.claim)),
            work_changed=False,
        )
        commands = [*save.commands, *self._step_commands(found.control, opened, until_ms)]
        if next_state.asked is not None:  # another worker commits the step, maybe of another deployment
            commands.append(("HSETNX", self._journal, SAW, next_state.asked.to_stored()))
        commands += [*self._callbacks(found.bookkeeping, opened, now_ms), *self._made_commands(made)]
        watched.commit("wait.exec", commands)
        self.scope.cache.put(self.scope.session_id, save.update(base.session, base.agent))
        return StoredWait(
            version=save.version,
            until_ms=until_ms,
            open=opened,
            publish=tuple(each.publish for each in made if each.publish),
        )

    def _made_commands(self, made: Sequence[MadeChild]) -> list[Command]:
        """The commands that create the children, and note in the journal that they exist."""
        notes: list[Command] = []
        for child in self.plan.new:
            index, round_ = child.request.place
            notes.append(("HSET", self._journal, f"t{index}:c{round_}", child.session_id))
        return [*notes, *(command for each in made for command in each.commands)]

    def _step_commands(self, control: ControlFields, opened: tuple[Request, ...], until_ms: int) -> list[Command]:
        scope, keys, claim = self.scope, self.scope.keys, self.claim
        look_ms = until_ms if control.hold is None else control.hold.until_ms
        return [
            *StepJournal(scope, claim).result_commands(self.results),
            ("PERSIST", self._journal),
            (
                "HSET", keys.ctl, "phase", "wait", "claim", "", "worker", "", "attempts", 0, "delays", 0, "delayed", 0,
                "nudges", 0, "published", 0, "not_before", until_ms, "legs", control.legs + 1,
                *remaining_ends_field(self.plan, opened), *(("yields", 1) if find_yielding(self.seen) else ()),
            ),
            ("ZADD", keys.shard.due, look_ms, scope.session_id),
            *add_commands(keys.shard, opened),
            ("DEL", keys.shard.lease(claim.id)),
            *forget_changes(keys, control, "budget"),
        ]  # fmt: skip

    def _callbacks(self, bookkeeping: Bookkeeping, opened: tuple[Request, ...], now_ms: int) -> Iterator[Command]:
        """Put the callbacks of requests into the outbox, of those that no earlier wait has put there."""
        execution, scope = self.base.state.execution, self.scope
        if execution is None or bookkeeping.notify is None or b'"request_' not in bookkeeping.notify:
            return
        known = {summary.id for summary in execution.waiting_for}
        operation = execution.operation_id or ""
        receivers = cast("Mapping[str, Any]", fields.read_json(bookkeeping.notify, "notify")).get(operation, {})
        kinds = [kind for kind in REQUEST_KINDS if kind in receivers]
        for request in _for_people(opened):
            for kind in kinds if request.id not in known else ():
                note = request_note(scope.session_id, request.execution_id, kind, (request.id, operation))
                yield ("ZADD", scope.keys.shard.callbacks, now_ms, note)

    def _event(self, opened: tuple[Request, ...], until_ms: int) -> NewEvent:
        ref = self.claim.ref
        data = {"requests": [request.id for request in opened], "until_ms": until_ms, **attempt_of(self.claim)}
        return NewEvent(type=EventType.EXECUTION_WAITING, execution_id=ref.execution_id, step=ref.step, data=data)

    def _until_ms(self, state: AgentState, journal: Journal, now_ms: int) -> int:
        """When a worker has to look at the session again: never 0, which would mean at once.

        A child that was asked to stop has one lease for it.
        """
        times: list[int] = []
        for request in journal.open_requests:
            stopped_ms = journal.stopped.get(request.place)
            if stopped_ms is not None:
                times.append(stopped_ms + self.scope.context.lease_ms)
            elif request.expires_at_ms is not None:
                times.append(request.expires_at_ms)
        execution = state.execution
        if execution is not None and execution.budget.deadline is not None and not self.plan.is_ending:
            times.append(unix_ms(execution.budget.deadline))
        return max(1, min([*times, now_ms + LONGEST_WAIT_MS]))


def _for_people(requests: Sequence[Request]) -> list[Request]:
    """The requests that a person or a service answers, without those for children."""
    return [request for request in requests if request.kind is not RequestKind.CHILD]
