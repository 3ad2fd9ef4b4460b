"""What the end of a child brings to its parent is limited by bytes, and what was left out is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import ChildEnd, ExecutionStatus, InferenceResponse, StatePart
from celery_agents.worker.state.reducers import append_list
from celery_agents.worker.tools import ToolContext, tool

from support.engine import Bench
from support.trees import answering, asking, children_of, delegating, register, run_tree

NewBench = Callable[..., Bench]
MOST = 10_000


class Findings(StatePart):
    part_name = "findings"
    texts: tuple[str, ...] = ()


def join(mine: Findings, theirs: Findings) -> Findings:
    return mine.replace(texts=(*mine.texts, *theirs.texts))


def started(new_bench: NewBench, *agents: Agent) -> tuple[Bench, str]:
    bench = new_bench(*agents, max_result_bytes=MOST)
    register(bench)
    root = bench.submit("hello", agent=agents[0])
    run_tree(bench, root)
    assert bench.record(root).status is ExecutionStatus.COMPLETED, bench.record(root).errors
    return bench, root


def ends_seen_by(children: Any, new_bench: NewBench) -> tuple[Bench, str, list[ChildEnd]]:
    """How a child looks to a tool that has spawned it."""
    seen: list[ChildEnd] = []

    @tool(effect="pure")
    def survey(ctx: ToolContext) -> str:
        """Spawn."""
        seen.extend(ctx.spawn("worker", "go"))
        return "done"

    from celery_agents.worker.drivers import CallTool

    bench, root = started(new_bench, delegating("lead", CallTool("survey"), tools=[survey]), children)
    return bench, root, seen


@pytest.mark.parametrize("letter", ["x", "ü", "漢"])
def test_a_long_answer_of_a_child_is_cut_by_bytes_with_a_marker(new_bench: NewBench, letter: str) -> None:
    _, _, (end,) = ends_seen_by(answering(text=lambda _prompt: letter * 1_000_000), new_bench)
    assert len(end.response.encode()) < MOST + 100
    assert end.response.endswith("characters left out]")


def test_an_output_that_is_too_long_is_left_out_and_its_beginning_is_the_response(new_bench: NewBench) -> None:
    worker = Agent("worker", driver=lambda _state: InferenceResponse(content="", output={"rows": ["x" * 100] * 10_000}))
    bench, root, (end,) = ends_seen_by(worker, new_bench)
    assert end.output is None
    assert end.response.startswith('{"rows":')
    assert len(end.response.encode()) < MOST + 100
    (told,) = [each for each in bench.store.sessions.events(root) if each.type == "child_ended"]
    assert told.data["left_out"] == ["output"]


def test_metadata_and_parts_of_a_child_are_limited_and_what_is_left_out_is_told(new_bench: NewBench) -> None:
    def bring(context: HookContext) -> HookContext:
        state = context.state.with_metadata("small", ["kept"]).with_metadata("large", ["y" * MOST])
        return context.changed(state=state.with_part(Findings(texts=("z" * MOST,))))

    worker = answering(hooks=[Hook(HookPoint.BEFORE_STEP, bring)])
    merge: Any = {"small": append_list, "large": append_list, Findings: join}
    lead = delegating("lead", *asking("ask_worker", "a"), tools=[worker.as_tool(merge=merge)])
    bench, root = started(new_bench, lead, worker)
    assert dict(bench.state(root).context.metadata) == {"small": ("kept",)}
    assert bench.state(root).part(Findings).texts == ()
    (told,) = [each for each in bench.store.sessions.events(root) if each.type == "child_ended"]
    assert told.data["left_out"] == ["large", "findings"]
    assert bench.store.sessions.header(children_of(bench, root)[0]).status == "completed"


def test_what_fits_comes_whole_and_nothing_is_told(new_bench: NewBench) -> None:
    worker = Agent("worker", driver=lambda _state: InferenceResponse(content="", output={"rows": ["x"]}))
    bench, root, (end,) = ends_seen_by(worker, new_bench)
    assert json.loads(json.dumps(end.to_dict()["output"])) == {"rows": ["x"]}
    (told,) = [each for each in bench.store.sessions.events(root) if each.type == "child_ended"]
    assert "left_out" not in told.data


def test_the_reason_of_a_failed_child_is_cut(new_bench: NewBench) -> None:
    def broken(_prompt: str) -> str:
        raise LookupError("ü" * 1_000_000)

    _, _, (end,) = ends_seen_by(answering(text=broken), new_bench)
    assert end.has_failed
    assert len(end.message) <= 4_000


def test_a_prompt_of_a_child_is_as_long_as_a_message_at_most(new_bench: NewBench) -> None:
    from celery_agents.worker.drivers import CallTool

    @tool(effect="pure")
    def survey(ctx: ToolContext) -> str:
        """Spawn."""
        return str(ctx.spawn("worker", ["ok", "ü" * 6_000]))

    lead = delegating(
        "lead", CallTool("survey"), *asking("ask_worker", "ü" * 6_000), tools=[survey, answering().as_tool()]
    )
    bench = new_bench(lead, answering(), max_message_bytes=MOST)
    register(bench)
    root = bench.submit("hello", agent=lead)
    run_tree(bench, root)
    assert children_of(bench, root) == []
    text = bench.record(root).final_response
    assert text.count("12000 bytes") == 2
    assert "CELERY_AGENTS_MAX_MESSAGE_BYTES" in text
