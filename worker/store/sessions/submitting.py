"""Creating a session with its first execution, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...errors import IdempotencyMismatch, InvalidInput, SessionDeleted
from ...moments import LAST_MS
from .. import fields
from ..bookkeeping import Bookkeeping
from ..context import SessionScope, StorePart
from ..database import Command
from ..labels import NO_LABELS, index_commands, label_words
from ..records import ActionResult, NextState
from ..waking import begin_waiting
from .archive_marks import ArchiveMark
from .loading import ARCHIVED, MARK, is_unused
from .saving import SessionSave


class SubmitVerbs(StorePart):
    """Creating a session with its first execution."""

    def submit(
        self,
        session_id: str,
        agent: str,
        fingerprint: str,
        transition: Callable[[int], NextState],
        *,
        queue: str | None = "",
        lane: str = "",
        start_at_ms: int = 0,
        labels: Mapping[str, str] = NO_LABELS,
    ) -> ActionResult:
        """Create a session with its first execution, once.

        Args:
            fingerprint: A digest of everything that is submitted; the same id with another one is refused.
            transition: Makes the session's first state of Redis's time (ms).
            queue: Name of the agent's queue; "" is the common one. None: no worker has registered the agent. Then the
                session gets no message, and waits for a worker that registers it.
            lane: The lane of its steps; "" for none.
            start_at_ms: The first step begins at this Redis time; 0, or a time that has passed: at once.
            labels: Of the session.
        Returns:
            "started", or "again" with the first execution when this was submitted before.
        Raises:
            IdempotencyMismatch: The session exists and was submitted with something else.
            InvalidInput: `start_at_ms` is no time.
            StoreFull: Nothing was written.
        """
        if not 0 <= start_at_ms <= LAST_MS:
            raise InvalidInput("start_at_ms", start_at_ms, "give Unix milliseconds up to the year 9999, or 0 for now.")
        submission = _Submission(
            scope=self._context.session(session_id),
            agent=agent,
            fingerprint=fingerprint,
            transition=transition,
            queue=queue,
            lane=lane,
            start_at_ms=start_at_ms,
            labels=labels,
        )
        return submission.scope.act_once(submission.run, "be created")


@dataclass(slots=True)
class _Submission:
    """One submission and its attempts; only the first goes by the script. Its fields are those of `submit`."""

    scope: SessionScope
    agent: str
    fingerprint: str
    transition: Callable[[int], NextState]
    queue: str | None
    lane: str
    start_at_ms: int
    labels: Mapping[str, str]
    may_use_script: bool = True

    def run(self) -> ActionResult:
        """Make one attempt."""
        estimate_ms = self.scope.clock.estimate_ms()
        if self.may_use_script and estimate_ms is not None:
            self.may_use_script = False
            result, commands = self._prepare(estimate_ms)
            unused = is_unused(self.scope.keys)
            if self.scope.database.compare_and_apply("submit.attempt", [unused], commands) is not None:
                return result
        return self._submit_by_watch()

    def _submit_by_watch(self) -> ActionResult:
        scope, keys = self.scope, self.scope.keys
        wanted = ("version", MARK, "fingerprint", "first", ARCHIVED)
        reads: list[Command] = [("HMGET", keys.session, *wanted), scope.clock.now()]
        with scope.database.watch("submit.read", (keys.session, keys.ctl), reads) as watched:
            (version, mark, stored, first, archived), now = watched.replies
            if version is None and mark is not None and archived is None:
                raise SessionDeleted(scope.session_id)
            if version is None and mark is None:
                result, commands = self._prepare(scope.clock.milliseconds(now))
                watched.commit("submit.exec", commands)
                return result
        if version is None:
            known = ArchiveMark.read(fields.text(archived))
            return self._answer_again(known.fingerprint, known.first, known.version)
        return self._answer_again(fields.text(stored), fields.text(first), fields.number(version))

    def _answer_again(self, fingerprint: str, first: str, version: int) -> ActionResult:
        """The answer where the session exists."""
        if fingerprint != self.fingerprint:
            raise IdempotencyMismatch(
                f"session {self.scope.session_id} was submitted before with another agent, message or budget; "
                "use another idempotency key, or repeat the request exactly"
            )
        return ActionResult("again", first, version)

    def _prepare(self, now_ms: int) -> tuple[ActionResult, list[Command]]:
        """Make the answer and the commands of the first version."""
        next_state = self.transition(now_ms)
        first = next_state.state.execution.execution_id if next_state.state.execution else ""
        words = ("agent", self.agent, "fingerprint", self.fingerprint, "first", first)
        save = SessionSave(
            scope=self.scope,
            not_before_ms=self.start_at_ms if self.start_at_ms > now_ms else 0,
            before=None,
            next_state=next_state,
            bookkeeping=Bookkeeping(),
            version=1,
            now_ms=now_ms,
            extra=(*words, "created", now_ms, *label_words(self.labels)),
            queue=self.queue,
            lane=self.lane,
        ).prepare()
        commands = [*index_commands(self.scope.keys, NO_LABELS, self.labels), *save.commands]
        if self.queue is None:
            waiting = begin_waiting(self.scope, self.agent, since_ms=now_ms, ref=save.next)
            return ActionResult(outcome="started", execution_id=first, version=1), [*commands, *waiting]
        publish = None if save.is_published else save.next
        return ActionResult(outcome="started", execution_id=first, version=1, publish=publish), commands
