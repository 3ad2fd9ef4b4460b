"""`AgentClient`: how services hand over jobs, follow them and act on them."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from typing import Any, Final

from celery import Celery

from ...config.settings import Settings
from ...worker.engine.transitions import operation_transition, retry_transition, stop_transition
from ...worker.errors import (
    ActionRefused,
    IdempotencyMismatch,
    InvalidTransition,
    SessionNotFound,
    StoreUnavailable,
    UnknownAgent,
)
from ...worker.state import ExecutionBudget, ExecutionId, LLMConfig, Message, SessionId, read_session_id
from ...worker.store import ActionResult, Header, InboxKind, Operation, Store, redis_store
from ...worker.store.sessions.loading import StoredSession
from ..housekeeping.callbacks import read_receivers
from ..producer import create_producer_app, settings_of
from ..publishing import SeparatePublisher, TransactionPublisher
from .inputs import (
    check_agent_name,
    check_budget,
    check_listing,
    check_model,
    check_seconds,
    check_since,
    check_text,
    derive_id,
    json_value,
    read_message,
    read_metadata,
)
from .job import Job, Result
from .listing import Filter, Page, iterate_headers, read_page, to_milliseconds
from .submission import Submission

_STOP_SECONDS: Final = 30.0


class AgentClient:
    """Talks to Redis; needs no worker in this process. Safe to share between threads."""

    def __init__(
        self,
        redis_url: str | None = None,
        *,
        broker_url: str | None = None,
        settings: Settings | None = None,
        app: Celery | None = None,
    ) -> None:
        """
        Args:
            redis_url: The store. None: `CELERY_AGENTS_REDIS_URL`.
            broker_url: None: `CELERY_AGENTS_BROKER_URL`, else the store.
            settings: Settings to use instead of both and of the environment.
            app: An existing app that has agents installed: messages go out as it sends its own, with its key prefix and
                its priorities, and the settings are those of `install`.
        Raises:
            SettingsError: A setting is unknown or wrong.
        """
        chosen = settings or (settings_of(app) if app is not None else None)
        self.settings = chosen or Settings.from_environment(redis_url=redis_url, broker_url=broker_url)
        publishing = app if app is not None else create_producer_app(self.settings)
        self._publisher = SeparatePublisher(publishing, self.settings)
        self._store = redis_store(
            self.settings, name="celery-agents-client", publisher=TransactionPublisher(publishing, self.settings)
        )
        self._shards_checked = False
        self._seen_agents: set[str] = set()

    @property
    def store(self) -> Store:
        """The step store, for monitoring and tests."""
        if not self._shards_checked:
            self._store.housekeeping.check_shards()
            self._shards_checked = True
        return self._store

    # --- acting -----------------------------------------------------------------------------------------------

    def submit(
        self,
        agent: str,
        message: str | Message,
        *,
        session_id: str | None = None,
        idempotency_key: str | None = None,
        budget: ExecutionBudget | None = None,
        metadata: Mapping[str, Any] | None = None,
        on_complete: object = None,
        webhook: str | None = None,
    ) -> Job:
        """Hand a job to an agent: a new session, or the next message of an existing one of this agent.

        Args:
            agent: Name of an agent that a worker offers.
            session_id: None: a new one, or the one that follows from `idempotency_key`.
            idempotency_key: The same request with the same key makes one execution, however often it comes.
            budget: Limits of the execution; the agent's own limits hold as well, the smaller counts.
            metadata: JSON kept with a new session; see `write_metadata` for an existing one.
            on_complete: Name of a Celery task, or a signature, that is called with the keyword `result` at the end.
            webhook: URL to which the result is posted at the end, signed with the workers' webhook secret.
        Raises:
            InvalidInput: An argument cannot be used; nothing was written.
            UnknownAgent: Workers have registered, and none offers this agent. Once seen, it stays known.
            ActionRefused: The session belongs to another agent.
            IdempotencyMismatch: The key was used for something else.
            StoreFull: Redis is full; nothing was written.
            StoreUnavailable: No answer. Ask again with the same idempotency key.
        """
        check_agent_name(agent)
        first = read_message(message, self.settings.max_message_bytes)
        check_budget(budget)
        submission = Submission(
            session=SessionId(derive_id(idempotency_key, "session") if session_id is None else session_id),
            message=first,
            operation_id=derive_id(idempotency_key, "operation"),
            execution_id=ExecutionId(derive_id(idempotency_key, "execution")),
            budget=budget,
            metadata=read_metadata(metadata, self.settings.max_message_bytes),
            notify=read_receivers(on_complete, webhook),
        )
        name = self._check_agent(agent)
        if session_id is not None and self._check_owner(submission.session, name):
            return self._send(submission)
        return self._submit_new(submission, name, may_exist=session_id is not None)

    def _submit_new(self, submission: Submission, agent: str, *, may_exist: bool) -> Job:
        """Create the session of a submission.

        Args:
            may_exist: Whether the caller chose the session's id, so that another caller may create it meanwhile.
        """
        try:
            applied = self.store.sessions.submit(
                submission.session, agent, submission.fingerprint(agent), submission.first_state
            )
        except IdempotencyMismatch:
            if not may_exist:
                raise
            # Another caller has created the session in the meantime.
            self._check_owner(submission.session, agent)
            return self._send(submission)
        self._publish(applied)
        return Job(
            self.store, submission.session, operation_id=submission.operation_id, execution_id=applied.execution_id
        )

    def send_message(
        self,
        session_id: str,
        message: str | Message,
        *,
        idempotency_key: str | None = None,
        budget: ExecutionBudget | None = None,
        on_complete: object = None,
        webhook: str | None = None,
    ) -> Job:
        """Send a further message. A running execution takes it up at its next step; else a new one starts.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            InvalidInput: The message cannot be used.
            ActionRefused: Too many messages wait for the running step.
        """
        content = read_message(message, self.settings.max_message_bytes)
        check_budget(budget)
        notify = read_receivers(on_complete, webhook)
        return self._send(
            Submission(
                session=SessionId(session_id),
                message=content,
                operation_id=derive_id(idempotency_key, "operation"),
                budget=budget,
                notify=notify,
            )
        )

    def stop(
        self, session_id: str, *, execution_id: str | None = None, timeout: float | None = _STOP_SECONDS
    ) -> Result | None:
        """End the running execution and wait until it has ended. What it has obtained is kept.

        Args:
            execution_id: Stop only this execution. None: the one that runs.
            timeout: Seconds to wait for a step that is running; 0 does not wait. None: as long as it takes.
        Returns:
            How it ended; None when nothing was running, or with `timeout=0`.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            TimeoutError: It has not ended yet; it will be stopped all the same.
        """
        check_seconds(timeout)
        applied = self.store.sessions.stop(SessionId(session_id), execution_id, stop_transition)
        self._publish(applied)
        if applied.outcome == "again" or timeout == 0:
            return None
        return Job(self.store, session_id, operation_id="", execution_id=applied.execution_id).result(timeout=timeout)

    def retry(self, session_id: str, *, budget: ExecutionBudget | None = None) -> Job:
        """Continue a failed or stopped execution from the step it ended at; completed steps are kept.

        Args:
            budget: New limits instead of the old. None keeps them.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: The execution did not fail and was not stopped.
        """
        check_budget(budget)
        try:
            applied = self.store.sessions.retry(SessionId(session_id), retry_transition(budget))
        except InvalidTransition as error:
            raise ActionRefused(f"session {session_id} cannot be retried: {error}") from error
        self._publish(applied)
        return Job(self.store, session_id, operation_id="", execution_id=applied.execution_id)

    def retry_failed(
        self, *, since: datetime | None = None, agent: str | None = None, dry_run: bool = False
    ) -> Generator[Job]:
        """Retry all executions that failed.

        Args:
            since: Only those that failed at or after this time. None: all that are kept.
            agent: Only this agent's.
            dry_run: Only yield the jobs, retry none.
        Yields:
            A job for each execution; it is retried when its job is yielded.
        """
        check_since(since)
        oldest_ms = to_milliseconds(since)
        for header in list(iterate_headers(self.store, "failed", oldest_ms)):
            if header.status != "failed" or (agent is not None and header.agent != agent):
                continue
            try:
                yield self._job(header) if dry_run else self.retry(header.session_id)
            except (ActionRefused, SessionNotFound):
                continue  # it was retried or has expired since it was listed

    def write_metadata(self, session_id: str, key: str, value: Any) -> None:
        """Keep a JSON value with the session."""
        check_text("metadata key", key, self.settings.max_message_bytes)
        payload = {"key": key, "value": json_value("metadata", value, self.settings.max_message_bytes)}
        self._act(SessionId(session_id), Operation(uuid.uuid4().hex, InboxKind.METADATA, payload))

    def change_system_prompt(self, session_id: str, prompt: str) -> None:
        """Give the session a system prompt of its own; "" returns to the agent's."""
        check_text("prompt", prompt, self.settings.max_message_bytes)
        self._act(SessionId(session_id), Operation(uuid.uuid4().hex, InboxKind.SYSTEM_PROMPT, {"prompt": prompt}))

    def change_model(self, session_id: str, model: LLMConfig) -> None:
        """Give the session a model of its own, from its next step on."""
        check_model(model)
        self._act(SessionId(session_id), Operation(uuid.uuid4().hex, InboxKind.MODEL, {"model": model.to_dict()}))

    # --- reading ----------------------------------------------------------------------------------------------

    def job(self, session_id: str) -> Job:
        """Get the session's latest execution.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
        """
        return self._job(self.store.sessions.header(read_session_id(session_id)))

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
        since: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """List sessions by last update, newest first.

        Args:
            status: pending, in_progress, waiting, completed, stopped, failed, parked or unreadable.
            since: Updated at or after this time.
            limit: Most sessions of a page.
            cursor: From the page before.
        """
        check_since(since)
        check_listing(status, limit)
        wanted = Filter(status=status, agent=agent, oldest_ms=to_milliseconds(since))
        return read_page(self.store, wanted, limit, cursor)

    def agents(self) -> dict[str, dict[str, Any]]:
        """Read the agents that workers have registered, with definition hash and the time they were last seen (ms)."""
        return self.store.registry.agents()

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
        """Add the message to an existing session."""
        operation = Operation(submission.operation_id, InboxKind.MESSAGE, submission.payload())
        applied = self._act(submission.session, operation)
        return Job(
            self.store, submission.session, operation_id=submission.operation_id, execution_id=applied.execution_id
        )

    def _act(self, session: SessionId, operation: Operation) -> ActionResult:
        applied = self.store.sessions.act(session, operation, operation_transition)
        self._publish(applied)
        return applied

    def _publish(self, applied: ActionResult) -> None:
        if applied.publish is not None:
            self._publisher.publish(applied.publish, self.store.housekeeping.now_ms())

    def _job(self, header: Header) -> Job:
        return Job(self.store, header.session_id, operation_id="", execution_id=header.execution_id)

    def _check_owner(self, session: SessionId, agent: str) -> bool:
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

    def _check_agent(self, name: str) -> str:
        if name in self._seen_agents:
            return name
        registered = self.store.registry.agents()
        if not registered:
            warnings.warn(f"no worker has registered any agent yet; {name!r} waits for one", stacklevel=3)
        elif name not in registered:
            raise UnknownAgent(name, tuple(registered))
        self._seen_agents.update(registered)
        return name
