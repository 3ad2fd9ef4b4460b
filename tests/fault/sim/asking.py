"""The tools of the simulation that ask somebody before they run, or whose result comes later."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel

from celery_agents.worker.agent import Agent
from celery_agents.worker.state import AnswerRecord, AnswerVerb, Deny, Request
from celery_agents.worker.tools import (
    Ask,
    FunctionTool,
    NeedsAnswer,
    NeedsApproval,
    NeedsResult,
    PassOn,
    ToolContext,
    UseValue,
    tool,
)

from .sessions import EFFECTS, Called, Plan, Stage, here

# Each with the class of its effect.
ASKING: Final[Mapping[str, str]] = {
    "approved_unsafe": "unsafe",
    "approved_keyed": "keyed",
    "asks_unsafe": "unsafe",
    "asks_keyed": "keyed",
    "question": "unsafe",
    "later_keyed": "keyed",
    "later_unsafe": "unsafe",
    "defers_keyed": "keyed",
    "defers_unsafe": "unsafe",
}
LATER: Final = frozenset({"later_keyed", "later_unsafe"})
AMOUNT, EDITED_AMOUNT, EXPIRED_COUNT = 1, 2, 7
# A wake-up that is lost must not be repaired by an expiry, so most requests have none that comes soon.
_LONG: Final = timedelta(seconds=600)

AnswerOf = Callable[[str, int, int], "tuple[Request, AnswerRecord | None] | None"]
"""The newest request of a call, by execution, step and index, with its answer; as Redis has them."""


class Count(BaseModel):
    """The answer to a question."""

    count: int


def plan_asking(rng: random.Random, plan: Plan) -> None:
    """Let some calls of a plan ask."""
    steps = [list(step) for step in plan.tools] or [[]]
    for step in steps:
        for _ in range(rng.choices((0, 1, 2), (2, 5, 2))[0]):
            step.insert(rng.randint(0, len(step)), rng.choice(tuple(ASKING)))
    if not any(name in ASKING for step in steps for name in step):
        steps[0].append(rng.choice(tuple(ASKING)))
    plan.tools = tuple(map(tuple, steps))


def _terms(rng: random.Random, *, values: bool = False) -> dict[str, Any]:
    """Draw when a request expires and what then, what a message does to it, and what an approval has to name."""
    short = timedelta(seconds=rng.uniform(2, 25))
    soon: list[Any] = [UseValue({"count": EXPIRED_COUNT}) if values else "approve"] * (2 if values else 1)
    soon += ["deny"] * (1 if values else 2) + ["fail"]
    passed = PassOn("others", rng.choice((None, short)), "deny") if rng.random() < 0.5 else PassOn("others")
    messages: dict[str, Any] = {"while_waiting": "withdraw"} if rng.random() < 0.3 else {}
    seen = {"seen": True} if not values and rng.random() < 0.15 else {}
    expiry: Mapping[str, Any] = rng.choices(
        ({}, {"expires": _LONG}, {"expires": short, "on_expiry": rng.choice(soon)},
         {"expires": short, "on_expiry": passed}), (9, 6, 7, 3),
    )[0]  # fmt: skip
    return {**expiry, **messages, **seen}


def _ask_by_policy(_context: Any, _args: Any) -> Ask | Deny:
    rng = here().world.rng
    return Deny("never by an agent") if rng.random() < 0.06 else Ask(to="team", **_terms(rng))


def _called(name: str, payment: int, amount: int, ctx: ToolContext) -> str:
    """The call itself, once it has what it asked for."""
    stage = here()
    _check_approved(stage, name, amount, ctx)
    return stage.tool_called(ASKING[name], payment, ctx, amount=amount)


def _check_approved(stage: Stage, name: str, amount: int, ctx: ToolContext) -> None:
    """I12: what was approved is what runs."""
    place = f"{name} at {ctx.execution_id}.{ctx.step}.{ctx.index}"
    found = stage.answer_of(ctx.execution_id, ctx.step, ctx.index)
    request, record = found if found is not None else (None, None)
    stage.world.expect(record is not None, "I12", f"{place} runs without an answer")
    if request is None or record is None:
        return
    if name == "question":
        stage.world.expect(record.verb is AnswerVerb.ANSWER, "I12", f"{place} runs after {record.verb}")
        return
    stage.world.expect(record.verb is AnswerVerb.APPROVE, "I12", f"{place} runs after {record.verb}")
    args: Any = record.value if record.value is not None else request.args
    stage.world.expect(args["amount"] == amount, "I12", f"{place} runs with {amount}, approved was {args}")


@tool(effect="unsafe", timeout=5, approval=_ask_by_policy)
def approved_unsafe(payment: int, amount: int, ctx: ToolContext) -> str:
    """Do it, once somebody approves."""
    return _called("approved_unsafe", payment, amount, ctx)


@tool(effect="keyed", timeout=5, approval=_ask_by_policy)
def approved_keyed(payment: int, amount: int, ctx: ToolContext) -> str:
    """Do it once per key, once somebody approves."""
    return _called("approved_keyed", payment, amount, ctx)


@tool(effect="unsafe", timeout=5)
def asks_unsafe(payment: int, amount: int, ctx: ToolContext) -> str:
    """Ask, and then do it."""
    if ctx.approval is None:
        here().world.point("asks")
        raise NeedsApproval("May I?", to="team", **_terms(here().world.rng))
    return _called("asks_unsafe", payment, amount, ctx)


@tool(effect="keyed", timeout=5)
async def asks_keyed(payment: int, amount: int, ctx: ToolContext) -> str:
    """Ask, and then do it once per key."""
    if ctx.approval is None:
        here().world.point("asks")
        raise NeedsApproval("May I?", to="team", **_terms(here().world.rng))
    return _called("asks_keyed", payment, amount, ctx)


@tool(effect="unsafe", timeout=5)
def question(payment: int, amount: int, ctx: ToolContext) -> str:
    """Ask for a number, and then do it."""
    if ctx.answer(Count) is None:
        here().world.point("asks")
        raise NeedsAnswer("How many?", Count, to="team", **_terms(here().world.rng, values=True))
    return _called("question", payment, amount, ctx)


def _later(name: str, payment: int, amount: int, ctx: ToolContext) -> None:
    """Start the work elsewhere; the service brings the result with the token."""
    stage = here()
    result = stage.tool_called(ASKING[name], payment, ctx, amount=amount)
    stage.start_job(ctx.session_id, ctx.completion_token, result)


@tool(effect="keyed", timeout=5, result="later")
def later_keyed(payment: int, amount: int, ctx: ToolContext) -> None:
    """Have it done once per key, elsewhere."""
    _later("later_keyed", payment, amount, ctx)


@tool(effect="unsafe", timeout=5, result="later", expires=timedelta(seconds=40))
def later_unsafe(payment: int, amount: int, ctx: ToolContext) -> None:
    """Have it done elsewhere."""
    _later("later_unsafe", payment, amount, ctx)


def _defer(name: str, payment: int, amount: int, ctx: ToolContext) -> None:
    """Start the work elsewhere, and say only then that its result comes later."""
    stage = here()
    result = stage.tool_called(ASKING[name], payment, ctx, amount=amount)
    stage.start_job(ctx.session_id, ctx.completion_token, result)
    stage.world.point("asks")
    raise NeedsResult("elsewhere", expires=stage.world.rng.choice((None, _LONG, timedelta(seconds=20))))


@tool(effect="keyed", timeout=5)
def defers_keyed(payment: int, amount: int, ctx: ToolContext) -> None:
    """Have it done once per key, elsewhere."""
    _defer("defers_keyed", payment, amount, ctx)


@tool(effect="unsafe", timeout=5)
def defers_unsafe(payment: int, amount: int, ctx: ToolContext) -> None:
    """Have it done elsewhere."""
    _defer("defers_unsafe", payment, amount, ctx)


class _Deferring:
    """A tool of another kind: one that may put its result off while it runs."""

    defers = True

    def __init__(self, plain: FunctionTool) -> None:
        self._plain = plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


_DEFERRING: Final = (_Deferring(defers_keyed), _Deferring(defers_unsafe))
_TOOLS: Final = (
    approved_unsafe, approved_keyed, asks_unsafe, asks_keyed, question, later_keyed, later_unsafe, *_DEFERRING,
)  # fmt: skip


def with_asking(agents: Sequence[Agent]) -> Sequence[Agent]:
    """The same agents with the tools that ask."""
    return [replace(agent, tools=[*agent.tools, *_TOOLS]) for agent in agents]


__all__ = ["ASKING", "EFFECTS", "LATER", "AnswerOf", "Called", "plan_asking", "with_asking"]
