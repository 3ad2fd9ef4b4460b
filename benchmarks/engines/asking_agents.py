"""An agent whose first step asks for an approval, and one with the same step that asks nobody."""

from celery_agents import Agent, tool
from celery_agents.worker.drivers import FunctionDriver
from celery_agents.worker.state import AgentState, InferenceResponse, ToolCall


def answer(state: AgentState) -> InferenceResponse:
    if state.step_count:
        return InferenceResponse(content="done")
    return InferenceResponse(tool_calls=(ToolCall(id="call_1", name="act", args={"what": "it"}),))


def act(what: str) -> str:
    return f"{what} is done"


asking = Agent(
    "asking", driver=FunctionDriver(answer), tools=[tool(effect="keyed", approval="always", description="Act.")(act)]
)
acting = Agent("acting", driver=FunctionDriver(answer), tools=[tool(effect="keyed", description="Act.")(act)])
