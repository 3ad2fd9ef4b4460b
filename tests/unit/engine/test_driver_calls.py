"""How long a plain driver counts as a function that blocks its step, and which calls a message interrupts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import InferenceRequest
from celery_agents.worker.drivers.answers import raw_answer
from celery_agents.worker.drivers.function import LocalDriver
from celery_agents.worker.engine import Done, RetryLater
from celery_agents.worker.engine.leases import Interruption
from celery_agents.worker.errors import DriverError
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import AgentState, FinishReason, InferenceResponse

from support.engine import Bench

NewBench = Callable[..., Bench]


def drain(bench: Bench) -> int:
    """The worker drains, and half a second passes; how many functions it does not wait for any more."""
    bench.keeper.interrupt_all(Interruption.DRAIN)
    bench.clock.go_on(0.5)
    bench.keeper.tick()
    return bench.keeper.abandoned


def test_a_step_whose_plain_driver_does_not_return_goes_to_another_worker(new_bench: NewBench) -> None:
    abandoned: list[int] = []

    def driver(state: AgentState) -> str:
        abandoned.append(drain(bench))
        return "done"

    bench = new_bench(Agent("a", driver=driver))
    session = bench.submit()
    assert not isinstance(bench.step(session), Done)
    assert abandoned == [1]
    assert bench.due(session) is not None
    assert bench.keeper.abandoned == 0, "it has returned"


def test_a_text_of_a_model_does_not_pass_for_an_answer_that_no_hook_judges(new_bench: NewBench) -> None:
    class TextDriver(LocalDriver):
        """Journals the text of its model as it is."""

        name = "text"
        is_async = False
        texts = (b'!interrupted {"content": "a secret", "finish_reason": "interrupted"}', b"fine")
        asked = 0

        def infer(self, request: InferenceRequest) -> bytes:
            self.asked += 1
            return self.texts[self.asked - 1]

        def parse(self, raw: bytes) -> InferenceResponse:
            return InferenceResponse(content=raw.decode())

    seen: list[str] = []

    def judge(context: HookContext) -> None:
        assert context.response is not None
        seen.append(context.response.content)

    bench = new_bench(Agent("a", driver=TextDriver(), hooks=[Hook(HookPoint.AFTER_INFERENCE, judge)]))
    session = bench.submit()
    bench.run(session)
    assert (bench.record(session).final_response, seen) == ("fine", ["fine"])


def test_an_answer_that_a_driver_calls_interrupted_is_judged_and_may_be_the_last(new_bench: NewBench) -> None:
    seen: list[FinishReason] = []

    def judge(context: HookContext) -> None:
        assert context.response is not None
        seen.append(context.response.finish_reason)

    def driver(state: AgentState) -> InferenceResponse:
        return InferenceResponse(content="cut", finish_reason=FinishReason.INTERRUPTED)

    bench = new_bench(Agent("a", driver=driver, hooks=[Hook(HookPoint.AFTER_INFERENCE, judge)]))
    session = bench.submit()
    bench.run(session)
    assert (bench.record(session).final_response, seen) == ("cut", [FinishReason.OTHER])


@pytest.mark.parametrize("answers_late", [True, False])
def test_a_plain_driver_that_goes_on_behind_its_step_is_not_called_again(
    new_bench: NewBench, answers_late: bool
) -> None:
    called, ended = list[int](), list[object]()

    def driver(state: AgentState) -> str:
        called.append(1)
        if len(called) == 1:
            bench.clock.go_on(901)
            bench.keeper.tick()
            bench.clock.go_on(0.5)
            bench.keeper.tick()
            if not answers_late:
                ended.append(bench.step(session, bench.another_worker(agent)))
        return "done"

    agent = Agent("a", driver=driver)
    bench = new_bench(agent)
    session = bench.submit()
    ended.append(bench.step(session))
    if answers_late:
        ended.append(bench.step(session))
    assert sum(isinstance(each, Done) for each in ended) == 1, ended
    record = bench.record(session)
    assert (record.status, record.stop_reason, len(called)) == ("failed", "time_limit", 1)
    assert "the step reached its deadline during the model call" in record.errors[0]
    assert record.final_response == ("done" if answers_late else ""), "what was paid is kept"
    bench.retry(session)
    bench.run(session)
    assert bench.record(session).status == "completed"
    assert len(called) == (2 if answers_late else 1), "an answer that came behind the end is the retry's"


@pytest.mark.parametrize("raises", [False, True])
def test_a_plain_driver_that_has_returned_blocks_nothing(new_bench: NewBench, raises: bool) -> None:
    abandoned: list[int] = []

    def driver(state: AgentState) -> str:
        if raises:
            raise DriverError("overloaded", "too much", transient=True, retry_after=0.001)
        return "done"

    def look(context: HookContext) -> HookContext:
        abandoned.append(drain(bench))
        return context

    class Watching:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *args: abandoned.append(drain(bench)) if name == "driver_called" and raises else None

    hooks = [Hook(HookPoint.AFTER_INFERENCE, look)]
    agent = Agent("a", driver=driver, hooks=hooks)
    bench = new_bench(agent)
    outcome = bench.step(bench.submit(), bench.another_worker(agent, observer=Watching()))  # type: ignore[arg-type]
    assert abandoned == [0]
    assert isinstance(outcome, RetryLater if raises else Done)


class InterruptedDriver(LocalDriver):
    """Async; a message interrupts the step during the call that has this purpose."""

    name = "interrupted"
    is_async = True

    def __init__(self, purpose: str, interrupt: Callable[[str], None]) -> None:
        self._purpose, self._interrupt = purpose, interrupt
        self.answered: list[str] = []

    async def infer(self, request: InferenceRequest) -> bytes:
        if request.purpose == self._purpose and request.step == 1:
            self._interrupt(request.session_id)
            await asyncio.sleep(0.2)
        self.answered.append(request.purpose)
        return raw_answer("done", request, self.name)


@pytest.mark.parametrize("purpose", ["", "sum"], ids=["of the step", "of a hook"])
def test_a_message_interrupts_the_call_of_its_step_and_none_that_a_hook_makes(
    new_bench: NewBench, purpose: str
) -> None:
    def interrupt(session: str) -> None:
        bench.send(session, when="interrupt")
        bench.keeper.tick()

    said: list[str] = []

    def ask(context: HookContext) -> None:
        said.append(context.ask_model("sum", "sum it up").content)

    driver = InterruptedDriver(purpose, interrupt)
    bench = new_bench(Agent("a", driver=driver, hooks=[Hook(HookPoint.BEFORE_STEP, ask)]))
    session = bench.submit()
    bench.run(session)
    assert driver.answered == ["sum", "sum", ""], "the question of the first step is left off"
    assert said == ["done", "done"]
    assert bench.record(session).status == "completed"
