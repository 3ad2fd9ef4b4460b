"""`AgentClient`: how services submit jobs, follow them and act on them."""

from __future__ import annotations

import builtins
import contextlib
import time
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import Field

from ...worker.engine.transitions import retry_transition, stop_transition
from ...worker.errors import (
    ActionRefused,
    InvalidInput,
    InvalidTransition,
    SessionNotFound,
    StateUnreadable,
    StoreUnavailable,
)
from ...worker.state.conversation.context import LLMConfig
from ...worker.state.execution.budget import ExecutionBudget
from ...worker.state.values.ids import read_session_id
from ...worker.store.inbox import new_change_id
from ...worker.store.labels import check_changes
from ...worker.store.live.streams import StreamPosition
from ...worker.store.records import InboxKind, Operation
from ...worker.store.session_records import Header, StoredSession
from .archiving import ArchivingVerbs
from .budgeting import BEYOND_AGENT, BudgetingVerbs
from .budgets import complete_budget
from .bulk import BulkVerbs
from .erasing import ErasingVerbs
from .fleet_values import FleetVerbs
from .following import follow_session
from .forking import ForkingVerbs
from .inputs import (
    check_budget,
    check_caller,
    check_listing,
    check_model,
    check_seconds,
    check_text,
    read_metadata,
    read_time_ms,
)
from .job import Job, Result
from .listing import Filter, Page, iterate_headers, read_filter, read_page
from .messages import MessageVerbs
from .observing import ObservingVerbs
from .pending import ResolvingVerbs
from .providers import ProviderVerbs
from .rewinding import RewindingVerbs
from .schedules import Schedules
from .snapshots import SnapshotVerbs
from .spending import SpendingVerbs
from .stream_items import StreamItem
from .submitting import SubmittingVerbs
from .verbs import BY, MOST_TEXT, Scope, verb

_STOP_SECONDS: Final = 30.0


class AgentClient(
    SubmittingVerbs,
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
    FleetVerbs,
    ArchivingVerbs,
):
    """Talks to Redis; needs no worker in this process. Safe to share between threads.

    A client that is no longer needed is closed by `close()`, or by leaving its `with` block.
    """

    @property
    def schedules(self) -> Schedules:
        """The schedules: messages that are submitted at their times."""
        return Schedules(self)

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
        http={
            "budget": Field(description="All limits; a missing one is the agent's own, or none. None keeps them."),
            "beyond_agent": BEYOND_AGENT, "by": BY,
        },
        service_only=("budget",), needs={("beyond_agent", True): Scope.ADMIN},
    )  # fmt: skip
    def retry(
        self,
        session_id: str,
        *,
        budget: ExecutionBudget | None = None,
        by: str | None = None,
        beyond_agent: bool = False,
    ) -> Job:
        """Continue a failed or stopped execution from the step it ended at.

        Completed steps are kept; what they have used counts against the budget.

        Args:
            budget: All limits, in place of the old. A limit that is None is the agent's own, or there is none. None
                keeps them.
            by: Who asks; kept in the event `step_retried`.
            beyond_agent: The budget may be above the agent's own.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: The execution did not fail and was not stopped; or a budget is given, and the session is
                parked.
            InvalidInput: A limit is above that of the agent; or beyond_agent without a budget.
        """
        check_budget(budget)
        check_caller(by)
        session = read_session_id(session_id)
        if budget is not None:
            budget = complete_budget(self.store, session, budget, beyond_agent=beyond_agent)
        elif beyond_agent:
            raise InvalidInput("beyond_agent", True, "give the budget that may be above the agent's, or leave it out.")
        transition, has_budget = retry_transition(budget, by), budget is not None
        try:
            applied = self.store.sessions.retry(session, transition, by=by, has_budget=has_budget)
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
        """Retry all executions that failed, but for those in the archive, which `act_on_many` reaches.

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
            except (ActionRefused, SessionNotFound, StateUnreadable):
                continue  # it was retried or has expired since it was listed, or cannot be read

    def write_metadata(self, session_id: str, key: str, value: Any) -> None:
        """Keep a JSON value with the session."""
        check_text("metadata key", key, self.settings.max_message_bytes)
        entry = read_metadata({key: value}, self.settings.max_message_bytes)  # it may nest as deep as in all metadata
        payload = {"key": key, "value": entry[key]}
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
            status: idle (without an execution), pending, in_progress, waiting, completed, stopped, failed, parked or
                unreadable.
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

    def wait_for_agent(
        self, name: str, timeout: float | None = 30.0, check: Callable[[], object] | None = None
    ) -> None:
        """Wait until a live worker offers an agent.

        Args:
            timeout: Seconds; None waits as long as it takes.
            check: Called while waiting; an exception of it ends the wait.
        Raises:
            TimeoutError: No worker offers it in time.
        """
        check_seconds(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._is_offered(name):
            if check is not None:
                check()
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"no worker offers agent {name!r} after {timeout:g} s")
            time.sleep(0.05)

    def _job(self, header: Header) -> Job:
        return self._make_job(header.session_id, execution_id=header.execution_id)

    def _is_offered(self, name: str) -> bool:
        try:
            return any(name in facts["agents"] for facts in self.store.registry.workers().values())
        except StoreUnavailable:
            return False
