"""What cannot be stored is refused where it enters, by its name."""

from __future__ import annotations

import copy
import enum
import pickle
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.state import (
    MAX_DEPTH,
    AgentId,
    AgentState,
    AgentStep,
    ErrorInfo,
    ExecutionBudget,
    ExecutionId,
    FrozenDict,
    FrozenMap,
    InferenceResponse,
    InferenceUsage,
    LLMConfig,
    Message,
    Role,
    Section,
    SessionId,
    StopReason,
    StopSignal,
    ToolCall,
    freeze,
    thaw,
)

from support.states import executed, is_same, json_values, running, stored_and_loaded


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def nested_dicts(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def cycle() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


NOT_JSON: dict[str, tuple[Any, str]] = {
    "nan": (float("nan"), "NaN"),
    "infinity": (float("inf"), "infinity"),
    "minus infinity": (float("-inf"), "infinity"),
    "huge integer": (10**5000, "bits"),
    "huge negative integer": (-(10**5000), "bits"),
    "high surrogate": ("a\ud800b", "surrogate"),
    "low surrogate": ("\udfff", "surrogate"),
    "bytes": (b"secret", "not a JSON value"),
    "set": ({1}, "not a JSON value"),
    "datetime": (datetime(2026, 1, 1), "not a JSON value"),  # noqa: DTZ001
    "object": (object(), "not a JSON value"),
    "function": (len, "not a JSON value"),
    "deep list": (nested(100_000), "levels"),
    "deep dict": (nested_dicts(100_000), "levels"),
    "just too deep": (nested(MAX_DEPTH + 1), "levels"),
    "cycle": (cycle(), "levels"),
    "integer key": ({1: "a"}, "keys"),
    "none key": ({None: "a"}, "keys"),
    "surrogate key": ({"\ud800": 1}, "surrogate"),
}


@pytest.mark.parametrize("kind", sorted(NOT_JSON))
def test_i15_metadata_that_is_no_json_is_refused_with_its_path(kind: str) -> None:
    value, why = NOT_JSON[kind]
    state = AgentState.fresh(metadata={"fine": 1})
    with pytest.raises(InvalidInput, match=why) as caught:
        state.with_metadata("order", {"lines": [1, {"price": value}]})
    assert caught.value.field.startswith("order.lines[1].price")
    assert state.metadata == {"fine": 1}


@pytest.mark.parametrize("kind", sorted(NOT_JSON))
@pytest.mark.parametrize(
    ("field", "make"),
    (
        ("metadata", lambda value: Message(role=Role.USER, metadata={"a": value})),  # type: ignore[arg-type]
        ("value", lambda value: executed(value=value)),
        ("args", lambda value: ToolCall(id="c", name="n", args={"a": value})),  # type: ignore[arg-type]
        ("context", lambda value: StopSignal(reason=StopReason.UNKNOWN, context={"a": value})),  # type: ignore[arg-type]
        ("details", lambda value: ErrorInfo(kind="k", details={"a": value})),  # type: ignore[arg-type]
        ("output", lambda value: InferenceResponse(output=value)),
        ("provider", lambda value: InferenceResponse(provider={"a": value})),  # type: ignore[arg-type]
        ("settings", lambda value: LLMConfig(settings={"a": value})),  # type: ignore[arg-type]
        ("metadata", lambda value: AgentState.from_dict({"context": {"metadata": {"a": value}}})),
        ("from_the_future", lambda value: AgentState.from_dict({"from_the_future": value})),
    ),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_i15_every_field_that_holds_json_refuses_what_is_none(kind: str, field: str, make: Any) -> None:
    value, _ = NOT_JSON[kind]
    with pytest.raises((InvalidInput, ValidationError), match=field):
        make(value)


def test_the_deepest_allowed_value_survives_storing() -> None:
    for deep in (nested(MAX_DEPTH - 1), nested_dicts(MAX_DEPTH - 1)):
        state = running().with_metadata("deep", deep)
        step = AgentStep.from_inference(
            InferenceResponse(tool_calls=(ToolCall(id="c", name="n", args=FrozenDict(a=deep)),)), [executed(value=deep)]
        )
        state = state.with_current_step(step)
        assert is_same(stored_and_loaded(state), state)
        assert is_same(AgentState.from_json(state.to_json()), state)
        assert AgentState.from_dict(state.to_dict()) == state


def test_frozen_values_are_not_a_way_around_the_depth() -> None:
    value: Any = {}
    for _ in range(MAX_DEPTH - 1):
        value = FrozenDict(a=value)
    with pytest.raises(InvalidInput, match="levels"):
        FrozenDict(a=value)


@pytest.mark.parametrize("text", ("\0", "a\0b", "\u2028", "\x7f", "🌍", "\ufeff", "\r\n", "\ufdd0", "e\u0301"))
def test_text_is_kept_exactly(text: str) -> None:
    state = running(text).with_metadata(text, text).with_system_prompt(text)
    again = stored_and_loaded(state)
    assert is_same(again, state)
    assert again.messages[0].content == text


@pytest.mark.parametrize("text", ("\ud800", "ok\udc00"))
def test_text_that_is_no_unicode_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"Message.content: .* surrogate"):
        Message.user(text)


@pytest.mark.parametrize("text", (b"bytes", 5, None, ["a"], True))
def test_what_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(InvalidInput, match="content"):
        Message(role=Role.USER, content=text)


@pytest.mark.parametrize(
    "data",
    (b"", b"{", b"nul", b"\xff\xfe\x00", b"[]", b"[" * 100_000, b'{"a":' * 100_000, b"3", b'"x"', b"\x00", b"1e999"),
)
def test_bytes_that_are_no_state_are_refused(data: bytes) -> None:
    with pytest.raises(ValidationError):
        AgentState.from_json(data)


def test_a_huge_stored_number_is_refused_and_not_a_crash() -> None:
    with pytest.raises(ValidationError):
        AgentState.from_json(b'{"execution_count": ' + b"9" * 5000 + b"}")


@pytest.mark.parametrize(
    ("data", "field"),
    (
        ({"agent_id": "../etc"}, "agent_id"),
        ({"execution_count": -1}, "execution_count"),
        ({"execution_count": "1"}, "execution_count"),
        ({"execution_count": True}, "execution_count"),
        ({"created_at": "yesterday"}, "created_at"),
        ({"created_at": "2026-01-01T00:00:00"}, "created_at"),
        ({"created_at": 0}, "created_at"),
        ({"execution": {"status": "dreaming"}}, "execution.status"),
        ({"context": {"store": {"sections": {"messages": {"messages": [{"role": "nobody"}]}}}}}, "messages.0.role"),
        ({"context": {"store": {"sections": {"no name": {}}}}}, "sections"),
        ({"execution": {"continuation": {"is_continuation_requested": "yes"}}}, "is_continuation_requested"),
    ),
)
def test_an_error_names_the_field_and_not_the_content(data: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        AgentState.from_dict(data)
    assert field in str(caught.value)
    assert "input_value" not in str(caught.value)


def test_the_constructor_refuses_unknown_fields_at_any_depth() -> None:
    with pytest.raises(InvalidInput, match="colour"):
        AgentState(colour="red")  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="colour"):
        AgentState(context={"store": {"sections": {"messages": {"colour": "red"}}}})  # type: ignore[arg-type]
    assert AgentState(context={"system_prompt": "p"}).system_prompt == "p"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ("", "-a", "_a", "a/b", "a b", "a.b", "a:b", "a\n", "a\0", "é", "a" * 65, "..", "a{b}", "*", 5, None, b"a")
)
def test_bad_ids_are_refused_by_the_name_of_their_field(text: Any) -> None:
    for kind in (AgentId, ExecutionId, SessionId):
        with pytest.raises(InvalidInput, match=kind.field):
            kind(text)
    with pytest.raises(InvalidInput):
        AgentState.fresh(agent_id=text if text is not None else "")


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", fullmatch=True))
def test_good_ids_are_text(text: str) -> None:
    made = AgentId(text)
    assert made == text
    assert type(AgentState.from_json(AgentState.fresh(agent_id=made).to_json()).agent_id) is AgentId


def test_generated_ids_differ() -> None:
    assert len({ExecutionId.generate() for _ in range(1000)}) == 1000
    assert ExecutionId(ExecutionId.generate())


@pytest.mark.parametrize("name", ("", "a b", "a/b", "a\n", "é", "a" * 65))
def test_a_section_has_a_name_that_can_be_a_key(name: str) -> None:
    with pytest.raises(InvalidInput, match="section"):
        AgentState.fresh().with_messages_added([Message.user("x")], name)


@pytest.mark.parametrize("name", ("api_key", "API_KEY", "Authorization", "password", "x-api-key"))
def test_a_key_in_the_settings_of_a_model_is_refused_without_being_shown(name: str) -> None:
    for settings in ({name: "sk-123"}, {"extra_headers": {name: "sk-123"}}, {"list": [{name: "sk-123"}]}):
        with pytest.raises(InvalidInput, match="environment") as caught:
            LLMConfig(settings=settings)  # type: ignore[arg-type]
        assert "sk-123" not in str(caught.value)


def test_settings_of_a_model_may_name_tokens() -> None:
    assert LLMConfig(settings={"max_tokens": 5, "temperature": 0}).settings["max_tokens"] == 5  # type: ignore[arg-type]


@pytest.mark.parametrize("value", (-1, 1.5, True, "3", None, 2**63))
def test_tokens_are_counted_in_whole_numbers(value: Any) -> None:
    with pytest.raises(InvalidInput, match="input"):
        InferenceUsage(input=value)


@pytest.mark.parametrize("value", (-0.01, float("nan"), float("inf"), True, "1"))
def test_cost_is_an_amount(value: Any) -> None:
    with pytest.raises(InvalidInput, match="cost"):
        InferenceResponse(cost=value)


def test_a_call_needs_an_id() -> None:
    with pytest.raises(InvalidInput, match="id"):
        ToolCall(id="", name="n")


# Deep immutability


@pytest.mark.parametrize(
    "change",
    (
        lambda frozen: frozen.__setitem__("a", 1),
        lambda frozen: frozen.__delitem__("a"),
        lambda frozen: frozen.clear(),
        lambda frozen: frozen.pop("a"),
        lambda frozen: frozen.popitem(),
        lambda frozen: frozen.setdefault("b", 1),
        lambda frozen: frozen.update(b=1),
        lambda frozen: frozen.__ior__({"b": 1}),
    ),
)
def test_a_frozen_dict_cannot_be_changed(change: Any) -> None:
    for frozen in (FrozenDict(a={"b": 1}), FrozenMap.of({"a": 1})):
        before = repr(frozen)
        with pytest.raises(TypeError, match="cannot be changed"):
            change(frozen)
        assert repr(frozen) == before


def test_freezing_goes_all_the_way_down_and_takes_no_part_of_what_was_given() -> None:
    given_value: dict[str, Any] = {"list": [1, {"a": []}], "dict": {"b": {}}}
    frozen = freeze(given_value)
    given_value["list"][1]["a"].append("later")
    given_value["dict"]["b"]["c"] = "later"
    assert frozen == {"list": (1, {"a": ()}), "dict": {"b": {}}}
    assert type(frozen["list"][1]) is FrozenDict  # type: ignore[index, call-overload]


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


def test_subclasses_become_the_plain_type_they_are_stored_as() -> None:
    frozen = freeze([Colour.RED, Level.HIGH, AgentId("a1"), True])
    assert [type(item) for item in frozen] == [str, int, str, bool]  # type: ignore[union-attr]


@given(json_values)
def test_thawing_gives_back_what_was_frozen(value: Any) -> None:
    assert repr(thaw(freeze(value))) == repr(value)
    assert repr(freeze(freeze(value))) == repr(freeze(value))


def test_a_frozen_dict_is_equal_to_a_dict_and_can_be_hashed_copied_and_pickled() -> None:
    frozen = FrozenDict(a=1, b=[1, {"c": None}])
    assert frozen == {"a": 1, "b": (1, {"c": None})}
    assert hash(frozen) == hash(FrozenDict(b=[1, {"c": None}], a=1))
    assert copy.copy(frozen) is frozen
    assert copy.deepcopy(frozen) is frozen
    again = pickle.loads(pickle.dumps(frozen))
    assert again == frozen
    assert type(again) is FrozenDict
    assert frozen.with_item("d", [2]) == {"a": 1, "b": (1, {"c": None}), "d": (2,)}
    assert frozen.without("b").without("nothing") == {"a": 1}


def test_a_state_can_be_hashed_copied_and_pickled() -> None:
    state = running().with_metadata("a", {"b": [1]})
    assert hash(state) == hash(stored_and_loaded(state))
    assert copy.deepcopy(state) == state
    assert is_same(pickle.loads(pickle.dumps(state)), state)


@pytest.mark.parametrize("value", (running(), running().execution, Message.user("x"), Section(), FrozenDict(a=1)))
def test_no_value_takes_an_assignment(value: Any) -> None:
    with pytest.raises((ValidationError, AttributeError)):
        value.generation = 5
    with pytest.raises((ValidationError, AttributeError)):
        del value.metadata


def test_lists_given_to_a_constructor_are_not_shared() -> None:
    calls = [ToolCall(id="a", name="n")]
    message = Message(role=Role.ASSISTANT, tool_calls=calls)  # type: ignore[arg-type]
    calls.append(ToolCall(id="b", name="n"))
    assert len(message.tool_calls) == 1
    assert type(message.tool_calls) is tuple


def test_values_of_different_kinds_are_never_equal() -> None:
    assert Message.user("x") != Section()
    assert Message.user("x") != "x"
    assert InferenceUsage() != FrozenDict()


@pytest.mark.parametrize(
    ("make", "sentence"),
    (
        (
            lambda: ExecutionBudget(max_steps=-1),
            "ExecutionBudget.max_steps: Input should be greater than or equal to 0. Got -1.",
        ),
        (lambda: ToolCall(id="a"), "ToolCall.name: it is needed. Got None."),  # type: ignore[call-arg]
        (
            lambda: Message(role=Role.USER, metadata={"a": [1, {"b": float("nan")}]}),  # type: ignore[arg-type]
            "Message.metadata.a[1].b: JSON has no NaN and no infinity; use None or a text. Got nan.",
        ),
        (lambda: ErrorInfo(kind="k", colour="red"), "ErrorInfo.colour: there is no such field. Got a str."),  # type: ignore[call-arg]
    ),
)
def test_a_constructor_says_which_field_what_it_was_and_what_to_do(make: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()
    assert str(caught.value) == sentence


def test_a_constructor_does_not_show_text_that_may_be_a_secret() -> None:
    with pytest.raises(InvalidInput) as caught:
        InferenceUsage(input="sk-123")  # type: ignore[arg-type]
    assert "sk-123" not in str(caught.value)
    assert "sk-123" not in repr(caught.value.__dict__)


def test_arguments_with_half_a_surrogate_pair_are_refused_by_their_name() -> None:
    with pytest.raises(InvalidInput, match=r"ToolCall\.args.*surrogate"):
        ToolCall.from_text("a", "n", '{"city": "\ud800"}')
