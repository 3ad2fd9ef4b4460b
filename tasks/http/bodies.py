"""Bodies and queries of requests."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AwareDatetime, Field, PlainValidator, TypeAdapter, ValidationError, model_validator

from ...worker.flow.debounce import Debounce
from ...worker.flow.schedules import MOST_MISSED, Schedule
from ...worker.state.conversation.context import LLMConfig
from ...worker.state.conversation.messages import Message
from ...worker.state.execution.budget import ExecutionBudget
from ...worker.state.execution.requests import RequestKind, RequestStatus
from ...worker.store.session_records import SessionState
from ..client.verbs import BY, LONGEST_SECONDS, MOST_TEXT
from .endpoints import Body

_LONGEST_WAIT: Final = 60
_LARGEST: Final = 2**53
_MOST_ANSWERS: Final = 64
_YEARS: Final = (1970, 9000)
_AWARE: Final = TypeAdapter(AwareDatetime)


def _read_moment(value: object) -> datetime:
    """Read a time of ISO 8601; pydantic also takes a number, or a text of one, for seconds since 1970."""
    if isinstance(value, datetime) or (isinstance(value, str) and ":" in value):
        with contextlib.suppress(ValidationError):
            return _check_year(_AWARE.validate_python(value))
    raise ValueError("give a time with its zone, such as 2026-01-31T12:00:00Z")


def _check_year(value: datetime) -> datetime:
    try:
        year = value.astimezone(UTC).year
    except OverflowError:
        year = 0
    if not _YEARS[0] <= year <= _YEARS[1]:
        raise ValueError(f"give a time of the years {_YEARS[0]} to {_YEARS[1]}")
    return value


EVENT_ID: Final = r"\d{1,20}(-\d{1,20})?"
"""The ids of events, as a pattern."""

CURSOR: Final = rf"{EVENT_ID}(\+{EVENT_ID})?"
"""Cursors of streams with live text, and the ids of events, as a pattern."""

Moment = Annotated[datetime, PlainValidator(_read_moment, json_schema_input_type=datetime)]
WaitSeconds = Annotated[float, Field(ge=0, le=_LONGEST_WAIT, description="Seconds to wait for the end; 0: none.")]
By = Annotated[str | None, BY]
Limit = Annotated[int, Field(ge=1, le=1000, description="Most entries of a page.")]
Cursor = Annotated[str | None, Field(max_length=1000, description="From the page before.")]


class Budget(Body):
    """Limits of an execution. A missing one is unlimited; 0 stops before the first step."""

    max_steps: int | None = Field(None, ge=0, le=_LARGEST)
    max_tokens: int | None = Field(None, ge=0, le=_LARGEST)
    max_seconds: float | None = Field(None, ge=0, le=LONGEST_SECONDS)
    max_cost: float | None = Field(None, ge=0, le=_LARGEST, description="US dollars.")
    deadline: Moment | None = None

    def value(self) -> ExecutionBudget:
        """The budget as the client takes it."""
        return ExecutionBudget(**self.model_dump())


class TranscriptMessage(Body):
    """A message that was said before the session began."""

    role: Literal["user", "assistant", "system"]
    content: str = Field(max_length=MOST_TEXT)

    def value(self) -> Message:
        """The message as the client takes it."""
        return Message.from_dict(self.model_dump())


class Debouncing(Body):
    """How long a job waits for further messages under the same key."""

    key: str = Field(min_length=1, max_length=200, description="By which messages to an agent belong together.")
    quiet_seconds: float = Field(gt=0, le=LONGEST_SECONDS, description="It begins when none has come for so long.")
    at_most_seconds: float = Field(
        gt=0, le=LONGEST_SECONDS, description="It begins at the latest so long after the first."
    )

    def value(self) -> Debounce:
        """It as the client takes it."""
        quiet, at_most = timedelta(seconds=self.quiet_seconds), timedelta(seconds=self.at_most_seconds)
        return Debounce(self.key, quiet=quiet, at_most=at_most)


class Stop(Body):
    """Which execution to stop, and for how long to wait for its running step."""

    execution_id: str | None = Field(None, description="Only this one. None: the one that runs.")
    timeout_seconds: float = Field(30.0, ge=0, le=_LONGEST_WAIT, description="0 does not wait.")
    clear_queue: bool = Field(
        False, description="The messages that wait now are not delivered; needs the scope submit as well."
    )
    by: By = None


class GivenSnapshot(Body):
    """A snapshot, and what becomes of it here."""

    snapshot: dict[str, Any] = Field(description="As `GET /v1/sessions/{session_id}/snapshot` has sent it.")
    session_id: str | None = Field(None, description="None: the id that the session had, which must not be in use.")
    context: dict[str, Any] | None = Field(None, description="Metadata, merged into the snapshot's.")
    merge_context: bool = Field(True, description="False: `context` replaces the snapshot's metadata.")


class Metadata(Body):
    """A value kept with the session."""

    value: Any


class Model(Body):
    """A model of the session's own."""

    model: str = Field(min_length=1, description="As provider:name.")
    base_url: str | None = None
    settings: dict[str, Any] = Field(default={}, description="Temperature and the like. Never a key.")

    def value(self) -> LLMConfig:
        """The model as the client takes it."""
        return LLMConfig.from_dict(self.model_dump())


class Answers(Body):
    """Answers to requests of a session: all of them are stored, or none."""

    answers: dict[str, dict[str, Any]] = Field(
        min_length=1,
        max_length=_MOST_ANSWERS,
        description='By request id: {"approve": true}, {"approve": {"args": {…}}}, {"deny": "why"} or {"answer": {…}}.',
    )
    by: By = None
    note: str = ""
    expect: str | dict[str, str] | None = Field(None, description="Digest of the arguments that were looked at.")
    remember: Literal["call", "execution", "session"] = "call"
    seen: int | None = Field(
        None,
        ge=0,
        description="newest_message of the request that was looked at. Where a further message has come, nothing is "
        "stored. null: it is not compared; refused for an approval with needs_seen.",
    )


class Completion(Body):
    """The result of a call that a service brings later, or its error."""

    value: Any = None
    error: str | None = Field(None, description="Instead of a value: why the call failed. The model reads it.")
    by: By = None

    @model_validator(mode="after")
    def check_one(self) -> Self:
        """Refuse both."""
        if self.error is not None and self.value is not None:
            raise ValueError("give a value or an error, not both")
        return self


class NewLink(Body):
    """How long a link to answer one request is valid."""

    ttl_seconds: float | None = Field(None, ge=1, le=366 * 86_400, description="None: as long as the request is open.")


class NewSessionToken(Body):
    """The rights of a token for one session."""

    scopes: list[Literal["submit", "read", "answer", "stop", "chat"]] = Field(min_length=1)
    ttl_seconds: float = Field(3600, ge=1, le=3600)
    answer_to: str | None = Field(
        None, min_length=1, max_length=200, description="The addressee whose requests its bearer may answer."
    )
    subject: str | None = Field(
        None, min_length=1, max_length=200, description="Who bears it, for the events. None: answer_to, or the session."
    )


class ModelLimit(Body):
    """A limit of a model for all workers; at least one number. 0 admits no request; null is unlimited."""

    model: str = Field(max_length=200, description="Id of the model, as provider:name.")
    group: str | None = Field(None, max_length=200, description="null: each group that has no limit of its own.")
    rpm: float | None = Field(None, ge=0, le=_LARGEST, description="Requests a minute.")
    tpm: float | None = Field(None, ge=0, le=_LARGEST, description="Tokens a minute, input and output together.")
    input_tpm: float | None = Field(None, ge=0, le=_LARGEST)
    output_tpm: float | None = Field(None, ge=0, le=_LARGEST)


class Concurrency(Body):
    """How many steps and calls that name the limit run at a time; total, per or both. 0 lets nothing begin."""

    name: str = Field(max_length=200)
    total: int | None = Field(None, ge=0, description="null: no limit in all.")
    per: dict[str, int] = Field({}, max_length=4, description="By the key of a label: most for each of its values.")


class Cap(Body):
    """How much may be spent on models in each hour, day or month. 0 lets no paid call begin."""

    name: str = Field(max_length=200)
    usd: float | None = Field(None, ge=0, description="US dollars; null: only those of values.")
    per: Literal["hour", "day", "month"]
    zone: str = Field("UTC", max_length=100, description="A name of the time zone database, as Europe/Berlin.")
    agent: str = Field("", max_length=64, description="Only executions of this agent.")
    label: str = Field("", max_length=200, description="Each value of this label has the amount for itself.")
    values: dict[str, float] = Field({}, max_length=1000, description="Values of the label with another amount.")
    then: Literal["wait", "stop"] = Field("wait", description="wait: until the next period; stop: the execution.")


class Shares(Body):
    """How the slots of the fleet are shared among the values of a label while more steps wait than there are slots."""

    label: str = Field(max_length=200, description="Key of the label, such as customer.")
    weights: dict[str, float] = Field({}, max_length=1000, description="Of values with another one than 1.")


class ModelSchedule(Body):
    """A message for an agent at the times of a cron expression, its slots.

    message and session may name {name}, {date}, {time}, {hour}, {minute}, {second} and {slot}, in the schedule's zone.
    """

    name: str = Field(max_length=64)
    cron: str = Field(
        max_length=200, description="Minute, hour, day of the month, month, day of the week; of six, the second first."
    )
    zone: str = Field("UTC", max_length=100, description="A name of the time zone database, as Europe/Berlin.")
    agent: str = Field(max_length=64)
    message: str = Field(max_length=MOST_TEXT)
    session: str | None = Field(None, max_length=200, description="null: a new session for each slot.")
    overlap: Literal["skip", "queue"] = Field("skip", description="While the session of the slot before is active.")
    missed: Literal["none", "one"] | Annotated[int, Field(ge=0, le=MOST_MISSED)] = Field(
        "one", description="How many slots that are more than a minute late are made up for, the newest."
    )
    jitter_seconds: float = Field(0, ge=0, le=LONGEST_SECONDS, description="A slot begins so much later at most.")

    def value(self) -> Schedule:
        """The schedule as the client takes it."""
        given = self.model_dump(exclude={"jitter_seconds"})
        return Schedule(**given, jitter=timedelta(seconds=self.jitter_seconds))


class WaitQuery(Body):
    """For how long to wait."""

    wait: WaitSeconds = 0


class SessionsQuery(Body):
    """Which sessions to list."""

    status: str | None = Field(None, description=f"{', '.join(SessionState)}.")
    agent: str | None = None
    label: list[str] | None = Field(None, description="key=value; with several, sessions that have all.")
    text: str | None = Field(None, description="Part of the first message's beginning, in whatever case.")
    error: str | None = Field(None, description="Part of the error with which it failed, in whatever case.")
    waits_for: str | None = Field(None, description="Kind of an open request: approval, question or external.")
    since: Moment | None = Field(None, description="Updated at or after this time, with its zone.")
    until: Moment | None = Field(None, description="Updated at or before this time, with its zone.")
    limit: Limit = 50
    cursor: Cursor = None


class RequestsQuery(Body):
    """Which requests to list."""

    to: str | None = Field(None, description="Only those to this addressee.")
    kind: str | None = Field(None, description=f"{', '.join(RequestKind)}.")
    status: str | None = Field("open", description=f"{', '.join(RequestStatus)}; other than open for one session only.")
    limit: Limit = 50
    cursor: Cursor = None


class StateQuery(Body):
    """How much of a session's state to read."""

    whole: bool = Field(True, description="false: without the messages and the committed steps.")


class MessagesQuery(Body):
    """Which messages to read."""

    offset: int = Field(0, ge=0, le=_LARGEST)
    limit: Limit = 100


class EventsQuery(Body):
    """From where to follow, and until when."""

    after: str | None = Field(None, pattern=f"^{CURSOR}$", description="Id of the last event seen.")
    until: Literal["end"] | None = Field(None, description="end: the stream ends with the session's latest execution.")
    live: bool = Field(False, description="true: with the text that steps write, before it is committed.")
