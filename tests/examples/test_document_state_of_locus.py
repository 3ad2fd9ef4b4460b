"""The document "State" (Locus): its code as it stands, with other imports, and what its tables say.

`source_documents/state_of_locus.txt` has its code blocks, character by character.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from celery_agents import Agent, CallTool, Termination, tool
from celery_agents.testing import script
from celery_agents.worker.capabilities import CustomCondition
from celery_agents.worker.run_state import ReasoningStep, RunReason, RunState
from celery_agents.worker.session import (
    InlineRunner,
    InMemorySessionStore,
    SendMessage,
    SessionRepository,
    SessionRuntime,
)
from celery_agents.worker.state import Message, reducers

from support.states import NOON, executed

CODE = (Path(__file__).parent / "source_documents" / "state_of_locus.txt").read_text(encoding="utf-8")
IMPORTS = {
    "from locus.core.state import AgentState": "from celery_agents.worker.run_state import RunState as AgentState",
    "from locus.core.messages import Message, Role": "from celery_agents import Message, Role",
}
BUILDERS: dict[str, tuple[Any, ...]] = {
    "with_message": (Message.user("hi"),),
    "with_messages": ([Message.user("hi")],),
    "with_iteration": (3,),
    "with_tool_execution": (executed(),),
    "with_reasoning_step": (ReasoningStep(iteration=1, timestamp=NOON),),
    "with_confidence": (0.5,),
    "with_error": ("rate-limited",),
    "with_metadata": ("user_tz", "America/New_York"),
    "with_token_usage": (312, 87),
}
REDUCERS = (
    "add_messages", "merge_dict", "deep_merge_dict", "append_list", "unique_append_list", "add_numbers", "max_value",
    "min_value", "first_value", "last_value", "set_union",
)  # fmt: skip


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "seen"


def blocks() -> list[str]:
    """The code blocks of the document, in which nothing but the import lines is replaced."""
    lines = CODE.splitlines()
    imports = [line for line in lines if line.startswith(("from ", "import "))]
    assert imports == list(IMPORTS)
    return "\n".join(IMPORTS.get(line, line) for line in lines).split("\n\n")


def run_code(**names: Any) -> dict[str, Any]:
    """Run the blocks one after another; the document takes `execution` for granted."""
    for block in blocks():
        exec(compile(block, "state_of_locus.txt", "exec"), names)
    return names


def test_the_code_of_the_document_runs_with_other_imports_alone() -> None:
    assert len(blocks()) == 3
    execution = executed()
    state: RunState = run_code(execution=execution)["state"]
    assert [(each.role.value, each.content) for each in state.messages] == [("user", "hi"), ("assistant", "...")]
    assert (state.agent_id, state.max_iterations, state.iteration) == ("my-agent", 20, 1)
    assert (state.confidence, state.confidence_history) == (0.78, (0.85, 0.78))
    assert (state.tool_executions, state.tool_history) == ((execution,), (execution.tool_call.name,))
    assert (state.errors, state.metadata) == (("rate-limited",), {"user_tz": "America/New_York"})
    assert (state.total_tokens_used, state.prompt_tokens_used, state.completion_tokens_used) == (399, 312, 87)
    assert isinstance(run_code(execution=execution)["restored"], RunState)


def test_every_field_has_the_type_of_the_table() -> None:
    run = RunState(agent_id="my-agent", token_budget=100)
    kinds: dict[str, type] = {
        "run_id": str, "agent_id": str, "messages": tuple, "iteration": int, "max_iterations": int,
        "tool_executions": tuple, "reasoning_steps": tuple, "confidence": float, "confidence_threshold": float,
        "confidence_history": tuple, "tool_history": tuple, "tool_loop_threshold": int, "terminal_tools": frozenset,
        "total_tokens_used": int, "token_budget": int, "errors": tuple,
    }  # fmt: skip
    assert {name: type(getattr(run, name)) for name in kinds} == kinds
    assert run.metadata == {}
    assert run.started_at.utcoffset() == run.updated_at.utcoffset() == run.started_at - run.started_at


@pytest.mark.parametrize(("name", "given"), BUILDERS.items())
def test_every_builder_gives_another_run_state_and_leaves_the_first(name: str, given: tuple[Any, ...]) -> None:
    run = RunState(agent_id="my-agent")
    before = run.to_checkpoint()
    changed = getattr(run, name)(*given)
    assert type(changed) is RunState
    assert changed.to_checkpoint() != before == run.to_checkpoint()


def test_a_tuple_takes_no_further_message() -> None:
    with pytest.raises(AttributeError):
        RunState().messages.append(Message.user("hi"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["messages", "state", "other"])
def test_a_run_state_takes_no_change(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(RunState(), name, ())


def test_a_condition_of_the_document_ends_a_run() -> None:
    seen: list[type] = []

    def is_enough(state: RunState) -> bool:
        seen.append(type(state))
        return state.iteration >= 2

    agent = Agent("a", driver=script(*(CallTool("look") for _ in range(9))), tools=[look],
                  capabilities=[Termination(CustomCondition(is_enough))])  # fmt: skip
    runtime = SessionRuntime(SessionRepository(InMemorySessionStore()))
    session = runtime.execute(runtime.create(agent).session_id, SendMessage("hi", InlineRunner([agent])))
    run = RunState.of(session.state)
    assert (run.iteration, run.reason, set(seen)) == (2, RunReason.COMPLETE, {RunState})
    assert [each.content for each in run.messages][:1] == ["hi"]


def test_a_run_begins_from_a_previous_transcript() -> None:
    messages = (Message.user("first"), Message.assistant("second"))
    assert RunState(messages=messages).messages == messages


@pytest.mark.parametrize("name", REDUCERS)
def test_every_reducer_has_its_name(name: str) -> None:
    assert callable(getattr(reducers, name))
