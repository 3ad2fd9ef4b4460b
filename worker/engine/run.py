"""A run: one attempt at one step, as an immutable value that the phases of the engine pass on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from math import ceil
from typing import Any, Final, TypedDict, Unpack

from ..agent import Agent
from ..drivers.protocol import AuxiliaryRequest
from ..errors import ModelCallRefused
from ..hooks import HookContext, HookPoint
from ..moments import moment
from ..state.agent_state import AgentState
from ..state.conversation.messages import Extent
from ..state.execution.children import ChildEnd, ParentLink
from ..state.execution.execution import ExecutionState
from ..state.execution.inference import InferenceResponse
from ..state.execution.requests import Request
from ..state.execution.signals import StopReason, StopSignal
from ..state.values.error_info import ErrorInfo
from ..store.asked import Asked
from ..store.bookkeeping import read_link
from ..store.journal import Journal
from ..store.records import Claim, LoadedSession, StepRef
from ..tools.stop import FAILS_EXECUTION
from .leases import ActiveLease
from .live_writer import RunText
from .outcome import Outcome
from .run_values import (
    AT_FIRST,
    NO_END,
    NO_RESULTS,
    NOTHING,
    AttemptMemory,
    CallRecord,
    ClaimTimes,
    Ending,
    Obtained,
    Progress,
    Question,
    TimedClaim,
)


class RunChanges(TypedDict, total=False):
    """The fields of a run that phases change. The type check refuses any other name in `Run.changed`."""

    loaded: LoadedSession
    agent: Agent
    state: AgentState
    seen_extents: Mapping[str, Extent]
    progress: Progress
    obtained: Obtained
    ending: Ending
    outcome: Outcome
    next_claim: TimedClaim
    next_agent: tuple[str, str]
    publish: tuple[StepRef, ...]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One attempt at a step.

    A run is decided once it has an outcome; every later phase returns a decided run as it is.

    Attributes:
        state: The session with its execution in progress, before this step.
        seen_extents: The messages that the driver sees, by section.
        stored_extents: The messages that were stored when the step was claimed, by section.
        live: What the attempt emits while it runs, for those who follow the session.
        make_auxiliary_call: Makes auxiliary calls; None where no model may be asked.
        outcome: What came of the step; None while the run is undecided.
        next_claim: The claim of the step that follows, when the commit kept it for this worker.
        next_agent: The agent that continues the session, and the name of its queue; None: the same one.
        publish: Steps of children whose messages have to be published when the run is done.
    """

    claim: Claim
    times: ClaimTimes
    loaded: LoadedSession
    lease: ActiveLease
    agent: Agent
    state: AgentState
    seen_extents: Mapping[str, Extent]
    stored_extents: Mapping[str, Extent]
    live: RunText
    memory: AttemptMemory = field(default_factory=AttemptMemory)
    make_auxiliary_call: Callable[[Run, str, AuxiliaryRequest | str], InferenceResponse] | None = None
    progress: Progress = AT_FIRST
    obtained: Obtained = NOTHING
    ending: Ending = NO_END
    outcome: Outcome | None = None
    next_claim: TimedClaim | None = None
    next_agent: tuple[str, str] | None = None
    publish: tuple[StepRef, ...] = ()

    def changed(self, **changes: Unpack[RunChanges]) -> Run:
        """The same run with other values."""
        # Ten times as fast as `dataclasses.replace`: a step changes its run about ten times.
        copy = object.__new__(Run)
        copy.__dict__.update(self.__dict__, **changes)
        return copy

    def with_progress(self, **changes: bool) -> Run:
        """The same run with other values of its progress."""
        return self.changed(progress=self.progress._replace(**changes))

    def with_ending(self, **changes: Any) -> Run:
        """The same run with other values of its ending; a name that it lacks is a ValueError."""
        return self.changed(ending=self.ending._replace(**changes))

    def with_response(self, response: InferenceResponse | None, *, is_given: bool | None = None) -> Run:
        """The run with an answer.

        Args:
            is_given: A hook has given it. None: as it is.
        """
        given = self.obtained.is_given if is_given is None else is_given
        return self.changed(obtained=self.obtained._replace(response=response, is_given=given))

    def with_question(self, question: Question | Asked) -> Run:
        """The run with the question that its answer belongs to."""
        return self.changed(obtained=self.obtained._replace(question=question))

    def with_record(self, index: int, record: CallRecord) -> Run:
        """The run with the record of a call, and with the stop that the tool asked for, or the failure that it is."""
        run = self.changed(obtained=self.obtained._replace(records={**self.obtained.records, index: record}))
        if record.signal is not None and record.signal not in run.ending.signals:
            run = run.with_ending(signals=(*run.ending.signals, record.signal))
        error = record.execution.error
        if error is None or FAILS_EXECUTION not in error.details:
            return run
        return run.failing(error, StopReason.ERROR_FORBADE)

    def with_started(self, index: int, record: CallRecord) -> Run:
        """The run with the record of how a call was started whose result comes later."""
        started = self.obtained.started
        run = self.changed(obtained=self.obtained._replace(started={**started, index: record}))
        if record.signal is None or index in started:
            return run
        return run.with_ending(signals=(*run.ending.signals, record.signal))

    def with_unjournaled(self, index: int, record: CallRecord) -> Run:
        """The run with a result that its commit has to journal."""
        unjournaled = self.obtained.unjournaled.with_record(index, record)
        return self.changed(obtained=self.obtained._replace(unjournaled=unjournaled))

    @cached_property
    def ref(self) -> StepRef:
        """The step that this run attempts. Its copies keep it, as they keep the claim."""
        return self.claim.ref

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
        if request.id not in self.memory.child_ends:
            self.memory.child_ends[request.id] = answer.child_end()
        return self.memory.child_ends[request.id]

    def ask_model(self, key: str, request: AuxiliaryRequest | str) -> InferenceResponse:
        """Ask the model besides the step's own call; see `AuxiliaryCalls.ask`."""
        if self.make_auxiliary_call is None:
            raise ModelCallRefused("nothing here can make the call")
        return self.make_auxiliary_call(self, key, request)

    def without_unjournaled(self) -> Run:
        """The same run with nothing left to journal."""
        return self.changed(obtained=self.obtained._replace(unjournaled=NO_RESULTS))

    def stopping(self, *signals: StopSignal) -> Run:
        """The run in which no call may begin; its execution ends. A signal given again counts once."""
        new = [signal for signal in signals if signal not in self.ending.signals]
        return self.with_ending(signals=(*self.ending.signals, *new), is_stopping=True)

    def failing(self, error: ErrorInfo, reason: StopReason) -> Run:
        """The run in which no call may begin; its execution fails."""
        signal = StopSignal(reason=reason, message=error.message, source="engine")
        return self.stopping(signal).with_ending(failure=error)

    def decide(self, outcome: Outcome) -> Run:
        """The run with its outcome."""
        return self.changed(outcome=outcome)

    def latest_redis_ms(self, monotonic: float) -> int:
        """Redis's time at `monotonic`, at the latest: counted from before the claim was sent."""
        return self.claim.now_ms + round((monotonic - self.times.sent_at) * 1000)

    @property
    def resumed_at(self) -> datetime:
        """When an execution that waited continues: at the time of the claim."""
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
        return self.ending.failure is not None and self.ending.failure.kind == "poison"

    @property
    def model(self) -> str:
        """Name of the model that answers: the session's own, else the agent's."""
        config = self.state.llm_config
        own = config.model if config is not None else None
        return own or (self.agent.models[0] if self.agent.models else self.agent.answering.name)

    @property
    def execution(self) -> ExecutionState:
        """The execution that this step belongs to."""
        execution = self.state.execution
        assert execution is not None
        return execution

    @property
    def limited_execution(self) -> ExecutionState:
        """The execution with the budget that the last renewal of the lease has found."""
        budget = self.lease.budget
        return self.execution if budget is None else self.execution.with_budget(budget)

    def change_by_hooks(self, point: HookPoint, state: AgentState) -> AgentState:
        """Run the hooks of a point that may change only the state; their stop signals are added to it."""
        if not self.agent.hook_stack.at(point):
            return state
        context = self.agent.hook_stack.run(self.hook_context(point, state))
        state = context.state
        for signal in context.stop_signals:
            state = state.with_stop_signal(signal, now=state.updated_at)
        return state

    def hook_context(self, point: HookPoint, state: AgentState, **values: Any) -> HookContext:
        """The context of the hooks at a point, with the values that this point has besides the state."""
        has_answer = not self.obtained.is_given and (self.progress.is_reloaded or self.journal.answer is not None)
        return HookContext(
            point=point, session_id=self.ref.session_id, execution_id=self.ref.execution_id, step=self.ref.step,
            state=state, now=moment(self.claim.now_ms), is_repeated=has_answer, ask=self.ask_model, **values,
        )  # fmt: skip


_LONGEST_MS: Final = 366 * 86_400_000


def milliseconds(seconds: float) -> int:
    """A delay in milliseconds: rounded up, so that it is never too short, and no longer than a year."""
    return ceil(min(seconds * 1000, _LONGEST_MS))
