"""Guardrails: what a rule may say, what is never sent and never shown, and what an incident keeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import (
    CodeRule,
    Disposition,
    Guardrail,
    GuardrailContext,
    GuardrailEvent,
    GuardrailPhase,
    Guardrails,
    GuardrailVerdict,
    JsonRule,
    ModelRule,
    Reflection,
    RegexRule,
    smart_event,
)
from celery_agents.worker.capabilities.guardrails.findings import REMOVED
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.engine import RetryLater
from celery_agents.worker.errors import ConfigurationError, DriverError
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import (
    AgentState,
    ExecutionBudget,
    ExecutionStatus,
    FinishReason,
    FrozenDict,
    InferenceResponse,
    InferenceUsage,
    Message,
    Role,
    StopReason,
    ToolCall,
)
from celery_agents.worker.tools import StopExecution, tool

from support.engine import Bench
from support.smart import Asked, finished

NewBench = Callable[..., Bench]
USAGE = InferenceUsage(input=7, output=2, requests=1)


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
def look(what: str) -> str:
    """Look."""
    return f"seen: {what}"


def agent(driver: Any, *guardrails: Guardrail, beside: tuple[Any, ...] = (), **fields: Any) -> Agent:
    return Agent("a", driver=driver, tools=[look], capabilities=[Guardrails(list(guardrails)), *beside], **fields)


SECRETS = Guardrail("secrets", [RegexRule("password", reason="it names a password")], phases=["request"])
NO_CODE = Guardrail("no_code", [CodeRule(then="block")], phases=["response"])


# --- requests ----------------------------------------------------------------------------------------------------


def test_a_blocked_request_is_never_sent_and_the_notice_is_the_answer(new_bench: NewBench) -> None:
    driver = Asked(["an answer"], repeat_last=True)
    bench = new_bench(agent(driver, SECRETS))
    state = finished(bench, "my Password is 1234")
    assert driver.requests == []
    assert state.status is ExecutionStatus.STOPPED
    assert state.final_response == "The guardrail secrets has blocked the request: it names a password"
    assert state.steps[-1].inference_response.finish_reason is FinishReason.CONTENT_FILTER
    signal = state.stop_signal
    assert signal is not None
    assert (signal.reason, signal.source) == (StopReason.STOP_REQUESTED, "Guardrails")
    result = state.smart.guardrail_result
    assert not result.ok
    (incident,) = result.incidents
    assert (incident.guardrail, incident.rule, incident.phase) == ("secrets", "regex", GuardrailPhase.REQUEST)
    assert (incident.message_index, incident.step, incident.details["pattern"]) == (0, 1, "password")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_each_message_that_came_before_a_step_is_judged(new_bench: NewBench, place: int) -> None:
    driver = Asked(["an answer"], repeat_last=True)
    bench = new_bench(agent(driver, SECRETS))
    texts = ["fine"] * 3
    texts[place] = "my password"
    session = bench.submit(texts[0])
    for text in texts[1:]:
        bench.send(session, text)
    bench.run(session)
    assert driver.requests == []
    (incident,) = bench.state(session).smart.guardrail_result.incidents
    assert incident.message_index == place


def test_a_later_execution_goes_on_and_the_model_never_reads_what_was_blocked(new_bench: NewBench) -> None:
    driver = Asked(["an answer"], repeat_last=True)
    bench = new_bench(agent(driver, SECRETS))
    session = bench.submit("my password is 1234")
    bench.run(session)
    bench.send(session, "never mind")
    bench.run(session)
    state = bench.state(session)
    assert (state.status, state.final_response) == (ExecutionStatus.COMPLETED, "an answer")
    assert state.smart.guardrail_result.ok
    (read,) = driver.read
    assert [each.content for each in read if each.role is Role.USER] == [REMOVED, "never mind"]
    assert state.smart.messages[0].content == "my password is 1234"


def test_nothing_is_paid_for_before_a_request_is_judged(new_bench: NewBench) -> None:
    driver = Asked(["an answer"], auxiliary={"Reflection.note": "a note"})
    reflection = Reflection(cadence="initial_then_after_tool")
    bench = new_bench(agent(driver, SECRETS, beside=(reflection,)))
    state = finished(bench, "the password")
    assert (driver.requests, driver.auxiliary) == ([], [])
    assert state.smart.reflections == ()


def test_a_result_of_a_tool_is_judged_before_the_model_reads_it(new_bench: NewBench) -> None:
    driver = Asked([[CallTool("look", what="the password")], "an answer"], repeat_last=True)
    bench = new_bench(agent(driver, SECRETS))
    session = bench.submit("what do you see?")
    bench.run(session)
    assert len(driver.requests) == 1
    assert bench.state(session).status is ExecutionStatus.STOPPED
    bench.send(session, "and now?")
    bench.run(session)
    told = [each for each in driver.read[-1] if each.role is Role.TOOL]
    assert [each.content for each in told] in ([], [REMOVED])
    assert "the password" not in "".join(each.content for each in driver.read[-1])


def test_each_message_is_judged_once(new_bench: NewBench) -> None:
    judged: list[str] = []

    def note(context: GuardrailContext) -> bool:
        judged.append(context.text)
        return True

    driver = Asked([[CallTool("look", what="a")], [CallTool("look", what="b")], "an answer"])
    bench = new_bench(agent(driver, Guardrail("noting", [note], phases=["request"])))
    session = bench.submit("first")
    bench.run(session)
    bench.send(session, "second")
    bench.run(session)
    assert judged == ["first", "seen: a", "seen: b", "second", "seen: a", "seen: b"]


def test_a_session_that_was_changed_meanwhile_gets_the_notice_and_one_incident(new_bench: NewBench) -> None:
    changed: list[str] = []

    def change(context: GuardrailContext) -> bool:
        if not changed:
            changed.append("once")
            bench.save_beside(session, lambda state: state.with_system_prompt("another"))
        return False

    driver = Asked(["an answer"])
    asked: list[str] = []
    after = Hook(HookPoint.AFTER_INFERENCE, lambda context: asked.append("after"))  # type: ignore[func-returns-value]
    bench = new_bench(agent(driver, Guardrail("g", [change], phases=["request"]), hooks=[after]))
    session = bench.submit("hello")
    bench.run(session)
    state = bench.state(session)
    assert (state.status, state.system_prompt) == (ExecutionStatus.STOPPED, "another")
    assert len(state.smart.guardrail_result.incidents) == 1
    assert len(state.smart.messages) == 2
    assert (driver.requests, asked) == ([], [])


def test_a_retry_asks_the_model_without_the_blocked_message(new_bench: NewBench) -> None:
    driver = Asked(["an answer"], repeat_last=True)
    bench = new_bench(agent(driver, SECRETS))
    session = bench.submit("my password is 1234")
    bench.run(session)
    bench.retry(session)
    bench.run(session)
    assert "1234" not in "".join(each.content for each in driver.read[-1])
    assert bench.state(session).status is ExecutionStatus.COMPLETED


def test_an_incident_of_a_step_that_is_tried_again_is_there_once(new_bench: NewBench) -> None:
    asked: list[str] = []

    def answer(state: AgentState) -> str:
        asked.append("asked")
        if len(asked) == 1:
            raise StopExecution("not now")
        return "an answer"

    noting = Guardrail("g", [RegexRule("hello", then="warn")], phases=["request"])
    bench = new_bench(agent(answer, noting))
    session = bench.submit("hello")
    bench.run(session)
    assert len(bench.state(session).smart.guardrail_result.incidents) == 1
    bench.retry(session)
    bench.run(session)
    state = bench.state(session)
    assert (state.final_response, len(state.smart.guardrail_result.incidents)) == ("an answer", 1)


def test_what_was_said_before_the_last_answer_is_not_judged(new_bench: NewBench) -> None:
    bench = new_bench(agent(Asked(["an answer"]), SECRETS))
    said = [Message.user("my password is 1234"), Message.assistant("noted")]
    session = bench.submit(state=AgentState.fresh(now=bench.clock.now).with_messages(said))
    bench.run(session)
    assert bench.state(session).final_response == "an answer"


def test_of_messages_that_replace_the_conversation_none_is_taken_for_a_blocked_one(new_bench: NewBench) -> None:
    driver = Asked(["an answer"])
    bench = new_bench(agent(driver, SECRETS))
    session = bench.submit("my password")
    bench.run(session)
    bench.save_beside(session, lambda state: state.with_messages([Message.user("another one")]))
    bench.send(session, "and now?")
    bench.run(session)
    assert [each.content for each in driver.read[-1]] == ["another one", "and now?"]


# --- responses ---------------------------------------------------------------------------------------------------


def test_a_blocked_answer_is_replaced_and_its_text_is_kept_beside(new_bench: NewBench) -> None:
    said = InferenceResponse(content="def attack(): pass", usage=USAGE, cost=0.25, thinking="hm")
    bench = new_bench(agent(Asked([said]), NO_CODE))
    state = finished(bench, "write a program")
    assert state.status is ExecutionStatus.STOPPED
    assert state.final_response == "The guardrail no_code has blocked the response: the text holds program code"
    assert (state.usage.input, state.cost) == (7, 0.25)
    assert "def attack" not in "".join(each.content for each in state.smart.messages)
    (incident,) = state.smart.guardrail_result.incidents
    assert (incident.original, incident.message_index) == ("def attack(): pass", None)
    assert state.steps[-1].inference_response.thinking is None


def test_a_blocked_answer_makes_no_calls(new_bench: NewBench) -> None:
    calls = (ToolCall(id="c1", name="look", args={"what": "x"}),)
    said = InferenceResponse(content="```python\nlook()\n```", tool_calls=calls)
    bench = new_bench(agent(Asked([said, "more"], repeat_last=True), NO_CODE))
    state = finished(bench)
    assert (state.status, state.smart.tool_history, state.step_count) == (ExecutionStatus.STOPPED, (), 1)


def test_an_answer_of_fields_is_judged_as_json_and_one_of_calls_alone_is_not(new_bench: NewBench) -> None:
    judged: list[str] = []

    def refuse(context: GuardrailContext) -> bool:
        judged.append(context.text)
        return False

    calls = InferenceResponse(content="", tool_calls=(ToolCall(id="c1", name="look", args={"what": "x"}),))
    fields = InferenceResponse(content=" ", output=FrozenDict.of({"city": "Tromsø"}))
    state = finished(new_bench(agent(Asked([calls, fields]), Guardrail("g", [refuse], phases=["response"]))))
    assert judged == ['{"city": "Tromsø"}']
    assert (state.status, state.step_count) == (ExecutionStatus.STOPPED, 2)


def test_a_warning_is_recorded_and_passes(new_bench: NewBench) -> None:
    bench = new_bench(agent(Asked(["<b>bold</b>"]), Guardrail("markup", [CodeRule()])))
    state = finished(bench)
    assert (state.status, state.final_response) == (ExecutionStatus.COMPLETED, "<b>bold</b>")
    result = state.smart.guardrail_result
    assert result.ok
    assert [(each.disposition, each.original) for each in result.incidents] == [(Disposition.WARN, None)]


def test_the_message_of_a_guardrail_stands_in_place_of_the_answer(new_bench: NewBench) -> None:
    polite = Guardrail("polite", [lambda context: "damn" not in context.text], message="Let us stay polite.")
    assert finished(new_bench(agent(Asked(["damn it"]), polite))).final_response == "Let us stay polite."
    assert finished(new_bench(agent(Asked(["fine"]), polite)), "damn").final_response == "Let us stay polite."


def test_live_text_is_withheld_where_answers_are_judged() -> None:
    assert agent(Asked(["x"]), NO_CODE).holds_live_text
    assert not agent(Asked(["x"]), SECRETS).holds_live_text
    assert not Agent("b", driver=Asked(["x"])).holds_live_text


# --- what a rule may say -----------------------------------------------------------------------------------------


def test_l22_a_rule_that_raises_blocks_in_both_phases(new_bench: NewBench) -> None:
    def broken(context: GuardrailContext) -> bool:
        raise ValueError(f"no {context.phase}")

    for phase, asked in (("request", 0), ("response", 1)):
        driver = Asked(["an answer"])
        state = finished(new_bench(agent(driver, Guardrail("g", [broken], phases=[phase]))))
        (incident,) = state.smart.guardrail_result.incidents
        assert (state.status, len(driver.requests)) == (ExecutionStatus.STOPPED, asked)
        assert (incident.reason, incident.details["failed"]) == (f"the rule failed: ValueError: no {phase}", True)


@pytest.mark.parametrize("phase", ["request", "response"])
def test_what_is_no_error_blocks_as_an_error_does(new_bench: NewBench, phase: str) -> None:
    def broken(*_: object) -> Any:
        raise SystemExit(1)

    for rule, handler in ((broken, None), (RegexRule(".", then="warn"), broken)):
        guardrail = Guardrail("g", [rule], phases=[phase], on_violation=handler)
        state = finished(new_bench(agent(Asked(["an answer"]), guardrail)))
        assert (state.status, state.smart.guardrail_result.ok) == (ExecutionStatus.STOPPED, False)
        assert state.final_response != "an answer"


def test_a_rule_that_raises_may_be_a_warning(new_bench: NewBench) -> None:
    def broken(context: GuardrailContext) -> bool:
        raise ValueError("away")

    state = finished(new_bench(agent(Asked(["an answer"]), Guardrail("g", [broken], on_error="warn"))))
    assert (state.status, state.final_response) == (ExecutionStatus.COMPLETED, "an answer")
    assert [each.phase for each in state.smart.guardrail_result.incidents] == ["request", "response"]


def test_something_else_than_a_verdict_blocks(new_bench: NewBench) -> None:
    odd: Any = lambda context: "yes"  # noqa: E731
    unreadable: Any = lambda context: GuardrailVerdict.warn("odd", thing=object())  # noqa: E731
    for rule in (odd, unreadable):
        state = finished(new_bench(agent(Asked(["x"]), Guardrail("g", [rule]))))
        assert state.status is ExecutionStatus.STOPPED
        assert "the rule failed" in state.smart.guardrail_result.incidents[0].reason


def test_l22_a_handler_overrides_the_rule_and_one_that_raises_blocks(new_bench: NewBench) -> None:
    def lenient(incident: Any, context: GuardrailContext) -> str | None:
        return "warn" if context.phase is GuardrailPhase.REQUEST else None

    def broken(incident: Any, context: GuardrailContext) -> None:
        raise RuntimeError("no idea")

    rule = RegexRule("bad")
    state = finished(new_bench(agent(Asked(["good"]), Guardrail("g", [rule], on_violation=lenient))), "bad")
    assert (state.status, state.smart.guardrail_result.incidents[0].disposition) == (ExecutionStatus.COMPLETED, "warn")
    warning = RegexRule("bad", then="warn")
    state = finished(new_bench(agent(Asked(["good"]), Guardrail("g", [warning], on_violation=broken))), "bad")
    (incident,) = state.smart.guardrail_result.incidents
    assert (state.status, incident.disposition) == (ExecutionStatus.STOPPED, "block")
    assert incident.details["on_violation_failed"] == "RuntimeError: no idea"


def test_rules_behind_one_that_blocks_are_asked_only_where_it_does_not_halt(new_bench: NewBench) -> None:
    rules = [RegexRule("a", name="first"), RegexRule("a", name="second", then="warn")]
    cases: list[tuple[dict[str, bool], list[str]]] = [
        ({}, ["first"]),
        ({"halt_on_violation": False}, ["first", "second"]),
    ]
    for options, names in cases:
        rail = Guardrail("g", rules, phases=["request"], **options)  # pyright: ignore[reportArgumentType]
        other = Guardrail("h", [RegexRule("a", name="other", then="warn")], phases=["request"])
        state = finished(new_bench(agent(Asked(["x"]), rail, other)), "a")
        assert [each.rule for each in state.smart.guardrail_result.incidents] == [*names, "other"]


def test_a_rule_without_a_name_is_called_by_its_place(new_bench: NewBench) -> None:
    def refuse(word: str, context: GuardrailContext) -> bool:
        return word not in context.text

    rail = Guardrail("g", [partial(refuse, "a"), partial(refuse, "b")], phases=["request"], halt_on_violation=False)
    state = finished(new_bench(agent(Asked(["x"]), rail)), "ab")
    assert [each.rule for each in state.smart.guardrail_result.incidents] == ["rule1", "rule2"]


def test_a_long_reason_is_cut(new_bench: NewBench) -> None:
    rail = Guardrail("g", [lambda context: GuardrailVerdict.warn("x" * 900)], phases=["request"])
    state = finished(new_bench(agent(Asked(["x"]), rail)))
    assert len(state.smart.guardrail_result.incidents[0].reason) == 400


def test_each_incident_has_an_event(new_bench: NewBench) -> None:
    bench = new_bench(agent(Asked(["an answer"]), Guardrail("g", [RegexRule("answer|hello", then="warn")])))
    session = bench.submit("hello")
    bench.run(session)
    found = [smart_event(each.data) for each in bench.store.sessions.events(session) if each.type == "capability"]
    assert [(each.guardrail, each.phase, each.disposition) for each in found if isinstance(each, GuardrailEvent)] == [
        ("g", "request", "warn"),
        ("g", "response", "warn"),
    ]


# --- ready-made rules --------------------------------------------------------------------------------------------


def judged(rule: Any, text: str) -> GuardrailVerdict:
    def never(key: str, request: Any) -> InferenceResponse:
        raise AssertionError("no model is asked")

    return rule(GuardrailContext(GuardrailPhase.REQUEST, text, AgentState.fresh(), 1, never))


@pytest.mark.parametrize(
    ("rule", "text", "disposition"),
    [
        (RegexRule("secret"), "a SECRET", "block"),
        (RegexRule(re.compile("secret")), "a SECRET", "allow"),
        (RegexRule("secret", then="warn"), "secret", "warn"),
        (RegexRule("^order \\d+$", must_match=True), "order 17", "allow"),
        (RegexRule("^order \\d+$", must_match=True), "an order", "block"),
        (JsonRule({"type": "object", "required": ["a"]}), '{"a": 1}', "allow"),
        (JsonRule({"type": "object", "required": ["a"]}), "{}", "block"),
        (JsonRule(dict[str, int], then="warn"), '{"a": "b"}', "warn"),
        (JsonRule(list[int]), "no JSON", "block"),
        (JsonRule(list[int], allows_other_texts=True), "no JSON", "allow"),
        (CodeRule(), "```\nx\n```", "warn"),
        (CodeRule(), "Then:\n  import os", "warn"),
        (CodeRule(), "const x = 1;", "warn"),
        (CodeRule(), "a first class import of functions, let me see", "allow"),
        (CodeRule(), "2 < 3 and 4 > 1", "allow"),
        (CodeRule(allowed=["^```text"]), "```text\nplain\n```", "allow"),
    ],
)
def test_what_a_ready_made_rule_says(rule: Any, text: str, disposition: str) -> None:
    assert judged(rule, text).disposition == disposition


def test_a_model_judges_once_and_is_paid_once(new_bench: NewBench) -> None:
    verdicts = ['{"allow": true}', 'Well: {"allow": false, "reason": "medical advice"}']
    driver = Asked(
        ["Take two of them."],
        auxiliary={
            "Guardrails.doctor.0.request.0": InferenceResponse(content=verdicts[0], usage=USAGE),
            "Guardrails.doctor.0.response.0": InferenceResponse(content=verdicts[1], usage=USAGE),
        },
    )
    rail = Guardrail("doctor", [ModelRule("No medical advice.")])
    state = finished(new_bench(agent(driver, rail)), "my head aches")
    assert (state.status, len(driver.auxiliary)) == (ExecutionStatus.STOPPED, 2)
    assert state.usage.input == 14
    assert state.smart.guardrail_result.incidents[0].reason == "medical advice"
    asked = driver.auxiliary[0].messages[-1].content
    assert "my head aches" in asked
    assert "No medical advice." in asked


@pytest.mark.parametrize(
    ("said", "then", "dispositions"),
    [
        ('{"allow": false}', "warn", ["warn"]),
        ('{"allow": false, "disposition": "warn"}', "block", ["warn"]),
        ('{"allow": true}', "block", []),
        ('{"allow": true, "disposition": "block"}', "warn", ["block"]),
    ],
)
def test_a_disposition_that_the_judge_names_goes_before_that_of_the_rule(
    new_bench: NewBench, said: str, then: str, dispositions: list[str]
) -> None:
    driver = Asked(["x"], auxiliary={"Guardrails.g.0.request.0": said})
    state = finished(new_bench(agent(driver, Guardrail("g", [ModelRule("Fine?", then=then)], phases=["request"]))))
    assert [each.disposition for each in state.smart.guardrail_result.incidents] == dispositions


@pytest.mark.parametrize("then", ["warn", "block"])
def test_half_of_a_character_in_a_verdict_is_replaced(new_bench: NewBench, then: str) -> None:
    driver = Asked(["x"], auxiliary={"Guardrails.g.0.request.0": '{"allow": false, "reason": "caf\\ud83d"}'})
    state = finished(new_bench(agent(driver, Guardrail("g", [ModelRule("Fine?", then=then)], phases=["request"]))))
    (incident,) = state.smart.guardrail_result.incidents
    assert (incident.disposition, incident.reason) == (then, "caf\ufffd")


@pytest.mark.parametrize("said", ["no idea", '{"allow": "maybe"}', '{"allow": false, "disposition": "perhaps"}', "{"])
def test_an_answer_of_the_judge_that_is_no_verdict_blocks(new_bench: NewBench, said: str) -> None:
    driver = Asked(["x"], auxiliary={"Guardrails.g.0.request.0": said})
    state = finished(new_bench(agent(driver, Guardrail("g", [ModelRule("Is it fine?")], phases=["request"]))))
    assert (state.status, driver.requests) == (ExecutionStatus.STOPPED, [])


@pytest.mark.parametrize("phase", ["request", "response"])
def test_an_outage_of_the_judge_delays_the_step_and_an_answer_is_paid_once(new_bench: NewBench, phase: str) -> None:
    away = DriverError("away", "the provider is away", transient=True)

    def judge(state: AgentState) -> str:
        if len(driver.auxiliary) == 1:
            raise away
        return '{"allow": true}'

    driver = Asked(["x"], auxiliary={f"Guardrails.g.0.{phase}.0": judge})
    rail = Guardrail("g", [ModelRule("Is it fine?")], phases=[phase])
    bench = new_bench(agent(driver, rail), driver_attempts=1)
    session = bench.submit("hello")
    (outcome,) = bench.run(session)
    assert isinstance(outcome, RetryLater)
    bench.clock.go_on(outcome.seconds + 1)
    bench.run(session)
    state = bench.state(session)
    assert (state.status, state.final_response, len(driver.auxiliary)) == (ExecutionStatus.COMPLETED, "x", 2)
    assert (len(driver.requests), state.smart.guardrail_result.incidents) == (1, ())


@pytest.mark.parametrize("phase", ["request", "response"])
def test_an_outage_passes_where_errors_only_warn_and_a_permanent_error_blocks(new_bench: NewBench, phase: str) -> None:
    def away(state: AgentState) -> str:
        raise DriverError("away", "the provider is away", transient=True)

    def refused(state: AgentState) -> str:
        raise DriverError("refused", "the key is wrong", transient=False)

    for answer, on_error, status in ((away, "warn", "completed"), (refused, "block", "stopped")):
        driver = Asked(["x"], auxiliary={f"Guardrails.g.0.{phase}.0": answer})
        rail = Guardrail("g", [ModelRule("Is it fine?")], phases=[phase], on_error=on_error)
        state = finished(new_bench(agent(driver, rail), driver_attempts=1))
        assert (state.status, state.smart.guardrail_result.incidents[0].details["failed"]) == (status, True)


def test_an_answer_that_nobody_may_judge_any_more_is_not_shown(new_bench: NewBench) -> None:
    said = InferenceResponse(content="an answer", usage=InferenceUsage(input=100, output=1, requests=1))
    driver = Asked([said], auxiliary={"Guardrails.g.0.response.0": '{"allow": true}'})
    rail = Guardrail("g", [ModelRule("Is it fine?")], phases=["response"])
    bench = new_bench(agent(driver, rail, budget=ExecutionBudget(max_tokens=50)))
    session = bench.submit("hello")
    bench.run(session)
    state = bench.state(session)
    (incident,) = state.smart.guardrail_result.incidents
    assert (state.status, incident.original, driver.auxiliary) == (ExecutionStatus.STOPPED, "an answer", [])
    assert "an answer" not in "".join(each.content for each in state.smart.messages)


# --- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Guardrails([]), "give a list of Guardrail"),
        (lambda: Guardrails([SECRETS, SECRETS]), "secrets stands twice"),
        (lambda: Guardrail("", [RegexRule("a")]), "1 to 40 letters"),
        (lambda: Guardrail("g" * 41, [RegexRule("a")]), "1 to 40 letters"),
        (lambda: Guardrail("-g", [RegexRule("a")]), "beginning with a letter or digit"),
        (lambda: Guardrail("g", []), "one rule at least"),
        (lambda: Guardrail("g", ["password"]), "is no function"),  # type: ignore[list-item]
        (lambda: Guardrail("g", [RegexRule("a")], phases=["before"]), "request, response"),
        (lambda: Guardrail("g", [RegexRule("a")], phases="request"), "request, response"),
        (lambda: Guardrail("g", [RegexRule("a")], phases=[]), "request, response"),
        (lambda: Guardrail("g", [RegexRule("a")], on_error="allow"), "'block' or 'warn'"),
        (lambda: RegexRule("("), "give a regular expression"),
        (lambda: RegexRule("a", then="stop"), "block, warn, allow"),
        (lambda: ModelRule(" "), "say what is allowed"),
        (lambda: JsonRule(3), "give a pydantic model"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_written(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        make()


def test_a_name_has_40_characters_at_most() -> None:
    assert Guardrail("g" * 40, [RegexRule("a")]).name == "g" * 40


# --- the seam ----------------------------------------------------------------------------------------------------


def test_a_hook_that_answers_before_a_step_gives_no_calls(new_bench: NewBench) -> None:
    def answer(context: HookContext) -> HookContext:
        calls = (ToolCall(id="c1", name="look", args={"what": "x"}),)
        return context.changed(response=InferenceResponse(content="", tool_calls=calls))

    bench = new_bench(Agent("a", driver=Asked(["x"]), hooks=[Hook(HookPoint.BEFORE_STEP, answer)]))
    state = finished(bench)
    assert state.status is ExecutionStatus.FAILED
    assert "only the model asks for those" in state.errors[-1].message


def test_a_hook_that_knows_the_answer_completes_the_execution_without_the_model(new_bench: NewBench) -> None:
    def answer(context: HookContext) -> HookContext:
        return context.changed(response=InferenceResponse(content="known"))

    later: list[str] = []
    driver = Asked(["x"])
    hooks = [
        Hook(HookPoint.BEFORE_STEP, answer, priority=1),
        Hook(HookPoint.BEFORE_STEP, lambda context: later.append("asked")),  # type: ignore[func-returns-value]
    ]
    state = finished(new_bench(Agent("a", driver=driver, hooks=hooks)))
    assert (state.status, state.final_response) == (ExecutionStatus.COMPLETED, "known")
    assert (driver.requests, later) == ([], [])
