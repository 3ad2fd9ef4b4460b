"""What a step asks is stored once for all steps that ask the same, and tells nothing that must stay secret."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from celery_agents import CeleryDurability
from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool, InferenceRequest
from celery_agents.worker.engine.asked import describe_question
from celery_agents.worker.engine.run_values import Question
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.known_secrets import remember_secrets
from celery_agents.worker.state import AgentState, InferenceResponse, LLMConfig, Message, ResponseFormat
from celery_agents.worker.state.conversation.context import ResponseFormatType
from celery_agents.worker.state.past.seen_requests import ModelRequest
from celery_agents.worker.state.values.frozen import FrozenDict
from celery_agents.worker.store.asked import Asked
from celery_agents.worker.store.past import read_old_values
from celery_agents.worker.store.sessions.past_reads import StepAddress
from celery_agents.worker.tools import tool
from celery_agents.worker.tools.toolset import ToolSet, ToolSpec

from support.engine import Bench
from support.pydantic_found import submitted

STEPS = 8


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "nothing"


def _driver(state: AgentState) -> Any:
    return CallTool("look") if state.step_count < STEPS - 1 else "done"


@pytest.fixture
def run() -> Iterator[Callable[..., tuple[Bench, str]]]:
    benches: list[Bench] = []

    def start(driver: Any = _driver, **options: Any) -> tuple[Bench, str]:
        agent = Agent("looking", driver=driver, tools=[look], **options)
        benches.append(Bench(agent))
        session = benches[-1].submit("go", agent=agent)
        benches[-1].run(session)
        return benches[-1], session

    yield start
    for bench in benches:
        bench.close()


def _fields(bench: Bench, session: str) -> list[bytes]:
    """The fields and the values of the hash of old values."""
    context = bench.store.context
    (found,) = context.database.pipeline("test.read", [("HGETALL", context.keys(session).old_values)])
    return list(found)


def _request(bench: Bench, session: str, step: int) -> ModelRequest:
    return bench.store.sessions.request_at(session, StepAddress(step))


def test_a_prompt_and_a_list_of_tools_are_stored_once(run: Callable[..., tuple[Bench, str]]) -> None:
    bench, session = run(system_prompt="be brief")
    assert len(_fields(bench, session)) == 2 * 2, "the prompt and the tools"
    for step in range(1, STEPS + 1):
        request = _request(bench, session, step)
        assert (request.system_prompt, [each["name"] for each in request.tools or ()]) == ("be brief", ["look"])
        assert len(request.messages or ()) == 2 * step - 1


def test_messages_of_an_agent_of_pydantic_ai_are_not_stored_again() -> None:
    def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        if len(messages) < 2 * STEPS - 1:
            return ModelResponse(parts=[ToolCallPart("note", {"x": len(messages)})])
        return ModelResponse(parts=[TextPart("done")])

    agent = PydanticAgent(FunctionModel(answer), name="noting", capabilities=[CeleryDurability(effect="pure")])

    @agent.tool_plain
    def note(x: int) -> dict[str, Any]:
        return {"noted": [x, None, 1.5, "ü"]}

    with submitted(agent) as (bench, session):
        bench.run(session)
        assert len(_fields(bench, session)) == 2 * 3, "the prompt, the tools, and the choice of all messages"
        requests = [_request(bench, session, step) for step in range(1, STEPS + 1)]
    assert [len(each.messages or ()) for each in requests] == list(range(1, 2 * STEPS, 2))


def test_messages_of_a_hook_that_are_too_long_are_not_kept_and_the_request_says_so(
    run: Callable[..., tuple[Bench, str]],
) -> None:
    def send_more(context: HookContext) -> HookContext:
        assert context.request is not None
        more = Message.system("x" * 200_000)
        return context.changed(request=context.request.with_messages((more, *context.request.messages)))

    bench, session = run(hooks=[Hook(HookPoint.BEFORE_INFERENCE, send_more)])
    request = _request(bench, session, 2)
    assert [each.role.value for each in request.messages or ()] == ["user", "assistant", "tool"]
    assert "too long to be kept" in request.notes[0]


def test_a_step_that_asks_no_model_says_so(run: Callable[..., tuple[Bench, str]]) -> None:
    def answer(context: HookContext) -> HookContext:
        return context.changed(response=InferenceResponse(content="known"))

    bench, session = run(hooks=[Hook(HookPoint.BEFORE_STEP, answer)])
    request = _request(bench, session, 1)
    assert request.notes == ("The model was not asked in this step.",)
    assert (request.messages, request.system_prompt, request.not_kept) == ((), None, ())


def test_a_known_secret_is_not_stored(run: Callable[..., tuple[Bench, str]]) -> None:
    remember_secrets(["hunter2-hunter2-hunter2"])
    bench, session = run(system_prompt="the password is hunter2-hunter2-hunter2")
    assert _request(bench, session, 1).system_prompt == "the password is [redacted]"
    texts = read_old_values(_fields(bench, session)).texts.values()
    assert not any(b"hunter2" in text for text in texts)


def test_a_hook_that_changes_the_prompt_of_one_step_shows_in_it(run: Callable[..., tuple[Bench, str]]) -> None:
    def change(context: HookContext) -> HookContext:
        request = context.request
        assert request is not None
        if request.step != 3:
            return context
        return context.changed(request=replace(request, state=request.state.with_system_prompt("only now")))

    bench, session = run(system_prompt="always", hooks=[Hook(HookPoint.BEFORE_INFERENCE, change)])
    prompts = [_request(bench, session, step).system_prompt for step in range(1, 6)]
    assert prompts == ["always", "always", "only now", "always", "always"]


SHAPE = ResponseFormat(type=ResponseFormatType.JSON_OBJECT)


@pytest.mark.parametrize("shape", [None, SHAPE], ids=["text", "shape"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.5}], ids=str)
def test_the_settings_of_the_session_and_the_shape_it_asks_for_show(
    new_bench: Callable[..., Bench], settings: dict[str, Any], shape: ResponseFormat | None
) -> None:
    bench = new_bench(Agent("looking", driver=lambda state: "{}"))
    session = bench.submit(state=AgentState.fresh().with_response_format(shape))
    if settings:
        bench.change_model(session, LLMConfig(settings=FrozenDict(settings)))
    bench.run(session)
    request = _request(bench, session, 1)
    assert request.settings == settings
    assert request.response_format == (None if shape is None else shape.to_dict())


def test_what_is_asked_again_is_not_described_again() -> None:
    state, tools = AgentState.fresh(system_prompt="be brief"), ToolSet([look]).specs()
    run: Any = SimpleNamespace(seen_extents=state.store.extents, agent=Agent("a", driver=_driver), model="m")

    def describe(tools: tuple[ToolSpec, ...]) -> Asked:
        request = InferenceRequest(state, session_id="s", execution_id="e", step=1, tools=tools, timeout=1.0)
        return describe_question(run, Question(request))

    first = describe(tools)
    assert describe(tools) is first
    assert describe(()).facts != first.facts
