"""Repeated calls of idempotent tools: an equal call of the same execution gives the recorded result.

Calls are equal when their tool is the same and their arguments are, after the hooks before the call. Across steps only
a success is given again; within one answer, equal calls are one call, whatever comes of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Final

from ..state import ExecutionState, StepExecution, ToolCall, ToolExecution, ToolOutcome
from ..state.values.canonical import canonical_digest
from .call_records import PlannedCall, record_known
from .run import CallRecord, Run

_EXECUTIONS: Final = 64


class RecordedResults:
    """Finds the recorded results of idempotent tools.

    It keeps an index of the last executions it was asked about, so that a call does not walk over all steps; what it
    forgets it reads again from the state.
    """

    def __init__(self) -> None:
        self._indexes: OrderedDict[str, _Index] = OrderedDict()
        self._lock = Lock()

    def find(self, run: Run, planned: PlannedCall) -> CallRecord | None:
        """The record of a call whose result is known already; None where the tool has to run."""
        if not is_idempotent(planned):
            return None
        found = _in_this_step(run, planned) or self._in_earlier_steps(run.execution, planned)
        return None if found is None else _record_hit(run, planned, found)

    def _in_earlier_steps(self, execution: ExecutionState, planned: PlannedCall) -> ToolExecution | None:
        with self._lock:
            index = self._indexes.pop(execution.execution_id, None)
            if index is None or not index.is_beginning_of(execution.step_executions):
                index = _Index()
            index.read(execution.step_executions)
            self._indexes[execution.execution_id] = index
            if len(self._indexes) > _EXECUTIONS:
                self._indexes.popitem(last=False)
            return index.results.get(_key(planned.call))


class _Index:
    """The successful calls of the first steps of an execution, the newest of equal ones."""

    def __init__(self) -> None:
        self.results: dict[str, ToolExecution] = {}
        self._read = 0
        self._last: StepExecution | None = None

    def is_beginning_of(self, steps: Sequence[StepExecution]) -> bool:
        """Tell whether the steps that were read are the first ones of these."""
        if self._last is None:
            return True
        return len(steps) >= self._read and steps[self._read - 1].claim == self._last.claim

    def read(self, steps: Sequence[StepExecution]) -> None:
        """Read the steps that are new."""
        for each in steps[self._read :]:
            for execution in each.step.tool_executions:
                if execution.outcome is ToolOutcome.OK:
                    self.results[_key(execution.tool_call)] = execution
            self._last = each
        self._read = len(steps)


def is_idempotent(planned: PlannedCall) -> bool:
    """Tell whether a recorded result of the call's tool may be given again; tools of other kinds may not say."""
    return bool(getattr(planned.tool, "idempotent", False))


def repeats_one_of(planned: PlannedCall, others: Iterable[PlannedCall]) -> bool:
    """Tell whether the result of one of these calls will be that of this call, too."""
    if not is_idempotent(planned):
        return False
    return any(_is_same(planned.call, each.call) for each in others)


def _in_this_step(run: Run, planned: PlannedCall) -> ToolExecution | None:
    executions = (run.records[index].execution for index in sorted(run.records))
    return next((each for each in executions if _is_same(each.tool_call, planned.call)), None)


def _is_same(one: ToolCall, other: ToolCall) -> bool:
    return one.name == other.name and one.args == other.args


def _key(call: ToolCall) -> str:
    return canonical_digest([call.name, call.args])


def _record_hit(run: Run, planned: PlannedCall, found: ToolExecution) -> CallRecord:
    return record_known(run, planned, found)
