"""`Job`: a client's handle of an execution."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

from ...worker.errors import (
    ActionRefused,
    MessageUndelivered,
    NotConfirmed,
    SessionArchived,
    SessionDeleted,
    SessionExpired,
    SessionNotFound,
    StoreUnavailable,
)
from ...worker.state.execution.budget import ExecutionBudget
from ...worker.store.event_records import EXECUTION_ENDS, Event, EventType
from ...worker.store.live.streams import StreamPosition
from ...worker.store.queued_messages import UNDELIVERED
from ...worker.store.records import Placement, StepRef
from ...worker.store.session_records import Result
from ...worker.store.store import Store
from .budgets import change_budget
from .following import follow_session
from .inputs import check_position, check_seconds
from .stream_items import StreamItem


class Job:
    """An execution that was submitted, or a message that will be part of one.

    Attributes:
        session_id: The session.
        operation_id: The submit or message that made the job; the job follows it to its execution.
        notice: Why the job cannot begin yet, for its caller: no worker has registered the agent, it is paused, or its
            spend cap is used up. "" otherwise.
        placed: Where its message went when it was sent first: `starts`, `joins`, `queued` or `held`. None: not known,
            or the job was not made by a message.
    """

    def __init__(
        self,
        store: Store,
        session_id: str,
        operation_id: str,
        execution_id: str = "",
        *,
        publish: Callable[[StepRef | None], None] = lambda _: None,
    ) -> None:
        """
        Args:
            publish: Publishes a step where a transaction could not. Without it, the sweep does.
        """
        self._store = store
        self._publish = publish
        self._execution_id = execution_id
        self.session_id = session_id
        self.operation_id = operation_id
        self.notice = ""
        self.placed: Placement | None = None

    @property
    def execution_id(self) -> str:
        """Id of the execution; "" as long as the message waits, and for one that was taken back."""
        found = self._look_up()
        return "" if found.startswith(UNDELIVERED) else found

    def events(self, from_id: str | None = None, *, timeout: float | None = None) -> Generator[Event]:
        """Follow the events of the execution until it ends.

        Args:
            from_id: Resume after this event. None: from the beginning of the execution.
            timeout: Seconds in all; None waits as long as it takes.
        Raises:
            TimeoutError: The execution has not ended in time, and is not stopped.
            SessionExpired: Its retention is over, and nothing of the session is left.
            SessionDeleted: The session was deleted.
            InvalidInput: `from_id` is not the id of an event.
        """
        check_seconds(timeout)
        check_position(from_id)
        return (event for batch in self.batches(from_id, timeout) for event in batch)

    def batches(self, from_id: str | None, timeout: float | None) -> Generator[list[Event]]:
        """Follow the events in batches, as the store gives them; a batch is empty when nothing happens for a while."""
        for batch in self.stream_batches(from_id, timeout, is_live=False):
            yield [item.event for item in batch if item.event is not None]

    def stream(self, after: str | None = None, *, timeout: float | None = None) -> Generator[StreamItem]:
        """Follow the events of the execution, and the text that its steps write, until it ends.

        Text is provisional until its step is committed; see `StreamItem` and `Transcript`.

        Args:
            after: Cursor of the last item that was seen, also by another process. None: from the beginning.
            timeout: Seconds in all; None waits as long as it takes.
        Raises:
            TimeoutError: The execution has not ended in time, and is not stopped.
            SessionExpired: Its retention is over, and nothing of the session is left.
            InvalidInput: `after` is no cursor.
        """
        check_seconds(timeout)
        StreamPosition.read(after)
        return (item for batch in self.stream_batches(after, timeout) for item in batch)

    def stream_batches(
        self, after: str | None, timeout: float | None, *, is_live: bool = True
    ) -> Generator[list[StreamItem]]:
        """Follow the stream in batches, with its text or without; one is empty when nothing happens for a while."""
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            for batch in follow_session(
                self._store, self.session_id, after, deadline, self._check_ended, is_live=is_live
            ):
                own = [item for item in batch if self._is_mine(item)]
                yield own
                last = next((item.event for item in reversed(own) if item.event), None)
                if last is not None and last.type in EXECUTION_ENDS and self._check_ended() and self._is_last(last):
                    return
        except TimeoutError:
            waited = f"execution {self._execution_id or '(queued)'} has not ended within {timeout or 0:g} s"
            raise TimeoutError(waited) from None

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end of the execution.

        Args:
            timeout: Seconds; None waits as long as it takes.
        Raises:
            TimeoutError: The execution has not ended in time, and is not stopped.
            NotConfirmed: It has ended, and too few replicas know that (`CELERY_AGENTS_REPLICAS`); ask again.
            SessionExpired: Its retention is over, and nothing of the session is left.
            SessionDeleted: The session was deleted.
            MessageUndelivered: The message was taken back before an execution had it.
        """
        check_seconds(timeout)
        result = self._read_result()
        if result is None:
            for _ in self.events(timeout=timeout):
                pass
            result = self._read_result()
        if result is None:
            raise TimeoutError(f"execution {self._execution_id} was continued before its result was read")
        return result

    def change_budget(self, budget: ExecutionBudget, *, by: str | None = None, beyond_agent: bool = False) -> bool:
        """Change the limits of the execution while it runs or waits; see `AgentClient.change_budget`.

        Raises:
            ActionRefused: It has ended, or its message still waits behind a running step.
        """
        if not self.execution_id:
            why = "its message waits behind a running step; change the budget of the session's execution"
            raise ActionRefused(f"session {self.session_id}: {why}")
        applied = change_budget(
            self._store, self.session_id, budget, execution_id=self.execution_id, by=by, beyond_agent=beyond_agent
        )
        self._publish(applied.publish)
        return applied.outcome == "changed"

    def _is_mine(self, item: StreamItem) -> bool:
        if item.event is not None:
            self._note_execution(item.event)
            return item.event.execution_id == self._execution_id
        return item.delta is None or item.delta.execution_id == self._execution_id

    def _note_execution(self, event: Event) -> None:
        own = event.data.get("operation") == self.operation_id
        if own and event.type in ("execution_submitted", "message_joined"):
            self._execution_id = event.execution_id

    def _check_ended(self) -> bool:
        """Whether a result is stored. An empty batch asks too, since the stream may have lost the event of the end."""
        try:
            return self._read_result() is not None
        except NotConfirmed:  # it has ended; who reads the result hears that it is not confirmed
            return True
        except StoreUnavailable:
            return False

    def _is_last(self, end: Event) -> bool:
        """Whether an end is the last event of its execution: behind one that did not complete, a retry may follow."""
        if end.type == EventType.EXECUTION_COMPLETED:
            return True
        try:
            behind = self._store.sessions.events(self.session_id, end.id)
        except StoreUnavailable:  # the stream is asked again
            return False
        return all(each.execution_id != self._execution_id for each in behind)

    def _read_result(self) -> Result | None:
        try:
            execution_id = self._look_up()
            if execution_id.startswith(UNDELIVERED):
                why = execution_id.removeprefix(UNDELIVERED)
                raise MessageUndelivered(self.session_id, self.operation_id, why)
            if not execution_id:
                self._store.sessions.header(self.session_id)
                return None
            return self._store.sessions.outcome(self.session_id, execution_id)
        except (SessionArchived, SessionDeleted):
            raise
        except SessionNotFound as error:  # it was there when this job was made
            raise SessionExpired(self.session_id) from error

    def _look_up(self) -> str:
        """The execution that the message has joined; "" while it waits, and its mark where it was taken back."""
        if self._execution_id:
            return self._execution_id
        found = self._store.sessions.read_joined(self.session_id, self.operation_id)
        if not found.startswith(UNDELIVERED):
            self._execution_id = found
        return found

    def __repr__(self) -> str:
        return f"Job(session_id={self.session_id!r}, execution_id={self._execution_id!r})"


__all__ = ["Job", "Result"]
