"""Chooses the messages of a conversation that another agent sees, as a child or after a handoff."""

from __future__ import annotations

from typing import cast

from ..state.agent_state import AgentState
from ..state.conversation.messages import Message
from ..state.execution.requests import Request
from ..tools.arguments import InvalidArguments
from ..tools.delegation import ContextRule, is_delegating
from .run import Run


def first_messages(run: Run, request: Request, prompt: str) -> list[Message]:
    """The messages that a child begins with, the prompt or what a function makes of it last."""
    rule: ContextRule = _context_rule(run, request)
    if not callable(rule):
        return [*context_messages(run.state, rule), Message.user(prompt)]
    given = rule(run.state, prompt)
    if isinstance(given, str):
        return [Message.user(given)]
    return [given] if isinstance(given, Message) else [*given] or [Message.user(prompt)]


def context_messages(state: AgentState, rule: str) -> list[Message]:
    """The messages of a conversation that another agent sees: none, the last of the user, or all without tool calls."""
    if rule == "input":
        return []
    spoken = [each for each in state.messages if each.role.value in ("user", "assistant") and not each.tool_calls]
    if rule == "last":
        return [each for each in spoken if each.role.value == "user"][-1:]
    return [Message(role=each.role, content=each.content) for each in spoken]


def _context_rule(run: Run, request: Request) -> ContextRule:
    """The rule of the tool that wants the child; a tool that was changed since gives the prompt alone."""
    tool = run.agent.toolset.get(request.tool)
    if request.child is not None and not request.child.is_result:
        return cast("ContextRule", request.options) if isinstance(request.options, str) else "input"
    bind = None if tool is None else tool.bind
    if bind is None or not is_delegating(tool):
        return "input"
    try:
        return tool.delegate(bind(request.args)).context
    except (InvalidArguments, ValueError):
        return "input"
