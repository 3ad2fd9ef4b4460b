"""Metrics: names that come from outside cannot grow the registry."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from celery_agents.tasks.observability.metrics import Metrics
from celery_agents.worker.agent import Agent
from celery_agents.worker.engine.outcome import Parked
from celery_agents.worker.errors import DriverError
from celery_agents.worker.state import AgentState, InferenceResponse, InferenceUsage
from celery_agents.worker.store.records import StepRef

from support.deployed import DEPLOY
from support.engine import Bench, WorkerDied

A_QUESTION: Any = SimpleNamespace(purpose="", own_model=None)


def a_run(agent: str = "agent") -> Any:
    return SimpleNamespace(agent=SimpleNamespace(name=agent, model=None), claim=SimpleNamespace(id="c"))


def label_values(metrics: Metrics, series: str, label: str) -> set[str]:
    return {
        sample.labels[label]
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == f"celery_agents_{series}" and label in sample.labels
    }


def answers_of(metrics: Metrics, count: int, prefix: str = "model-") -> None:
    for number in range(count):
        usage = InferenceUsage(input=1)
        answer = InferenceResponse(model=f"{prefix}{number}", usage=usage, cost=0.5)
        metrics.driver_called(a_run(), A_QUESTION, 0.1, answer, "")


def test_names_of_models_in_answers_are_limited_and_nothing_that_was_counted_is_lost() -> None:
    metrics = Metrics()
    answers_of(metrics, 5_000)
    for series in ("tokens_total", "cost_usd_total"):
        names = label_values(metrics, series, "model")
        assert len(names) == 101
        assert {"model-0", "model-99", "(other)"} <= names
    assert (
        metrics.registry.get_sample_value(
            "celery_agents_tokens_total", {"agent": "agent", "model": "(other)", "kind": "input"}
        )
        == 4_900
    )
    answers_of(metrics, 1)
    assert (
        metrics.registry.get_sample_value(
            "celery_agents_tokens_total", {"agent": "agent", "model": "model-0", "kind": "input"}
        )
        == 2
    )


def test_a_session_that_is_parked_is_an_increase_of_what_its_alert_looks_at() -> None:
    (series,) = re.findall(
        r"(celery_agents_\w+)\{outcome=\"parked\"\}", (DEPLOY / "prometheus" / "alerts.yaml").read_text()
    )
    metrics = Metrics()
    before = metrics.registry.get_sample_value(series, {"outcome": "parked"})
    metrics.delivered(Parked(StepRef("s", "e", 1), "its state cannot be read"))
    assert (before, metrics.registry.get_sample_value(series, {"outcome": "parked"})) == (0, 1)


def test_the_first_failure_of_an_agent_is_an_increase_of_what_its_alert_looks_at() -> None:
    metrics = Metrics(["agent"])
    failed = {"agent": "agent", "status": "failed"}
    assert metrics.registry.get_sample_value("celery_agents_executions_total", failed) == 0


def test_a_long_name_of_a_model_is_cut() -> None:
    metrics = Metrics()
    answers_of(metrics, 3, prefix="x" * 100_000)
    assert label_values(metrics, "tokens_total", "model") == {"x" * 100}


@pytest.mark.parametrize(
    ("answered", "asked", "counted"),
    [("named", "second", "named"), ("", "second", "second"), ("", None, "first")],
)
def test_an_answer_that_names_no_model_counts_under_the_one_that_was_asked(
    answered: str, asked: str | None, counted: str
) -> None:
    metrics = Metrics()
    run = SimpleNamespace(
        agent=SimpleNamespace(name="a", models=("first",)), model="first", claim=SimpleNamespace(id="c")
    )
    question: Any = SimpleNamespace(purpose="", own_model=asked)
    answer = InferenceResponse(model=answered, usage=InferenceUsage(input=1), cost=0.5)
    metrics.driver_called(run, question, 0.1, answer, "")  # type: ignore[arg-type]
    for series in ("tokens_total", "cost_usd_total"):
        assert label_values(metrics, series, "model") == {counted}


def test_kinds_of_errors_are_limited() -> None:
    metrics = Metrics()
    for number in range(500):
        metrics.driver_called(a_run(), A_QUESTION, 0.1, None, f"Error{number}")
    assert len(label_values(metrics, "driver_errors_total", "kind")) == 101


def test_names_of_tools_of_servers_are_limited(monkeypatch: Any) -> None:
    from celery_agents.tasks.observability import metrics as module

    metrics = Metrics()
    for number in range(1_200):
        call = SimpleNamespace(name=f"crm_tool{number}")
        outcome = SimpleNamespace(value="ok")
        took = SimpleNamespace(total_seconds=lambda: 0.1)
        execution = SimpleNamespace(tool_call=call, outcome=outcome, completed_at=_Time(took), started_at=_Time(took))
        run = a_run()
        run.agent.toolset = {call.name: object()}
        run.obtained = SimpleNamespace(records={0: SimpleNamespace(execution=execution)})
        monkeypatch.setattr(module, "new_records", lambda _run: [0])
        metrics.tools_called(run)
    assert len(label_values(metrics, "tool_calls_total", "tool")) == 1_001
    assert len(label_values(metrics, "tool_seconds_count", "tool")) == 1_001


class _Time:
    def __init__(self, difference: Any) -> None:
        self._difference = difference

    def __sub__(self, other: object) -> Any:
        return self._difference


def test_a_lost_worker_is_counted_once_also_where_the_step_is_delayed_behind_it() -> None:
    def driver(state: AgentState) -> str:
        said = [WorkerDied(), DriverError("away", "it is away", transient=True)][len(asked) :]
        asked.append(state.step_count)
        if said:
            raise said[0]
        return "done"

    asked: list[int] = []
    agent, metrics = Agent("agent", driver=driver), Metrics()
    bench = Bench(agent, driver_attempts=1)
    runner, session = bench.another_worker(agent, observer=metrics), bench.submit()
    with pytest.raises(WorkerDied):
        bench.step(session, runner)
    for _ in range(2):
        bench.clock.go_on(60)
        bench.step(session, runner)
    assert bench.record(session).final_response == "done"
    assert metrics.registry.get_sample_value("celery_agents_recoveries_total", {"agent": "agent"}) == 1
    bench.close()
