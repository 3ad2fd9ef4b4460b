"""The agent with a keyed tool, whose requests are counted, and whose answers say what they used and cost."""

from __future__ import annotations

from typing import Any, Final

from engines.product import agents

from celery_agents.flow import ModelEndpoint
from celery_agents.worker.drivers import FunctionDriver
from celery_agents.worker.state import AgentState, InferenceResponse, InferenceUsage

MODEL: Final = "bench:model"
USAGE: Final = InferenceUsage(input=1_000, output=50, requests=1)


class CountedDriver(FunctionDriver):
    """Asks nothing; its requests are counted as those to a provider are."""

    def __init__(self, function: Any) -> None:
        async def answer(state: AgentState) -> InferenceResponse:
            return (await function(state)).model_copy(update={"usage": USAGE, "cost": 0.0001})

        super().__init__(answer)

    def endpoint(self, settings: Any = None) -> ModelEndpoint:
        """See `AsksProvider.endpoint`."""
        del settings
        return ModelEndpoint(MODEL)


keyed = agents(CountedDriver)[0]
