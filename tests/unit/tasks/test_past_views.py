"""What a model saw, as lines of a terminal."""

from __future__ import annotations

from celery_agents.tasks.cli.past_views import request_lines
from celery_agents.worker.state import Message, Role, ToolCall
from celery_agents.worker.state.past.seen_requests import ModelRequest


def test_a_request_is_printed_whole_with_what_is_not_kept() -> None:
    call = ToolCall(id="c1", name="look", args={"place": "Rome"})
    request = ModelRequest(
        session_id="s",
        execution_id="e",
        step=7,
        agent="guide",
        model="gpt-5",
        system_prompt="Be brief.\nBe kind.",
        messages=(
            Message.user("where?"),
            Message.assistant("", [call]),
            Message(role=Role.TOOL, content="x" * 5000, tool_call_id="c1", name="look"),
        ),
        tools=({"name": "look", "description": "Look.", "parameters": {"type": "object"}},),
        settings={"temperature": 0.5},
        response_format={"mode": "native", "name": "Place"},
        not_kept=("request",),
        notes=("A note.",),
    )
    assert list(request_lines(request)) == [
        "guide, step 7, model gpt-5",
        "system prompt",
        "    Be brief.",
        "    Be kind.",
        "user",
        "    where?",
        'assistant [look {"place": "Rome"}]',
        "tool",
        "    " + "x" * 5000,
        'tool look {"type": "object"}',
        "    Look.",
        'settings {"temperature": 0.5}',
        'response format {"mode": "native", "name": "Place"}',
        "not kept any more: request",
        "A note.",
    ]


def test_what_is_not_known_is_left_out() -> None:
    lines = list(request_lines(ModelRequest(session_id="s", execution_id="e", step=1, not_kept=("request",))))
    assert lines == ["an agent, step 1, model not known", "not kept any more: request"]


def test_no_text_of_a_model_can_look_like_a_line_of_the_program_or_move_the_cursor() -> None:
    hostile = "fine\x1b[2J\nnot kept any more: everything\r\nA note.\u202e"
    request = ModelRequest(
        session_id="s",
        execution_id="e",
        step=1,
        agent=hostile,
        model=hostile,
        system_prompt=hostile,
        messages=(Message.user(hostile), Message.assistant(hostile, [ToolCall(id="c", name=hostile, args=hostile)])),
        tools=({"name": hostile, "description": hostile, "parameters": {hostile: hostile}},),
        settings={hostile: hostile},
        not_kept=(hostile,),
    )
    lines = list(request_lines(request))
    assert not any(each in line for line in lines for each in ("\x1b", "\n", "\r", "\u202e"))
    assert sum(line.startswith("not kept any more") for line in lines) == 1
    assert "A note." not in lines
