"""The agent of pydantic-ai that the product's workers import."""

from engines.scripted_model import scripted_model
from pydantic_ai import Agent
from pydantic_ai.usage import UsageLimits
from yardstick.work import tool_result

from celery_agents import CeleryDurability

pydantic = Agent(
    scripted_model(),
    name="pydantic",
    capabilities=[CeleryDurability(usage_limits=UsageLimits(request_limit=None), effect="keyed")],
)


@pydantic.tool_plain
async def look_up(step: int, query: str) -> str:
    """Look it up."""
    assert query
    return tool_result(step)
