"""`assert_survives` on a real Redis: virtual time there too, and nobody's data is touched."""

from __future__ import annotations

import pytest
import redis

from celery_agents import Agent, LookupResult, ToolContext, tool
from celery_agents.testing import CallTool, EffectLedger, assert_survives, script
from celery_agents.worker.errors import ConfigurationError

ledger = EffectLedger()


@tool(effect="keyed")
def pay(ctx: ToolContext, cents: int) -> str:
    ledger.happened("payment", key=ctx.idempotency_key)
    return ctx.idempotency_key


def find_letter(key: str, ctx: ToolContext) -> LookupResult:
    return LookupResult.happened("sent") if ledger.count("letter", key=key) else LookupResult.did_not_happen()


@tool(effect="lookup", lookup=find_letter, timeout=5)
def send_letter(ctx: ToolContext) -> str:
    ledger.happened("letter", key=ctx.idempotency_key)
    return "sent"


shop = Agent(
    "shop",
    driver=script([CallTool("pay", cents=5), CallTool("send_letter")], CallTool("pay", cents=6), "Done."),
    tools=[pay, send_letter],
)


def test_a_job_goes_the_same_way_on_redis_as_in_memory(redis_url: str, redis_client: redis.Redis) -> None:
    in_memory = assert_survives(shop, seeds=range(12), ledger=ledger)
    assert assert_survives(shop, seeds=range(12), ledger=ledger, redis_url=redis_url) == in_memory
    assert redis_client.dbsize() == 0


def test_a_redis_with_somebody_s_data_is_refused_and_left_alone(redis_url: str, redis_client: redis.Redis) -> None:
    redis_client.set("theirs", "data", ex=60)
    with pytest.raises(ConfigurationError, match="has to be empty"):
        assert_survives(shop, redis_url=redis_url)
    assert redis_client.get("theirs") == "data"
