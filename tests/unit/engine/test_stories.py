"""Whole stories of sessions: what watchers, people and the model read of each, word for word.

Events, requests, results and summaries are what other programs and people depend on. `stories.txt` has them as they are;
after an intended change write it again: `PYTHONPATH=tests python tests/unit/engine/test_stories.py`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import AskUser
from celery_agents.worker.capabilities.subagents import Subagents
from celery_agents.worker.drivers import CallTool, ScriptedDriver
from celery_agents.worker.errors import DriverError
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import (
    AgentState,
    Answer,
    Approve,
    Complete,
    Deny,
    ExecutionBudget,
    Fail,
    FinishReason,
    InferenceResponse,
    InferenceUsage,
    LLMConfig,
    Remember,
    ToolCall,
)
from celery_agents.worker.tools import (
    AgentTool,
    Ask,
    LookupResult,
    NeedsAnswer,
    NeedsApproval,
    NeedsResult,
    NeedsTime,
    PassOn,
    StopExecution,
    ToolContext,
    UseValue,
    tool,
)
from celery_agents.worker.tools.handoff import Handoff

from support.engine import BEGINNING_MS, Bench, WorkerDied, fragile_tool
from support.trees import children_of, register

MINUTE: Final = timedelta(minutes=1)
NOON: Final = datetime.fromtimestamp(BEGINNING_MS / 1000, UTC) + timedelta(hours=1)
"""When the stories begin."""

WRITTEN: Final = Path(__file__).with_name("stories.txt")


class Story:
    """A bench whose sessions run to their next wait, and the lines that are told about them."""

    def __init__(self, *agents: Agent, **settings: Any) -> None:
        self.bench = Bench(*agents, **settings)
        register(self.bench)
        self.lines: list[str] = []
        self.root = ""

    def begin(self, message: str = "hello", **options: Any) -> Story:
        self.root = self.bench.submit(message, **options)
        return self.go_on()

    def stop(self) -> Story:
        self.bench.stop(self.root)
        return self.go_on()

    def go_on(self, seconds: float = 0, **send: Any) -> Story:
        """Let this time pass, send a message, and run all due steps."""
        self.bench.clock.go_on(seconds)
        if send:
            self.bench.send(self.root, **send)
        for _ in range(60):
            due = [each for each in self._sessions() if self.bench.due(each) is not None]
            if not due:
                break
            for each in due:
                self._step(each)
        for request in self._open():
            self._tell("asks", request.to_dict())
        return self

    def answer(self, *answers: Any, **options: Any) -> Story:
        """Answer the open requests in their order."""
        given = dict(zip((each.id for each in self._open()), answers, strict=False))
        self.bench.answer(self.root, given, **options)
        return self.go_on()

    def end(self) -> list[str]:
        """Everything that is there at the end."""
        for name in self._sessions():
            state = self.bench.state(name)
            for event in self.bench.store.sessions.events(name):
                self._tell(f"event of {name} at step {event.step}: {event.type}", event.data)
            for message in state.store.section().messages[:20]:
                kind = f"{'error ' if message.is_error else ''}{message.role}"
                self._tell(
                    f"{kind} of {name}", {"text": message.content, "calls": [c.name for c in message.tool_calls]}
                )
            for step in state.steps:
                for made in step.tool_executions[:5]:
                    resolutions = [each.to_dict() for each in made.resolutions]
                    took = (made.completed_at - made.started_at).total_seconds()
                    self._tell(f"call {made.tool_call.name} {made.outcome} in {took:g} s", {"resolutions": resolutions})
            execution = self.bench.execution(name)
            facts = ("status", "step_count", "cost", "retries", "child_steps", "handed_over_by", "metadata")
            told = {each: getattr(execution, each, None) for each in facts}
            told |= {"usage": execution.usage.to_dict(), "budget": execution.budget.to_dict()}
            told |= {"signals": [each.to_dict() for each in execution.continuation.stop_signals]}
            self._tell(f"execution of {name}", told)
        for entry in self.bench.store.housekeeping.list_dead():
            self._tell("dead", {name: value for name, value in entry.items() if name != "id"})
        self.bench.close()
        return self.lines

    def _step(self, name: str) -> None:
        try:
            outcome = self.bench.step(name)
        except WorkerDied:
            self._tell(f"worker of {name} died", {})
            self.bench.clock.go_on(self.bench.settings.lease_seconds + self.bench.settings.lease_grace_seconds + 0.1)
            return
        shown = ("seconds", "reason", "summary", "error", "status", "until_ms")
        facts = {each: getattr(outcome, each) for each in shown if hasattr(outcome, each)}
        self._tell(f"step of {name}: {type(outcome).__name__}", facts)
        if "seconds" in facts:
            self.bench.clock.go_on(facts["seconds"])

    def _sessions(self) -> list[str]:
        return [self.root, *children_of(self.bench, self.root)]

    def _open(self) -> list[Any]:
        return [each for each in self.bench.open_requests(self.root) if each.child is None]

    def _tell(self, what: str, facts: Mapping[str, Any]) -> None:
        text = f"{what} {json.dumps(_without_nothing(facts), sort_keys=True, default=str, ensure_ascii=False)}"
        text = re.sub(r"[0-9a-f]{16,}|(?<=next_try_ms\": )[0-9]+", "#", text)
        self.lines.append(re.sub(r"#:[0-9]+:#", "#", text))


def _without_nothing(value: Any) -> Any:
    """The same without what says nothing, so that the lines can be read."""
    if isinstance(value, (list, tuple)):
        return [_without_nothing(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    told = {name: _without_nothing(each) for name, each in value.items()}
    return {name: each for name, each in told.items() if each is False or each not in (None, "", [], {}, 0)}


# --- agents -------------------------------------------------------------------------------------------------------


def calling(*steps: Any, name: str = "teller", tools: Any = (), **fields: Any) -> Agent:
    """An agent that gives these answers in turn; what raises is raised."""

    def driver(state: AgentState) -> Any:
        number = state.step_count
        step = steps[number] if number < len(steps) else f"{name} is done"
        return step(state) if callable(step) else step

    return Agent(name, driver=driver, tools=tools, **{"max_parallel_tools": 1, **fields})  # in order


def told(text: str = "", *calls: Any, tokens: int = 10, cost: float | None = 0.01) -> InferenceResponse:
    made = tuple(ToolCall(id=f"c{n}", name=each.name, args=each.args) for n, each in enumerate(calls))
    usage = InferenceUsage(input=tokens, output=tokens, requests=1)
    return InferenceResponse(content=text, tool_calls=made, usage=usage, cost=cost, model="script")


@tool(effect="pure")
def look(word: str) -> str:
    """Look something up."""
    if word == "bad":
        raise ValueError("bad is not there")
    return f"found {word}"


def paying(**options: Any) -> Any:
    @tool(effect="unsafe", **options)
    def pay(cents: int) -> str:
        """Pay."""
        return f"{cents} paid"

    return pay


@tool(effect="unsafe")
def consult(ctx: ToolContext, topic: str) -> Any:
    """Ask whatever the topic says."""
    if topic == "approval" and ctx.approval is None:
        raise NeedsApproval("may I?", to="boss", expires=MINUTE, on_expiry="approve").with_memo({"seen": 1})
    if topic == "schema":
        number = ctx.answer(int)
        if number is None:
            raise NeedsAnswer("how many?", schema=int, to="desk", expires=MINUTE, on_expiry=UseValue(3))
        return f"{number} of them"
    if topic == "time":
        ctx.wait_until(NOON + MINUTE)
    if topic == "elsewhere" and not ctx.replies.memos:
        raise NeedsTime(NOON + MINUTE, why="the lab measures", has_begun=True).with_memo({"lab": 7})
    if topic == "service":
        raise NeedsResult("the lab sends it", expires=MINUTE).with_memo({"lab": 8})
    if topic == "stop":
        raise StopExecution("nothing is left to do")
    if topic == "model":
        answers = [ctx.ask_model_sync("why", "Why?").content for _ in range(2)]
        return f"the model says {answers}"
    left, calls = ctx.deadline - NOON, [each.name for each in ctx.calls]
    return f"call {ctx.index} of {calls} in step {ctx.step} of {ctx.session_id}, {left} left, again: {ctx.is_repeated}"


@tool(effect="unsafe", result="later", expires=MINUTE)
def order(item: str) -> None:
    """Order; a service tells what came of it."""


STORIES: Final[dict[str, Callable[[], Story]]] = {}


def story(make: Callable[[], Story]) -> Callable[[], Story]:
    STORIES[make.__name__] = make
    return make


@story
def an_answer_and_a_further_message() -> Story:
    return Story(calling(told("one"), name="plain")).begin().go_on(message="more")


@story
def calls_that_succeed_fail_and_are_not_there() -> Story:
    calls = (CallTool("look", word="a"), CallTool("look", word="bad"), CallTool("look", wrong=1), CallTool("nothing"))
    return Story(calling(told("", *calls), told("", *calls[:2]), tools=[look])).begin()


@story
def an_approval_is_edited_remembered_and_used_again() -> Story:
    agent = calling(
        told("", CallTool("pay", cents=5)), told("", CallTool("pay", cents=6)), tools=[paying(approval=Ask(to="desk"))]
    )
    return Story(agent).begin().answer(Approve({"cents": 4}), by="ada", note="less", remember=Remember.SESSION)


@story
def an_approval_is_denied_and_another_one_expires() -> Story:
    pay = paying(approval=Ask(text="Really?", expires=MINUTE, edits=False))
    agent = calling(told("", CallTool("pay", cents=5), CallTool("pay", cents=6)), tools=[pay])
    return Story(agent).begin().answer(Deny("too much"), by="ada").go_on(60)


@story
def an_approval_is_passed_on_and_fails_the_execution() -> Story:
    rule = PassOn("directors", expires=MINUTE, on_expiry="fail")
    pay = paying(approval=Ask(to="managers", expires=MINUTE, on_expiry=rule))
    return Story(calling(told("", CallTool("pay", cents=5)), tools=[pay])).begin().go_on(60).go_on(60)


@story
def a_tool_asks_in_all_ways() -> Story:
    topics = ("approval", "schema", "nothing")
    agent = calling(told("", *(CallTool("consult", topic=each) for each in topics)), tools=[consult])
    return Story(agent).begin().answer(Approve(), Answer(7), by="ada")


@story
def a_tool_asks_the_model() -> Story:
    driver = ScriptedDriver(
        [told("", CallTool("consult", topic="model"), CallTool("consult", topic="")), "done"],
        auxiliary={"t0.why": told("because", tokens=7)},
    )
    return Story(Agent("asking", driver=driver, tools=[consult], max_parallel_tools=1)).begin()


@story
def policies_allow_deny_ask_and_fail() -> Story:
    def decide(_ctx: Any, args: Mapping[str, Any]) -> Any:
        decisions: dict[int, Any] = {
            1: False,
            2: Deny("two is too much"),
            3: Ask(text="Three?", to="desk", edits=False),
        }
        return decisions.get(args["cents"], 7 if args["cents"] == 4 else True if args["cents"] == 5 else decisions)

    agent = calling(told("", *(CallTool("pay", cents=cents) for cents in range(1, 6))), tools=[paying(approval=decide)])
    return Story(agent).begin().answer(Approve(), Approve(), by="ada")


@story
def what_a_lookup_says_of_calls_that_were_interrupted() -> Story:
    found = {
        "a": LookupResult.happened("sent before"),
        "b": LookupResult.unknown("no trace"),
        "c": LookupResult.did_not_happen(),
    }
    died: set[str] = set()

    def make(name: str) -> Any:
        @tool(effect="lookup", lookup=lambda _key, _ctx: found[name], timeout=20, name=f"send_{name}")
        def send() -> str:
            """Send."""
            if name not in died:
                died.add(name)
                raise WorkerDied
            return f"sent {name}"

        return send

    agent = calling(*(told("", CallTool(f"send_{name}")) for name in "abc"), tools=[make(name) for name in "abc"])
    return Story(agent).begin()


@story
def the_first_child_that_answers_stops_the_others() -> Story:
    slow = calling(told("", CallTool("pay", cents=5)), name="slow", tools=[paying(approval=Ask())])
    quick = calling(told("at once"), name="quick", description="Is quick.")
    calls = [CallTool("spawn_subagent", subagent=each, prompt="go") for each in ("slow", "quick", "nobody")]
    lead = calling(told("", *calls), name="lead", capabilities=[Subagents([quick, slow], join="first")])
    return Story(lead, slow, quick).begin()


@story
def a_child_that_fails_ends_its_parent() -> Story:
    broken = calling(lambda _state: (_ for _ in ()).throw(DriverError("away", "no", transient=False)), name="broken")
    worker = calling(told("", CallTool("pay", cents=5)), name="worker", tools=[paying(approval=Ask())])
    calls = (CallTool("ask_worker", prompt="a"), CallTool("ask_broken", prompt="b"))
    tools = [AgentTool(agent="worker"), AgentTool(agent="broken", on_failure="fail_fast")]
    return Story(calling(told("", *calls), name="lead", tools=tools), worker, broken).begin()


@story
def long_results_errors_and_answers_are_cut() -> Story:
    @tool(effect="pure", max_result_chars=50)
    def long(bad: bool) -> str:
        """Give a long text."""
        if bad:
            raise ValueError("y" * 600)
        return "x" * 200

    calls = [CallTool("long", bad=False), CallTool("long", bad=True), *[CallTool("look", word="a")] * 100]
    cut = told("a" * 700).model_copy(update={"finish_reason": FinishReason.LENGTH})
    return Story(calling(told("", *calls), cut, tools=[long, look])).begin()


@story
def a_tool_asks_and_time_answers() -> Story:
    topics = ("approval", "schema", "time", "elsewhere", "service")
    agent = calling(told("", *(CallTool("consult", topic=each) for each in topics)), tools=[consult])
    return Story(agent).begin().go_on(59).go_on(1)


@story
def what_has_begun_elsewhere_is_unknown_after_a_stop() -> Story:
    topics = ("approval", "schema", "time", "elsewhere", "service")
    agent = calling(told("", *(CallTool("consult", topic=each) for each in topics)), tools=[consult])
    return Story(agent).begin().stop()


@story
def a_tool_ends_the_execution() -> Story:
    calls = (CallTool("look", word="a"), CallTool("consult", topic="stop"), CallTool("look", word="b"))
    return Story(calling(told("", *calls), tools=[look, consult])).begin()


@story
def a_person_answers_questions_with_options() -> Story:
    questions = [
        {"question": "Which color?", "header": "Color", "options": [{"label": "Red", "value": "r"}, {"label": "Blue"}]},
        {"question": "Which name?", "required": False},
    ]
    agent = calling(told("", CallTool("ask_user_question", questions=questions)), capabilities=[AskUser()])
    return Story(agent).begin().answer(Answer({"Color": "r"}), by="ada")


@story
def services_bring_results_later() -> Story:
    calls = (CallTool("order", item="a"), CallTool("order", item="b"), CallTool("order", item="c"))
    agent = calling(told("", *calls), tools=[order])
    return Story(agent).begin().answer(Complete({"price": 5}), Fail("sold out"), by="shop").go_on(60)


@story
def children_answer_fail_and_share_a_budget() -> Story:
    worker = calling(told("worked", tokens=20), name="worker")
    broken = calling(lambda _state: (_ for _ in ()).throw(DriverError("away", "no", transient=False)), name="broken")
    calls = (CallTool("ask_worker", prompt="a"), CallTool("ask_broken", prompt="b"))
    lead = calling(told("", *calls), name="lead", tools=[AgentTool(agent="worker"), AgentTool(agent="broken")])
    return Story(lead, worker, broken).begin(budget=ExecutionBudget(max_steps=9, max_tokens=1_000, max_cost=1.0))


@story
def a_child_has_no_time_left() -> Story:
    slow = calling(told("", CallTool("pay", cents=5)), name="slow", tools=[paying(approval=Ask())])
    lead = calling(
        told("", CallTool("ask_slow", prompt="a")), name="lead", tools=[AgentTool(agent="slow", expires=MINUTE)]
    )
    return Story(lead, slow).begin().go_on(60)


@story
def an_agent_hands_over() -> Story:
    first = calling(told("", CallTool("transfer_to_second")), name="first", handoffs=[Handoff("second")])
    return Story(first, calling(name="second")).begin()


@story
def a_worker_dies_twice_in_a_call_that_may_be_repeated_and_once_in_one_that_may_not() -> Story:
    @tool(effect="unsafe")
    def unsafe() -> str:
        """Die."""
        raise WorkerDied

    agent = calling(
        told("", CallTool("fragile")), told("", CallTool("unsafe"), CallTool("look", word="a")),
        tools=[fragile_tool(2), unsafe, look],
    )  # fmt: skip
    return Story(agent).begin()


@story
def hooks_block_change_and_end() -> Story:
    def block(context: HookContext) -> HookContext | None:
        call = context.tool_call
        return context.changed(blocked="not today") if call is not None and call.args == {"cents": 13} else None

    def cut(context: HookContext) -> HookContext | None:
        made = context.tool_execution
        changed = made is not None and made.value == "5 paid"
        return context.changed(tool_execution=made.model_copy(update={"value": "paid"})) if changed and made else None

    def end(context: HookContext) -> HookContext | None:
        return context.changed(state=context.state.with_execution_completed(now=NOON)) if context.step == 2 else None

    calls = (CallTool("pay", cents=13), CallTool("pay", cents=5))
    hooks = [Hook(HookPoint.BEFORE_TOOL, block), Hook(HookPoint.AFTER_TOOL, cut), Hook(HookPoint.BEFORE_STEP, end)]
    return Story(calling(told("", *calls), tools=[paying()], hooks=hooks)).begin()


@story
def a_hook_fails() -> Story:
    def fail(context: HookContext) -> HookContext | None:
        raise ValueError("this hook is broken")

    hooks = [Hook(HookPoint.AFTER_STEP, fail)]
    return Story(calling(told("", CallTool("look", word="a")), tools=[look], hooks=hooks)).begin()


@story
def children_that_may_not_be_made() -> Story:
    calls = tuple(CallTool("ask_deep", prompt=each) for each in "ab")

    def deeper(state: AgentState) -> Any:
        return told("", *calls, tokens=10) if not state.step_count else told(f"{state.messages[-1].content:.40}")

    deep = Agent("deep", driver=deeper, tools=[AgentTool(agent="deep")], max_depth=1, max_children=1)
    return Story(deep).begin(budget=ExecutionBudget(max_steps=6, max_tokens=500))


@story
def an_agent_hands_over_to_one_that_is_not_there() -> Story:
    first = calling(told("", CallTool("transfer_to_nobody")), name="first", handoffs=[Handoff("nobody")])
    return Story(first).begin()


@story
def a_slow_call_takes_the_time_of_the_execution() -> Story:
    @tool(effect="unsafe")
    def slow() -> str:
        """Take two minutes."""
        told_story.bench.clock.go_on(120)
        return "slept"

    told_story = Story(calling(told("", CallTool("slow")), tools=[slow]), lease_seconds=600.0)
    return told_story.begin(budget=ExecutionBudget(max_seconds=100.0))


@story
def a_worker_dies_at_each_attempt() -> Story:
    def die(_state: AgentState) -> Any:
        raise WorkerDied

    return Story(calling(die), attempts_limit=3).begin()


@story
def a_provider_fails_for_a_while_and_for_good() -> Story:
    failures = [DriverError("overloaded", "later", transient=True), DriverError("overloaded", "later", transient=True)]

    def ask(_state: AgentState) -> Any:
        if failures:
            raise failures.pop()
        return told("", CallTool("look", word="a"))

    def refuse(_state: AgentState) -> Any:
        raise DriverError("rejected", "no such model", transient=False)

    told_story = Story(calling(ask, refuse, tools=[look])).begin()
    told_story.bench.retry(told_story.root, ExecutionBudget(max_steps=7))
    return told_story.go_on()


@story
def a_session_is_stopped_while_it_waits_and_goes_on_with_a_message() -> Story:
    agent = calling(told("", CallTool("pay", cents=5)), tools=[paying(approval=Ask())])
    return Story(agent).begin().stop().go_on(message="again", budget=ExecutionBudget(max_steps=2))


@story
def what_comes_while_a_step_runs_is_taken_in_by_its_commit() -> Story:
    def busy(state: AgentState) -> Any:
        bench, root = told_story.bench, told_story.root
        if state.execution_count > 1:
            return told(f"second, {state.context.system_prompt}, {dict(state.metadata)}")
        bench.write_metadata(root, "k" * 200, "x" * 1_100_000)
        bench.write_metadata(root, "color", "red")
        bench.change_prompt(root, "Be kind.")
        bench.change_model(root, LLMConfig(model="openai:gpt-5"))
        bench.send(root, "and this")
        return told("first")

    told_story = Story(calling(busy, name="busy"))
    return told_story.begin()


@story
def budgets_end_executions() -> Story:
    steps = [told("", CallTool("look", word="a"), tokens=100, cost=0.2)] * 9
    told_story = Story(calling(*steps, tools=[look], budget=ExecutionBudget(max_steps=4)))
    told_story.begin(budget=ExecutionBudget(max_tokens=300))
    return told_story.go_on(message="more", budget=ExecutionBudget(max_cost=0.3)).go_on(message="once more")


@story
def a_client_stops_a_step_while_its_model_answers() -> Story:
    def stopped(_state: AgentState) -> Any:
        told_story.bench.stop(told_story.root)
        return told("", CallTool("look", word="a"), CallTool("pay", cents=5))

    told_story = Story(calling(stopped, tools=[look, paying()]))
    return told_story.begin()


# --- what is compared ---------------------------------------------------------------------------------------------


def written() -> Mapping[str, list[str]]:
    """The stories by their names."""
    parts = WRITTEN.read_text(encoding="utf-8").split("\n== ")[1:]
    return {name: text.splitlines() for name, _, text in (part.partition("\n") for part in parts)}


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_told_as_before(name: str) -> None:
    assert STORIES[name]().end() == written()[name]


def all_lines() -> Iterator[str]:
    """The lines of the file."""
    yield "What each story of test_stories.py tells."
    for name, make in STORIES.items():
        yield f"\n== {name}"
        yield from make().end()


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    WRITTEN.write_text("\n".join(all_lines()) + "\n", encoding="utf-8")
