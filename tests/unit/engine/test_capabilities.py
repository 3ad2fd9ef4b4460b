"""Capabilities in the engine: what they bring is used in the order given, and what collides is refused early."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.capability import Capability
from celery_agents.worker.drivers import CallTool, InferenceRequest, ScriptedDriver
from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.guards import PROCEED, Guard, GuardView, Verdict
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import (
    AgentState,
    ListPart,
    Message,
    PartItem,
    PartScope,
    StatePart,
    ToolExecution,
    ToolOutcome,
)
from celery_agents.worker.tools import Effect, InvalidArguments, ToolContext, tool

from support.engine import Bench

NewBench = Callable[..., Bench]


class StepCount(StatePart):
    part_name = "step_count"
    scope = PartScope.SESSION
    steps: int = 0


class Seen(PartItem):
    text: str


class SeenTexts(ListPart[Seen]):
    part_name = "seen"


@dataclass(frozen=True)
class Counting(Capability):
    """Counts the steps of the session, and notes what the model said in this execution."""

    mark: str = "count"

    def tools(self) -> Sequence[Any]:
        @tool(effect="pure", name=f"{self.mark}_look")
        def look() -> str:
            """Look."""
            return self.mark

        return [look]

    def parts(self) -> Sequence[Any]:
        return [StepCount, SeenTexts]

    def hooks(self) -> Sequence[Hook]:
        return [Hook(HookPoint.AFTER_STEP, self._count)]

    def _count(self, context: HookContext) -> HookContext:
        state, step = context.state, context.state.current_step
        assert step is not None
        count = state.part(StepCount)
        seen = state.part(SeenTexts).append(Seen(text=step.inference_response.content))
        return context.changed(state=state.with_part(count.replace(steps=count.steps + 1)).with_part(seen))

    def compile(self, state: AgentState, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return (*messages, Message.user(f"{self.mark} {state.part(StepCount).steps}"))


@dataclass(frozen=True)
class Loud(Capability):
    def compile(self, state: AgentState, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return (*messages, Message.user(f"after {messages[-1].content}"))


class Asked(ScriptedDriver):
    """Remembers what it was asked."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(answers)
        self.asked: list[tuple[str, ...]] = []

    def infer(self, request: InferenceRequest) -> bytes:
        self.asked.append(tuple(message.content for message in request.messages if message.role == "user"))
        return super().infer(request)


def test_tools_hooks_parts_and_compilers_of_capabilities_work_together(new_bench: NewBench) -> None:
    driver = Asked(CallTool("count_look"), "done")
    bench = new_bench(Agent("a", driver=driver, capabilities=[Counting(), Loud()]))
    session_id = bench.submit("hello")
    bench.run(session_id)
    state = bench.state(session_id)
    assert driver.asked == [("hello", "count 0", "after count 0"), ("hello", "count 1", "after count 1")]
    assert state.part(StepCount).steps == 2
    assert [seen.text for seen in state.part(SeenTexts)] == ["", "done"]


def test_parts_of_the_session_go_on_in_the_next_execution_and_those_of_the_execution_begin_anew(
    new_bench: NewBench,
) -> None:
    bench = new_bench(Agent("a", driver=ScriptedDriver(["one"]), capabilities=[Counting()]))
    session_id = bench.submit()
    bench.run(session_id)
    bench.send(session_id)
    assert len(bench.state(session_id).part(SeenTexts)) == 0
    bench.run(session_id)
    assert bench.state(session_id).part(StepCount).steps == 2
    assert len(bench.state(session_id).part(SeenTexts)) == 1


def test_guards_of_a_capability_are_asked(new_bench: NewBench) -> None:
    asked: list[str] = []

    class Watching:
        def check(self, view: GuardView) -> Verdict:
            asked.append(view.point.value)
            return PROCEED

    class Watch(Capability):
        def guards(self) -> Sequence[Guard]:
            return [Watching()]

    bench = new_bench(Agent("a", driver=ScriptedDriver(["one"]), capabilities=[Watch()]))
    bench.run(bench.submit())
    assert asked == ["before_call"]


def test_two_capabilities_that_want_one_tool_name_or_part_are_refused_when_the_agent_is_defined() -> None:
    with pytest.raises(ConfigurationError, match=r"Counting and Counting both bring a tool named 'count_look'"):
        Agent("a", driver=ScriptedDriver(["x"]), capabilities=[Counting(), Counting()])
    with pytest.raises(ConfigurationError, match=r"both bring a part named 'step_count'"):
        Agent("a", driver=ScriptedDriver(["x"]), capabilities=[Counting(), Counting(mark="other")])

    @tool(name="count_look")
    def look() -> None:
        """Look."""

    with pytest.raises(ConfigurationError, match=r"the agent and Counting both bring a tool"):
        Agent("a", driver=ScriptedDriver(["x"]), tools=[look], capabilities=[Counting()])


def test_what_is_no_capability_and_parts_that_cannot_be_read_are_refused() -> None:
    class Needing(StatePart):
        part_name = "needing"
        text: str

    class Broken(Capability):
        def parts(self) -> Sequence[Any]:
            return [Needing]

    with pytest.raises(ConfigurationError, match="is no Capability"):
        Agent("a", driver=ScriptedDriver(["x"]), capabilities=["planning"])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="give text a default"):
        Agent("a", driver=ScriptedDriver(["x"]), capabilities=[Broken()])


class RemoteTool:
    """A tool without a Python signature, as that of a remote server."""

    name = "remote"
    description = "Adds one."
    effect = Effect.KEYED
    parameters: Mapping[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}}
    timeout = None
    lookup = None
    max_result_chars = 100

    def __init__(self, *, is_async: bool = False) -> None:
        self.is_async = is_async
        self.keys: list[str] = []

    def bind(self, args: Mapping[str, Any] | str) -> Mapping[str, Any]:
        if isinstance(args, str) or not isinstance(args.get("n"), int):
            raise InvalidArguments(self.name, ("n: an integer is needed",))
        return args

    def call(self, ctx: ToolContext, bound: Mapping[str, Any]) -> Any:
        self.keys.append(ctx.idempotency_key)
        return self._later(bound["n"] + 1) if self.is_async else bound["n"] + 1

    async def _later(self, value: int) -> int:
        return value


@pytest.mark.parametrize("is_async", [False, True])
def test_a_tool_without_a_python_signature_is_called_as_any_other(new_bench: NewBench, *, is_async: bool) -> None:
    remote = RemoteTool(is_async=is_async)
    driver = ScriptedDriver([CallTool("remote", n=1), CallTool("remote", n="one"), "done"])
    bench = new_bench(Agent("a", driver=driver, tools=[remote]))
    session_id = bench.submit()
    bench.run(session_id)
    first, second, _ = bench.state(session_id).steps
    assert first.tool_executions[0].value == 2
    assert second.tool_executions[0].error is not None
    assert "n: an integer is needed" in second.tool_executions[0].error.message
    assert len(remote.keys) == 1


def test_a_tool_that_lacks_a_member_is_refused_by_name() -> None:
    class Half:
        name = "half"

        def bind(self, args: Any) -> Any: ...

        def call(self, ctx: Any, bound: Any) -> Any: ...

    with pytest.raises(ConfigurationError, match="tool half: it has no description, effect, parameters"):
        Agent("a", driver=ScriptedDriver(["x"]), tools=[Half()])


@dataclass(frozen=True)
class Sending(Capability):
    def check_tools(self, names: Collection[str]) -> None:
        if "send" not in names:
            raise ConfigurationError(f"Sending needs a tool named 'send'; tools: {', '.join(names) or 'none'}")


def test_a_capability_may_refuse_an_agent_that_lacks_a_tool() -> None:
    @tool(effect="pure")
    def send() -> str:
        """Send it."""
        return "sent"

    Agent("a", driver=str, tools=[send], capabilities=[Sending()])
    with pytest.raises(ConfigurationError, match=r"agent 'a': Sending needs a tool named 'send'; tools: count_look"):
        Agent("a", driver=str, capabilities=[Sending(), Counting()])


# --- what a tool and a hook around it see, and events ------------------------------------------------------------


@dataclass(frozen=True)
class Knowing(Capability):
    """Knows the results of calls of `look` with these numbers, and reports how many calls a step had."""

    known: Mapping[int, str]

    def hooks(self) -> Sequence[Hook]:
        return [Hook(HookPoint.BEFORE_TOOL, self._give)]

    def _give(self, context: HookContext) -> HookContext | None:
        call = context.tool_call
        assert call is not None
        assert context.response is not None
        assert call in context.response.tool_calls
        if call.name != "look" or isinstance(call.args, str) or call.args["number"] not in self.known:
            return None
        now = context.state.updated_at
        value = self.known[call.args["number"]]
        known = ToolExecution(tool_call=call, outcome=ToolOutcome.OK, value=value, started_at=now, completed_at=now)
        return context.changed(tool_execution=known)

    def events(self, before: AgentState, after: AgentState) -> Sequence[Mapping[str, Any]]:
        if after.last_step is not None and not after.last_step.has_tool_calls():
            raise ValueError("nothing to report")
        return [{"type": "calls", "before": before.step_count, "count": len(after.steps[-1].tool_executions)}]


def test_a_result_that_a_hook_knows_is_the_result_and_the_tool_does_not_run(new_bench: NewBench) -> None:
    ran: list[int] = []

    @tool(effect="unsafe")
    def look(number: int) -> str:
        """Look at a number."""
        ran.append(number)
        return f"number {number}"

    driver = ScriptedDriver([[CallTool("look", number=1), CallTool("look", number=2)], "done"])
    bench = new_bench(Agent("a", driver=driver, tools=[look], capabilities=[Knowing({1: "known"})]))
    session_id = bench.submit()
    bench.run(session_id)
    executions = bench.state(session_id).steps[0].tool_executions
    assert ran == [2]
    assert [each.value for each in executions] == ["known", "number 2"]
    assert [each.idempotent_cache_hit for each in executions] == [True, False]


def test_events_of_a_capability_stand_in_the_stream_and_one_that_raises_breaks_no_step(new_bench: NewBench) -> None:
    @tool(effect="pure")
    def look(number: int) -> str:
        """Look at a number."""
        return str(number)

    driver = ScriptedDriver([[CallTool("look", number=1), CallTool("look", number=2)], "done"])
    bench = new_bench(Agent("a", driver=driver, tools=[look], capabilities=[Knowing({})]))
    session_id = bench.submit()
    bench.run(session_id)
    assert bench.state(session_id).final_response == "done"
    events = [each for each in bench.store.sessions.events(session_id) if each.type == "capability"]
    assert [(each.step, each.data) for each in events] == [(1, {"type": "calls", "before": 0, "count": 2})]


def test_a_tool_reads_the_session_and_the_calls_of_its_answer(new_bench: NewBench) -> None:
    seen: list[tuple[int, int, list[str]]] = []

    @tool(effect="pure")
    def look(ctx: ToolContext, number: int) -> str:
        """Look at a number."""
        assert ctx.state is not None
        seen.append((ctx.state.step_count, ctx.index, [each.id for each in ctx.calls]))
        return str(number)

    driver = ScriptedDriver([CallTool("look", number=1), [CallTool("look", number=2), CallTool("look", number=3)], "x"])
    bench = new_bench(Agent("a", driver=driver, tools=[look]))
    bench.run(bench.submit())
    first, *second = sorted(seen)
    assert first[:2] == (0, 0)
    assert [each[:2] for each in second] == [(1, 0), (1, 1)]
    assert all(len(each[2]) == 2 for each in second)


class AllMessages:
    def compile(self, state: AgentState) -> tuple[Message, ...]:
        return state.messages


@dataclass(frozen=True)
class Choosing(Capability):
    """Brings a compiler."""

    def compiler(self) -> AllMessages:
        return AllMessages()


def test_two_compilers_for_one_agent_are_refused() -> None:
    assert isinstance(Agent("a", driver=ScriptedDriver(["x"]), capabilities=[Choosing()]).messages_from, AllMessages)
    with pytest.raises(ConfigurationError, match="compiler= and Choosing each choose the messages"):
        Agent("a", driver=ScriptedDriver(["x"]), capabilities=[Choosing()], compiler=AllMessages())
