"""What a provider must see again of its own answers survives storage; nothing is stored twice."""

from typing import Any

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    Citation,
    FilePart,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
    WebCitationSource,
)
from pydantic_ai.usage import RequestUsage

from celery_agents.worker.drivers.pydantic_ai.answers import Answer
from celery_agents.worker.drivers.pydantic_ai.history import model_messages
from celery_agents.worker.state import (
    AgentState,
    AgentStep,
    InferenceResponse,
    Message,
    Role,
    ToolCall,
    join,
    message_json,
    split,
    step_json,
)

THINKING = ThinkingPart("Let me think. " * 50, id="rs_1", signature="c2lnbmF0dXJl", provider_name="openai")
SECOND_THOUGHT = ThinkingPart("", id="rs_2", signature="YmJi", provider_name="openai", provider_details={"raw": [1]})
TEXT = TextPart("I will look.", id="msg_1", provider_name="openai", provider_details={"phase": "commentary"})
CALL = ToolCallPart("search", '{"query":"x"}', "call_1", id="fc_1", provider_name="openai")
OTHER_CALL = ToolCallPart("open", "{}", "call_2", provider_name="google", provider_details={"thought_signature": "abc"})

CITATION = Citation(sources=[WebCitationSource(url="https://weather.example/", title="The weather")])


def response(*parts: Any, **more: Any) -> ModelResponse:
    return ModelResponse(
        parts=list(parts),
        model_name="gpt-5-mini-2025-08-07",
        provider_name="openai",
        provider_url="https://api.openai.com/v1/",
        provider_response_id="resp_1",
        usage=RequestUsage(input_tokens=10, output_tokens=5),
        finish_reason="stop",
        **more,
    )


def read(given: ModelResponse) -> InferenceResponse:
    return Answer.from_raw(Answer(given, "openai:gpt-5-mini", 0.5, None).to_raw()).read()


def stored(message: Message) -> Message:
    return Message.from_json(message_json(message))


def sent_back(given: ModelResponse) -> ModelResponse:
    """The response as the next request holds it, after our message went through the store."""
    step = AgentStep.from_inference(read(given))
    restored = model_messages([stored(step.output_messages[0])], marks_errors=False)[0]
    assert isinstance(restored, ModelResponse)
    return restored


@pytest.mark.parametrize(
    "parts",
    [
        [TextPart("hello")],
        [ToolCallPart("search", "{}", "1")],
        [TextPart("hello"), ToolCallPart("search", "{}", "1"), ToolCallPart("search", '{"a":1}', "2")],
        [THINKING, TextPart("hello")],
        [THINKING, SECOND_THOUGHT, TEXT, CALL, OTHER_CALL],
        [THINKING, CALL, SECOND_THOUGHT, OTHER_CALL],
        [TextPart("same"), TextPart("same"), TextPart("more")],
        [CALL, TextPart("after the call")],
        [TextPart("a"), THINKING, TextPart("b"), THINKING, TextPart("")],
        [ThinkingPart("reason", id="reasoning_content", provider_name="deepseek"), TextPart("žluťoučký 🐎")],
        [
            NativeToolCallPart("web_search", {"q": "x"}, "srv_1", provider_name="openai", provider_details={"k": "v"}),
            NativeToolReturnPart("web_search", {"status": "completed"}, "srv_1", provider_name="openai"),
            TextPart("found"),
        ],
        [TextPart("The sun shines.", citations=[CITATION]), TextPart(" So go out.")],
        [TextPart("The sun shines.", provider_name="anthropic", citations=[CITATION])],
        [FilePart(BinaryContent(b"\x00\xff", media_type="image/png"), provider_name="openai"), TextPart("a picture")],
    ],
)
def test_every_part_goes_back_as_it_came(parts: list[Any]):
    given = response(*parts)
    restored = sent_back(given)
    assert _comparable(restored.parts) == _comparable(given.parts)


def _comparable(parts: Any) -> list[dict[str, Any]]:
    dumped = ModelMessagesTypeAdapter.dump_python([ModelResponse(parts=list(parts))], mode="json")[0]["parts"]
    return [{name: value for name, value in part.items() if name != "timestamp"} for part in dumped]


def test_what_decides_whether_a_part_may_go_back_is_kept():
    given = response(THINKING, TEXT, canonical_system="azure", history_digest="d", provider_details={"k": 1})
    restored = sent_back(given)
    assert restored.provider_name == "openai"
    assert restored.provider_url == "https://api.openai.com/v1/"
    assert restored.provider_response_id == "resp_1"
    assert restored.canonical_system == "azure"
    assert restored.history_digest == "d"
    assert restored.provider_details == {"k": 1}


def test_plain_text_and_calls_need_nothing_beside_the_message():
    assert read(response(TextPart("hello"))).provider is None
    assert read(response(TextPart("hello"), ToolCallPart("a", "{}", "1"))).provider is None
    assert read(response(ToolCallPart("a", "{}", "1"))).provider is None


def test_texts_and_arguments_are_stored_once():
    long, args = "Once upon a time. " * 100, '{"text":"' + "x" * 500 + '"}'
    answer = read(response(THINKING, TextPart(long), ToolCallPart("a", args, "1"), TextPart("end")))
    assert answer.provider is not None
    kept = repr(answer.provider)
    assert "Once upon" not in kept
    assert "xxx" not in kept
    assert THINKING.content in kept


def test_a_message_whose_calls_were_repaired_goes_back_without_what_named_them():
    step = AgentStep.from_inference(read(response(THINKING, TEXT, CALL, OTHER_CALL)))
    repaired = step.output_messages[0].with_tool_calls((step.requested_tool_calls[0],))
    restored = model_messages([repaired], marks_errors=False)[0]
    assert [part.part_kind for part in restored.parts] == ["text", "tool-call"]


def test_a_message_with_another_text_now_says_that_text_and_keeps_the_rest():
    message = AgentStep.from_inference(read(response(THINKING, TEXT, CALL))).output_messages[0]
    edited = Message(**{**dict(message), "content": "Edited."})
    restored = model_messages([edited], marks_errors=False)[0]
    assert [part.part_kind for part in restored.parts] == ["thinking", "tool-call", "text"]
    assert isinstance(restored.parts[2], TextPart)
    assert restored.parts[2].content == "Edited."


UNHEARD_OF = {"chars": 1, "calls": 0, "response": {}, "parts": [{"part_kind": "unheard-of"}]}


@pytest.mark.parametrize("kept", [{"format": "other"}, {"format": "pydantic-ai/1", **UNHEARD_OF}])
def test_what_another_driver_or_version_kept_is_passed_over(kept: dict[str, Any]):
    restored = model_messages([Message(role=Role.ASSISTANT, content="x", provider=kept)], marks_errors=False)[0]
    assert [getattr(part, "content", None) for part in restored.parts] == ["x"]


def test_messages_between_two_answers_make_one_request():
    call = ToolCall(id="1", name="a", args={"n": 1})
    made = model_messages(
        [
            Message.system("A summary."),
            Message.user("hi"),
            Message.assistant("hm", [call]),
            Message(role=Role.TOOL, content="ok", tool_call_id="1", name="a"),
            Message.user("and?"),
        ],
        marks_errors=False,
    )
    assert [type(message) for message in made] == [ModelRequest, ModelResponse, ModelRequest]
    assert [type(part) for part in made[0].parts] == [SystemPromptPart, UserPromptPart]
    assert [type(part) for part in made[2].parts] == [ToolReturnPart, UserPromptPart]
    assert made[1].parts[1] == ToolCallPart("a", '{"n":1}', "1")


def test_raw_arguments_go_back_as_the_model_wrote_them():
    call = ToolCall.from_text("1", "a", '{"n": ')
    made = model_messages([Message.assistant("", [call])], marks_errors=False)
    assert made[0].parts == [ToolCallPart("a", '{"n": ', "1")]


def test_failed_results_are_marked_only_where_the_provider_has_a_mark():
    failed = Message(role=Role.TOOL, content="Error in tool call: no", tool_call_id="1", name="a", is_error=True)
    for marks, outcome in ((True, "failed"), (False, "success")):
        part = model_messages([failed], marks_errors=marks)[0].parts[0]
        assert isinstance(part, ToolReturnPart)
        assert (part.outcome, part.content) == (outcome, "Error in tool call: no")


def test_no_messages_still_make_a_request():
    assert len(model_messages([], marks_errors=False)) == 1


def test_a_whole_state_gives_the_same_messages_after_a_change_of_worker():
    state = AgentState.fresh().with_user_message("hi").with_execution().with_execution_started()
    step = AgentStep.from_inference(read(response(THINKING, TEXT)))
    state = state.with_current_step(step).with_user_message("more")
    parts = split(state)
    sections = {name: [message_json(each) for each in found.messages] for name, found in parts.sections.items()}
    elsewhere = join(parts.head, sections, [step_json(each) for each in parts.steps])
    assert elsewhere == state
    here, there = (model_messages(each.messages, marks_errors=False) for each in (state, elsewhere))
    assert _without_times(here) == _without_times(there)


def _without_times(messages: Any) -> Any:
    dumped = ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    for message in dumped:
        message.pop("timestamp", None)
        for part in message["parts"]:
            part.pop("timestamp", None)
    return dumped


def test_what_was_left_off_is_not_sent_where_nothing_follows_it() -> None:
    """Its message was taken back: the model is asked as before, and some refuse an answer at the end."""
    asked, call = Message.user("Write."), ToolCall(id="c", name="look", args={})
    half = [Message.assistant("Once upon "), Message.assistant("")]
    assert [each.kind for each in model_messages([asked, *half], marks_errors=False)] == ["request"]
    followed = model_messages([asked, *half, Message.user("No.")], marks_errors=False)
    assert [each.kind for each in followed] == ["request", "response", "response", "request"]
    calling = model_messages([asked, Message.assistant("I look.", [call])], marks_errors=False)
    assert [each.kind for each in calling] == ["request", "response"]
    assert [each.kind for each in model_messages([half[0]], marks_errors=False)] == ["response"]
