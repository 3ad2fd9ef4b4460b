"""`Tracing`: an agent's executions as traces for sinks, with the options of Cognipeer's agent SDK."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...capability import Capability, CommittedStep
from ...errors import ConfigurationError
from ...hooks import Hook, HookContext, HookPoint
from ...state.agent_state import AgentState
from ...state.parts.state_part import PartScope, StatePart
from ...state.values.frozen import FrozenDict
from .delivery import Delivery
from .sinks import TraceSink
from .trace import Trace, make_trace


class TraceReport(StatePart):
    """The sinks that did not get everything of an execution.

    Attributes:
        failed: Why, by the names of the sinks.
    """

    part_name = "trace"
    scope = PartScope.EXECUTION
    failed: FrozenDict = FrozenDict()


def read_report(state: AgentState) -> dict[str, str]:
    """Why sinks did not get everything of the latest execution, by their names, as far as it is committed."""
    return {name: str(why) for name, why in state.part(TraceReport).failed.items()}


@dataclass(frozen=True)
class Tracing(Capability):
    """Sends what an agent does to sinks: after each step, or when an execution has ended.

    A trace is made of what is committed, by the worker that has committed it, in threads of its own: a sink that fails
    or hangs delays no step and fails no execution. Then the trace is `partial`, for the other sinks, too. What a worker
    that was killed did not send comes with the whole trace at the end; the trace of an execution whose last worker was
    killed behind its commit, or which ended without a worker, is there by `client.trace`.

    Attributes:
        sinks: `FileSink`, `HttpSink`, `OtlpSink`, `CallbackSink`, or your own `TraceSink`.
        mode: `batched`: each sink gets a trace when the execution has ended. `streaming`: also the beginning and the
            events of each step.
        log_data: With messages, arguments, results and texts of errors; known secrets are redacted. False: without.
        thread_id: In place of the session's id.
        enabled: False sends nothing.
    """

    sinks: Sequence[TraceSink] = ()
    mode: Literal["batched", "streaming"] = "batched"
    log_data: bool = True
    thread_id: str | None = None
    enabled: bool = True

    def __post_init__(self) -> None:
        if self.mode not in ("batched", "streaming"):
            raise ConfigurationError(f"Tracing(mode)={self.mode!r:.40}: give 'batched' or 'streaming'")
        for each in self.sinks:
            if not all(callable(getattr(each, verb, None)) for verb in ("begin", "append", "write")):
                raise ConfigurationError(
                    f"Tracing(sinks): {each!r:.80} is no TraceSink; wrap a function as CallbackSink(function)"
                )
        names = [each.name for each in self.sinks]
        if len(set(names)) < len(names):
            raise ConfigurationError(f"Tracing(sinks): two sinks have one name of {', '.join(names)}; rename one")
        object.__setattr__(self, "_delivery", Delivery(self.sinks))

    @property
    def delivery(self) -> Delivery:
        """The sinks with what waits for them, in this process."""
        return self._delivery  # type: ignore[attr-defined,no-any-return]

    def parts(self) -> Sequence[Any]:
        """The sinks that have failed."""
        return (TraceReport,)

    def hooks(self) -> Sequence[Hook]:
        """Keeps with the execution which sinks have failed so far."""
        return (Hook(HookPoint.AFTER_STEP, self._keep_failures, name=self.name),) if self.enabled else ()

    def committed(self, step: CommittedStep) -> None:
        """Send what was committed."""
        execution = step.state.execution
        if not self.enabled or execution is None:
            return
        make = functools.partial(self._make, step)
        last = execution.last_step
        size = step.weight + (len(last.to_json()) if last is not None else 0)
        if self.mode == "streaming":
            self.delivery.stream(step.execution_id, step.step, make, size)
        if execution.status.is_terminal():
            self.delivery.finish(step.execution_id, make, size, step.note_failed_sinks)

    def close(self, seconds: float) -> None:
        """Wait until everything is sent."""
        self.delivery.flush(seconds)

    def _make(self, step: CommittedStep, first_step: int = 1) -> Trace:
        found = make_trace(
            step.state, step.session_id, step.agent, parent=step.parent, log_data=self.log_data, first_step=first_step
        )
        return found.with_failures(read_report(step.state)).in_thread(self.thread_id)

    def _keep_failures(self, context: HookContext) -> HookContext | None:
        known = context.state.part(TraceReport)
        failed = {**known.failed, **self.delivery.failures.of(context.execution_id)}
        if len(failed) == len(known.failed):
            return None
        report = known.replace(failed=FrozenDict(failed))
        return context.changed(state=context.state.with_part(report, now=context.state.updated_at))
