"""A function in the place of a model, and a list of answers."""

import asyncio
import sys
from collections.abc import Awaitable
from typing import Any

import pytest

from celery_agents.worker.drivers import (
    Answer,
    CallTool,
    Driver,
    FunctionDriver,
    InferenceRequest,
    PydanticAIDriver,
    ScriptedDriver,
)
from celery_agents.worker.errors import ConfigurationError, DriverError, UnusableAnswer
from celery_agents.worker.state import AgentState, FinishReason, InferenceResponse, InferenceUsage, Message, ToolCall

STATE = AgentState.fresh(system_prompt="Be brief.").with_messages([Message.user("hi")])


def request(step: int = 1) -> InferenceRequest:
    return InferenceRequest(state=STATE, session_id="s", execution_id="e", step=step)


def answered(driver: Driver, step: int = 1) -> InferenceResponse:
    raw = driver.infer(request(step))
    if isinstance(raw, Awaitable):
        raw = asyncio.run(_awaited(raw))
    return driver.parse(raw)


async def _awaited(raw: Awaitable[bytes]) -> bytes:
    return await raw


def test_all_drivers_keep_the_same_contract():
    drivers: list[Driver] = [FunctionDriver(lambda _: "x"), ScriptedDriver(["x"]), PydanticAIDriver("openai:gpt-5")]
    assert [driver.is_async for driver in drivers] == [False, False, True]
    assert [driver.name for driver in drivers] == ["<lambda>", "scripted", "openai:gpt-5"]


def test_the_function_sees_the_state():
    driver = FunctionDriver(lambda state: f"{state.system_prompt} {state.messages[0].content}")
    assert answered(driver).content == "Be brief. hi"


def test_text_is_a_final_answer():
    response = answered(FunctionDriver(lambda _: "done"))
    assert (response.content, response.tool_calls, response.finish_reason) == ("done", (), FinishReason.STOP)


@pytest.mark.parametrize(
    ("answer", "content", "calls"),
    [
        (CallTool("a", x=1), "", (ToolCall(id="call_3_0", name="a", args={"x": 1}),)),
        (ToolCall(id="own", name="a"), "", (ToolCall(id="own", name="a"),)),
        (
            [CallTool("a"), ToolCall(id="own", name="b"), CallTool("c")],
            "",
            (
                ToolCall(id="call_3_0", name="a"),
                ToolCall(id="own", name="b"),
                ToolCall(id="call_3_2", name="c"),
            ),
        ),
        (["one", CallTool("a"), "two"], "one\ntwo", (ToolCall(id="call_3_0", name="a"),)),
    ],
)
def test_calls_get_ids_from_the_step_and_their_place(answer: Answer, content: str, calls: tuple[ToolCall, ...]):
    response = answered(FunctionDriver(lambda _: answer), step=3)
    assert (response.content, response.tool_calls) == (content, calls)
    assert response.finish_reason is FinishReason.TOOL_CALLS


def test_a_complete_response_passes_as_it_is():
    response = InferenceResponse(
        content="x", usage=InferenceUsage(input=3, output=4), cost=0.25, model="m", thinking="t", output={"a": [1]}
    )
    assert answered(FunctionDriver(lambda _: response)) == response


def test_an_async_function_gives_an_awaitable():
    async def answer(state: AgentState) -> Answer:
        await asyncio.sleep(0)
        return [CallTool("a", text="ž")]

    driver = FunctionDriver(answer)
    assert driver.is_async
    assert driver.name == "answer"
    assert answered(driver).tool_calls[0].args == {"text": "ž"}


@pytest.mark.parametrize("answer", [None, 5, [], b"x", [1], {"a": 1}, ["x", None]])
def test_anything_else_is_refused_and_the_text_says_what_to_return(answer: Any):
    with pytest.raises(DriverError, match="return text, a ToolCall, a CallTool") as caught:
        FunctionDriver(lambda _: answer).infer(request())
    assert not caught.value.transient


@pytest.mark.parametrize(
    ("raised", "transient"),
    [(TimeoutError("slow"), True), (ConnectionResetError("gone"), True), (ValueError("broken"), False)],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_exceptions_become_driver_errors(raised: Exception, transient: bool, is_async: bool):
    def fail(state: AgentState) -> Answer:
        raise raised

    async def fail_later(state: AgentState) -> Answer:
        raise raised

    with pytest.raises(DriverError) as caught:
        answered(FunctionDriver(fail_later if is_async else fail))
    assert caught.value.kind == type(raised).__name__
    assert caught.value.transient is transient
    assert str(raised) in str(caught.value)


def test_a_key_in_the_text_of_an_exception_is_not_told():
    def fail(state: AgentState) -> Answer:
        raise RuntimeError("bad key sk-abcdefghijklmnop")

    with pytest.raises(DriverError) as caught:
        FunctionDriver(fail).infer(request())
    assert "sk-abc" not in str(caught.value)


def test_errors_of_the_package_pass_unchanged():
    raised = DriverError("rate_limit", transient=True, retry_after=3.0)

    def fail(state: AgentState) -> Answer:
        raise raised

    with pytest.raises(DriverError) as caught:
        FunctionDriver(fail).infer(request())
    assert caught.value is raised
    assert caught.value.__cause__ is None


def test_what_cannot_be_called_is_refused():
    with pytest.raises(ConfigurationError, match="is not a function of the state"):
        FunctionDriver("x")  # type: ignore[arg-type]


@pytest.mark.parametrize("raw", [b"", b"no json", b"[]", b'{"content": 5}', b'{"cost": -1}'])
def test_a_journaled_answer_that_is_damaged_is_unusable(raw: bytes):
    with pytest.raises(UnusableAnswer):
        FunctionDriver(lambda _: "x").parse(raw)


def test_a_script_depends_on_the_number_of_the_step_alone():
    script = ScriptedDriver(["one", CallTool("a"), lambda state: state.system_prompt])
    assert answered(script, 3).content == "Be brief."
    assert answered(script, 1).content == "one"
    assert answered(script, 2).tool_calls[0].id == "call_2_0"
    assert answered(script, 1).content == "one"


def test_a_script_that_is_over_says_so():
    with pytest.raises(DriverError, match="has 1 answers and this is step 2") as caught:
        answered(ScriptedDriver(["one"]), 2)
    assert caught.value.kind == "script_exhausted"
    assert answered(ScriptedDriver(["one"], repeat_last=True), 9).content == "one"


def test_a_script_can_fail():
    transient = DriverError("overloaded", transient=True)
    script = ScriptedDriver([transient, ValueError("no"), lambda _: 1 / 0])  # type: ignore[list-item, return-value]
    with pytest.raises(DriverError) as caught:
        answered(script, 1)
    assert caught.value is transient
    for step, kind in ((2, "ValueError"), (3, "ZeroDivisionError")):
        with pytest.raises(DriverError) as caught:
            answered(script, step)
        assert caught.value.kind == kind


def test_an_empty_script_is_refused():
    with pytest.raises(ConfigurationError, match="the list of answers is empty"):
        ScriptedDriver([])


def test_functions_and_scripts_need_nothing_and_know_their_price():
    for driver in (FunctionDriver(lambda _: "x"), ScriptedDriver(["x"])):
        driver.check()
        assert driver.knows_price()
        asyncio.run(driver.aclose())


def _exits(_: AgentState) -> str:
    sys.exit(3)


async def _exits_async(_: AgentState) -> str:
    sys.exit(3)


@pytest.mark.parametrize("driver", [FunctionDriver(_exits), FunctionDriver(_exits_async), ScriptedDriver([_exits])])
def test_a_function_that_exits_fails_for_good_and_takes_nobody_along(driver: Driver):
    with pytest.raises(DriverError) as caught:
        answered(driver)
    assert caught.value.kind == "SystemExit"
    assert not caught.value.transient
