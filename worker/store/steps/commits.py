"""The commit: the one transaction that makes a step real.

    WATCH session, ctl, inbox → check → MULTI … EXEC

In the ordinary case everything that is checked is known beforehand: then one script compares it and writes. Results of
tool calls need no separate record there, because the step that holds them is written in the same moment.

No answer of EXEC is proof: its reply may be lost, and redis-py then answers as if a watched key had changed. So every
attempt first asks whether this claim has already committed: by `last`, or by the step's entry in the list of steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ... import crash_points
from ...errors import StoreFull, StoreUnavailable, VersionConflict
from ...state.execution.status import ExecutionStatus
from .. import fields
from ..cache import CachedSession
from ..children.ending import answer_parent, ended_state
from ..context import SessionScope, StorePart
from ..control import HELD_MARK, ControlFields, forget_changes, forget_waiting
from ..database import Changed, Command, Guard, Reply, WatchedTransaction
from ..packing import step_claim
from ..past import is_over
from ..queued_messages import WaitingMessages, inbox_commands
from ..records import (
    Claim,
    Claimed,
    Committed,
    Hold,
    LoadedSession,
    NextState,
    Snapshot,
    StepRef,
    Transition,
)
from ..requests.index import remove_commands
from ..safe_ends import mark_safe
from ..sessions.saving import SessionSave
from ..sessions.watched_sessions import WatchedSession
from .journals import StepJournal
from .leases import LeaseVerbs
from .scripted_claims import make_first_claimed


class CommitVerbs(StorePart):
    """Committing a step."""

    def commit(
        self,
        claim: Claim,
        base: LoadedSession,
        transition: Transition,
        *,
        results: Mapping[int, bytes],
        keep_claim: bool,
    ) -> Committed:
        """Make a step real, once.

        The commit of a step that has asked ends its waiting: its open requests leave the index of requests, and its
        task ids count from the first leg again. While the session is held, the commit carries nothing on and publishes
        nothing.

        Args:
            base: The version that `transition` starts from.
            transition: Pure; may be called again when a conflict makes the transaction start over.
            results: Results of tool calls not yet journaled; the committed step holds them. Only the way with WATCH
                journals them before its transaction; the script journals none.
            keep_claim: Keep the claim for the next step, if one follows.
        Returns:
            What was stored; the same answer again when this claim had already committed.
        Raises:
            ClaimLost: Another worker took over; nothing was written.
            VersionConflict: The session was saved, or its budget was changed meanwhile; nothing was written. `reload`
                and commit again.
            StoreFull: Nothing was written; ask again when there is room.
            StoreUnavailable: No answer in time. The commit may have happened; asking again is safe.
        """
        scope = self._context.session(claim.ref.session_id)
        attempts = _Commit(
            scope=scope, claim=claim, base=base, transition=transition, results=results, keep_claim=keep_claim
        )
        confirmer, purpose = self._context.confirmer, f"commit step {claim.ref.step}"
        if confirmer is None:
            return scope.apply_once(attempts.run, purpose)
        with confirmer.noting() as used:
            committed = scope.apply_once(attempts.run, purpose)
        if committed.next is None or committed.next.execution_id != claim.ref.execution_id:
            with contextlib.suppress(StoreUnavailable, StoreFull):  # who reads the result confirms it then
                confirmer.confirm(scope.keys.shard, used)
                mark_safe(scope, committed.version, claim.ref)
        return committed


def commit_id(claim: Claim) -> str:
    """The mark that a commit leaves in the session, so that its own worker recognizes it."""
    return f"{claim.ref.step}:{claim.id}"


# The ends of a thousand children of one process take less.
_PATIENCE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A commit that is ready to be written: the session as it will be, and the answer when it has happened.

    Attributes:
        ends: The execution of the step does not go on with another step.
    """

    commands: list[Command]
    session: CachedSession
    committed: Committed
    ends: bool


@dataclass(slots=True)
class _Commit:
    """One commit and its attempts; only the first goes by the script."""

    scope: SessionScope
    claim: Claim
    base: LoadedSession
    transition: Transition
    results: Mapping[int, bytes]
    keep_claim: bool
    may_use_script: bool = True

    def run(self) -> Committed:
        """Make one attempt.

        Raises:
            Changed: The session was saved between reading and writing.
        """
        if self.may_use_script:
            self.may_use_script = False
            committed = self._commit_by_script()
            if committed is not None:
                return committed
        with self._turn():
            return self._commit_by_watch()

    def _turn(self) -> contextlib.AbstractContextManager[None]:
        """The turn of a child among those of its parent: each end watches the parent, and changes it."""
        link = self.base.session.bookkeeping.link
        if link is None:
            return contextlib.nullcontext()
        return self.scope.context.ends.of(link.session_id, _PATIENCE_SECONDS)

    def _commit_by_script(self) -> Committed | None:
        """Commit by script if the version is unchanged, the inbox empty, and there is no stop, hold or changed budget.

        None: nothing was written: one of these differs, Redis's time is not known, or old values have to be dropped.
        """
        scope, claim, base = self.scope, self.claim, self.base
        estimate_ms = scope.clock.estimate_ms()
        if base.budget is not None:  # its mark is there
            return None
        if estimate_ms is None or is_over(base.session.bookkeeping.past, scope.settings.history_bytes):
            return None
        now_ms = max(estimate_ms, claim.now_ms)
        is_child = base.session.bookkeeping.parent is not None
        snapshot = Snapshot(
            state=base.session.state, inbox=(), entries=0, now_ms=now_ms, cancel=None, is_child=is_child
        )
        next_state = self.transition(snapshot)
        if next_state.keep_journal:  # it has to hold the results first
            return None
        if is_child and ended_state(next_state) is not None:  # its parent gets an answer
            return None
        prepared = self._prepare(next_state, now_ms)
        keys, ref = scope.keys, claim.ref
        guards: list[Guard] = [
            (("HMGET", keys.session, "version"), (base.session.version,)),
            (("HMGET", keys.ctl, "execution", "step", "claim", "cancel"), (ref.execution_id, ref.step, claim.id, "")),
            (("EXISTS", keys.inbox, *((keys.next,) if prepared.ends else ())), (0,)),
        ]
        commands = prepared.commands
        with contextlib.suppress(Changed):
            return self._write(prepared, lambda: scope.database.compare_and_apply("commit.attempt", guards, commands))
        return None

    def _commit_by_watch(self) -> Committed:
        scope, keys = self.scope, self.scope.keys
        journal = StepJournal(scope, self.claim)
        writes = journal.result_commands(self.results)
        reads: list[Command] = [*writes, *WatchedSession.reads(scope), *WaitingMessages.reads(keys)]
        with scope.database.watch("commit.read", (keys.session, keys.ctl, keys.inbox, keys.next), reads) as watched:
            if writes:
                crash_points.at("c6")
            *session, inbox, queued = watched.replies[len(writes) :]
            stored = WatchedSession.parse_if_there(scope, session)
            control, bookkeeping = stored.control, stored.bookkeeping
            if writes and (not control.is_at(self.claim.ref) or control.phase == "end"):
                journal.expire_if_past()
            if stored.last == commit_id(self.claim) or self._is_in_steps(control, watched):
                return self._repeat_answer(stored)
            stored.check_claim(self.claim, self.base.session.version)
            if control.changed_budget != self.base.budget:  # it decides whether the execution ends
                raise VersionConflict(f"the budget of session {self.scope.session_id} was changed")
            waiting = WaitingMessages.parse((inbox, queued), stored)
            next_state = self.transition(
                Snapshot(
                    state=self.base.session.state,
                    inbox=waiting.inbox,
                    entries=waiting.entries,
                    now_ms=stored.now_ms,
                    cancel=control.requested_stop,
                    is_child=bookkeeping.parent is not None,
                    queue=waiting.queue,
                )
            )
            stored = stored.with_old_values(watched)
            prepared = self._prepare(next_state, stored.now_ms, stored, entries=waiting.entries)
            prepared = self._with_parent(prepared, stored, next_state, watched)
            committed = self._write(prepared, lambda: watched.commit("commit.exec", prepared.commands))
            if bookkeeping.parent is not None and committed.next is None:
                crash_points.at("w5")
            return committed

    def _write(self, prepared: _Prepared, write: Callable[[], list[Reply] | None]) -> Committed:
        """Write a commit. The cache has it before, since the next message leaves inside the commit.

        Raises:
            Changed: Nothing was written, or the reply was lost.
        """
        cache, session_id = self.scope.cache, self.scope.session_id
        cache.stage(session_id, prepared.session)
        try:
            replies = write()
            if replies is None:
                raise Changed
            crash_points.at("c7")
        except BaseException:
            cache.unstage(session_id)
            raise
        if prepared.committed.next is None:
            cache.end(session_id, prepared.session)
        else:
            cache.put(session_id, prepared.session)
        return _with_watchers(prepared.committed, replies)

    def _with_parent(
        self, prepared: _Prepared, stored: WatchedSession, next_state: NextState, watched: WatchedTransaction
    ) -> _Prepared:
        """The commit with the answer to the parent's request, where it ends a child."""
        link, ended = stored.bookkeeping.link, ended_state(next_state)
        if link is None or ended is None:
            return prepared
        parent_answer = answer_parent(self.scope, link, ended, stored.now_ms, watched)
        committed = replace(prepared.committed, woken=parent_answer.publish)
        return replace(prepared, commands=[*prepared.commands, *parent_answer.commands], committed=committed)

    def _prepare(
        self, next_state: NextState, now_ms: int, stored: WatchedSession | None = None, *, entries: int = 0
    ) -> _Prepared:
        """Make the commands of a commit, and what it answers.

        Args:
            stored: The session as it is stored. None: as the step has loaded it, and it is not held.
            entries: Inbox entries that `next_state` has applied.
        """
        claim, base = self.claim, self.base
        hold = None if stored is None else stored.control.hold
        agent, queue = next_state.agent or (base.session.agent, claim.ref.queue)
        following = StepRef.due_in(claim.ref.session_id, next_state.state, queue, claim.ref.lane)
        goes_on = following is not None and following.execution_id == claim.ref.execution_id
        carried = self.keep_claim and goes_on and hold is None and next_state.agent is None
        stays_held = _stays_held(hold, following, next_state)
        save = SessionSave(
            scope=self.scope,
            before=base.session.state,
            next_state=next_state,
            bookkeeping=(stored or base.session).bookkeeping,
            version=base.session.version + 1,
            now_ms=now_ms,
            extra=("last", commit_id(claim), *(("agent", agent) if next_state.agent else ())),
            carried=carried,
            queue=queue,
            lane=claim.ref.lane,
            held_until_ms=hold.until_ms if hold and stays_held else 0,
            old_values=stored.old_values if stored else None,
        ).prepare()
        session = save.update(base.session, agent)
        # Commands that need memory come first: a script that has begun to write is not refused any more.
        commands = [*save.commands, *self._step_commands(next_state, entries, now_ms, carried=carried)]
        if stored is not None or base.legs or base.journal.requests:
            commands += self._forget_commands(stored, stays_held=stays_held)
        commands += [("HSET", self.scope.keys.ctl, "cancel", HELD_MARK)] if stays_held and not goes_on else ()
        if carried:  # its reply is the last one, see `_with_watchers`
            commands.append(("HGET", self.scope.keys.ctl, "watched"))
        committed = Committed(
            version=save.version,
            state=next_state.state,
            next=save.next,
            is_published=save.is_published or carried,
            carried=self._carry(session, following, now_ms) if carried and following is not None else None,
        )
        return _Prepared(commands, session, committed, ends=not goes_on)

    def _forget_commands(self, stored: WatchedSession | None, *, stays_held: bool) -> list[Command]:
        """Commands that remove what the step's requests, a hold that ends and a changed budget left; usually none."""
        keys, control = self.scope.keys, None if stored is None else stored.control
        removed = remove_commands(keys.shard, self.base.journal.all_requests)
        if control is None:
            return [*forget_waiting(keys, legs=self.base.legs, held=False), *removed]
        held = control.hold is not None and not stays_held
        return [
            *forget_waiting(keys, legs=control.legs, held=held),
            *forget_changes(keys, control, "budget", "interrupt"),
            *removed,
        ]

    def _step_commands(self, next_state: NextState, entries: int, now_ms: int, *, carried: bool) -> list[Command]:
        scope, keys, ref = self.scope, self.scope.keys, self.claim.ref
        commands = inbox_commands(scope, next_state, entries)
        if not next_state.keep_journal or next_state.ended is not None:  # only the last execution can be retried
            commands.append(("PEXPIRE", keys.journal(ref.execution_id, ref.step), scope.context.journal_ms))
        lease = keys.shard.lease(self.claim.id)
        if carried:
            commands.append(("HSET", keys.journal(ref.execution_id, ref.step + 1), f"try:{self.claim.id}", now_ms))
            commands.append(scope.clock.renew_lease(lease, scope.context.lease_ms))
        else:
            commands.append(("DEL", lease))
        return commands

    def _carry(self, session: CachedSession, following: StepRef, now_ms: int) -> Claimed:
        """The claim of the next step, which the commit takes along."""
        claim = Claim(id=self.claim.id, worker=self.claim.worker, ref=following, attempt=1, now_ms=now_ms)
        return make_first_claimed(claim, session, self.base.started_ms)

    def _is_in_steps(self, control: ControlFields, watched: WatchedTransaction) -> bool:
        """Whether the list of steps holds this claim's step; a later commit may have overwritten `last`."""
        ref = self.claim.ref
        if control.execution == ref.execution_id and control.step <= ref.step and control.phase != "end":
            return False
        steps = self.scope.keys.steps(ref.execution_id)
        (entry,) = watched.pipeline("commit.entry", [("LINDEX", steps, ref.step - 1)])
        return entry is not None and step_claim(entry) == self.claim.id

    def _repeat_answer(self, stored: WatchedSession) -> Committed:
        """Answer a commit that had happened before: what follows is what the session waits for now."""
        control, claim = stored.control, self.claim
        if control.phase != "run" or control.claim not in ("", claim.id):
            return Committed(version=stored.version, state=None, next=None, is_published=False, again=True)
        following = control.ref(claim.ref.session_id)
        is_published = False
        if control.claim:  # carried on; what the next step was to continue with was known to the lost attempt only
            kept = replace(claim, ref=following)
            is_published = LeaseVerbs(self.scope.context).release(kept, delay_ms=None, give_back=True) is None
        elif control.is_held(stored.now_ms):
            return Committed(version=stored.version, state=None, next=None, is_published=False, again=True)
        return Committed(version=stored.version, state=None, next=following, is_published=is_published, again=True)


def _stays_held(hold: Hold | None, following: StepRef | None, next_state: NextState) -> bool:
    """Whether a hold outlives the step: with its execution, and with one that has completed, for the one behind it."""
    ended = next_state.ended
    goes_on = following is not None and (ended is None or ended.status is ExecutionStatus.COMPLETED)
    return hold is not None and goes_on


def _with_watchers(committed: Committed, replies: Sequence[Reply]) -> Committed:
    """The commit with the claim that it carries, which learns whether a client follows the session's live text."""
    carried = committed.carried
    followed_until_ms = 0 if carried is None else fields.milliseconds(replies[-1])
    if carried is None or not followed_until_ms:
        return committed
    loaded = replace(carried.loaded, followed_until_ms=followed_until_ms)
    return replace(committed, carried=replace(carried, loaded=loaded))
