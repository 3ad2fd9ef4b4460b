"""Answers of models drawn at random, against a provider that refuses what the real ones refuse.

Each run is a session of an agent of ours or of pydantic-ai, on OpenAI's or Anthropic's interface, followed or not. Its
model gives odd ids, names, arguments, texts and reasons, and streams that are cut at any byte. Then must hold:

    nothing refused      the provider takes every request
    no dead session      `retry` or a message brings each session to an answer
    no call of its own   every tool call that ran was in an answer that came whole
    watching is free     the same answers come to the same end, streamed or not
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import Tool

from celery_agents import Agent, CeleryDurability
from celery_agents.worker.engine import Done, RetryLater
from celery_agents.worker.state import ExecutionStatus
from celery_agents.worker.tools import tool

from support.engine import Bench
from support.pydantic_found import found
from support.strict_provider import Body, Call, Reply, StrictProvider, is_anthropic
from support.verdict import Verdict

KINDS: Final = ("own_openai", "own_anthropic", "pai_openai", "pai_anthropic")
WANTED: Final = (
    *(f"runs_{kind}_{how}" for kind in KINDS for how in ("streamed", "whole")),
    "calls_run", "cut_answers", "continued_by_retry", "continued_by_message", "compared",
)  # fmt: skip
_RUNS_OF_A_LAB: Final = 400
_MARK: Final = re.compile(r"run (\d+)")

_HALF: Final = "\ud83d"
_TEXTS: Final = (
    None, "", " ", "\n\n", "ok", "ü 😀", f"half {_HALF}", f"{_HALF}\ude00", "\x00", "{", "NaN", "x" * 3000, "<|channel|>",
)  # fmt: skip
_IDS: Final = (
    "same",
    "same",
    "call_0",
    "functions.note:0",
    "a b",
    "",
    "ü",
    f"i{_HALF}",
    "i" * 90,
    "same_2",
    "x|y",
    "0",
)
_NAMES: Final = (
    *("note",) * 8, "look", "look", "odd", "browser.tabs.open", "$note", "note<|channel|>json", "note ", "", "n" * 200,
    "1", "ü", f"n{_HALF}", "final_result", "answer_again",
)  # fmt: skip
_NUMBERS: Final = (
    "1",
    "NaN",
    "-Infinity",
    "1e999",
    "[1, 1e400]",
    "1" + "0" * 5000,
    "[" * 150 + "]" * 150,
    "null",
    '"NaN"',
)
_FINISHES: Final = {
    False: ("stop", "tool_calls", "length", "content_filter", "brand_new", "function_call", None),
    True: ("end_turn", "tool_use", "max_tokens", "refusal", "stop_sequence", "model_context_window_exceeded", "brand_new"),
}  # fmt: skip


@dataclass
class Plan:
    """What the model of one session answers, request by request; afterwards it says "done".

    Attributes:
        asked: The marks of calls in answers that came whole.
    """

    replies: list[Reply]
    asked: set[str] = field(default_factory=set[str])

    def next(self, body: Body) -> Reply:
        reply = self.replies.pop(0) if self.replies else Reply("done", finish=_end(body))
        reply = replace(reply, calls=tuple(_as_sent(each, body) for each in reply.calls))
        if reply.cut is not None:
            reply = replace(reply, cut=reply.cut % max(1, len(reply.written(body))))
        is_whole = reply.says_its_end(body) or (reply.cut is None and not body.get("stream"))
        if is_whole:
            self.asked |= {mark for each in reply.calls for mark in re.findall(r"mark-[\d-]+", each.args)}
        return reply


def _end(body: Body) -> str:
    return "end_turn" if is_anthropic(body) else "stop"


def _as_sent(call: Call, body: Body) -> Call:
    """The tool with the odd names, as the request calls it."""
    if call.name != "odd":
        return call
    for each in body.get("tools") or ():
        given = each.get("function", each)
        keys = list((given.get("parameters") or given.get("input_schema") or {}).get("properties", ()))
        if given["name"].startswith("crm"):
            return Call(call.id, given["name"], call.args.replace('"text"', json.dumps(keys[0])))
    return call


def draw_plan(draw: random.Random, number: int, *, anthropic: bool, odd_ends: bool) -> Plan:
    """What a model answers.

    Args:
        odd_ends: Streams are cut, and reasons are missing.
    """
    replies: list[Reply] = []
    for turn in range(draw.randint(1, 3)):
        calls = tuple(
            _draw_call(draw, f"mark-{number}-{turn}-{index}") for index in range(draw.choice((0, 1, 1, 2, 3)))
        )
        finish = (
            draw.choice(_FINISHES[anthropic]) if draw.random() < 0.4 else ("tool_use" if anthropic else "tool_calls")
        )
        if finish is None and not odd_ends:
            finish = "stop"
        whole = Reply(draw.choice(_TEXTS), calls, finish)
        if odd_ends and draw.random() < 0.5:
            again = tuple(replace(each, args=each.args.replace("mark-", "mark-9")) for each in calls)
            replies.append(replace(whole, calls=again, cut=draw.randrange(10**6), is_clean_cut=draw.random() < 0.5))
        replies.append(whole)
    return Plan(replies)


def _draw_call(draw: random.Random, mark: str) -> Call:
    text = json.dumps(draw.choice((mark, mark, mark, f"{mark} {_HALF}", f" {mark}")))
    args = f'{{"text": {text}}}'
    if draw.random() < 0.3:
        args = f'{{"text": {text}, "n": {draw.choice(_NUMBERS)}}}'
    if draw.random() < 0.2:
        args = draw.choice(
            (args[: draw.randrange(len(args))], "", "[]", "null", f"[{text}]", text, args + "}", f"```{args}")
        )
    return Call(draw.choice(_IDS), draw.choice(_NAMES), args)


class Lab:
    """The four agents, on an engine and a provider of their own."""

    def __init__(self) -> None:
        self.plans: dict[int, Plan] = {}
        self.ran: list[str] = []
        self.provider = StrictProvider(self._answer, keeps_requests=False).__enter__()
        os.environ.setdefault("OPENAI_API_KEY", "not-a-key")
        os.environ.setdefault("ANTHROPIC_API_KEY", "not-a-key")
        self.agents = dict(zip(KINDS, [*self._own(), *self._pydantic()], strict=True))
        self.bench = Bench(*self.agents.values(), driver_attempts=3)

    def close(self) -> None:
        self.bench.close()
        self.provider.__exit__()

    def _answer(self, body: Body) -> Reply:
        numbers = _MARK.findall(json.dumps(body["messages"]))
        return self.plans[int(numbers[-1])].next(body)

    def _tools(self) -> list[Callable[..., Any]]:
        ran = self.ran

        def note(text: str, n: Any = None) -> str:
            """Write a note."""
            ran.append(text)
            return "noted" if len(text) % 3 else ""

        def look(text: str, n: Any = None) -> Any:
            """Look at something."""
            ran.append(text)
            return {"n": float("nan"), "half": _HALF}

        return [note, look]

    def _own(self) -> list[Agent]:
        tools = [tool(effect="keyed")(each) for each in self._tools()]
        openai, anthropic = "openai:gpt-5-mini", "anthropic:claude-haiku-4-5"
        return [
            Agent("own_openai", model=openai, base_url=f"{self.provider.url}/v1", tools=tools),
            Agent("own_anthropic", model=anthropic, base_url=self.provider.url, tools=tools),
        ]

    def _pydantic(self) -> list[Agent]:
        # Retries of the clients' own would sleep.
        openai = OpenAIProvider(openai_client=AsyncOpenAI(base_url=f"{self.provider.url}/v1", max_retries=0))
        anthropic = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=self.provider.url, max_retries=0))
        models = {
            "pai_openai": OpenAIChatModel("gpt-5-mini", provider=openai),
            "pai_anthropic": AnthropicModel("claude-haiku-4-5", provider=anthropic),
        }
        return [found(self._pydantic_agent(name, model)) for name, model in models.items()]

    def _pydantic_agent(self, name: str, model: Any) -> PydanticAgent:
        def pay(**given: Any) -> str:
            self.ran.append(given["user id"])
            return "paid"

        schema = {"type": "object", "properties": {"user id": {"type": "string"}, "n": {}}, "required": ["user id"]}
        odd = Tool.from_schema(pay, name="crm_pay", description="Pay.", json_schema=schema)
        tools = [*self._tools(), odd]
        return PydanticAgent(model, name=name, tools=tools, capabilities=[CeleryDurability(effect="keyed")])

    # --- one session ---------------------------------------------------------------------------------------------

    def advance(self, session: str, *, streamed: bool) -> str | None:
        """Run steps until none is due; what went wrong with the engine, or None."""
        for _ in range(40):
            if self.bench.due(session) is None:
                return None
            if streamed:
                self.bench.store.live.keep_followed(session)
            outcome = self.bench.step(session)
            if isinstance(outcome, RetryLater):
                self.bench.clock.go_on(outcome.seconds)
            elif not isinstance(outcome, Done):
                return f"a step came to {outcome!r}"[:300]
        return "it does not end"


@dataclass(frozen=True)
class Ended:
    """How a session ended first, as far as watching must not change it."""

    status: str
    answer: str
    finish: str
    usage: Any


@dataclass(frozen=True)
class Run:
    """One session.

    Attributes:
        number: Its mark in what is said.
    """

    lab: Lab
    verdict: Verdict
    kind: str
    streamed: bool
    number: int

    def to_end(self, plan: Plan) -> Ended:
        """Run the session and go on with it until the model says "done"."""
        lab, verdict = self.lab, self.verdict
        lab.plans[self.number] = plan
        lab.ran.clear()
        verdict.counts[f"runs_{self.kind}_{'streamed' if self.streamed else 'whole'}"] += 1
        verdict.counts["cut_answers"] += sum(each.cut is not None for each in plan.replies)
        session = lab.bench.submit(f"run {self.number}", agent=lab.agents[self.kind])
        self._advance(session)
        first = lab.bench.record(session)
        finish = str(first.finish_reason)
        ended = Ended(first.status, first.final_response, finish, first.usage)
        self._continue(session, plan)
        self._expect(not lab.provider.refused, "nothing refused", str(lab.provider.refused[:1]))
        lab.provider.refused.clear()
        marks = {mark for text in lab.ran for mark in re.findall(r"mark-[\d-]+", text)}
        self._expect(marks <= plan.asked, "no call of its own", f"{marks - plan.asked}")
        verdict.counts["calls_run"] += len(lab.ran)
        del lab.plans[self.number]
        return ended

    def _continue(self, session: str, plan: Plan) -> None:
        bench = self.lab.bench
        if bench.execution(session).status is ExecutionStatus.FAILED:
            plan.replies.clear()
            bench.retry(session)
            self._advance(session)
            if bench.record(session).status == "completed":
                self.verdict.counts["continued_by_retry"] += 1
        plan.replies.clear()
        bench.send(session, f"again, run {self.number}")
        self._advance(session)
        last = bench.record(session)
        self._expect(
            last.final_response == "done", "no dead session", f"{last.status} {last.errors} {last.final_response!r}"
        )
        self.verdict.counts["continued_by_message"] += 1

    def _advance(self, session: str) -> None:
        trouble = self.lab.advance(session, streamed=self.streamed)
        self._expect(trouble is None, "no dead session", str(trouble))

    def _expect(self, holds: bool, invariant: str, text: str) -> None:
        self.verdict.expect(
            holds, invariant, f"{self.kind} {'streamed' if self.streamed else 'whole'} {self.number}: {text[:2000]}"
        )


def everything(runs: int, seed: int) -> Verdict:
    """So many sessions; the same for the same seed."""
    verdict, number = Verdict(), seed * 10**6
    while runs > 0:
        lab = Lab()
        try:
            for _ in range(min(runs, _RUNS_OF_A_LAB) // 2 or 1):
                number += 1
                runs -= _one_plan(lab, verdict, number)
        finally:
            lab.close()
        if len(verdict.violations) > 20:
            break
    return verdict


def _one_plan(lab: Lab, verdict: Verdict, number: int) -> int:
    """Run one plan, and where it has no cuts, once more with the other way of watching; how many sessions that were."""
    draw = random.Random(number)
    kind, streamed, odd_ends = draw.choice(KINDS), draw.random() < 0.5, draw.random() < 0.5
    state = draw.getstate()

    def plan() -> Plan:
        draw.setstate(state)
        return draw_plan(draw, number, anthropic="anthropic" in kind, odd_ends=odd_ends)

    first = Run(lab, verdict, kind, streamed, number).to_end(plan())
    if odd_ends or not all(_is_object(each.args) for reply in plan().replies for each in reply.calls):
        return 1
    other = Run(lab, verdict, kind, not streamed, number).to_end(plan())
    verdict.counts["compared"] += 1
    verdict.expect(first == other, "watching is free", f"{kind} {number}: {first} {other}"[:2000])
    return 2


def _is_object(args: str) -> bool:
    """Whether both ways of writing an answer can say these arguments."""
    try:
        return isinstance(json.loads(args), dict)
    except ValueError:
        return False
