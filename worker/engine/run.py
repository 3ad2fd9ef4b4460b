"""A run: one attempt at one step, as an immutable value that the phases of the engine pass on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from math import ceil
from typing import Any, Final

from pydantic import ValidationError

from ..agent import Agent
from ..drivers import AuxiliaryRequest
from ..errors import ModelCallRefused, StateUnreadable
from ..hooks import HookContext, HookPoint
from ..moments import moment
from ..state import (
    AgentState,
    ChildEnd,
    ErrorInfo,
    ExecutionState,
    ExecutionStatus,
    Extent,
    InferenceResponse,
    ParentLink,
    Request,
    StopReason,
    StopSignal,
    ToolExecution,
    Value,
)
from ..store import Claim, Claimed, Journal, LoadedSession, StepRef, read_link
from ..tools import FAILS_EXECUTION
from .active_lease import ActiveLease
from .live_text import RunText
from .outcome import Outcome
from .rejected_answers import RejectedAnswer


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


class UnjournaledResults(Mapping[int, bytes]):
    """Results that the commit has to journal, by index.

    A value becomes JSON when somebody reads it: a commit that goes through in one script reads none.
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


_NO_RESULTS: Final = UnjournaledResults({})


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


@dataclass(frozen=True, kw_only=True)
class Run:
    """One attempt at a step.

    A run is decided once it has an outcome; every later phase returns a decided run as it is.

    Attributes:
        state: The session with its execution in progress, before this step.
        claim_sent_at: `monotonic()` before the claim was sent.
        claimed_at: `monotonic()` after the claim's reply. Redis read its clock in between.
        sticky_until: `monotonic()` until which the session stays with this worker.
        seen_extents: The messages that the driver sees, by section.
        stored_extents: The messages that were stored when the step was claimed, by section.
        response: The model's answer; None before it, and where the run may not ask for one.
        is_given: The response is one that a hook before the step has given: the model is not asked.
        is_reloaded: The session was saved by somebody else while the step ran, and the hooks run once more on it.
        records: Tool calls that have ended, by index.
        unjournaled: The results among `records` that the commit still has to journal.
        started: Calls that were started, by index, whose results a service brings later; never results themselves.
        is_waiting: Calls of the step wait for answers, and nothing else can run.
        signals: Why the execution ends after this step.
        failure: Why the execution fails; None when it does not.
        end_status: The status in which a hook has ended the execution; None when none has.
        is_stopping: No call may begin any more; the commit keeps what the run has obtained.
        has_unfinished_calls: A call was interrupted for a reason that lets another worker finish it.
        outcome: What came of the step; None while the run is undecided.
        next_claim: The claim of the step that follows, when the commit kept it for this worker.
        auxiliary: Raw answers of auxiliary calls that this attempt has journaled, by key. All copies of the run share
            this one mutable value: whichever copy made a call, its answer counts for all.
        child_ends: The ends of the step's children that a copy of the run has parsed, by request id; shared by all
            copies. An answer never changes.
        rejected: Answers of this step that were paid for and could not be used, those of earlier attempts included;
            shared by all copies of the run, like `auxiliary`.
        make_auxiliary_call: Makes auxiliary calls; None where no model may be asked.
        live: What the attempt emits while it runs, for those who follow the session.
        next_agent: The agent that goes on with the session, and the name of its queue; None: the same one.
        publish: Steps of children whose messages have to be published when the run is done.
    """

    ref: StepRef
    claim: Claim
    loaded: LoadedSession
    lease: ActiveLease
    agent: Agent
    state: AgentState
    claim_sent_at: float
    claimed_at: float
    sticky_until: float
    seen_extents: Mapping[str, Extent]
    stored_extents: Mapping[str, Extent]
    live: RunText
    response: InferenceResponse | None = None
    is_given: bool = False
    is_reloaded: bool = False
    records: Mapping[int, CallRecord] = field(default_factory=dict[int, CallRecord])
    unjournaled: UnjournaledResults = field(default_factory=lambda: _NO_RESULTS)
    started: Mapping[int, CallRecord] = field(default_factory=dict[int, CallRecord])
    is_waiting: bool = False
    signals: tuple[StopSignal, ...] = ()
    failure: ErrorInfo | None = None
    end_status: ExecutionStatus | None = None
    is_stopping: bool = False
    has_unfinished_calls: bool = False
    outcome: Outcome | None = None
    next_claim: TimedClaim | None = None
    auxiliary: dict[str, bytes] = field(default_factory=dict[str, bytes])
    child_ends: dict[str, ChildEnd | None] = field(default_factory=dict[str, "ChildEnd | None"])
    rejected: list[RejectedAnswer] = field(default_factory=list[RejectedAnswer])
    make_auxiliary_call: Callable[[Run, str, AuxiliaryRequest | str], InferenceResponse] | None = None
    publish: tuple[StepRef, ...] = ()
    next_agent: tuple[str, str] | None = None

    def changed(self, **changes: Any) -> Run:
        """The same run with other values."""
        # Ten times as fast as `dataclasses.replace`: a step changes its run about ten times.
        copy = object.__new__(Run)
        copy.__dict__.update(self.__dict__, **changes)
        return copy

    def with_record(self, index: int, record: CallRecord) -> Run:
        """The run with the record of a call, and with the stop that the tool asked for, or the failure that it is."""
        signals = (record.signal,) if record.signal is not None and record.signal not in self.signals else ()
        run = self.changed(records={**self.records, index: record}, signals=(*self.signals, *signals))
        error = record.execution.error
        if error is None or FAILS_EXECUTION not in error.details:
            return run
        return run.failing(error, StopReason.ERROR_FORBADE)

    def with_started(self, index: int, record: CallRecord) -> Run:
        """The run with the record of how a call was started whose result comes later."""
        signals = (record.signal,) if record.signal is not None and index not in self.started else ()
        return self.changed(started={**self.started, index: record}, signals=(*self.signals, *signals))

    @property
    def journal(self) -> Journal:
        """The journal of the step as far as this run knows it."""
        return self.loaded.journal

    def with_journal(self, journal: Journal) -> Run:
        """The run with what was journaled since."""
        return self.changed(loaded=replace(self.loaded, journal=journal))

    def child_end(self, request: Request) -> ChildEnd | None:
        """How the child of a request has ended; None while it has not, and where it gave no end."""
        answer = self.journal.answer_to(request)
        if answer is None:
            return None
        if request.id not in self.child_ends:
            self.child_ends[request.id] = answer.child_end()
        return self.child_ends[request.id]

    def ask_model(self, key: str, request: AuxiliaryRequest | str) -> InferenceResponse:
        """Ask the model beside the step's own call; see `AuxiliaryCalls.ask`."""
        if self.make_auxiliary_call is None:
            raise ModelCallRefused("nothing here can make the call")
        return self.make_auxiliary_call(self, key, request)

    def without_unjournaled(self) -> Run:
        """The same run with nothing left to journal."""
        return self.changed(unjournaled=_NO_RESULTS)

    def stopping(self, *signals: StopSignal) -> Run:
        """The run in which no call may begin; its execution ends. A signal given again counts once."""
        new = [signal for signal in signals if signal not in self.signals]
        return self.changed(signals=(*self.signals, *new), is_stopping=True)

    def failing(self, error: ErrorInfo, reason: StopReason) -> Run:
        """The run in which no call may begin; its execution fails."""
        signal = StopSignal(reason=reason, message=error.message, source="engine")
        return self.stopping(signal).changed(failure=error)

    def decide(self, outcome: Outcome) -> Run:
        """The run with its outcome."""
        return self.changed(outcome=outcome)

    def latest_redis_ms(self, monotonic: float) -> int:
        """Redis's time at `monotonic`, at the latest: counted from before the claim was sent."""
        return self.claim.now_ms + round((monotonic - self.claim_sent_at) * 1000)

    def redis_ms(self, monotonic: float) -> int:
        """Redis's time at `monotonic`, at the earliest: counted from after the claim's reply."""
        return self.claim.now_ms + round((monotonic - self.claimed_at) * 1000)

    @property
    def resumed_at(self) -> datetime:
        """When an execution that waited went on: with the claim."""
        return moment(self.claim.now_ms)

    @cached_property
    def parent(self) -> ParentLink | None:
        """The place of the session below its parent; None for a session without a parent."""
        return read_link(self.loaded.session.bookkeeping.parent)

    @property
    def depth(self) -> int:
        """The level of the session in its tree; 0 for a root."""
        return 0 if self.parent is None else self.parent.depth

    @property
    def max_depth(self) -> int:
        """Levels below the root that this agent and those above it in the tree allow."""
        above = None if self.parent is None else self.parent.max_depth
        return self.agent.max_depth if above is None else min(above, self.agent.max_depth)

    @property
    def is_poison(self) -> bool:
        """Whether the step ended too often without an answer."""
        return self.failure is not None and self.failure.kind == "poison"

    @property
    def model(self) -> str:
        """Name of the model that answers: the session's own, else the agent's."""
        config = self.state.llm_config
        return (config.model if config is not None else None) or self.agent.model or self.agent.answering.name

    @property
    def execution(self) -> ExecutionState:
        """The execution that this step belongs to."""
        execution = self.state.execution
        assert execution is not None
        return execution

    @property
    def run_state_hooks(self) -> Callable[[HookPoint, AgentState], AgentState]:
        """Runs the hooks of a point that may change only the state; their stop signals are added to it."""
        stack = self.agent.hook_stack

        def run(point: HookPoint, state: AgentState) -> AgentState:
            if not stack.at(point):
                return state
            context = stack.run(self.hook_context(point, state))
            state = context.state
            for signal in context.stop_signals:
                state = state.with_stop_signal(signal, now=state.updated_at)
            return state

        return run

    def hook_context(self, point: HookPoint, state: AgentState, **values: Any) -> HookContext:
        """The context of the hooks at a point, with the values that this point has beside the state."""
        has_answer = not self.is_given and (self.is_reloaded or self.journal.answer is not None)
        return HookContext(
            point=point, session_id=self.ref.session_id, execution_id=self.ref.execution_id, step=self.ref.step,
            state=state, now=moment(self.claim.now_ms), is_repeated=has_answer, ask=self.ask_model, **values,
        )  # fmt: skip


_LONGEST_MS: Final = 366 * 86_400_000


def milliseconds(seconds: float) -> int:
    """A delay in milliseconds: rounded up, so that it is never too short, and no longer than a year."""
    return min(ceil(seconds * 1000), _LONGEST_MS)
