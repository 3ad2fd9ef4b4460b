"""An agent of pydantic-ai whose tool raises until a file exists, and keeps the keys of its calls in another one."""

from __future__ import annotations

from pathlib import Path

from pydantic_ai import Agent, RunContext
from pydantic_ai.models.test import TestModel

from celery_agents import CeleryDurability

till = Agent(
    TestModel(),
    name="till",
    deps_type=Path,
    capabilities=[CeleryDurability(deps=lambda metadata: Path(metadata["folder"]))],
)


@till.tool(metadata={"celery": {"effect": "keyed"}})
def pay(ctx: RunContext[Path], cents: int) -> str:
    """Pay."""
    key = (ctx.metadata or {})["celery"]["idempotency_key"]
    with (ctx.deps / "keys").open("a") as keys:
        keys.write(f"{key}\n")
    if not (ctx.deps / "repaired").exists():
        raise ConnectionError("the till does not answer, password=hunter2hunter2")
    return "paid"
