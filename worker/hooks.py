"""Hooks: user code that runs at named points of a step.

A hook takes a context and returns it, changed or not; `CHANGES` says what each point lets it change. Hooks run again
when a step runs again after a crash: a hook watches and shapes, an effect on the world belongs in a tool. A hook that
raises before a call fails the execution. One that raises after it is logged, its change is dropped, and the step is
saved. When a stop reaches an execution that no worker runs, the client ends it, and no hook runs.

A hook ends the execution by raising `StopExecution`, or by a state whose execution is completed, stopped or failed.
Before a call, the call is then not made; after it, the step is kept.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from .concurrency import fibers
from .drivers.protocol import AuxiliaryRequest, InferenceRequest
from .errors import ConfigurationError, ModelCallRefused
from .redaction import describe_exception, place_of
from .state.agent_state import AgentState
from .state.execution.inference import InferenceResponse
from .state.execution.signals import StopSignal
from .state.execution.status import ExecutionStatus
from .state.execution.tool_calls import ToolCall, ToolExecution
from .state.values.error_info import ErrorInfo
from .tools.stop import StopExecution

log = logging.getLogger(__name__)


class HookPoint(StrEnum):
    """The points of a step at which hooks run.

    Attributes:
        BEFORE_EXECUTION: In the first step, before anything else; again when that step runs again.
        BEFORE_STEP: In each step, before the guards are asked. A `response` without tool calls is the answer: the model
            is not asked, nor are later hooks of the point.
        BEFORE_INFERENCE: Before the model is asked; `request` is the question.
        AFTER_INFERENCE: After the model has answered; `response` is the answer.
        BEFORE_TOOL: Before each tool call; `tool_call` is the call, and `blocked` keeps it from running. So does a
            `tool_execution`: its result is known already.
        AFTER_TOOL: After each tool call that has run; `tool_execution` is its result.
        AFTER_STEP: After the step, before it is decided whether the execution goes on.
        ON_STOP: When the execution ends, before it has its last status.
        AFTER_EXECUTION: When the execution has its last status.
        ON_ERROR: When an error ends the execution, before `ON_STOP`; `error` is the error.
    """

    BEFORE_EXECUTION = "before_execution"
    BEFORE_STEP = "before_step"
    BEFORE_INFERENCE = "before_inference_request"
    AFTER_INFERENCE = "after_inference_response"
    BEFORE_TOOL = "before_tool_use"
    AFTER_TOOL = "after_tool_use"
    AFTER_STEP = "after_step"
    ON_STOP = "on_stop"
    AFTER_EXECUTION = "after_execution"
    ON_ERROR = "on_error"


@dataclass(frozen=True)
class HookContext:
    """The values that a hook sees, and may change as far as its point allows.

    Attributes:
        point: The point at which the hook runs.
        state: The session as far as the step has changed it.
        request: The request to the driver; only before inference.
        response: The driver's response; after inference and around tools. Before a step it is None, and a hook that
            knows the answer sets it.
        tool_call: The call that is about to run, or has run; only around tools.
        tool_execution: The result of the call: after it, or set before it by a hook that knows the result.
        blocked: A reason that keeps the call from running; only before a tool.
        error: The error that fails the execution; only on error.
        stop_signals: The stops that earlier hooks of this point have asked for by raising `StopExecution`.
        now: Redis's time when the step was claimed, the same for all hooks of a claim; None outside a worker.
        is_repeated: The step has its answer already: the hooks before it run once more, after a crash, or since the
            session was saved while the step ran.
        ask: Makes auxiliary model calls; None outside a worker. Call `ask_model`.
    """

    point: HookPoint
    session_id: str
    execution_id: str
    step: int
    state: AgentState
    request: InferenceRequest | None = None
    response: InferenceResponse | None = None
    tool_call: ToolCall | None = None
    tool_execution: ToolExecution | None = None
    blocked: str | None = None
    error: ErrorInfo | None = None
    stop_signals: tuple[StopSignal, ...] = ()
    now: datetime | None = None
    is_repeated: bool = False
    ask: Callable[[str, AuxiliaryRequest | str], InferenceResponse] | None = field(default=None, repr=False)

    def ask_model(self, key: str, request: AuxiliaryRequest | str) -> InferenceResponse:
        """Ask the agent's model, besides the step's own call, and wait for the answer.

        The answer is journaled under the key before it is returned: when the step is run again, the same answer comes
        back and nothing is paid. It is charged to the execution. Begin keys with the name of the capability; each step
        has its own keys.

        Raises:
            ModelCallRefused: A limit is reached, the execution is being stopped, or the claim is gone.
            DriverError: There is no answer.
        """
        if self.ask is None:
            raise ModelCallRefused("this context belongs to no worker")
        return self.ask(key, request)

    def changed(self, **changes: Any) -> HookContext:
        """The same context with other values."""
        return replace(self, **changes)


CHANGES: Final[Mapping[HookPoint, frozenset[str]]] = MappingProxyType(
    {
        HookPoint.BEFORE_EXECUTION: frozenset({"state"}),
        HookPoint.BEFORE_STEP: frozenset({"state", "response"}),
        HookPoint.BEFORE_INFERENCE: frozenset({"state", "request"}),
        HookPoint.AFTER_INFERENCE: frozenset({"state", "response"}),
        HookPoint.BEFORE_TOOL: frozenset({"tool_call", "blocked", "tool_execution"}),
        HookPoint.AFTER_TOOL: frozenset({"tool_execution"}),
        HookPoint.AFTER_STEP: frozenset({"state"}),
        HookPoint.ON_STOP: frozenset({"state"}),
        HookPoint.AFTER_EXECUTION: frozenset({"state"}),
        HookPoint.ON_ERROR: frozenset({"state", "error"}),
    }
)
"""The values that a hook may change, by point; any other change is refused."""

_POINTS_BEFORE_CALLS: Final = (
    HookPoint.BEFORE_EXECUTION, HookPoint.BEFORE_STEP, HookPoint.BEFORE_INFERENCE, HookPoint.BEFORE_TOOL,
)  # fmt: skip
_POINTS_OF_THE_END: Final = frozenset({HookPoint.ON_STOP, HookPoint.AFTER_EXECUTION, HookPoint.ON_ERROR})

HookFunction = Callable[[HookContext], HookContext | None]


@dataclass(frozen=True)
class Hook:
    """A function that runs at one point of a step.

    Attributes:
        point: The point at which it runs.
        function: Gets the context, returns a changed one, or None to leave it.
        priority: Higher runs first; equal ones in the order they were given.
        name: For logs; the function's name when empty.
    """

    point: HookPoint
    function: HookFunction
    priority: int = 0
    name: str = field(default="")

    def __post_init__(self) -> None:
        if self.point not in tuple(HookPoint):
            raise ConfigurationError(f"hook at {self.point!r}: there are {', '.join(HookPoint)}")
        if not callable(self.function) or inspect.iscoroutinefunction(self.function):
            raise ConfigurationError(f"hook at {self.point}: {self.function!r:.80} must be a plain function")
        object.__setattr__(self, "point", HookPoint(self.point))
        object.__setattr__(self, "name", self.name or getattr(self.function, "__name__", "hook"))


class AnswerUndecided(Exception):
    """Raised by a hook behind an answer that could not ask whether the answer may be used.

    The answer stays in the journal, and the step is tried again when a model may be asked. Where the execution ends
    anyway, it ends with `otherwise`.

    Attributes:
        error: Why no model could be asked: a `ModelCallRefused`, or a transient `DriverError`.
        otherwise: The context as the hook leaves it without asking.
    """

    def __init__(self, error: Exception, otherwise: HookContext) -> None:
        super().__init__(str(error))
        self.error = error
        self.otherwise = otherwise


class HookContractError(ConfigurationError):
    """A hook changed a value that its point does not allow."""


class HookStack:
    """The hooks of an agent, ordered by point and priority."""

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        given = tuple(hooks)
        for hook in given:
            if not isinstance(hook, Hook):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f"{hook!r:.80} is no hook; write Hook(point, function)")
        ordered = sorted(given, key=lambda hook: -hook.priority)
        self._at = {point: tuple(hook for hook in ordered if hook.point is point) for point in HookPoint}
        self.is_empty = not ordered

    def at(self, point: HookPoint) -> tuple[Hook, ...]:
        """The hooks of a point, in the order in which they run."""
        return self._at[point]

    def run(self, context: HookContext) -> HookContext:
        """Pass the context through the hooks of its point.

        A hook that raises `StopExecution` adds its signal to the context. Before a call it is the last hook that runs.

        Raises:
            HookContractError: A hook changed something else than `CHANGES` allows, or returned something else.
            AnswerUndecided: A hook behind the answer could not ask whether it may be used.
            Exception: Whatever a hook raises before a call. After a call it is logged and the hook's change dropped.
        """
        for hook in self._at[context.point]:
            context = _run_hook(hook, context)
            if context.stop_signals and context.point in _POINTS_BEFORE_CALLS:
                break
            if context.response is not None and context.point is HookPoint.BEFORE_STEP:
                break
        return context


def _run_hook(hook: Hook, context: HookContext) -> HookContext:
    started = time.monotonic()
    try:
        changed = fibers.run_users_code(hook.function, context)
        if changed is None:
            return context
        _check_contract(hook, context, changed)
        return changed
    except StopExecution as stop:
        return context.changed(stop_signals=(*context.stop_signals, stop.signal_from(hook.name)))
    except Exception as error:
        is_undecided = isinstance(error, AnswerUndecided) and context.point is HookPoint.AFTER_INFERENCE
        if is_undecided or context.point in _POINTS_BEFORE_CALLS:
            raise
        log.warning(
            "hook %s at %s of session %s raised, its change is dropped: %s%s",
            hook.name, context.point, context.session_id, describe_exception(error).message, place_of(error),
        )  # fmt: skip
        return context
    finally:
        log.debug("hook %s at %s took %.4f s", hook.name, context.point, time.monotonic() - started)


def _check_contract(hook: Hook, before: HookContext, after: HookContext) -> None:
    allowed = CHANGES[before.point]
    where = f"hook {hook.name} at {before.point}"
    if not isinstance(after, HookContext):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise HookContractError(f"{where} returned a {type(after).__name__}; return the context or None")
    for each in fields(HookContext):
        if each.name not in allowed and getattr(before, each.name) is not getattr(after, each.name):
            raise HookContractError(f"{where} changed {each.name}; this point allows {sorted(allowed)}")
    for name, kind in _KINDS.items():
        value = getattr(after, name)
        if value is None and name != "state":
            continue
        if value is not getattr(before, name) and not isinstance(value, kind):
            raise HookContractError(f"{where} set {name} to a {type(value).__name__}; give a {kind.__name__}")
    if _execution_id(after.state) != _execution_id(before.state):
        raise HookContractError(f"{where} took another execution; change the state by its with_… methods")
    if after.state is not before.state and not _continues(before.state, after.state):
        raise HookContractError(f"{where} gave a state that was made of an earlier one; change that of the context")
    if after.state.status is not before.state.status:
        _check_status(where, before, after)
    if before.point is HookPoint.BEFORE_STEP and after.response is not None and after.response.has_tool_calls():
        raise HookContractError(f"{where} gave an answer with tool calls; only the model asks for those")
    if before.tool_call is not None and after.tool_call is not None and after.tool_call.id != before.tool_call.id:
        raise HookContractError(f"{where} changed the id of a tool call, by which the model knows it")


def _check_status(where: str, before: HookContext, after: HookContext) -> None:
    """Let a hook end an execution that runs, and change its status in no other way."""
    status = after.state.status
    if before.point in _POINTS_OF_THE_END:
        raise HookContractError(f"{where} made the execution {status}; it has its end already")
    if before.state.status is not ExecutionStatus.IN_PROGRESS or status is None or not status.is_terminal():
        advice = "a hook may end it as completed, stopped or failed"
        raise HookContractError(f"{where} made the execution {status or 'disappear'}; {advice}")


_KINDS: Final[Mapping[str, type]] = MappingProxyType(
    {
        "state": AgentState,
        "request": InferenceRequest,
        "response": InferenceResponse,
        "tool_call": ToolCall,
        "tool_execution": ToolExecution,
        "blocked": str,
        "error": ErrorInfo,
    }
)


def _continues(before: AgentState, after: AgentState) -> bool:
    """Whether a state has all that another one has, but for lists that it replaces: else the stored one has gaps."""
    sections, others = before.store.sections, after.store.sections
    return (
        before.step_count == after.step_count
        and all(_has_items_of(others.get(name), each, "messages") for name, each in sections.items())
        and all(_has_items_of(after.part_lists.get(name), each, "items") for name, each in before.part_lists.items())
    )


def _has_items_of(after: Any, before: Any, items: str) -> bool:
    """Whether a list goes on behind the items of another one, or has replaced it."""
    if after is before:
        return True
    if after is None or after.generation != before.generation:
        return after is not None and after.generation > before.generation
    known = getattr(before, items)
    return getattr(after, items)[len(known) - 1 : len(known)] == known[-1:]


def _execution_id(state: AgentState) -> str | None:
    return state.execution.execution_id if state.execution is not None else None
