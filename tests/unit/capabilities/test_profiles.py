"""Profiles: their numbers, and what beats them."""

from __future__ import annotations

from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import AgentLimits, Planning, RuntimeProfile, Summarization, ToolArchive
from celery_agents.worker.capabilities.smart.profiles import PROFILES
from celery_agents.worker.errors import ConfigurationError

from support.smart import Asked

TABLE: dict[str, tuple[Any, ...]] = {
    "max_tool_calls": (8, 20, 40, 80),
    "max_parallel_tools": (3, 5, 8, 10),
    "max_context_tokens": (32_000, 96_000, 200_000, 400_000),
    "summary_trigger_tokens": (24_000, 72_000, 150_000, 300_000),
    "summary_prompt_tokens": (6_000, 12_000, 16_000, 24_000),
    "compression_ratio": (0.5, 0.45, 0.4, 0.35),
    "last_turns_to_keep": (8, 16, 30, 60),
    "tool_response_policy": ("keep_structured", *["summarize_archive"] * 3),
    "reserves": (
        (1500, 1200, 6000, 3500), (2000, 2000, 18000, 9000), (2500, 2500, 36000, 18000), (3000, 3000, 72000, 32000),
    ),
    "memory": (("session", "recent_only"), ("session", "hybrid"), ("workspace", "hybrid"), ("workspace", "hybrid")),
    "delegation": (
        ("off", 1, 2, 1, "minimal"), ("role_based", 2, 6, 3, "scoped"), ("role_based", 3, 10, 4, "scoped"),
        ("automatic", 4, 16, 6, "full"),
    ),
    "max_response_chars": (16_000, 32_000, 64_000, 96_000),
    "max_response_tokens": (4_000, 8_000, 16_000, 24_000),
}  # fmt: skip


def agent(profile: Any, *capabilities: Any, **more: Any) -> Agent:
    return Agent("a", driver=Asked(["x"]), profile=profile, capabilities=capabilities, **more)


def found(made: Agent, kind: type[Any]) -> Any:
    (one,) = [each for each in made.capabilities if isinstance(each, kind)]
    return one


@pytest.mark.parametrize(("field", "numbers"), TABLE.items())
def test_l12_the_numbers_of_the_profiles(field: str, numbers: tuple[Any, ...]) -> None:
    assert tuple(getattr(PROFILES[name], field) for name in ("fast", "balanced", "deep", "research")) == numbers


@pytest.mark.parametrize("name", ["fast", "balanced", "deep", "research", "custom"])
def test_l12_an_agent_gets_its_limits_and_its_summarization(name: str) -> None:
    profile = PROFILES[name]
    made = agent(name)
    limits, summary = found(made, AgentLimits), found(made, Summarization)
    assert (limits.max_tool_calls, made.max_parallel_tools) == (profile.max_tool_calls, profile.max_parallel_tools)
    assert (limits.max_total_output_tokens, limits.max_cost_usd, limits.max_wall_clock_ms) == (None, None, None)
    assert (summary.max_context_tokens, summary.trigger) == (profile.max_context_tokens, profile.summary_trigger_tokens)
    assert (summary.max_prompt_tokens, summary.target_ratio) == (
        profile.summary_prompt_tokens,
        profile.compression_ratio,
    )
    assert (summary.last_turns_to_keep, summary.policy) == (profile.last_turns_to_keep, profile.tool_response_policy)
    assert summary.max_response_chars == profile.max_response_chars


def test_l12_what_is_given_beats_the_profile() -> None:
    made = agent("deep", Planning(), AgentLimits(max_tool_calls=5, max_cost_usd=2.0, max_context_tokens=50_000))
    limits, summary = found(made, AgentLimits), found(made, Summarization)
    assert (limits.max_tool_calls, limits.max_parallel_tools, limits.max_cost_usd) == (5, 8, 2.0)
    assert (summary.max_context_tokens, summary.trigger) == (50_000, 37_500)
    assert isinstance(made.capabilities[0], Planning)
    own = ToolArchive(4_000)
    assert found(agent("deep", own), ToolArchive) is own
    assert agent("deep", max_parallel_tools=2).max_parallel_tools == 2


def test_l12_a_custom_profile_extends_another_one() -> None:
    custom = RuntimeProfile.custom(extends="fast", max_tool_calls=9, max_context_tokens=10_000)
    assert (custom.name, custom.max_tool_calls, custom.max_parallel_tools) == ("custom", 9, 3)
    assert custom.summary_trigger_tokens == 7_500
    assert RuntimeProfile.custom().max_tool_calls == 20
    assert found(agent(custom), Summarization).max_context_tokens == 10_000


def test_an_agent_without_a_profile_gets_nothing() -> None:
    assert agent(None).capabilities == ()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: agent("huge"), "profile='huge': there are fast, balanced, deep, research, custom"),
        (lambda: agent(7), "profile=7"),
        (lambda: RuntimeProfile.custom(extends="huge"), "profile='huge'"),
        (lambda: RuntimeProfile.custom(speed=3), "there is no speed; fields: compression_ratio"),
        (lambda: RuntimeProfile.custom(max_tool_calls=-1), "max_tool_calls"),
        (lambda: RuntimeProfile.custom(max_context_tokens="many"), "max_context_tokens"),
        (lambda: RuntimeProfile.custom(compression_ratio=2), "target_ratio"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        wrong()


def test_the_token_counter_of_the_limits_counts_for_the_summary_of_a_profile() -> None:
    made = agent("fast", AgentLimits(token_counter=len))
    assert (found(made, AgentLimits).token_counter, found(made, Summarization).token_counter) == (len, len)
