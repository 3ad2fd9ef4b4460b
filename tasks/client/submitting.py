"""The verbs of a client that hand over messages: to an agent, in a new session or one that exists, and to a session."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import Field

from ...worker.engine.transitions import operation_transition
from ...worker.errors import (
    ActionRefused,
    IdempotencyMismatch,
    InvalidInput,
    SessionArchived,
    SessionDeleted,
    SessionNotFound,
    StoreUnavailable,
)
from ...worker.flow.debounce import Debounce
from ...worker.flow.shares import Priority
from ...worker.state.conversation.messages import Message
from ...worker.state.execution.budget import ExecutionBudget
from ...worker.state.values.ids import ChildSessionId, ExecutionId, read_session_id
from ...worker.store.labels import check_labels
from ...worker.store.records import ActionResult, Placement
from ..housekeeping.receivers import read_receivers
from .connection import ClientConnection
from .inputs import check_agent_name, derive_id, read_caller, read_message, read_metadata, read_transcript
from .job import Job
from .messages import INTERRUPTING, SENT_BY, WHEN, read_mode
from .submission import Submission
from .verbs import LONGEST_SECONDS, MESSAGE_FIELDS, Scope, verb

_CONFLICTS: Final = 20


class SubmittingVerbs(ClientConnection):
    """Hands over jobs and further messages."""

    @verb(
        "POST", "/v1/agents/{agent}/jobs", "submit_job", scope=Scope.SUBMIT, headers=("idempotency_key",),
        body=("NewJob", "A job for an agent: a new session, or the next message of an existing one."),
        http={
            **MESSAGE_FIELDS,
            "session_id": Field(description="None: a new one, or the one that follows from Idempotency-Key."),
            "metadata": Field(description="JSON kept with a new session."),
            "labels": Field(description="Of a new session, by which it is found."),
            "messages": Field(description="What was said before; a new session only."),
            "start_at": Field(description="The first step begins at this time."),
            "delay": Field(
                alias="delay_seconds", ge=0, le=LONGEST_SECONDS, description="The same as a time from now."
            ),
            "expires_in": Field(
                alias="expires_in_seconds", gt=0, le=LONGEST_SECONDS,
                description="It is stopped where it has not begun so long after it may begin; a new session only.",
            ),
            "priority": Field(description="Among the waiting steps of its share; a new session only."),
            "completion_window": Field(description="Its model may answer so late, for less; a new session only."),
            "debounce": Field(description="It waits for further messages under this key; a new session only."),
            "by": SENT_BY,
        },
        reads_session=("session_id", "messages"), service_only=("labels", "debounce"), for_label=True, own="by",
    )  # fmt: skip
    def submit(
        self,
        agent: str,
        message: str | Message,
        *,
        session_id: str | None = None,
        idempotency_key: str | None = None,
        budget: ExecutionBudget | None = None,
        metadata: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        messages: Sequence[Message] = (),
        on_complete: object = None,
        webhook: str | None = None,
        on_request: object = None,
        request_webhook: str | None = None,
        start_at: datetime | None = None,
        delay: timedelta | None = None,
        expires_in: timedelta | None = None,
        debounce: Debounce | None = None,
        priority: Priority | None = None,
        completion_window: str | None = None,
        new_only: bool = False,
        when: str = "steer",
        by: str | None = None,
    ) -> Job:
        """Hand a job to an agent: a new session, or the next message of an existing one.

        Args:
            agent: Name of an agent. A job of an agent that no worker has registered yet waits for such a worker, and a
                warning says so.
            session_id: Of this agent. None: a new one, or the one that follows from `idempotency_key`.
            idempotency_key: The same request with the same key makes one execution, however often it comes.
            budget: Limits of the execution; the agent's own limits hold as well, the smaller counts. Refused for a
                message to an execution that runs or waits, which it would join.
            metadata: JSON kept with a new session; see `write_metadata` for an existing one.
            labels: Of a new session, by which it is found: up to 16 texts of one line, such as `{"customer": "42"}`,
                with keys of 64 and values of 128 characters. See `label` for an existing one.
            messages: What was said before; a new session begins with it. It cannot be given with `session_id`.
            on_complete: Name of a Celery task, or a signature, that is called with the keyword `result` at the end.
            webhook: URL to which the result is posted at the end, signed with the workers' webhook secret.
            on_request: Name of a Celery task, or a signature, that is called with the keyword `request` for each
                approval, question or other request that the execution waits for.
            request_webhook: URL to which each request is posted, signed like the result.
            start_at: The first step of a new session begins at this time. None: at once.
            delay: The same as a time from now.
            expires_in: The execution of a new session is stopped where it has not begun, that is, no model was asked
                for it, so long after it may begin: from now, or from its later start. None: it waits as long as it
                takes.
            debounce: A new session begins by the times of `Debounce`. Until then, further messages to the agent under
                the same key join it; what else is given with them (labels, budget, metadata, messages, `expires_in`)
                was said by the first one and is not used. When it has begun, a further message is queued behind it;
                when it has ended, the next one begins a session again. `placed` of the job says which. Not with
                `session_id`, `start_at`, `delay` or `when`.
            priority: Of a new session, and of its children: while more steps wait than there are slots, those of
                `interactive` sessions are taken before others of the same share (see `FairShares`) more often than
                not, and those of `bulk` ones seldom. None: `normal`; where no shares are set, the order of the queue.
            completion_window: The time within which the model may answer in a new session, and in those of its children
                whose models are sold with it: "2h", "8h" or "24h", see `Agent`. None: as the agent says.
            new_only: True: `session_id` never continues a session; one that was made by another request is a mismatch.
            when, by: How the message is delivered to a session that exists, and who sends it, as in `send_message`.
        Raises:
            InvalidInput: An argument cannot be used; nothing was written.
            ActionRefused: The session belongs to another agent, or a budget is given while an execution of it runs.
            IdempotencyMismatch: The key, or with `new_only` the session, was used for something else.
            StoreFull: Redis is full; nothing was written.
            StoreUnavailable: No answer. Ask again with the same idempotency key.
        """
        check_agent_name(agent)
        submission = Submission(
            session=read_session_id(derive_id(idempotency_key, "session") if session_id is None else session_id),
            message=read_message(message, self.settings.max_message_bytes),
            operation_id=derive_id(idempotency_key, "operation"), has_key=idempotency_key is not None, budget=budget,
            execution_id=ExecutionId(derive_id(idempotency_key, f"execution of {session_id}")),  # for calls' keys
            metadata=read_metadata(metadata, self.settings.max_message_bytes),
            labels=check_labels(labels),
            transcript=read_transcript(messages, session_id, self.settings),
            notify=self._read_receivers(on_complete, webhook, on_request, request_webhook),
            when=read_mode(when), by=read_caller(by),
            start_at=start_at, delay=delay, expires_in=expires_in, debounce=debounce,
            priority=priority, completion_window=completion_window,
        )  # fmt: skip
        return self._hand_over(submission, agent, may_exist=session_id is not None and not new_only)

    def _hand_over(self, submission: Submission, agent: str, *, may_exist: bool) -> Job:
        """Submit to a new session, or to one that exists.

        Args:
            may_exist: Whether the caller chose the session's id.
        """
        if submission.priority is not None and not self._publisher.has_lanes:
            advice = "leave it out: it needs a Redis as the broker."
            raise InvalidInput("priority", submission.priority, advice)
        try:
            submission.check_deadline()
        except InvalidInput:  # the same may have been submitted when there was time
            if submission.debounce is not None or not self._was_made(submission.session):
                raise
        if submission.debounce is not None:
            if may_exist:
                raise InvalidInput("session_id", submission.session, "leave it out: the key of Debounce finds it.")
            job = self._submit_in_burst(submission, agent, submission.debounce)
        elif may_exist and self._check_owner(submission.session, agent):
            job = self._send(submission)
        else:
            job = self._submit_new(submission, agent, may_exist=may_exist)
        if job.notice:
            warnings.warn(job.notice, stacklevel=3)
        return job

    def _was_made(self, session: str) -> bool:
        """Whether there is the session, or was before it moved to the archive or was deleted."""
        try:
            self.store.sessions.header(session)
        except (SessionArchived, SessionDeleted):
            return True
        except SessionNotFound:
            return False
        return True

    def _submit_new(self, submission: Submission, agent: str, *, may_exist: bool) -> Job:
        """Create the session of a submission.

        Args:
            may_exist: Whether another caller may create it meanwhile, so that the message is one for that session.
        """
        try:
            applied, queue = self._create(submission, agent)
        except IdempotencyMismatch:
            if not may_exist:
                raise
            # Another caller has created the session in the meantime.
            self._check_owner(submission.session, agent)
            return self._send(submission)
        if applied.outcome == "again" and may_exist:
            # The other caller said the same; unless this is the same operation, it is said twice.
            return self._send(submission)
        return self._created(submission, applied, agent, queue)

    def _create(self, submission: Submission, agent: str) -> tuple[ActionResult, str | None]:
        """Create the session of a submission; also the queue of its agent, None where no worker has registered it."""
        if isinstance(submission.session, ChildSessionId):  # no caller makes such ids
            raise SessionNotFound(submission.session)
        queue = self._queues.queue_of(agent)
        applied = self.store.sessions.submit(
            submission.session,
            agent,
            submission.fingerprint(agent),
            submission.first_state,
            start_at_ms=submission.start_at_ms(self._now_ms),
            queue=queue,
            lane=submission.lane(self._notes.shares()),
            labels=submission.labels,
        )
        self._publish(applied.publish)
        return applied, queue

    def _created(self, submission: Submission, applied: ActionResult, agent: str, queue: str | None) -> Job:
        job = self._job_of(submission, applied)
        job.notice = self._describe_wait(agent, queue, submission.labels)
        return job

    def _submit_in_burst(self, submission: Submission, agent: str, debounce: Debounce) -> Job:
        """Add a message to the present burst of its key, or begin another one.

        A burst is begun before its session is made. Whoever finds that there is none yet makes it. What may have come
        to a session that was deleted since is not said again.
        """
        flow, name = self.store.flow, debounce.burst_of(agent)
        operation_id = submission.operation_id if submission.has_key else ""
        noted_before: str | None = None

        def join(session: str) -> Job | None:
            try:
                return self._join_burst(replace(submission, session=read_session_id(session)), agent, debounce)
            except SessionDeleted:
                if session == noted_before:
                    raise
                return None

        for _ in range(_CONFLICTS):
            session, noted = flow.burst(name, operation_id)
            noted_before = noted if noted_before is None else noted_before
            if noted not in ("", session) and (job := join(noted)) is not None:  # that burst has ended
                return job
            may_join = session and (
                not operation_id
                or session == noted
                or flow.note_in_burst(name, operation_id, session, instead_of=noted)
            )
            if may_join and (job := join(session)) is not None:
                return job
            if may_join or not session:
                flow.begin_burst(name, derive_id(None, "session"), instead_of=session)
        raise StoreUnavailable("the sessions of a debounce key change too fast; try again")

    def _join_burst(self, submission: Submission, agent: str, debounce: Debounce) -> Job | None:
        """Add a message to the session of a burst, or make that session; None: it is over."""
        session, operation = submission.session, submission.operation()
        try:
            applied = self.store.sessions.act_in_burst(session, operation, operation_transition, debounce)
        except SessionArchived:
            return self._job_in_archive(submission) if submission.has_key else None
        except SessionDeleted:
            raise
        except SessionNotFound:
            with contextlib.suppress(IdempotencyMismatch):
                applied, queue = self._create(submission, agent)
                if applied.outcome == "started":
                    job = self._created(submission, applied, agent, queue)
                    job.placed = Placement.STARTS
                    return job
            # Another caller has made it in the meantime, perhaps by saying the same.
            return self._join_burst(submission, agent, debounce)
        if applied.outcome == "idle":
            return None
        self._publish(applied.publish)
        return self._job_of(submission, applied)

    def _job_in_archive(self, submission: Submission) -> Job | None:
        """The job of a message of a burst that was archived since; None: it never came there."""
        session, operation_id = submission.session, submission.operation_id
        joined = self.store.sessions.read_joined(session, operation_id)
        return self._make_job(session, operation_id=operation_id) if joined else None

    @verb(
        "POST", "/v1/sessions/{session_id}/messages", "send_message", scope=Scope.SUBMIT, headers=("idempotency_key",),
        body=("NewMessage", "A message of the user."), http={**MESSAGE_FIELDS, "when": WHEN, "by": SENT_BY},
        service_only=("budget", "webhook", "request_webhook"), needs=INTERRUPTING, for_chat=True, own="by",
    )  # fmt: skip
    def send_message(
        self,
        session_id: str,
        message: str | Message,
        *,
        when: str = "steer",
        by: str | None = None,
        idempotency_key: str | None = None,
        budget: ExecutionBudget | None = None,
        on_complete: object = None,
        webhook: str | None = None,
        on_request: object = None,
        request_webhook: str | None = None,
    ) -> Job:
        """Send a further message. A running execution takes it up at its next step; else a new one starts.

        The job says in `placed` where it went.

        Args:
            when: `steer`: in front of the next model call; behind a final answer it starts the next execution.
                `queue`: it gets an execution of its own, after the one that runs and what is queued. `interrupt`: as
                `steer`, in front of the others; a model call and what else has no effect is left off for it, and so
                are calls and requests that have not begun. `refuse`: it is refused while an execution runs or waits.
                Where none does, the message starts one, unless it is queued and others wait there, held.
            by: Who sends it, as `queued` shows it and `withdraw_message(own=)` compares it while it waits. What was
                sent first under an idempotency key stays. None: it is nobody's own.
            idempotency_key: The same message with the same key is added once, as long as the session remembers the key:
                for the next 128 messages.
            budget: Limits of the execution that the message starts. Refused while an execution runs or waits, which the
                message would join; not with `queue`.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            InvalidInput: The message cannot be used.
            IdempotencyMismatch: The key was used in this session for another message, budget or mode; nothing was
                written.
            SessionBusy: It is to be refused, and an execution runs or waits.
            ActionRefused: Too many messages wait, or a budget is given while an execution runs.
        """
        content = read_message(message, self.settings.max_message_bytes)
        notify = self._read_receivers(on_complete, webhook, on_request, request_webhook)
        return self._send(
            Submission(
                session=read_session_id(session_id),
                message=content,
                operation_id=derive_id(idempotency_key, "operation"),
                has_key=idempotency_key is not None,
                budget=budget,
                notify=notify,
                when=read_mode(when),
                by=read_caller(by),
            )
        )

    def _send(self, submission: Submission) -> Job:
        """Add the message to an existing session; one that was added before gets the same job."""
        if submission.needs_new and not self.store.sessions.read_joined(submission.session, submission.operation_id):
            submission.refuse_existing()
        return self._job_of(submission, self._act(submission.session, submission.operation()))

    def _job_of(self, submission: Submission, applied: ActionResult) -> Job:
        job = self._make_job(
            submission.session, operation_id=submission.operation_id, execution_id=applied.execution_id
        )
        job.placed = applied.placed
        return job

    def _check_owner(self, session: str, agent: str) -> bool:
        """Whether the session exists; refuses it when it belongs to another agent."""
        try:
            owner = self.store.sessions.header(session).agent
        except SessionNotFound:
            return False
        if owner != agent:
            raise ActionRefused(f"session {session} belongs to agent {owner!r}; give {agent!r} a session of its own")
        return True

    def _read_receivers(
        self, on_complete: object, webhook: str | None, on_request: object, request_webhook: str | None
    ) -> dict[str, Any] | None:
        """Check the receivers of callbacks, and that workers can sign the webhooks; None: there are none."""
        receivers = read_receivers(
            self.settings,
            on_complete=on_complete,
            webhook=webhook,
            on_request=on_request,
            request_webhook=request_webhook,
        )
        self._check_webhook(webhook)
        self._check_webhook(request_webhook, "request_webhook")
        return receivers

    def _check_webhook(self, webhook: str | None, field: str = "webhook") -> None:
        """Refuse a webhook that no live worker can sign; where none is alive, this cannot be known."""
        if webhook is None:
            return
        workers = self.store.registry.workers().values()
        if workers and not any(facts["webhooks"] for facts in workers):
            advice = "no worker can sign it: set CELERY_AGENTS_WEBHOOK_SECRET in the environment of the workers."
            raise InvalidInput(field, webhook, advice)
