"""What a driver is asked with."""

from dataclasses import FrozenInstanceError

import pytest

from celery_agents.worker.drivers import InferenceRequest
from celery_agents.worker.state import AgentState, Message, MessageCompiler, Role, ToolCall
from celery_agents.worker.tools import ToolSet, tool

CALL = ToolCall(id="1", name="a")
RESULT = Message(role=Role.TOOL, content="ok", tool_call_id="1", name="a")
ORPHAN = Message(role=Role.TOOL, content="lost", tool_call_id="9", name="a")


@tool(effect="pure")
def act() -> None:
    """Act."""


class Counting:
    """A compiler that counts how often it is asked."""

    def __init__(self) -> None:
        self.times = 0

    def compile(self, state: AgentState) -> tuple[Message, ...]:
        self.times += 1
        return (Message.user("hi"), Message.assistant("", [CALL]), RESULT, ORPHAN)


def request(compiler: MessageCompiler) -> InferenceRequest:
    return InferenceRequest(AgentState.fresh(), "s", "e", 1, compiler=compiler)


def test_messages_are_compiled_when_they_are_first_read_and_only_then():
    compiler = Counting()
    asked = request(compiler)
    assert compiler.times == 0
    assert asked.messages is asked.messages
    assert compiler.times == 1


def test_messages_are_paired():
    assert [message.content for message in request(Counting()).messages] == ["hi", "", "ok"]


def test_a_hook_may_ask_with_other_messages_and_tools():
    compiler = Counting()
    other = request(compiler).with_messages((Message.user("other"), ORPHAN)).with_tools(ToolSet([act]).specs())
    assert [message.content for message in other.messages] == ["other"]
    assert [spec.name for spec in other.tools] == ["act"]
    assert compiler.times == 0


def test_a_request_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        request(Counting()).step = 2  # type: ignore[misc]
