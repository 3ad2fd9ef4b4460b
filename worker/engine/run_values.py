"""The groups of values that a run consists of, and the records of tool calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pydantic import ValidationError

from ..drivers.protocol import InferenceRequest, SentRequest
from ..errors import InvalidInput, StateUnreadable, UnusableAnswer
from ..state.conversation.messages import Message
from ..state.execution.children import ChildEnd
from ..state.execution.inference import InferenceResponse
from ..state.execution.signals import StopSignal
from ..state.execution.status import ExecutionStatus
from ..state.execution.tool_calls import ToolExecution
from ..state.execution.usage import NO_USAGE, InferenceUsage
from ..state.values.error_info import ErrorInfo
from ..state.values.field_types import Amount, Text
from ..state.values.value import Value
from ..store.asked import Asked
from ..store.journal import JournaledJob
from ..store.records import Claimed


class CallRecord(Value):
    """The journal's record of a tool call that has ended: the execution, and a stop that the tool asked for."""

    execution: ToolExecution
    signal: StopSignal | None = None

    @classmethod
    def from_journal(cls, index: int, raw: bytes) -> CallRecord:
        """Read the record of the call with this index.

        Raises:
            StateUnreadable: It is damaged.
        """
        try:
            return cls.from_json(raw)
        except ValidationError:
            raise StateUnreadable(f"journal t{index}:r", "it is no record of a call") from None


_MOST_REJECTED_CHARS: Final = 20_000
_NO_TEXT: Final = "(an answer without text)"


class RejectedAnswer(Value):
    """The journal's record of an answer that could not be used.

    Attributes:
        text: What the model had answered, cut to 20 000 characters.
        correction: What the model is told when it is asked again; "" where it is asked the same question.
    """

    usage: InferenceUsage = NO_USAGE
    cost: Amount | None = None
    text: Text = ""
    correction: Text = ""

    @classmethod
    def of(cls, error: UnusableAnswer) -> RejectedAnswer:
        """The record of an answer that a driver could not use."""
        paid = paid_for(error)
        text, correction = error.text[:_MOST_REJECTED_CHARS], error.correction[:_MOST_REJECTED_CHARS]
        try:
            return cls(usage=paid.usage, cost=paid.cost, text=text, correction=correction)
        except InvalidInput:  # a driver of the user's gave a text that cannot be stored
            return cls(usage=paid.usage, cost=paid.cost)

    def messages(self) -> tuple[Message, ...]:
        """The exchange that follows the question when the model is asked again."""
        if not self.correction:
            return ()
        return (Message.assistant(self.text or _NO_TEXT), Message.user(self.correction))


def paid_for(error: UnusableAnswer) -> InferenceResponse:
    """The response without content that has the usage and the price of an unusable answer, as far as they are known."""
    usage = error.usage if isinstance(error.usage, InferenceUsage) else NO_USAGE
    try:
        return InferenceResponse(usage=usage, cost=error.cost, model=error.model)
    except InvalidInput:  # a driver of the user's gave a price or a name that cannot be stored
        return InferenceResponse(usage=usage)


class UnjournaledResults(Mapping[int, bytes]):
    """Results that the commit has to journal, by index.

    A value becomes JSON when it is read: a commit that goes through in one script reads none.
    """

    def __init__(self, records: Mapping[int, CallRecord]) -> None:
        self._records = records

    def with_record(self, index: int, record: CallRecord) -> UnjournaledResults:
        """These results and another."""
        return UnjournaledResults({**self._records, index: record})

    def __getitem__(self, index: int) -> bytes:
        return self._records[index].to_json()

    def __iter__(self) -> Iterator[int]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


_NO_RECORDS: Final[Mapping[int, CallRecord]] = {}
NO_RESULTS: Final = UnjournaledResults(_NO_RECORDS)


@dataclass(frozen=True, slots=True)
class TimedClaim:
    """A claim that this worker holds, with the times of this machine that belong to it.

    Attributes:
        sent_at: `monotonic()` before the claim was sent; its lease is no younger than that.
        sticky_until: `monotonic()` until which the session stays with this worker.
    """

    claimed: Claimed
    sent_at: float
    sticky_until: float


class ClaimTimes(NamedTuple):
    """The times of this machine that belong to a run's claim, by `monotonic()`.

    Attributes:
        sent_at: Before the claim was sent.
        claimed_at: After the claim's reply. Redis read its clock in between.
        sticky_until: Until then the session stays with this worker.
    """

    sent_at: float
    claimed_at: float
    sticky_until: float


class Progress(NamedTuple):
    """The state that a run is in between its phases.

    Attributes:
        is_reloaded: Another transaction saved the session while the step ran, and the hooks run once more on it.
        is_waiting: Calls of the step wait for answers, and nothing else can run.
        has_unfinished_calls: A call was interrupted for a reason that lets another worker finish it.
        is_left_off: A message interrupts the step, and no call begins any more.
    """

    is_reloaded: bool = False
    is_waiting: bool = False
    has_unfinished_calls: bool = False
    is_left_off: bool = False


class Question(NamedTuple):
    """The question that the model was asked.

    Attributes:
        sent: What the driver has sent, where it tells; None: the request as it is.
        is_asked: The model was asked; a driver may answer by itself.
        is_of_another: Another worker has asked, and this is what this one would ask.
    """

    request: InferenceRequest
    sent: SentRequest | None = None
    is_asked: bool = True
    is_of_another: bool = False


class Obtained(NamedTuple):
    """The answer and the results that a run has obtained for its step.

    Attributes:
        response: The model's answer; None before it, and where the run may not ask for one.
        is_given: The response is one that a hook before the step has given: the model is not asked.
        records: Tool calls that have ended, by index.
        unjournaled: The results among `records` that the commit still has to journal.
        started: Calls that were started, by index, whose results a service brings later; never results themselves.
        question: The question to the model; None before it. `Asked` where it was stored when the step began to wait.
    """

    response: InferenceResponse | None = None
    is_given: bool = False
    records: Mapping[int, CallRecord] = _NO_RECORDS
    unjournaled: UnjournaledResults = NO_RESULTS
    started: Mapping[int, CallRecord] = _NO_RECORDS
    question: Question | Asked | None = None


class Ending(NamedTuple):
    """How a run ends its execution, if it does.

    Attributes:
        signals: Why the execution ends after this step.
        failure: Why the execution fails; None when it does not.
        status: The status in which a hook has ended the execution; None when none has.
        is_stopping: No call may begin any more; the commit keeps what the run has obtained.
    """

    signals: tuple[StopSignal, ...] = ()
    failure: ErrorInfo | None = None
    status: ExecutionStatus | None = None
    is_stopping: bool = False


@dataclass(kw_only=True, slots=True)
class AttemptMemory:
    """Memory that all copies of a run share: an answer that one copy obtained counts for all.

    Attributes:
        auxiliary: Raw answers of auxiliary calls that this attempt has journaled, by key.
        asking: Held by whoever asks for the answer of a key.
        child_ends: The ends of the step's children that were parsed, by request id. An answer never changes.
        rejected: Answers of this step that were paid for and could not be used, those of earlier attempts included.
        jobs: Jobs of this step at a provider, those of earlier attempts included.
        has_answer: The journal has an answer that this attempt has read.
        has_asked: This attempt has asked a model for the answer, and no event tells of a failure since.
        failed_model: Whose call of this attempt has failed last, where no event tells of it; "" for none.
    """

    auxiliary: dict[str, bytes] = field(default_factory=dict[str, bytes])
    asking: dict[str, threading.Lock] = field(default_factory=dict[str, threading.Lock])
    child_ends: dict[str, ChildEnd | None] = field(default_factory=dict[str, "ChildEnd | None"])
    rejected: list[RejectedAnswer] = field(default_factory=list[RejectedAnswer])
    jobs: list[JournaledJob] = field(default_factory=list[JournaledJob])
    has_answer: bool = False
    has_asked: bool = False
    failed_model: str = ""


AT_FIRST: Final = Progress()
NOTHING: Final = Obtained()
NO_END: Final = Ending()
