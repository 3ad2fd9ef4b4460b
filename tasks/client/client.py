"""`AgentClient`: how services submit jobs, follow them and act on them."""

from __future__ import annotations

import builtins
import contextlib
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import Field

from ...worker.engine.transitions import retry_transition, stop_transition
from ...worker.errors import (
    ActionRefused,
    IdempotencyMismatch,
    InvalidInput,
    InvalidTransition,
    SessionNotFound,
    StoreUnavailable,
)
from ...worker.state.conversation.context import LLMConfig
from ...worker.state.conversation.messages import Message
from ...worker.state.execution.budget import ExecutionBudget
from ...worker.state.values.ids import ChildSessionId, ExecutionId, read_session_id
from ...worker.store.inbox import new_change_id
from ...worker.store.labels import check_changes, check_labels
from ...worker.store.live.streams import StreamPosition
from ...worker.store.records import InboxKind, Operation
from ...worker.store.session_records import Header, StoredSession
from ..housekeeping.receivers import read_receivers
from .archiving import ArchivingVerbs
from .budgeting import BudgetingVerbs
from .bulk import BulkVerbs
from .concurrency import ConcurrencyVerbs
from .erasing import ErasingVerbs
from .following import follow_session
from .forking import ForkingVerbs
from .inputs import (
    check_agent_name,
    check_budget,
    check_caller,
    check_listing,
    check_model,
    check_seconds,
    check_text,
    derive_id,
    json_value,
    read_message,
    read_metadata,
    read_time_ms,
    read_transcript,
)
from .job import Job, Result
from .listing import Filter, Page, iterate_headers, read_filter, read_page
from .messages import INTERRUPTING, WHEN, MessageVerbs, read_mode
from .observing import ObservingVerbs
from .pending import ResolvingVerbs
from .providers import ProviderVerbs
from .rewinding import RewindingVerbs
from .schedules import Schedules
from .snapshots import SnapshotVerbs
from .spending import SpendingVerbs
from .stream_items import StreamItem
from .submission import Submission
from .verbs import BY, LONGEST_SECONDS, MESSAGE_FIELDS, MOST_TEXT, Scope, verb

_STOP_SECONDS: Final = 30.0


class AgentClient(
    ResolvingVerbs,
    MessageVerbs,
    BulkVerbs,
    BudgetingVerbs,
    ErasingVerbs,
    ForkingVerbs,
    RewindingVerbs,
    SnapshotVerbs,
    ObservingVerbs,
    SpendingVerbs,
    ProviderVerbs,
    ConcurrencyVerbs,
    ArchivingVerbs,
):
    """Talks to Redis; needs no worker in this process. Safe to share between threads.

    A client that is no longer needed is closed by `close()`, or by leaving its `with` block.
    """

    @property
    def schedules(self) -> Schedules:
        """The schedules: messages that are submitted at their times."""
        return Schedules(self)

    # --- acting -----------------------------------------------------------------------------------------------

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
        },
        reads_session=("session_id", "messages"), service_only=("labels",),
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
        new_only: bool = False,
        when: str = "steer",
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
            new_only: True: `session_id` never continues a session; one that was made by another request is a mismatch.
            when: How the message is delivered to a session that exists, as in `send_message`.
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
            operation_id=derive_id(idempotency_key, "operation"),
            has_key=idempotency_key is not None,
            execution_id=ExecutionId(derive_id(idempotency_key, "execution")),
            budget=budget,
            metadata=read_metadata(metadata, self.settings.max_message_bytes),
            labels=check_labels(labels),
            transcript=read_transcript(messages, session_id, self.settings),
            notify=self._read_receivers(on_complete, webhook, on_request, request_webhook),
            start_at=start_at,
            delay=delay,
            when=read_mode(when),
        )
        if (may_exist := session_id is not None and not new_only) and self._check_owner(submission.session, agent):
            return self._send(submission)
        return self._submit_new(submission, agent, may_exist=may_exist)

    def _submit_new(self, submission: Submission, agent: str, *, may_exist: bool) -> Job:
        """Create the session of a submission.

        Args:
            may_exist: Whether the caller chose the session's id, so that another caller may create it meanwhile.
        """
        if isinstance(submission.session, ChildSessionId):  # no caller makes such ids
            raise SessionNotFound(submission.session)
        queue = self._queues.queue_of(agent)
        try:
            applied = self.store.sessions.submit(
                submission.session,
                agent,
                submission.fingerprint(agent),
                submission.first_state,
                start_at_ms=submission.start_at_ms(self._now_ms),
                queue=queue,
                labels=submission.labels,
            )
        except IdempotencyMismatch:
            if not may_exist:
                raise
            # Another caller has created the session in the meantime.
            self._check_owner(submission.session, agent)
            return self._send(submission)
        if applied.outcome == "again" and may_exist:
            # The other caller said the same; unless this is the same operation, it is said twice.
            return self._send(submission)
        self._publish(applied.publish)
        job = self._make_job(
            submission.session, operation_id=submission.operation_id, execution_id=applied.execution_id
        )
        job.notice = self._queues.describe_unknown(agent) if queue is None else ""
        if job.notice:
            warnings.warn(job.notice, stacklevel=3)
        return job

    @verb(
        "POST", "/v1/sessions/{session_id}/messages", "send_message", scope=Scope.SUBMIT, headers=("idempotency_key",),
        body=("NewMessage", "A message of the user."), http={**MESSAGE_FIELDS, "when": WHEN},
        service_only=("budget", "webhook", "request_webhook"), needs=INTERRUPTING, for_chat=True,
    )  # fmt: skip
    def send_message(
        self,
        session_id: str,
        message: str | Message,
        *,
        when: str = "steer",
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
            )
        )

    @verb(task=("session_id", "execution_id", "by", "clear_queue"), task_gives={"timeout": 0})
    def stop(
        self,
        session_id: str,
        *,
        execution_id: str | None = None,
        timeout: float | None = _STOP_SECONDS,
        by: str | None = None,
        tree: bool = True,
        clear_queue: bool = False,
    ) -> Result | None:
        """End the running execution and wait until it has ended. Its results so far are kept.

        The sessions that its agents have started are stopped with it, and the call waits for all of them. Messages that
        wait are queued and held; those that are sent behind the stop start the next execution when this one has ended.

        Args:
            execution_id: Stop only this execution. None: the one that runs.
            by: Who asks; kept in the event `stop_requested`. None: no such event.
            timeout: Seconds to wait for a step that is running; 0 does not wait. None: as long as it takes.
            tree: False: only this session is told now; its next step stops the others.
            clear_queue: The messages that wait in this session now are not delivered.
        Returns:
            How it ended; None when nothing was running, or with `timeout=0`.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            TimeoutError: It has not ended yet; it will be stopped all the same.
        """
        check_seconds(timeout)
        check_caller(by)
        session = read_session_id(session_id)
        deadline = None if timeout is None else time.monotonic() + timeout
        applied = self.store.sessions.stop(session, execution_id, stop_transition, by=by, clear_queue=clear_queue)
        self._publish(applied.publish)
        is_mine = applied.outcome != "again" or execution_id is None
        below = self._stop_below(session, by) if tree and is_mine else set[str]()
        if timeout == 0:
            return None
        self._wait_for_ends(below, deadline)
        if applied.outcome == "again":
            return None
        left = None if deadline is None else max(0.001, deadline - time.monotonic())
        return self._make_job(session, execution_id=applied.execution_id).result(timeout=left)

    @verb(
        "POST", "/v1/sessions/{session_id}/retry", "retry_execution", scope=Scope.SUBMIT,
        body=("Retry", "New limits for an execution that failed or was stopped."),
        http={"budget": Field(), "by": BY}, service_only=("budget",),
    )  # fmt: skip
    def retry(self, session_id: str, *, budget: ExecutionBudget | None = None, by: str | None = None) -> Job:
        """Continue a failed or stopped execution from the step it ended at.

        Completed steps are kept.

        Args:
            budget: New limits instead of the old. None keeps them.
            by: Who asks; kept in the event `step_retried`.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: The execution did not fail and was not stopped.
        """
        check_budget(budget)
        check_caller(by)
        try:
            applied = self.store.sessions.retry(read_session_id(session_id), retry_transition(budget, by), by=by)
        except InvalidTransition as error:
            why = f"its execution is {error.before}; only failed and stopped ones can be retried"
            raise ActionRefused(f"session {session_id}: {why}") from error
        self._publish(applied.publish)
        return self._make_job(session_id, execution_id=applied.execution_id)

    def retry_failed(
        self,
        *,
        since: datetime | None = None,
        agent: str | None = None,
        dry_run: bool = False,
        by: str | None = None,
    ) -> Generator[Job]:
        """Retry all executions that failed.

        Args:
            since: Only those that failed at or after this time. None: all that are kept.
            agent: Only this agent's.
            dry_run: Only yield the jobs, retry none.
            by: Who asks; kept in the events `step_retried`.
        Yields:
            A job for each execution; it is retried when its job is yielded.
        """
        oldest_ms = read_time_ms("since", since, may_be_far=True)
        for header in list(iterate_headers(self.store, Filter(status="failed", agent=agent, oldest_ms=oldest_ms))):
            try:
                yield self._job(header) if dry_run else self.retry(header.session_id, by=by)
            except (ActionRefused, SessionNotFound):
                continue  # it was retried or has expired since it was listed

    def write_metadata(self, session_id: str, key: str, value: Any) -> None:
        """Keep a JSON value with the session."""
        check_text("metadata key", key, self.settings.max_message_bytes)
        payload = {"key": key, "value": json_value("metadata", value, self.settings.max_message_bytes)}
        self._act(read_session_id(session_id), Operation(new_change_id(), InboxKind.METADATA, payload))

    @verb(
        "POST", "/v1/sessions/{session_id}/labels", "label_session", scope=Scope.SUBMIT,
        body=("Labels", "Labels of a session to set, and those to remove."),
        http={"labels": Field(description="Texts by key; null removes a label.")}, service_only=("labels",),
        reads_session=False,
    )  # fmt: skip
    def label(self, session_id: str, labels: Mapping[str, str | None]) -> dict[str, str]:
        """Set labels of a session, by which it is found, and remove those whose value is None; the others stay.

        Returns:
            All labels that it has now.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            InvalidInput: One is no label, or there would be more than 16; nothing was changed.
        """
        return self.store.sessions.label(read_session_id(session_id), check_changes(labels))

    @verb(
        "PUT", "/v1/sessions/{session_id}/system-prompt", "change_system_prompt", scope=Scope.ADMIN,
        body=("SystemPrompt", "A system prompt of the session's own; \"\" returns to the agent's."),
        http={"prompt": Field(max_length=MOST_TEXT)},
    )  # fmt: skip
    def change_system_prompt(self, session_id: str, prompt: str) -> None:
        """Give the session a system prompt of its own; "" returns to the agent's."""
        check_text("prompt", prompt, self.settings.max_message_bytes)
        self._act(read_session_id(session_id), Operation(new_change_id(), InboxKind.SYSTEM_PROMPT, {"prompt": prompt}))

    def change_model(self, session_id: str, model: LLMConfig) -> None:
        """Give the session a model of its own, from its next step on."""
        check_model(model)
        self._act(read_session_id(session_id), Operation(new_change_id(), InboxKind.MODEL, {"model": model.to_dict()}))

    # --- reading ----------------------------------------------------------------------------------------------

    def job(self, session_id: str) -> Job:
        """Get the session's latest execution.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
        """
        return self._job(self.store.sessions.header(read_session_id(session_id)))

    def stream(
        self, session_id: str, after: str | None = None, *, timeout: float | None = None
    ) -> Generator[StreamItem]:
        """Follow a session, over all its executions: its events and the text that its steps write.

        Text is provisional until its step is committed; see `StreamItem` and `Transcript`.

        Args:
            after: Cursor of the last item that was seen, also by another process. None: from the beginning.
            timeout: Seconds after which it ends. None: it ends when the caller leaves it.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            SessionExpired: It has expired meanwhile.
            InvalidInput: `after` is no cursor.
        """
        check_seconds(timeout)
        StreamPosition.read(after)
        return (item for batch in self.stream_batches(session_id, after, timeout) for item in batch)

    def stream_batches(
        self, session_id: str, after: str | None, timeout: float | None
    ) -> Generator[builtins.list[StreamItem]]:
        """Follow a session in batches; a batch is empty when nothing happens for a while."""
        session = self.store.sessions.header(read_session_id(session_id)).session_id
        deadline = None if timeout is None else time.monotonic() + timeout
        with contextlib.suppress(TimeoutError):
            yield from follow_session(self.store, session, after, deadline)

    def show(self, session_id: str) -> StoredSession:
        """Load the session with its whole state.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            StateUnreadable: A part of it cannot be read; the error names it.
        """
        return self.store.sessions.load(read_session_id(session_id))

    def header(self, session_id: str) -> Header:
        """Read what a listing shows of a session, even where its state cannot be read."""
        return self.store.sessions.header(read_session_id(session_id))

    def list(
        self,
        *,
        status: str | None = None,
        agent: str | None = None,
        label: Mapping[str, str] | None = None,
        text: str | None = None,
        error: str | None = None,
        waits_for: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """List sessions by last update, newest first.

        A loop over the page also reads the pages that follow: `for header in client.list()`.

        Args:
            status: pending, in_progress, waiting, completed, stopped, failed, parked or unreadable.
            label: With all of these labels, such as `{"customer": "42"}`.
            text: Whose first message contains this in its first 200 characters, in whatever case. Of sessions in the
                archive: in which all words that begin so occur, wherever they were said.
            error: That failed, with an error that contains this, in whatever case; in the archive, these words.
            waits_for: With an open request of this kind: approval, question or external.
            since: Updated at or after this time.
            until: Updated at or before this time.
            limit: Most sessions of a page.
            cursor: From the page before.
        """
        check_listing(status, limit)
        wanted = read_filter(
            status=status, agent=agent, label=label, text=text, error=error, waits_for=waits_for, since=since,
            until=until,
        )  # fmt: skip
        return read_page(self.store, wanted, limit, cursor)

    @verb("GET", "/v1/agents", "list_agents", scope=Scope.READ, reads_session=False)
    def agents(self) -> dict[str, dict[str, Any]]:
        """Read the agents that workers have registered, with definition hash and the time they were last seen (ms)."""
        return self.store.registry.agents()

    @verb("GET", "/v1/workers", "list_workers", scope=Scope.READ, reads_session=False)
    def workers(self) -> dict[str, dict[str, Any]]:
        """Read the live workers by name: slots, queues ("" is the common one), agents, and whether they drain."""
        return self.store.registry.workers()

    def upgrade_data(self) -> bool:
        """Have what sessions say stored once and compressed, in a store of a version before 0.2.0.

        What is stored is read as it is, and written in the new form where it is written again. There is no way back:
        older builds refuse the store when they begin, and sessions of the new form while they run. New stores have the
        new form from the beginning.

        Returns:
            False: It was so already.
        Raises:
            ActionRefused: Workers of a version before 0.2.0 are alive; nothing was changed.
        """
        return self.store.housekeeping.upgrade()

    def wait_for_agent(self, name: str, timeout: float = 30.0, check: Callable[[], object] | None = None) -> None:
        """Wait until a live worker offers an agent.

        Args:
            check: Called while waiting; an exception of it ends the wait.
        Raises:
            TimeoutError: No worker offers it in time.
        """
        deadline = time.monotonic() + timeout
        while not self._is_offered(name):
            if check is not None:
                check()
            if time.monotonic() >= deadline:
                raise TimeoutError(f"no worker offers agent {name!r} after {timeout:g} s")
            time.sleep(0.05)

    def _send(self, submission: Submission) -> Job:
        """Add the message to an existing session; one that was added before gets the same job."""
        session, operation_id = submission.session, submission.operation_id
        if submission.needs_new and not self.store.sessions.read_joined(session, operation_id):
            submission.refuse_existing()
        fingerprint = submission.message_fingerprint()
        operation = Operation(operation_id, InboxKind.MESSAGE, submission.payload(), fingerprint=fingerprint)
        applied = self._act(session, operation)
        job = self._make_job(session, operation_id=operation_id, execution_id=applied.execution_id)
        job.placed = applied.placed
        return job

    def _job(self, header: Header) -> Job:
        return self._make_job(header.session_id, execution_id=header.execution_id)

    def _check_owner(self, session: str, agent: str) -> bool:
        """Whether the session exists; refuses it when it belongs to another agent."""
        try:
            owner = self.store.sessions.header(session).agent
        except SessionNotFound:
            return False
        if owner != agent:
            raise ActionRefused(f"session {session} belongs to agent {owner!r}; give {agent!r} a session of its own")
        return True

    def _is_offered(self, name: str) -> bool:
        try:
            return any(name in facts["agents"] for facts in self.store.registry.workers().values())
        except StoreUnavailable:
            return False

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
