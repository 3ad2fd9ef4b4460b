"""Compaction: what the model sees of a long conversation, and that nothing of it is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import Summarization, SummarizationEvent, ToolArchive, smart_event
from celery_agents.worker.capabilities.smart.compacted import Compaction, StableFact
from celery_agents.worker.capabilities.smart.summarization import local_summary, merge_facts, parse_summary
from celery_agents.worker.capabilities.smart.tokens import count_tokens, estimate_tokens, message_tokens
from celery_agents.worker.capabilities.smart.tool_archive import find_response
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.errors import ConfigurationError, DriverError
from celery_agents.worker.state import (
    AgentState,
    ExecutionBudget,
    InferenceResponse,
    InferenceUsage,
    Message,
    Role,
    ToolCall,
    repair_pairs,
)
from celery_agents.worker.tools import tool

from support.engine import Bench
from support.smart import Asked, run_dying

NewBench = Callable[..., Bench]

LIMIT = 1_200
CHARS = 900


@pytest.fixture
def new_bench() -> Iterator[NewBench]:
    benches: list[Bench] = []

    def make(*agents: Agent, **settings: Any) -> Bench:
        benches.append(Bench(*agents, **settings))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


@tool(effect="pure")
def look(number: int) -> str:
    """Look at a number."""
    return f"result {number} " + "x" * CHARS


def summary(text: str, **fields: Any) -> str:
    return json.dumps({"summary": text, **fields})


class Compacting(Asked):
    """Looks so many times, and answers each auxiliary question with a summary that counts."""

    def __init__(self, looks: int, *, answers: Callable[[int], Any] | None = None, each: int = 1) -> None:
        self.looks, self.each = looks, each
        told = answers or (lambda n: summary(f"summary number {n}"))
        auxiliary = {"Summarization": lambda state: told(len(self.auxiliary))}
        super().__init__([self._look], repeat_last=True, auxiliary=auxiliary)

    def _look(self, state: AgentState) -> Any:
        if state.step_count >= self.looks:
            return "done"
        return [CallTool("look", number=state.step_count * self.each + n) for n in range(self.each)]


def agent(driver: Any, capability: Any = None, *tools: Any) -> Agent:
    return Agent(
        "a",
        driver=driver,
        tools=[look, *tools],
        capabilities=[capability or Summarization(LIMIT)],
        budget=ExecutionBudget.unlimited(),
    )


def run(bench: Bench, message: str = "the task") -> AgentState:
    session_id = bench.submit(message)
    bench.run(session_id, limit=2_000)
    return bench.state(session_id)


def check_pairs(requests: Sequence[tuple[Message, ...]]) -> None:
    """Each call is answered right behind its message, and no result is alone."""
    for messages in requests:
        open_calls: list[str] = []
        for message in messages:
            if message.role is Role.TOOL:
                assert message.tool_call_id == open_calls.pop(0)
            else:
                assert not open_calls
                open_calls = [call.id for call in message.tool_calls]
        assert not open_calls
        assert repair_pairs(messages) == tuple(messages)


# --- the limit -------------------------------------------------------------------------------------------------


def test_the_context_stays_under_its_limit_and_pairs_stay_together(new_bench: NewBench) -> None:
    driver = Compacting(120)
    state = run(new_bench(agent(driver)))
    sizes = [count_tokens(messages, estimate_tokens) for messages in driver.read]
    assert len(sizes) == 121
    assert max(sizes) <= LIMIT
    check_pairs(driver.read)
    assert len(state.smart.messages) == 1 + 2 * 120 + 1
    assert 1 < len(driver.auxiliary) < 40
    assert len(state.smart.summaries) == len(driver.auxiliary)


def test_the_messages_to_summarize_are_cut_to_the_tokens_of_the_prompt(new_bench: NewBench) -> None:
    driver = Asked(["done"], auxiliary={"Summarization": summary("in short")})
    bench = new_bench(agent(driver, Summarization(LIMIT, max_prompt_tokens=500)))
    said = [kind("y" * 1_000) for _ in range(5) for kind in (Message.user, Message.assistant)]
    session_id = bench.submit(state=AgentState.fresh(now=bench.clock.now).with_messages(said))
    bench.run(session_id)
    (asked,) = driver.auxiliary
    _, *lines = asked.messages[0].content.splitlines()
    assert len(lines) > 5
    assert 2_000 - len(lines) < sum(map(len, lines)) <= 2_000, "four characters are a token"


def test_l8_every_archived_result_can_be_fetched_by_either_id_with_its_arguments(new_bench: NewBench) -> None:
    state = run(new_bench(agent(Compacting(30))))
    archived = state.smart.tool_history_archived
    assert len(archived) > 20
    for execution in archived:
        number = execution.tool_call.args["number"]  # type: ignore[index]
        assert _fetch(state, str(execution.id)).startswith(f"result {number} ")
        assert json.loads(_fetch(state, str(execution.id), part="args")) == {"number": number}
    assert _fetch(state, archived[-1].tool_call.id).startswith("result ")
    assert "no tool response" in _fetch(state, "nothing")


def _fetch(state: AgentState, name: str, part: str = "output") -> str:
    found = find_response(state, name, part)
    return found if found is not None else "no tool response"


def test_l10_the_first_and_the_latest_message_of_the_user_stay(new_bench: NewBench) -> None:
    driver = Compacting(40)
    bench = new_bench(agent(driver))
    session_id = bench.submit("the first task")
    bench.run(session_id, limit=200)
    bench.send(session_id, "the second task")
    bench.run(session_id, limit=200)
    last = driver.read[-1]
    texts = [message.content for message in last if message.role is Role.USER]
    assert texts == ["the first task", "the second task"]
    assert [message.role for message in last[:3]] == [Role.USER, Role.USER, Role.SYSTEM]
    check_pairs(driver.read)


def test_l7_the_newest_results_stay_as_they_are_even_above_the_limit(new_bench: NewBench) -> None:
    driver = Compacting(6, each=8)
    run(new_bench(agent(driver)))
    for number, messages in enumerate(driver.read[1:], 0):
        results = [message for message in messages if message.role is Role.TOOL][-8:]
        assert [len(message.content) > CHARS for message in results] == [True] * 8, number
    check_pairs(driver.read)


def test_l7_where_nothing_can_be_freed_no_model_is_asked(new_bench: NewBench) -> None:
    driver = Compacting(1, each=12)
    run(new_bench(agent(driver)))
    assert count_tokens(driver.read[1], estimate_tokens) > LIMIT
    assert driver.auxiliary == []


def test_an_archive_alone_asks_no_model(new_bench: NewBench) -> None:
    driver = Compacting(12)
    state = run(new_bench(agent(driver, ToolArchive(LIMIT))))
    assert driver.auxiliary == []
    assert state.smart.summaries == ()
    assert len(state.smart.tool_history_archived) >= 8
    handles = [m.content for m in driver.read[-1] if m.role is Role.TOOL and m.content.startswith("[archived: ")]
    assert all("get_tool_response(execution_id=" in each and "It begins: 'result " in each for each in handles)
    check_pairs(driver.read)


def test_the_tool_is_offered_while_a_handle_is_in_sight(new_bench: NewBench) -> None:
    driver = Compacting(12)
    run(new_bench(agent(driver, ToolArchive(LIMIT))))
    offered = ["get_tool_response" in {spec.name for spec in request.tools} for request in driver.requests]
    assert offered[0] is False
    assert offered[-1] is True
    shown = [any(m.content.startswith("[archived") for m in messages) for messages in driver.read]
    assert offered == shown


@pytest.mark.parametrize(
    ("policy", "archived", "begins"),
    [("summarize_archive", True, True), ("drop", True, False), ("keep_full", False, False)],
)
def test_policies(new_bench: NewBench, policy: Any, archived: bool, begins: bool) -> None:
    driver = Compacting(12)
    run(new_bench(agent(driver, ToolArchive(LIMIT, policy=policy))))
    old = driver.read[-1][2].content
    assert old.startswith("[archived") is archived
    assert ("It begins" in old) is begins


def test_structured_results_and_those_of_critical_tools_stay(new_bench: NewBench) -> None:
    @tool(effect="pure")
    def listed(number: int) -> list[str]:
        """List."""
        return ["x" * 300, str(number)]

    def answer(state: AgentState) -> Any:
        if state.step_count >= 8:
            return "done"
        return [CallTool("listed", number=state.step_count), CallTool("look", number=state.step_count)]

    for capability, names in (
        (ToolArchive(LIMIT, policy="keep_structured"), {"listed"}),
        (ToolArchive(LIMIT, critical_tools={"look"}), {"look"}),
    ):
        driver = Asked([answer], repeat_last=True)
        run(new_bench(agent(driver, capability, listed)))
        old = [message for message in driver.read[-1] if message.role is Role.TOOL][:-4]
        assert {message.name for message in old if not message.content.startswith("[archived")} == names


def test_a_long_result_shows_its_beginning_and_the_rest_can_be_fetched_in_pieces(new_bench: NewBench) -> None:
    whole = "".join(f"{n:05d}," for n in range(1_000))

    @tool(effect="pure")
    def long() -> str:
        """Return a long text."""
        return whole

    def answer(state: AgentState) -> Any:
        if state.step_count == 0:
            return CallTool("long")
        shown = state.steps[-1].tool_executions[0]
        offset = 600 if state.step_count == 1 else _offset(str(shown.value))
        if offset is None:
            return "done"
        return CallTool("get_tool_response", execution_id=str(state.steps[0].tool_executions[0].id), offset=offset)

    driver = Asked([answer], repeat_last=True)
    state = run(new_bench(agent(driver, ToolArchive(4_000, max_response_chars=600), long)))
    pieces = [str(step.tool_executions[0].value) for step in state.steps[1:-1]]
    assert len(pieces) > 2
    assert whole[:600] + "".join(piece.partition("\n[")[0] for piece in pieces) == whole
    assert driver.read[1][-1].content.startswith(whole[:600] + "\n[cut: 6000 characters; get_tool_response(")


def _offset(text: str) -> int | None:
    _, marker, rest = text.partition("go on with offset=")
    return int(rest.rstrip("]")) if marker else None


def test_fetches_are_counted_in_each_execution(new_bench: NewBench) -> None:
    def answer(state: AgentState) -> Any:
        if state.step_count == 0:
            return CallTool("look", number=1)
        if state.step_count >= 3:
            return "done"
        name = str(state.steps[0].tool_executions[0].id)
        return [CallTool("get_tool_response", execution_id=name), CallTool("get_tool_response", execution_id=name)]

    bench = new_bench(
        agent(Asked([answer], repeat_last=True), ToolArchive(LIMIT, max_fetches=3, max_response_chars=300))
    )
    session_id = bench.submit()
    for _ in range(2):
        bench.run(session_id)
        values = [str(each.value) for step in bench.state(session_id).steps[1:-1] for each in step.tool_executions]
        assert [each.startswith("result 1") for each in values] == [True, True, True, False]
        assert "Not returned: 3 archived responses" in values[3]
        bench.send(session_id)


# --- summaries -------------------------------------------------------------------------------------------------


def test_l9_facts_are_kept_and_obsolete_ones_never_come_back() -> None:
    def fact(key: str, value: str) -> dict[str, Any]:
        return {"key": key, "value": value, "confidence": 0.9}

    part = Compaction()
    for answer in (
        summary("a", stable_facts=[fact("city", "Oslo"), fact("budget", "400")]),
        summary("b", stable_facts=[fact("city", "Bergen")], discarded_obsolete=["budget"]),
        summary("c", stable_facts=[fact("city", "Oslo"), fact("budget", "400"), fact("name", "x")]),
    ):
        facts, obsolete = merge_facts(part, parse_summary(answer))
        part = part.replace(facts=facts, obsolete=obsolete)
    assert {(each.key, each.value) for each in part.facts} == {("city", "Bergen"), ("name", "x")}
    assert part.obsolete == ("budget=400", "city=Oslo")


def test_l9_a_summary_is_never_the_answer_and_its_tokens_are_counted(new_bench: NewBench) -> None:
    usage = InferenceUsage(input=10, output=5, requests=1)
    driver = Compacting(20, answers=lambda n: InferenceResponse(content=summary("short"), usage=usage))
    state = run(new_bench(agent(driver)))
    assert state.final_response == "done"
    assert state.usage.total == 15 * len(driver.auxiliary) > 0
    records = state.smart.summary_records
    assert all(each.usage is not None and each.source == "model" for each in records)
    assert [each.covered_from for each in records[1:]] == [each.covered_upto for each in records[:-1]]


@pytest.mark.parametrize("answer", ["no JSON", "[]", '{"summary": ""}', '{"stable_facts": []}', "[" * 100_000])
def test_an_unusable_summary_becomes_a_local_one(new_bench: NewBench, answer: str) -> None:
    driver = Compacting(20, answers=lambda n: answer)
    state = run(new_bench(agent(driver)))
    assert {each.source for each in state.smart.summary_records} == {"local"}
    assert "tool look: result" in state.smart.summaries[0]
    assert max(count_tokens(each, estimate_tokens) for each in driver.read) <= LIMIT


def test_half_of_a_character_in_a_summary_does_not_stop_the_task(new_bench: NewBench) -> None:
    cut = "caf\\ud83d"
    answer = {"summary": "at the " + cut, "stable_facts": [{"key": cut, "value": cut}], "active_goals": [cut]}
    driver = Compacting(20, answers=lambda n: json.dumps(answer).replace("\\\\", "\\"))
    state = run(new_bench(agent(driver)))
    record = state.smart.summary_records[0]
    assert (record.source, record.text, record.active_goals) == ("model", "at the caf\ufffd", ("caf\ufffd",))
    assert [(each.key, each.value) for each in record.stable_facts] == [("caf\ufffd", "caf\ufffd")]


def test_a_provider_that_gives_no_summary_does_not_stop_the_task(new_bench: NewBench) -> None:
    def refuse(number: int) -> str:
        raise DriverError("overloaded", "try again", transient=False)

    driver = Compacting(20, answers=refuse)
    state = run(new_bench(agent(driver)))
    assert state.final_response == "done"
    assert {each.source for each in state.smart.summary_records} == {"local"}


def test_the_model_reads_the_former_summary_and_its_facts(new_bench: NewBench) -> None:
    driver = Compacting(40, answers=lambda n: summary(f"part {n}", stable_facts=[{"key": f"k{n}", "value": n}]))
    state = run(new_bench(agent(driver)))
    second = driver.auxiliary[1].messages[0].content
    assert second.startswith("FORMER SUMMARY\npart 1\nk1 = 1\n")
    shown = next(m.content for m in driver.read[-1] if m.role is Role.SYSTEM)
    count = len(driver.auxiliary)
    assert f"part {count}\nFacts:\n- k1 = 1\n- k2 = 2" in shown
    assert len(state.smart.summary_records[-1].stable_facts) == count


def test_a_local_summary_keeps_the_newest_lines() -> None:
    messages = [Message.user(f"message {n}") for n in range(50)]
    text = local_summary(None, messages, 100).text
    assert text.splitlines()[-1] == "user: message 49"
    assert len(text) <= 100


def test_each_compaction_has_an_event(new_bench: NewBench) -> None:
    bench = new_bench(agent(Compacting(25)))
    session_id = bench.submit()
    bench.run(session_id, limit=200)
    found = [smart_event(e.data) for e in bench.store.sessions.events(session_id) if e.type == "capability"]
    events = [each for each in found if isinstance(each, SummarizationEvent)]
    summaries = bench.state(session_id).smart.summary_records
    assert [each.summary_id for each in events if each.summary_id] == [each.id for each in summaries]
    assert [each.covered for each in events if each.summary_id] == [each.covered_upto for each in summaries]


def test_replaced_messages_begin_anew(new_bench: NewBench) -> None:
    driver = Compacting(20)
    bench = new_bench(agent(driver))
    session_id = bench.submit()
    bench.run(session_id, limit=200)
    bench.save_beside(session_id, lambda state: state.with_messages([Message.user("other")]))
    bench.send(session_id, "more")
    bench.step(session_id)
    assert [message.content for message in driver.read[-1]] == ["other", "more"]


@pytest.mark.parametrize("point", ["c1", "c2", "c3", "c5", "c7"])
def test_a_crash_neither_pays_a_summary_twice_nor_loses_one(new_bench: NewBench, point: str) -> None:
    driver = Compacting(30)
    bench = new_bench(agent(driver))
    session_id = bench.submit("the task")
    assert run_dying(bench, session_id, point, at=(8, 11, 12, 20, 25)) > 25
    state = bench.state(session_id)
    undisturbed = run(new_bench(agent(Compacting(30))))
    paid_twice = len(driver.auxiliary) - len(state.smart.summaries)
    assert paid_twice == 0
    assert state.smart.summaries == undisturbed.smart.summaries
    assert [each.covered_upto for each in state.smart.summary_records] == [
        each.covered_upto for each in undisturbed.smart.summary_records
    ]


# --- numbers that cannot be ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_context_tokens": 10}, r"Summarization\(max_context_tokens\)=10: give a whole number, from 200"),
        ({"max_context_tokens": -1}, r"max_context_tokens\)=-1"),
        ({"trigger_tokens": 500_000}, "give at most max_context_tokens"),
        ({"target_ratio": 0}, "give a number above 0, up to 1"),
        ({"last_turns_to_keep": 0}, "last_turns_to_keep"),
        ({"max_fetches": True}, "max_fetches"),
        ({"policy": "forget"}, "there are keep_full, keep_structured, summarize_archive, drop"),
        ({"token_counter": 4}, "token_counter"),
        ({"critical_tools": "look"}, "give a set of names"),
        ({"max_response_chars": 1}, "max_response_chars"),
        ({"max_summary_tokens": 0}, "max_summary_tokens"),
    ],
)
def test_numbers_that_cannot_be_are_refused_where_the_agent_is_defined(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Summarization(**wrong)


def test_both_capabilities_together_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="both bring a tool named 'get_tool_response'"):
        Agent("a", driver=Asked(["x"]), capabilities=[ToolArchive(), Summarization()])


def test_the_estimate_of_tokens() -> None:
    texts = ("", "a", "abcd", "abcde", "ééé", "éé", "abcdé", "a" * 5 + "ééé")
    assert [estimate_tokens(text) for text in texts] == [0, 1, 1, 2, 2, 2, 2, 4]
    assert StableFact(key="k", value="v").confidence == 0.8
    called = Message.assistant("", [ToolCall(id="c", name="look", args={"n": 1})])
    assert [message_tokens(each, len) for each in (Message.user("abc"), Message.user(""), called)] == [3, 0, 11]
