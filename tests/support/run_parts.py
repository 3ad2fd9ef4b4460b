"""What the parts of `state.run` must hold after an execution: what its steps make one after another, each once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from celery_agents.worker.capabilities import LoopDetection, Reflexion
from celery_agents.worker.run_state.parts import Confidence, RepeatedCalls
from celery_agents.worker.state import AgentState, StepExecution


def problems_of_parts(state: AgentState) -> Iterator[str]:
    """What is lost or doubled in the parts of the last execution; nothing where all is as it should be."""
    execution = state.execution
    if execution is None:
        return
    steps, run = execution.step_executions, state.run
    iterations = [each.iteration for each in run.reasoning_steps]
    if iterations != list(range(1, len(steps) + 1)):
        yield f"{len(steps)} steps have the reasoning steps {iterations}"
    for record, done in zip(run.reasoning_steps, steps, strict=False):
        said = done.step.inference_response.content or None
        if record.tool_calls != done.step.requested_tool_calls or record.thought != said:
            yield f"reasoning step {record.iteration} is about another answer"
    replayed = _replay(steps)
    if run.confidence_history != replayed.run.confidence_history:
        yield f"the confidences are {run.confidence_history}, the steps make {replayed.run.confidence_history}"
    for kind in (Confidence, RepeatedCalls):
        found, made = state.part(kind), replayed.part(kind)
        if steps and found != made:
            yield f"there is {found}, the steps make {made}"


def _replay(steps: Sequence[StepExecution]) -> AgentState:
    """A state in which the capabilities have seen these steps undisturbed."""
    state = AgentState.fresh().with_execution().with_execution_started()
    for each in steps:
        state = state.with_current_step(each.step)
        state = LoopDetection().count(Reflexion().reflect(state)).with_current_step_completed()
    return state
