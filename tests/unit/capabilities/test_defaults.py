"""What a capability does where nothing is said: the defaults of each, and the least of its numbers."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import (
    AskUser,
    CallbackSink,
    LoopDetection,
    MemoryFacts,
    Planning,
    Reasoning,
    ReflectionConfig,
    Reflexion,
    Subagents,
    Summarization,
    ToolArchive,
    ToolCache,
    Tracing,
)
from celery_agents.worker.capabilities.guardrails.findings import JudgedMessages
from celery_agents.worker.capabilities.smart.compacted import Compaction, StableFact
from celery_agents.worker.capabilities.smart.limits import LimitsUsed
from celery_agents.worker.capabilities.smart.memory_facts import FactFiles, Memory, MemoryFact
from celery_agents.worker.capabilities.smart.planning import Plan
from celery_agents.worker.capabilities.smart.reasoning_config import LEVELS, Cadence
from celery_agents.worker.capabilities.smart.reflection import ReflectionProgress, ReflectionSummary
from celery_agents.worker.capabilities.smart.tokens import ReflectionUsage
from celery_agents.worker.capabilities.smart.tool_archive import ArchiveUse
from celery_agents.worker.capabilities.smart.tool_cache import CachedResult, CachedResults
from celery_agents.worker.capabilities.subagents import Subagent
from celery_agents.worker.capabilities.termination import ObservedSteps
from celery_agents.worker.capabilities.tracing.capability import TraceReport
from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.tools import InvalidArguments, tool

from support.states import NOON

DEFAULTS: list[tuple[Any, dict[str, Any]]] = [
    (AskUser(), {"allow_free_text": True}),
    (FactFiles("facts"), {"max_facts": 1_000}),
    (LoopDetection(), {"threshold": 3}),
    (MemoryFacts(), {"namespace": "default", "read_limit": 16, "max_facts": 100}),
    (Planning(), {"is_shown": True}),
    (
        ReflectionConfig(),
        {"mode": "separate", "keep_last": 3, "summarize": False, "emit_events": True, "every_n_turns": 1},
    ),
    (Reflexion(), {"every": 1, "diminishing": True, "guides": True, "ends_execution": True}),
    (Subagents([Subagent("helper")]), {"max_depth": 3, "max_children": 8}),
    (
        Summarization(),
        {
            "max_context_tokens": 96_000, "target_ratio": 0.45, "last_turns_to_keep": 16, "max_prompt_tokens": 12_000,
            "max_summary_tokens": 2_000, "max_fetches": 8, "policy": "summarize_archive", "trigger": 72_000,
        },
    ),
    (ToolArchive(), {"max_context_tokens": 96_000, "max_fetches": 8, "trigger": 72_000}),
    (ToolCache({"look"}), {"max_entries": 200, "ttl": None}),
    (Tracing([CallbackSink(print)]), {"log_data": True, "enabled": True}),
]  # fmt: skip


@pytest.mark.parametrize(("made", "defaults"), DEFAULTS, ids=lambda each: type(each).__name__)
def test_the_defaults_of_a_capability(made: Any, defaults: dict[str, Any]) -> None:
    again = type(made)(**{each.name: getattr(made, each.name) for each in fields(made) if each.init})
    assert {name: getattr(again, name) for name in defaults} == defaults


@pytest.mark.parametrize(
    ("kind", "field", "least"),
    [
        (LoopDetection, "threshold", 2), (MemoryFacts, "read_limit", 0), (MemoryFacts, "max_facts", 1),
        (ReflectionConfig, "max_tokens", 1), (ReflectionConfig, "max_chars", 1), (ReflectionConfig, "max_per_run", 0),
        (ReflectionConfig, "every_n_turns", 1), (Reflexion, "every", 1),
    ],
)  # fmt: skip
def test_each_number_has_a_least_one(kind: Any, field: str, least: int) -> None:
    assert getattr(kind(**{field: least}), field) == least
    for wrong in (least - 1, True, 1.5):
        with pytest.raises(ConfigurationError, match=rf"{field}\)={wrong}: give a whole number"):
            kind(**{field: wrong})


def test_the_levels_of_reflections() -> None:
    assert dict(LEVELS) == {
        "minimal": (150, 400, Cadence.OFF),
        "low": (200, 600, Cadence.ON_BRANCH),
        "medium": (350, 1_200, Cadence.INITIAL_THEN_AFTER_TOOL),
        "high": (600, 2_000, Cadence.INITIAL_THEN_AFTER_TOOL),
    }
    assert [ReflectionConfig(keep_last=each).keep_last for each in (-1, 0, 1, 2)] == [1, 1, 1, 2]


def test_the_tool_of_subagents_names_each_with_its_tools() -> None:
    @tool(effect="pure")
    def look() -> str:
        """Look."""
        return ""

    plain = Agent("plain", driver=lambda _state: "", description="Does it.", tools=[look])
    (spawn,) = Subagents(
        [plain, Subagent("silent"), Subagent("half", deny=["look"]), Subagent("own", tools=["look"])]
    ).tools()
    assert getattr(spawn, "description", "").splitlines()[1:] == [
        "- plain: Does it. (tools: look)",
        "- silent: no description",
        "- half: no description (all tools but look)",
        "- own: no description (tools: look)",
    ]


def test_files_of_facts_make_their_folder(tmp_path: Path) -> None:
    files = FactFiles(tmp_path / "a" / "b")
    assert list(files.load("default")) == []
    for value in ("1", "2"):
        files.save("default", MemoryFact(key="k", value=value, updated_at=NOON))
    assert [(each.value, each.status) for each in files.load("default")] == [("1", "obsolete"), ("2", "active")]
    assert files.load("other") == ()


@pytest.mark.parametrize(
    ("field", "fits", "wrong"),
    [
        ("key", ["k", "k" * 100], ["", "k" * 101]),
        ("value", ["v", "v" * 1_000], ["", "v" * 1_001]),
        ("confidence", [0, 1], [-0.001, 1.001]),
        ("ttl_seconds", [0.001, 1, None], [0, -1]),
    ],
)
def test_what_the_model_may_remember(field: str, fits: list[Any], wrong: list[Any]) -> None:
    remember: Any = MemoryFacts().tools()[0]
    given = {"key": "k", "value": "v"}
    assert (remember.bind(given)["confidence"], remember.bind(given)["ttl_seconds"]) == (0.5, None)
    for value in fits:
        assert remember.bind({**given, field: value})[field] == value
    for value in wrong:
        with pytest.raises(InvalidArguments, match=field):
            remember.bind({**given, field: value})


def test_the_model_fetches_from_the_beginning_or_behind_it() -> None:
    fetch: Any = ToolArchive().tools()[0]
    assert fetch.bind({"execution_id": "x"})["offset"] == 0
    assert fetch.bind({"execution_id": "x", "offset": 0})["offset"] == 0
    with pytest.raises(InvalidArguments, match="offset"):
        fetch.bind({"execution_id": "x", "offset": -1})


@pytest.mark.parametrize(
    "kind",
    [
        ArchiveUse, CachedResults, Compaction, JudgedMessages, LimitsUsed, Memory, ObservedSteps,
        Plan, ReflectionProgress, ReflectionSummary, ReflectionUsage, TraceReport,
    ],
)  # fmt: skip
def test_a_part_that_holds_nothing_counts_nothing(kind: Any) -> None:
    assert {name: value for name, value in kind() if value} == {}


def test_what_a_stored_value_is_where_it_does_not_say() -> None:
    assert StableFact(key="k", value="v").confidence == 0.8
    assert (MemoryFact(key="k", value="v", updated_at=NOON).confidence, Reasoning().max_result_chars) == (0.5, 500)
    cached = CachedResult(key="k", index=1, at=NOON)
    assert (cached.generation, cached.is_text) == (0, True)
