"""What a request to a provider is described by: its messages are shown once, and again when somebody changes them."""

from __future__ import annotations

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.test import TestModel

from celery_agents.worker.drivers.protocol import SentRequest
from celery_agents.worker.drivers.pydantic_ai.acceptable import AcceptableRequest
from celery_agents.worker.drivers.pydantic_ai.sent_requests import describe_sent
from celery_agents.worker.state import Role


def described(*messages: ModelMessage) -> SentRequest:
    return describe_sent(
        TestModel(), AcceptableRequest(list(messages), None, ModelRequestParameters()), with_messages=True
    )


def history() -> tuple[ModelRequest, ModelResponse, ModelRequest]:
    return (
        ModelRequest(parts=[SystemPromptPart("Be brief."), UserPromptPart("Look it up.")]),
        ModelResponse(parts=[TextPart("I do."), ToolCallPart("look_up", {"n": 1}, "c1")]),
        ModelRequest(parts=[ToolReturnPart("look_up", "found", "c1"), SystemPromptPart("Hurry.")]),
    )


def test_the_prompts_at_the_beginning_are_the_prompt_and_later_ones_are_messages() -> None:
    sent = described(*history())
    assert sent.prompt == "Be brief."
    assert sent.messages is not None
    assert [(each.role, each.content) for each in sent.messages] == [
        (Role.USER, "Look it up."),
        (Role.ASSISTANT, "I do."),
        (Role.TOOL, "found"),
        (Role.SYSTEM, "Hurry."),
    ]


def test_a_history_that_a_worker_keeps_is_shown_once() -> None:
    messages = history()
    first, again = described(*messages).messages, described(*messages, *history()[1:]).messages
    assert first is not None
    assert again is not None
    assert all(one is other for one, other in zip(first, again, strict=False))


def test_a_message_that_a_processor_changes_in_place_is_shown_as_it_is_sent() -> None:
    asked, answer, result = history()
    described(asked, answer, result)
    result.parts[0].content = "(left out)"  # type: ignore[union-attr]
    answer.parts[1].args = {"n": 2}  # type: ignore[union-attr]
    asked.parts = [UserPromptPart("Look up something else.")]
    sent = described(asked, answer, result)
    assert sent.prompt == ""
    assert sent.messages is not None
    assert [each.content for each in sent.messages] == ["Look up something else.", "I do.", "(left out)", "Hurry."]
    assert sent.messages[1].tool_calls[0].args == {"n": 2}
