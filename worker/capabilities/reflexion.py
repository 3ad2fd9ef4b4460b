"""`Reflexion`: a confidence that follows from what the tools returned, and guidance for a model that is stuck.

The algorithm and its numbers are those of Locus's reflector (Oracle); an increase is diminished once, where the source
does it twice. It asks no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from ..capability import Capability
from ..guards import PROCEED, Guard, GuardView, StopWith, Verdict
from ..hooks import Hook, HookContext, HookPoint
from ..run_state.parts import (
    DEFAULT_CONFIDENCE_THRESHOLD,
    DEFAULT_LOOP_THRESHOLD,
    Assessment,
    Confidence,
    ConfidenceHistory,
)
from ..run_state.reason import RunReason
from ..run_state.view import diminish
from ..state.agent_state import AgentState
from ..state.conversation.messages import Message
from ..state.execution.steps import AgentStep
from ..state.execution.tool_calls import ToolOutcome
from .loop_detection import digest_calls
from .numbers import check_share, check_whole

_SOURCE: Final = "Reflexion"

SUCCESS: Final = 0.15
ERROR: Final = -0.20
LOOP: Final = -0.30
ALTERNATION: Final = -0.25
NO_TOOLS: Final = 0.05
STUCK_BELOW: Final = -0.05
NEW_FINDINGS_ABOVE_CHARS: Final = 100
FINDINGS_CHARS: Final = 200
_ALTERNATION_STEPS: Final = 4

GUIDANCE: Final[Mapping[Assessment, str]] = MappingProxyType(
    {
        Assessment.LOOP_DETECTED: (
            "You repeat the same tool calls, and they bring nothing new. Do not make them again: use other arguments "
            "or another tool, or answer with what you know."
        ),
        Assessment.STUCK: (
            "Your last tool calls mostly failed. Read their errors, and correct the arguments or try another way "
            "before you call the same tool again."
        ),
    }
)
"""What the model is told after such an assessment; after the others it is told nothing."""


@dataclass(frozen=True)
class Reflexion(Capability):
    """Reflects about each step: it raises the confidence for what succeeded, and lowers it for errors and loops.

    A success counts 0.15, an error -0.20, a loop -0.30, an alternation of two sets of calls -0.25, a step without calls
    0.05. The sum is cut to -1 to 1. Calls that did not run count nothing.

    Attributes:
        threshold: The confidence that is enough, from 0 to 1.
        every: Reflects about each n-th step, from 1.
        diminishing: An increase is multiplied by what is missing to 1.
        guides: Tells the model when it repeats itself or is stuck.
        ends_execution: Completes the execution, with the reason `confidence_met`, once the confidence is enough.
        loop_threshold: So many steps with the same calls are a loop, from 2.
    """

    threshold: float = DEFAULT_CONFIDENCE_THRESHOLD
    every: int = 1
    diminishing: bool = True
    guides: bool = True
    ends_execution: bool = True
    loop_threshold: int = DEFAULT_LOOP_THRESHOLD

    def __post_init__(self) -> None:
        check_share("Reflexion(threshold)", self.threshold)
        check_whole("Reflexion(loop_threshold)", self.loop_threshold, least=2, of=" of steps")
        check_whole("Reflexion(every)", self.every, least=1, of=" of steps")

    def parts(self) -> Sequence[Any]:
        """The confidence with the last reflection, and the history of confidences."""
        return (Confidence, ConfidenceHistory)

    def hooks(self) -> Sequence[Hook]:
        """Reflects when a step is done."""
        return (
            Hook(HookPoint.BEFORE_EXECUTION, self._show_threshold, name=_SOURCE),
            Hook(HookPoint.AFTER_STEP, self._reflect, name=_SOURCE),
        )

    def guards(self) -> Sequence[Guard]:
        """Ends the execution when the confidence is enough, unless that is switched off."""
        return (self,) if self.ends_execution else ()

    def check(self, view: GuardView) -> Verdict:
        """Stop where the confidence is enough."""
        confidence = view.state.part(Confidence)
        if confidence.value < self.threshold:
            return PROCEED
        message = f"the confidence {confidence.value:.2f} has reached {self.threshold:.2f}"
        return StopWith((RunReason.CONFIDENCE_MET.signal(message, _SOURCE),))

    def compile(self, state: AgentState, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Put the guidance behind the conversation, where the last reflection asks for any."""
        assessment = state.part(Confidence).assessment if self.guides else None
        guidance = GUIDANCE.get(assessment) if assessment is not None else None
        return messages if guidance is None else (*messages, Message.system(guidance))

    def _show_threshold(self, context: HookContext) -> HookContext | None:
        shown = context.state.part(Confidence)
        if shown.threshold == self.threshold:
            return None
        return context.changed(state=context.state.with_part(shown.replace(threshold=self.threshold)))

    def _reflect(self, context: HookContext) -> HookContext | None:
        state = self.reflect(context.state)
        return None if state is context.state else context.changed(state=state)

    def reflect(self, state: AgentState) -> AgentState:
        """Reflect about the current step; a step that was reflected about stays as it is."""
        step, before = state.current_step, state.part(Confidence)
        if step is None or before.seen == step.number:
            return state
        now = state.updated_at
        window = max(self.loop_threshold, _ALTERNATION_STEPS)
        recent = (*before.recent, digest_calls(step.requested_tool_calls))[-window:]
        seen = before.replace(recent=recent, seen=step.number, threshold=self.threshold)
        if step.number % self.every:
            return state.with_part(seen, now=now)
        raw, assessment = self._assess(step, recent)
        delta = diminish(raw, before.value, self.diminishing)
        after = seen.replace(
            step=step.number, delta=delta, assessment=assessment, findings=_findings(step)[:FINDINGS_CHARS]
        )
        return state.with_part(after, now=now).run.adjust_confidence(delta, diminishing=False, now=now)

    def _assess(self, step: AgentStep, recent: Sequence[str]) -> tuple[float, Assessment]:
        """The change of the confidence before it is diminished, and the verdict."""
        outcomes = [each.outcome for each in step.tool_executions]
        successes = outcomes.count(ToolOutcome.OK)
        errors = outcomes.count(ToolOutcome.ERROR) + outcomes.count(ToolOutcome.UNKNOWN)
        is_loop, alternates = is_repeating(recent, self.loop_threshold), is_alternating(recent)
        delta = SUCCESS * successes + ERROR * errors if step.has_tool_calls() else NO_TOOLS
        delta += LOOP * is_loop + ALTERNATION * alternates
        delta = round(min(1.0, max(-1.0, delta)), 6)  # or 0.15 - 0.20 would be less than -0.05
        if is_loop or alternates:
            return delta, Assessment.LOOP_DETECTED
        if delta < STUCK_BELOW:
            return delta, Assessment.STUCK
        has_findings = len(_findings(step)) > NEW_FINDINGS_ABOVE_CHARS
        return delta, Assessment.NEW_FINDINGS if has_findings else Assessment.ON_TRACK


def is_repeating(recent: Sequence[str], threshold: int) -> bool:
    """Tell whether the last steps, as many as the threshold, made the same calls."""
    last = recent[-threshold:]
    return len(last) == threshold and last[0] != "" and len(set(last)) == 1


def is_alternating(recent: Sequence[str]) -> bool:
    """Tell whether the last four steps made the calls A, B, A, B."""
    last = recent[-_ALTERNATION_STEPS:]
    if len(last) < _ALTERNATION_STEPS or "" in last:
        return False
    return last[0] == last[2] != last[1] == last[3]


def _findings(step: AgentStep) -> str:
    """The results of a step's tools, one after another."""
    return "\n".join(each.as_message() for each in step.tool_executions if each.outcome is ToolOutcome.OK)
