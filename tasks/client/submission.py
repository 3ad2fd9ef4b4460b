"""A message that a caller submits, as the store takes it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from ...worker.drivers.windows import WINDOWS, read_window
from ...worker.engine.transitions import FirstExecution, first_state
from ...worker.errors import ConfigurationError, InvalidInput
from ...worker.flow.debounce import Debounce, milliseconds
from ...worker.flow.shares import FairShares, Priority, check_priority, lane_of
from ...worker.moments import moment
from ...worker.state.agent_state import AgentState
from ...worker.state.conversation.messages import Message
from ...worker.state.execution.budget import ExecutionBudget
from ...worker.state.values.field_types import utcnow
from ...worker.state.values.frozen import FrozenDict
from ...worker.state.values.ids import ChildSessionId, SessionId
from ...worker.store.records import InboxKind, MessageMode, NextState, Operation
from .inputs import check_budget, fingerprint_messages, fingerprint_request, read_time_ms

_LONGEST: Final = timedelta(days=366)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A message that a caller hands in, checked.

    Attributes:
        has_key: Whether the caller gave an idempotency key, from which the ids are derived.
        execution_id: Id of the execution that it starts in a new session.
        metadata, labels: Of a new session.
        transcript: What was said before the message; a new session begins with it.
        notify: Receivers of a callback at the end; None when there is none.
        start_at: When the first step of a new session begins; None: at once.
        delay: The same as a time from now.
        expires_in: The execution of a new session is stopped so long after it may begin, if it has not begun then.
        debounce: A new session begins later, and takes further messages until it has begun.
        priority: Of the steps of a new session; None: normal.
        completion_window: Of the executions of a new session; None: as their agent says.
        when: How it is delivered to a session that exists.
        by: Who sends it; "" where nobody has said so.
    """

    session: SessionId | ChildSessionId
    message: Message
    operation_id: str
    has_key: bool = False
    execution_id: str = ""
    budget: ExecutionBudget | None
    metadata: FrozenDict = field(default_factory=FrozenDict)
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    transcript: tuple[Message, ...] = ()
    notify: Mapping[str, Any] | None
    start_at: datetime | None = None
    delay: timedelta | None = None
    expires_in: timedelta | None = None
    debounce: Debounce | None = None
    priority: Priority | None = None
    completion_window: str | None = None
    when: MessageMode = MessageMode.STEER
    by: str = ""

    def __post_init__(self) -> None:
        check_budget(self.budget)
        if self.start_at is not None and self.delay is not None:
            raise InvalidInput("delay", str(self.delay), "give start_at or delay, not both.")
        read_time_ms("start_at", self.start_at)
        _check_time("delay", self.delay, timedelta())
        _check_time("expires_in", self.expires_in, timedelta(milliseconds=1))
        if self.priority is not None:
            check_priority(self.priority)
        self._check_window()
        if self.debounce is not None:
            self._check_debounced(self.debounce)

    def _check_window(self) -> None:
        try:
            read_window("completion_window", self.completion_window)
        except ConfigurationError as error:
            advice = f"write one of {', '.join(WINDOWS)}, or None for the agent's own."
            raise InvalidInput("completion_window", self.completion_window, advice) from error

    def check_deadline(self) -> None:
        """Refuse a window that ends behind the deadline when it begins now.

        Raises:
            InvalidInput: It does.
        """
        deadline = None if self.budget is None else self.budget.deadline
        window = self.completion_window
        if window is not None and deadline is not None and deadline < WINDOWS[window].until(utcnow()):
            advice = f"the deadline {deadline} comes before it ends; give a later one, or a shorter window."
            raise InvalidInput("completion_window", window, advice)

    def _check_debounced(self, debounce: Debounce) -> None:
        if not isinstance(debounce, Debounce):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput("debounce", debounce, "give a Debounce of celery_agents.flow, or None.")
        for name, value in (("delay", self.delay), ("start_at", self.start_at)):
            if value is not None:
                raise InvalidInput(name, str(value), "leave it out: a debounced job begins by the times of Debounce.")
        if self.when is not MessageMode.STEER:
            raise InvalidInput("when", self.when, "leave it out: a debounced message joins its job, or is queued.")

    def start_at_ms(self, now_ms: Callable[[], int]) -> int:
        """Redis time at which the first step begins; 0: at once.

        Args:
            now_ms: Reads Redis's time, which a delay counts from.
        """
        if self.delay is not None:
            return now_ms() + milliseconds(self.delay)
        if self.debounce is not None:
            return now_ms() + self.debounce.quiet_ms
        return read_time_ms("start_at", self.start_at) or 0

    def lane(self, shares: FairShares | None) -> str:
        """The lane of the steps of a new session; "" for none."""
        if shares is None:
            return "" if self.priority is None else lane_of("", self.priority)
        return shares.lane_for(self.labels, self.priority or "normal")

    @property
    def _needs_new(self) -> Iterator[tuple[str, Any, str]]:
        """All that only a new session can have and the caller asked for: name, value, and what to do instead."""
        for name, value in (("delay", self.delay), ("start_at", self.start_at)):
            if value is not None:
                yield name, str(value), "only a new session can start later. Leave it out, or the id."
        if self.expires_in is not None:
            yield "expires_in", str(self.expires_in), "only a new session can expire. Leave it out, or the id."
        if self.priority is not None:
            yield "priority", self.priority, "only a new session can be given one. Leave it out, or the id."
        if self.completion_window is not None:
            advice = "only a new session can be given one. Leave it out, or the id."
            yield "completion_window", self.completion_window, advice
        if self.labels:
            yield "labels", self.labels, "call label() for it, and leave them out here."

    @property
    def needs_new(self) -> bool:
        """Whether the caller asked for what only a new session can have."""
        return any(True for _ in self._needs_new)

    def refuse_existing(self) -> None:
        """Refuse what only a new session can have, for a session that exists.

        Raises:
            InvalidInput: The submission asks for such a thing.
        """
        for name, value, advice in self._needs_new:
            raise InvalidInput(name, value, f"session {self.session} exists; {advice}")

    def first_state(self, now_ms: int) -> NextState:
        """Build the first version of a new session."""
        now = moment(now_ms)
        state = AgentState.fresh(metadata=self.metadata, now=now)
        if self.transcript:
            state = state.run.with_messages(self.transcript, now=now)
        execution = FirstExecution(
            self.execution_id,
            self.operation_id,
            self.budget,
            fingerprint=self.message_fingerprint(),
            notify=self.notify,
            expires_at=self._expires_at(now_ms),
            completion_window=self.completion_window,
        )
        return first_state(state, self.message, execution, now)

    def _expires_at(self, now_ms: int) -> datetime | None:
        """When the execution expires that this begins; counted from the time at which it may begin, at the latest."""
        if self.expires_in is None:
            return None
        starts_ms = now_ms + self.debounce.at_most_ms if self.debounce else self.start_at_ms(lambda: now_ms)
        return moment(max(now_ms, starts_ms) + milliseconds(self.expires_in))

    def _times(self) -> str:
        """When the caller asked it to begin, for the digests; "" where nothing was said."""
        later = "" if self.start_at is None and self.delay is None else f"{self.start_at}{self.delay}"
        later += "" if self.expires_in is None else f"expires{self.expires_in}"
        return later + ("" if self.debounce is None else self.debounce.to_json().decode())

    def fingerprint(self, agent: str) -> str:
        """Hash what the caller asked for, to recognise another request under the same key."""
        later = self._times()
        transcript = fingerprint_messages(self.transcript) if self.transcript else ""
        labels = json.dumps(self.labels, sort_keys=True) if self.labels else ""
        labels += "" if self.priority is None else f"priority{self.priority}"
        labels += "" if self.completion_window is None else f"window{self.completion_window}"
        return fingerprint_request(agent, self.message, self.budget, self.metadata) + later + transcript + labels

    def message_fingerprint(self) -> str:
        """Hash what was sent under an idempotency key to a session, with the version of the hash; "" without a key."""
        if not self.has_key:
            return ""
        written = b"".join((self.message.to_json(), b"" if self.budget is None else self.budget.to_json()))
        later = self._times()
        later += "" if self.when is MessageMode.STEER else self.when
        return f"1:{hashlib.sha256(written + later.encode()).hexdigest()[:32]}"

    def operation(self) -> Operation:
        """The message as an operation on a session that exists."""
        fingerprint = self.message_fingerprint()
        return Operation(self.operation_id, InboxKind.MESSAGE, self._payload(), fingerprint=fingerprint)

    def _payload(self) -> dict[str, Any]:
        payload: dict[str, Any] = {"message": self.message.to_dict()}
        if self.budget is not None:
            payload["budget"] = self.budget.to_dict()
        if self.notify is not None:
            payload["notify"] = self.notify
        if self.when is not MessageMode.STEER:
            payload["when"] = self.when
        if self.by:
            payload["by"] = self.by
        return payload


def _check_time(field: str, time: object, least: timedelta) -> None:
    if time is not None and not (isinstance(time, timedelta) and least <= time <= _LONGEST):
        raise InvalidInput(field, str(time), f"give a timedelta up to {_LONGEST.days} days, or None.")
