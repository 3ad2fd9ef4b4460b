"""MemoryFacts: what a new value makes of an old one, and what other sessions know."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import FactFiles, MemoryFact, MemoryFacts
from celery_agents.worker.capabilities.smart.memory_facts import active_facts, merge_fact
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.errors import ConfigurationError, StateUnreadable

from support.engine import Bench
from support.smart import Asked, finished, run_dying
from support.states import NOON, at

NewBench = Callable[..., Bench]


@pytest.fixture
def new_bench() -> Iterator[NewBench]:
    benches: list[Bench] = []

    def make(*agents: Agent, **settings: Any) -> Bench:
        benches.append(Bench(*agents, **settings))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


def fact(key: str, value: str, seconds: float = 0, **fields: Any) -> MemoryFact:
    return MemoryFact(key=key, value=value, updated_at=at(seconds), **fields)


def remembers(*facts: tuple[str, str]) -> list[Any]:
    return [*(CallTool("remember_fact", key=key, value=value) for key, value in facts), "done"]


def agent(driver: Any, **options: Any) -> Agent:
    return Agent("a", driver=driver, capabilities=[MemoryFacts(**options)])


def test_l11_another_value_makes_the_former_fact_obsolete() -> None:
    facts = merge_fact(merge_fact((), fact("city", "Oslo")), fact("city", "Bergen", 1))
    assert [(each.value, each.status.value) for each in facts] == [("Oslo", "obsolete"), ("Bergen", "active")]


def test_l11_the_same_value_raises_the_confidence_to_the_larger() -> None:
    facts = merge_fact((fact("city", "Oslo", confidence=0.9),), fact("city", "Oslo", 5, confidence=0.3))
    assert [(each.confidence, each.updated_at) for each in facts] == [(0.9, at(5))]


def test_l11_a_fact_counts_no_longer_than_its_time() -> None:
    facts = (fact("a", "1", ttl_seconds=10), fact("b", "2"))
    assert [each.key for each in active_facts(facts, at(9))] == ["a", "b"]
    assert [each.key for each in active_facts(facts, at(10))] == ["b"]


def test_a_fact_whose_time_is_beyond_all_calendars_holds(new_bench: NewBench) -> None:
    call = CallTool("remember_fact", key="city", value="Oslo", ttl_seconds=1e18)
    driver = Asked([call, CallTool("recall_facts"), "done"])
    state = finished(new_bench(agent(driver)))
    assert "city = Oslo" in driver.read[1][-1].content
    assert state.steps[1].tool_executions[0].value[0]["value"] == "Oslo"


def test_merging_again_changes_nothing_and_an_older_fact_replaces_no_newer_one() -> None:
    facts = merge_fact((fact("city", "Oslo"),), fact("city", "Bergen", 1))
    assert merge_fact(facts, fact("city", "Bergen", 1)) == facts
    assert merge_fact(facts, fact("city", "Oslo", 0)) == facts


def test_l11_a_value_that_was_obsolete_may_hold_again() -> None:
    facts = merge_fact(merge_fact((), fact("city", "Oslo")), fact("city", "Bergen", 1))
    again = merge_fact(facts, fact("city", "Oslo", 2))
    assert [(each.value, each.status.value) for each in again] == [
        ("Oslo", "obsolete"), ("Bergen", "obsolete"), ("Oslo", "active"),
    ]  # fmt: skip


def test_l11_a_fact_that_is_confirmed_from_before_keeps_its_later_time() -> None:
    facts = merge_fact((fact("city", "Oslo", 5, confidence=0.3),), fact("city", "Oslo", confidence=0.9))
    assert [(each.confidence, each.updated_at) for each in facts] == [(0.9, at(5))]


def test_a_fact_that_is_confirmed_is_the_newest_one() -> None:
    facts = merge_fact((fact("name", "Ada"), fact("city", "Oslo", 1)), fact("name", "Ada", 2))
    assert [(each.key, each.updated_at) for each in facts] == [("city", at(1)), ("name", at(2))]
    assert merge_fact(facts, fact("name", "Ada", 2)) == facts


def test_the_model_remembers_and_sees_what_holds(new_bench: NewBench) -> None:
    driver = Asked(remembers(("city", "Oslo"), ("city", "Bergen"), ("name", "x")))
    state = finished(new_bench(agent(driver)))
    assert [(each.key, each.value) for each in state.smart.memory_facts] == [("city", "Bergen"), ("name", "x")]
    assert driver.read[3][-1].content == "Facts that you remember:\n- city = Bergen\n- name = x"
    assert driver.read[0][-1].content == "hello"


def test_facts_are_recalled_by_a_word(new_bench: NewBench) -> None:
    driver = Asked([*remembers(("city", "Oslo"), ("name", "x"))[:2], CallTool("recall_facts", word="OSLO"), "done"])
    state = finished(new_bench(agent(driver, read_limit=0)))
    assert state.steps[2].tool_executions[0].value == ({"key": "city", "value": "Oslo", "confidence": 0.5},)
    assert all(message.role != "system" for messages in driver.read for message in messages)


def test_the_newest_facts_are_shown_and_all_are_recalled(new_bench: NewBench) -> None:
    driver = Asked([*remembers(("a", "1"), ("b", "2"), ("c", "3"))[:3], CallTool("recall_facts"), "done"])
    state = finished(new_bench(agent(driver, read_limit=2)))
    assert driver.read[-1][-1].content == "Facts that you remember:\n- b = 2\n- c = 3"
    assert [each["key"] for each in state.steps[3].tool_executions[0].value] == ["a", "b", "c"]


def test_the_oldest_facts_of_a_namespace_make_room(tmp_path: Path) -> None:
    store = FactFiles(tmp_path, max_facts=2)
    for key in "abc":
        store.save("team", fact(key, "x"))
    assert [each.key for each in store.load("team")] == ["b", "c"]


def test_the_oldest_facts_make_room(new_bench: NewBench) -> None:
    state = finished(new_bench(agent(Asked(remembers(("a", "1"), ("b", "2"), ("c", "3"))), max_facts=2)))
    assert [each.key for each in state.smart.memory_facts] == ["b", "c"]


def test_another_session_of_the_namespace_knows_the_facts(new_bench: NewBench, tmp_path: Path) -> None:
    store = FactFiles(tmp_path / "facts")
    finished(new_bench(agent(Asked(remembers(("city", "Oslo"))), store=store, namespace="team")))
    second = Asked(["done"])
    state = finished(new_bench(agent(second, store=store, namespace="team")))
    assert [each.value for each in state.smart.memory_facts] == ["Oslo"]
    assert "city = Oslo" in second.read[0][-1].content
    other = finished(new_bench(agent(Asked(["done"]), store=store, namespace="others")))
    assert other.smart.memory_facts == ()


@pytest.mark.parametrize("point", ["c3", "c4", "c5", "c6", "c7"])
def test_a_crash_loses_no_fact_and_keeps_none_twice(new_bench: NewBench, tmp_path: Path, point: str) -> None:
    store = FactFiles(tmp_path)
    bench = new_bench(agent(Asked(remembers(("a", "1"), ("b", "2"), ("c", "3"))), store=store))
    session_id = bench.submit()
    run_dying(bench, session_id, point, at=(1, 3))
    assert [each.key for each in bench.state(session_id).smart.memory_facts] == ["a", "b", "c"]
    assert [each.key for each in store.load("default")] == ["a", "b", "c"]


def _save_some(folder: Path, who: int) -> None:
    for number in range(20):
        FactFiles(folder).save("shared", MemoryFact(key=f"{who}.{number}", value="x", updated_at=NOON))


def test_processes_that_save_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_save_some, args=(tmp_path, who)) for who in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len({each.key for each in FactFiles(tmp_path).load("shared")}) == 60


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "team.json").write_text("{no")
    with pytest.raises(StateUnreadable, match=r"file team\.json"):
        FactFiles(tmp_path).load("team")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"namespace": "../x"}, "give 1 to 64 letters"),
        ({"namespace": "x" * 65}, "give 1 to 64 letters"),
        ({"read_limit": -1}, "read_limit"),
        ({"max_facts": 0}, "max_facts"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        MemoryFacts(**wrong)
    with pytest.raises(ConfigurationError, match="max_facts"):
        FactFiles("facts", max_facts=0)
    assert MemoryFacts(namespace="x" * 64).namespace == "x" * 64


def test_the_default_confidence_is_one_half_and_times_are_whole() -> None:
    assert fact("a", "b").confidence == 0.5
    assert active_facts((fact("a", "b", ttl_seconds=1.5),), at(0) + timedelta(seconds=1)) != ()
