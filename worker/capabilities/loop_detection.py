"""`LoopDetection`: ends an execution whose steps make the same calls again and again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..capability import Capability
from ..guards import PROCEED, Guard, GuardPoint, GuardView, StopWith, Verdict
from ..hooks import Hook, HookContext, HookPoint
from ..run_state.parts import DEFAULT_LOOP_THRESHOLD, RepeatedCalls
from ..run_state.reason import RunReason
from ..state.agent_state import AgentState
from ..state.execution.tool_calls import ToolCall
from ..state.values.canonical import canonical_digest
from .numbers import check_whole

_SOURCE: Final = "LoopDetection"


@dataclass(frozen=True)
class LoopDetection(Capability):
    """Stops an execution when as many steps as the threshold, one after another, make the same set of calls.

    Calls are the same when their tools and arguments are; a step without calls ends the row. The execution ends as
    stopped, with the reason `tool_loop`.

    Attributes:
        threshold: So many equal steps are a loop, from 2.
    """

    threshold: int = DEFAULT_LOOP_THRESHOLD

    def __post_init__(self) -> None:
        check_whole("LoopDetection(threshold)", self.threshold, least=2, of=" of steps")

    def parts(self) -> Sequence[Any]:
        """The last step's calls, and for how many steps they have been the same."""
        return (RepeatedCalls,)

    def hooks(self) -> Sequence[Hook]:
        """Counts equal steps."""
        return (
            Hook(HookPoint.BEFORE_EXECUTION, self._show_threshold, name=_SOURCE),
            Hook(HookPoint.AFTER_STEP, self._count, name=_SOURCE),
        )

    def guards(self) -> Sequence[Guard]:
        """Ends the execution at the threshold."""
        return (self,)

    def check(self, view: GuardView) -> Verdict:
        """Stop where the step that was just done completes a loop."""
        step, repeated = view.state.current_step, view.state.part(RepeatedCalls)
        if view.point is GuardPoint.BEFORE_CALL or step is None or repeated.step != step.number:
            return PROCEED
        if repeated.streak < self.threshold:
            return PROCEED
        names = ", ".join(dict.fromkeys(call.name for call in step.requested_tool_calls))
        message = f"the last {repeated.streak} steps made the same calls: {names}"
        return StopWith((RunReason.TOOL_LOOP.signal(message, _SOURCE),))

    def _show_threshold(self, context: HookContext) -> HookContext | None:
        shown = context.state.part(RepeatedCalls)
        if shown.threshold == self.threshold:
            return None
        return context.changed(state=context.state.with_part(shown.replace(threshold=self.threshold)))

    def _count(self, context: HookContext) -> HookContext | None:
        state = self.count(context.state)
        return None if state is context.state else context.changed(state=state)

    def count(self, state: AgentState) -> AgentState:
        """Count the calls of the current step; a step that is counted stays counted once."""
        step, before = state.current_step, state.part(RepeatedCalls)
        if step is None or before.step == step.number:
            return state
        digest = digest_calls(step.requested_tool_calls)
        follows = before.digest == digest and before.step == step.number - 1
        streak = (before.streak + 1 if follows else 1) if digest else 0
        after = RepeatedCalls(threshold=self.threshold, digest=digest, streak=streak, step=step.number)
        return state.with_part(after, now=state.updated_at)


def digest_calls(calls: Iterable[ToolCall]) -> str:
    """Derive 64 hex digits from the set of names and arguments; empty where there are no calls.

    The order of the calls and of their arguments does not matter, and a call that is there twice counts once.
    """
    digests = sorted({canonical_digest([call.name, call.args]) for call in calls})
    return canonical_digest(digests) if digests else ""
