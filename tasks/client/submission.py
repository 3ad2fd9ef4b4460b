"""A message that a caller submits, as the store takes it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from ...worker.engine.transitions import FirstExecution, first_state
from ...worker.errors import InvalidInput
from ...worker.moments import moment
from ...worker.state.agent_state import AgentState
from ...worker.state.conversation.messages import Message
from ...worker.state.execution.budget import ExecutionBudget
from ...worker.state.values.frozen import FrozenDict
from ...worker.state.values.ids import ChildSessionId, SessionId
from ...worker.store.records import MessageMode, NextState
from .inputs import check_budget, fingerprint_messages, fingerprint_request, read_time_ms

_LONGEST_DELAY: Final = timedelta(days=366)


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
        when: How it is delivered to a session that exists.
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
    when: MessageMode = MessageMode.STEER

    def __post_init__(self) -> None:
        check_budget(self.budget)
        if self.start_at is not None and self.delay is not None:
            raise InvalidInput("delay", str(self.delay), "give start_at or delay, not both.")
        read_time_ms("start_at", self.start_at)
        if self.delay is not None and (
            not isinstance(self.delay, timedelta)  # pyright: ignore[reportUnnecessaryIsInstance]
            or not timedelta() <= self.delay <= _LONGEST_DELAY
        ):
            raise InvalidInput("delay", str(self.delay), f"give a timedelta up to {_LONGEST_DELAY.days} days, or None.")

    def start_at_ms(self, now_ms: Callable[[], int]) -> int:
        """Redis time at which the first step begins; 0: at once.

        Args:
            now_ms: Reads Redis's time, which a delay counts from.
        """
        if self.delay is not None:
            return now_ms() + round(self.delay.total_seconds() * 1000)
        return read_time_ms("start_at", self.start_at) or 0

    @property
    def begins_later(self) -> bool:
        """Whether the caller asked for a later start."""
        return self.delay is not None or self.start_at is not None

    @property
    def needs_new(self) -> bool:
        """Whether the caller asked for what only a new session can have."""
        return self.begins_later or bool(self.labels)

    def refuse_existing(self) -> None:
        """Refuse what only a new session can have, for a session that exists.

        Raises:
            InvalidInput: The submission asks for a later start, or has labels.
        """
        if self.begins_later:
            field, value = ("delay", self.delay) if self.delay is not None else ("start_at", self.start_at)
            advice = f"session {self.session} exists; only a new session can start later. Leave it out, or the id."
            raise InvalidInput(field, str(value), advice)
        advice = f"session {self.session} exists; call label() for it, and leave them out here."
        raise InvalidInput("labels", self.labels, advice)

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
        )
        return first_state(state, self.message, execution, now)

    def fingerprint(self, agent: str) -> str:
        """Hash what the caller asked for, to recognise another request under the same key."""
        later = "" if self.start_at is None and self.delay is None else f"{self.start_at}{self.delay}"
        transcript = fingerprint_messages(self.transcript) if self.transcript else ""
        labels = json.dumps(self.labels, sort_keys=True) if self.labels else ""
        return fingerprint_request(agent, self.message, self.budget, self.metadata) + later + transcript + labels

    def message_fingerprint(self) -> str:
        """Hash what was sent under an idempotency key to a session, with the version of the hash; "" without a key."""
        if not self.has_key:
            return ""
        written = b"".join((self.message.to_json(), b"" if self.budget is None else self.budget.to_json()))
        later = f"{self.start_at}{self.delay}" if self.begins_later else ""
        later += "" if self.when is MessageMode.STEER else self.when
        return f"1:{hashlib.sha256(written + later.encode()).hexdigest()[:32]}"

    def payload(self) -> dict[str, Any]:
        """Write the message as the payload of an operation."""
        payload: dict[str, Any] = {"message": self.message.to_dict()}
        if self.budget is not None:
            payload["budget"] = self.budget.to_dict()
        if self.notify is not None:
            payload["notify"] = self.notify
        if self.when is not MessageMode.STEER:
            payload["when"] = self.when
        return payload
