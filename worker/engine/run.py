"""A run: one attempt at one step, as an immutable value passed through the small steps of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil
from typing import Any, Final

from pydantic import ValidationError

from ..agent import Agent
from ..drivers import AuxiliaryRequest
from ..errors import ModelCallRefused, StateUnreadable
from ..hooks import HookContext, HookPoint
from ..state import (
    AgentState,
    ErrorInfo,
    ExecutionState,
    Extent,
    InferenceResponse,
    StopReason,
    StopSignal,
    ToolExecution,
    Value,
)
from ..store import Claim, LoadedSession, StepRef
from .leases import ActiveLease
from .outcome import Outcome


class CallRecord(Value):
    """What the journal keeps of a tool call that has ended: the execution, and a stop that the tool asked for."""

    execution: ToolExecution
    signal: StopSignal | None = None

    @classmethod
    def stored(cls, index: int, raw: bytes) -> CallRecord:
        """From the journal.

        Raises:
            StateUnreadable: It is damaged.
        """
        try:
            return cls.from_json(raw)
        except ValidationError:
            raise StateUnreadable(f"journal t{index}:r", "it is no record of a call") from None


class Unjournaled(Mapping[int, bytes]):
    """Results that the commit has to journal, by index. JSON only then: one that finds all as expected does not."""

    def __init__(self, records: Mapping[int, CallRecord]) -> None:
        self._records = records

    def with_record(self, index: int, made: CallRecord) -> Unjournaled:
        """These and another."""
        return Unjournaled({**self._records, index: made})

    def __getitem__(self, index: int) -> bytes:
        return self._records[index].to_json()

    def __iter__(self) -> Iterator[int]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


_NOTHING: Final = Unjournaled({})


@dataclass(frozen=True)
class Run:
    """One attempt at a step.

    Attributes:
        state: The session with its execution in progress, before this step.
        asked: `monotonic()` before the claim was asked for.
        taken: `monotonic()` after it was taken. Redis gave its time in between.
        seen: Which messages the driver sees.
        stored: Which messages were stored when the claim was taken.
        stays_until: `monotonic()` until when the session stays with this worker.
        response: The model's answer; None before it, and where none may be asked for.
        records: Tool calls that have ended, by index.
        unjournaled: Of these, what the commit still has to journal.
        signals: Why the execution should end after this step.
        failure: Why it fails; None when it does not.
        forbidden: Nothing new may begin; what was obtained is committed.
        unfinished: A call was cut short for a reason that lets another worker finish it.
        decided: What came of it, where nothing is left to commit.
        auxiliary: Raw answers of auxiliary calls that this attempt has journaled, by key. The one thing that is shared
            and changed: whatever copy of the run a call was made with, its answer counts for all.
        asking: Makes auxiliary calls; None where no model may be asked.
    """

    ref: StepRef
    claim: Claim
    loaded: LoadedSession
    held: ActiveLease
    agent: Agent
    state: AgentState
    asked: float
    taken: float
    seen: Mapping[str, Extent]
    stored: Mapping[str, Extent]
    stays_until: float
    response: InferenceResponse | None = None
    records: Mapping[int, CallRecord] = field(default_factory=dict[int, CallRecord])
    unjournaled: Unjournaled = field(default_factory=lambda: _NOTHING)
    signals: tuple[StopSignal, ...] = ()
    failure: ErrorInfo | None = None
    forbidden: bool = False
    unfinished: bool = False
    decided: Outcome | None = None
    auxiliary: dict[str, bytes] = field(default_factory=dict[str, bytes])
    asking: Callable[[Run, str, AuxiliaryRequest | str], InferenceResponse] | None = None

    def ask_model(self, key: str, request: AuxiliaryRequest | str) -> InferenceResponse:
        """Ask the model beside the step's own call; see `AuxiliaryCalls.ask`."""
        if self.asking is None:
            raise ModelCallRefused("nothing here can make the call")
        return self.asking(self, key, request)

    def changed(self, **changes: Any) -> Run:
        """The same run with other values."""
        # As `replace`, in a tenth of the time: a step is changed about ten times, and has twenty fields.
        made = object.__new__(Run)
        made.__dict__.update(self.__dict__, **changes)
        return made

    def journaled(self) -> Run:
        """The same run with nothing left to journal."""
        return self.changed(unjournaled=_NOTHING)

    def stopping(self, *signals: StopSignal) -> Run:
        """Nothing new begins; the execution ends after what there is. A signal given again counts once."""
        new = [signal for signal in signals if signal not in self.signals]
        return self.changed(signals=(*self.signals, *new), forbidden=True)

    def failing(self, error: ErrorInfo, reason: StopReason) -> Run:
        """The execution fails after what there is."""
        signal = StopSignal(reason=reason, message=error.message, source="engine")
        return self.stopping(signal).changed(failure=error)

    def latest_redis_ms(self, monotonic: float) -> int:
        """As `redis_ms`, never behind Redis's time: however long the claim took, it was read after it was asked for."""
        return self.claim.now_ms + round((monotonic - self.asked) * 1000)

    def redis_ms(self, monotonic: float) -> int:
        """Redis's time, carried on by this machine's own clock since the claim."""
        return self.claim.now_ms + round((monotonic - self.taken) * 1000)

    @property
    def is_poison(self) -> bool:
        """The step ended too often without an answer."""
        return self.failure is not None and self.failure.kind == "poison"

    @property
    def execution(self) -> ExecutionState:
        """The execution this step belongs to."""
        execution = self.state.execution
        assert execution is not None
        return execution

    @property
    def agent_state_hooks(self) -> Callable[[HookPoint, AgentState], AgentState]:
        """Runs the hooks of a point that change only the state."""
        stack = self.agent.hook_stack

        def run(point: HookPoint, state: AgentState) -> AgentState:
            if not stack.at(point):
                return state
            context = HookContext(
                point, self.ref.session_id, self.ref.execution_id, self.ref.step, state, ask=self.ask_model
            )
            return stack.run(context).state

        return run


def moment(redis_ms: int) -> datetime:
    """Redis's time as a datetime."""
    return datetime.fromtimestamp(redis_ms / 1000, UTC)


_LONGEST_MS: Final = 366 * 86_400_000


def milliseconds(seconds: float) -> int:
    """A delay in milliseconds, rounded up so that it is over when it should be, and no longer than a year."""
    return min(ceil(seconds * 1000), _LONGEST_MS)
