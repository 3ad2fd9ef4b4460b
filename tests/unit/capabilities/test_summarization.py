"""Summaries: where the conversation is cut, what the model is asked, and what is taken of its answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from celery_agents.worker.capabilities import Summarization, ToolArchive
from celery_agents.worker.capabilities.smart.compacted import (
    Compaction,
    StableFact,
    SummaryRecord,
    describe_summary,
    is_boundary,
    newest_turn,
    pinned_of,
)
from celery_agents.worker.capabilities.smart.summarization import local_summary, merge_facts, parse_summary, render
from celery_agents.worker.capabilities.smart.tool_archive import find_response
from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.state import AgentState, FrozenDict, Message, Role

from support.states import at, call, running

USER, MODEL, SYSTEM = Message.user, Message.assistant, Message.system
CALLING = Message.assistant("", [call()])
RESULT = Message(role=Role.TOOL, content="sunny", tool_call_id="call_1", name="weather")
RECORD = SummaryRecord(
    id="s1", text="what was", created_at=at(0), step=1, covered_from=0, covered_upto=3,
    stable_facts=(StableFact(key="city", value="Oslo"),), active_goals=("book",), open_questions=("when?",),
)  # fmt: skip


def state_of(messages: Sequence[Message]) -> AgentState:
    return running().with_messages(messages, now=at(1))


# --- where it is cut ----------------------------------------------------------------------------------------------


def summarization(**fields: Any) -> Summarization:
    """450 tokens of messages stay with a new summary: half of 1 000, without the 50 of the summary."""
    given = {"max_context_tokens": 1_000, "target_ratio": 0.5, "max_summary_tokens": 50, "token_counter": len}
    return Summarization(**{**given, **fields})


@pytest.mark.parametrize(
    ("size", "turns", "cut"),
    [(90, 16, 5), (91, 16, 6), (150, 16, 7), (451, 16, 10), (90, 2, 6), (90, 1, 8), (1, 16, 0)],
)
def test_as_much_stays_as_the_share_and_the_turns_allow(size: int, turns: int, cut: int) -> None:
    messages = [each("x" * size) for _ in range(5) for each in (USER, MODEL)]
    found = summarization(last_turns_to_keep=turns).choose_cut(state_of(messages), Compaction())
    assert found == cut


def test_the_newest_turn_stays_whatever_it_takes_and_no_result_is_cut_from_its_call() -> None:
    messages = [USER("x" * 500), CALLING, RESULT, CALLING, RESULT.with_content("x" * 5_000)]
    assert summarization().choose_cut(state_of(messages), Compaction()) == 3
    messages = [USER("a"), CALLING, RESULT, MODEL("b" * 440), USER("c")]
    assert summarization().choose_cut(state_of(messages), Compaction()) == 1


def test_what_is_covered_stays_covered() -> None:
    messages = [each("x") for _ in range(5) for each in (USER, MODEL)]
    assert summarization().choose_cut(state_of(messages), Compaction(covered=4)) == 4
    assert newest_turn([CALLING, RESULT, USER("a")], 0) == 0
    assert newest_turn([CALLING, RESULT, USER("a")], 1) == 3


def test_a_summary_has_at_most_a_quarter_of_the_context() -> None:
    assert summarization().summary_chars == 200
    assert summarization(max_summary_tokens=249).summary_chars == 996
    assert summarization(max_summary_tokens=251).summary_chars == 1_000


def test_which_messages_stay_in_sight_of_those_that_are_covered() -> None:
    messages = [SYSTEM("s"), USER("a"), MODEL("b"), USER("c"), MODEL("d"), USER("e"), SYSTEM("t"), MODEL("f")]
    assert pinned_of(messages, Compaction(), 5) == (0, 1, 3)
    assert pinned_of(messages, Compaction(covered=5, pinned=(0, 1, 3)), 8) == (0, 1, 5, 6)
    assert pinned_of(messages, Compaction(), 2) == (0, 1)
    assert [is_boundary([CALLING, RESULT], index) for index in (0, 1, 2)] == [True, False, True]


@pytest.mark.parametrize(
    ("field", "least"),
    [
        ("max_context_tokens", 200), ("max_response_chars", 240), ("max_fetches", 0), ("last_turns_to_keep", 1),
        ("max_prompt_tokens", 200), ("max_summary_tokens", 50), ("trigger_tokens", 1),
    ],
)  # fmt: skip
def test_each_number_has_a_least_one(field: str, least: int) -> None:
    assert getattr(Summarization(**{field: least}), field) == least
    with pytest.raises(ConfigurationError, match=rf"{field}\)={least - 1}: give a whole number, from {least}$"):
        Summarization(**{field: least - 1})


def test_the_share_is_above_0_and_up_to_1() -> None:
    assert [Summarization(target_ratio=share).target_ratio for share in (0.001, 1)] == [0.001, 1]
    for wrong in (0, 1.001, -0.1, True, "half"):
        with pytest.raises(ConfigurationError, match="give a number above 0, up to 1"):
            Summarization(target_ratio=wrong)  # type: ignore[arg-type]


def test_the_trigger_is_three_quarters_of_the_context() -> None:
    assert (summarization().trigger, summarization(trigger_tokens=1_000).trigger) == (750, 1_000)


# --- results that are archived ------------------------------------------------------------------------------------


def result(content: str, name: str = "weather", execution: str = "e1") -> Message:
    return RESULT.model_copy(
        update={"content": content, "name": name, "metadata": FrozenDict.of({"tool_execution_id": execution})}
    )


def shown(archive: ToolArchive, message: Message, *, is_archived: bool) -> str:
    return archive.shown.show(message, is_archived=is_archived).content


def test_a_result_is_archived_where_it_has_more_than_240_characters() -> None:
    assert shown(ToolArchive(), result("x" * 240), is_archived=True) == "x" * 240
    assert shown(ToolArchive(), result("x" * 241), is_archived=True).startswith("[archived: 241 characters; ")
    assert shown(ToolArchive(), result("x" * 241), is_archived=False) == "x" * 241
    nameless = RESULT.model_copy(update={"content": "x" * 900})
    assert shown(ToolArchive(), nameless, is_archived=True) == "x" * 900, "nothing could fetch it"


def test_a_result_is_cut_where_it_is_longer_than_it_may_be_shown() -> None:
    archive = ToolArchive(max_response_chars=300)
    for is_archived in (False, True):
        critical = [result("x" * size, "manage_todo_list") for size in (300, 301)]
        fits, cut = (shown(archive, each, is_archived=is_archived) for each in critical)
        assert fits == "x" * 300
        assert cut.startswith("x" * 300 + "\n[cut: 301 characters; ")
    assert shown(archive, result("x" * 900, "get_tool_response"), is_archived=True) == "x" * 900


def test_of_calls_with_the_same_id_the_newest_one_is_found() -> None:
    def made(number: int) -> list[Message]:
        return [MODEL("", [call(args={"n": number})]), result(f"result {number}", execution=f"e{number}")]

    state = state_of([*made(1), *made(2)])
    assert (find_response(state, "call_1", "output"), find_response(state, "call_1", "args")) == ("result 2", '{"n":2}')
    assert (find_response(state, "e1", "output"), find_response(state, "e1", "args")) == ("result 1", '{"n":1}')
    assert find_response(state, "e3", "output") is find_response(state_of([RESULT]), "call_1", "args") is None


# --- what the model is asked --------------------------------------------------------------------------------------


def test_the_model_reads_the_former_summary_and_the_beginning_of_each_message() -> None:
    long = [USER("a" * 1_000), MODEL("b" * 150)]
    assert render(None, long, 400) == f"MESSAGES\nuser: {'a' * 188} [cut]\nassistant: {'b' * 150}"
    assert render(None, long, 100) == f"MESSAGES\nuser: {'a' * 148} [cut]\nassistant: {'b' * 143} [cut]"
    head = "FORMER SUMMARY\nwhat was\ncity = Oslo\n\n"
    assert render(RECORD, [RESULT, CALLING], 10_000) == (
        f'{head}MESSAGES\ntool weather: sunny\nassistant:  [calls weather {{"city":"Paris"}}]'
    )
    assert render(RECORD, [USER("a" * 1_000)], len(head) + 300) == f"{head}MESSAGES\nuser: {'a' * 288} [cut]"
    assert render(None, [], 100) == "MESSAGES\n"
    named = [Message(role=Role.USER, content="hi", name="ada"), RESULT.model_copy(update={"name": None})]
    assert render(None, named, 1_000) == "MESSAGES\nuser: hi\ntool: sunny", "a tool has its name, where it is known"


def test_a_local_summary_keeps_what_has_room_and_the_goals() -> None:
    lines = [USER("one"), USER("two"), USER("x" * 500)]
    assert local_summary(None, lines[:2], 20).text == "user: one\nuser: two"
    assert local_summary(None, lines[:2], 19).text == "user: two"
    assert local_summary(None, lines[2:], 500).text == f"user: {'x' * 148} [cut]"
    after = local_summary(RECORD, lines[:1], 100)
    assert (after.text, after.active_goals, after.open_questions) == ("what was\nuser: one", ("book",), ("when?",))
    assert local_summary(None, [], 100).active_goals == ()


def test_a_summary_as_the_model_reads_it() -> None:
    assert describe_summary(RECORD) == (
        "Summary of the 3 messages before this point:\nwhat was\nFacts:\n- city = Oslo\nActive goals:\n- book\n"
        "Open questions:\n- when?"
    )
    assert describe_summary(RECORD.replace(stable_facts=(), active_goals=(), open_questions=())).count("\n") == 1


# --- its answer ---------------------------------------------------------------------------------------------------


def parsed(**fields: Any) -> Any:
    return parse_summary(json.dumps({"summary": "s", **fields}))


@pytest.mark.parametrize(
    "text",
    [
        '{"summary": "s"}',
        '```json\n{"rawSummary": "s"}\n```',
        ' ```{"summary": "s"}``` ',
        'Here is the summary:\n\n```json\n{"summary": "s"}\n```\nTell me if more is needed.',
    ],
)
def test_an_answer_is_read_with_and_without_what_models_write_around_it(text: str) -> None:
    assert parse_summary(text).text == "s"


@pytest.mark.parametrize(
    ("given", "confidence"),
    [(0, 0), (0.5, 0.5), (1, 1), (1.01, 0.8), (-0.01, 0.8), (True, 0.8), ("high", 0.8), (None, 0.8)],
)
def test_the_confidence_of_a_fact_is_a_share(given: Any, confidence: float) -> None:
    (fact,) = parsed(stable_facts=[{"key": "k", "value": "v", "confidence": given}]).stable_facts
    assert fact.confidence == confidence
    assert parsed(stable_facts=[{"key": "k", "value": "v"}]).stable_facts[0].confidence == 0.8


def test_what_is_no_fact_and_no_text_is_left_out() -> None:
    facts = [
        7,
        {},
        {"key": ""},
        {"key": 1, "value": 1},
        {"key": "k"},
        {"key": "k", "value": {"a": 1}},
        {"key": "l", "value": 0},
    ]
    found = parsed(stable_facts=facts, active_goals=["a", 7], open_questions="none", discarded_obsolete=None)
    assert [(each.key, each.value) for each in found.stable_facts] == [("k", '{"a": 1}'), ("l", "0")]
    assert (found.active_goals, found.open_questions, found.discarded_obsolete) == (("a",), (), ())


def test_an_answer_is_bounded() -> None:
    long = "x" * 500
    found = parsed(stable_facts=[{"key": f"{n}{long}", "value": long} for n in range(70)], active_goals=[long] * 70)
    assert [len(found.stable_facts), len(found.active_goals)] == [60, 20]
    assert {len(text) for fact in found.stable_facts for text in (fact.key, fact.value)} == {400}
    assert {len(text) for text in found.active_goals} == {400}


def test_the_newest_60_facts_are_kept_and_a_repeated_one_is_the_newest() -> None:
    facts = tuple(StableFact(key=f"k{n}", value="v") for n in range(60))
    kept, obsolete = merge_facts(Compaction(facts=facts), parsed(stable_facts=[{"key": "k0", "value": "v"}]))
    assert [each.key for each in kept] == [*(f"k{n}" for n in range(1, 60)), "k0"]
    assert obsolete == ()
    kept, obsolete = merge_facts(Compaction(facts=facts), parsed(stable_facts=[{"key": "new", "value": "v"}]))
    assert [each.key for each in kept] == [*(f"k{n}" for n in range(1, 60)), "new"]
    kept, obsolete = merge_facts(Compaction(facts=facts), parsed(discarded_obsolete=["k1", "unknown"]))
    assert (len(kept), obsolete) == (59, ("k1=v",))
    many = tuple(sorted(f"o{n:02}=v" for n in range(60)))
    assert (
        merge_facts(Compaction(facts=facts, obsolete=many), parsed(discarded_obsolete=["k1"]))[1]
        == ("k1=v", *many)[-60:]
    )
