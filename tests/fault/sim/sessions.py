"""What the simulated agents do: their plans, the driver that is paid, the tools that have effects, and the ledgers.

The ledgers are outside of what can fail: a payment is written when the model has answered, an effect when it happens.
Every answer is different, so that nothing of one answer can be taken for a part of another.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import InferenceRequest
from celery_agents.worker.errors import DriverError, UnusableAnswer
from celery_agents.worker.state import (
    AnswerRecord,
    ExecutionBudget,
    InferenceResponse,
    InferenceUsage,
    LLMConfig,
    Request,
    Role,
    ToolCall,
)
from celery_agents.worker.tools import LookupResult, StopExecution, ToolContext, tool

from .smart import AuxiliaryPayment, answer_beside, calls_beside, unpaired
from .world import World

EFFECTS = ("pure", "keyed", "lookup", "unsafe")
MESSAGE = "operation "


@dataclass
class Payment:
    """One answer of the model that was paid for; it was asked for at a virtual time in milliseconds."""

    number: int
    execution: str
    step: int
    job: str
    asked: int
    asked_at: float
    seq: int
    saw: tuple[str, ...]
    usable: bool = True
    again: bool = False


@dataclass
class Called:
    """One call of a tool: that it began, and whether its effect happened."""

    number: int
    effect: str
    execution: str
    step: int
    index: int
    key: str
    payment: int
    job: str
    seq: int
    happened: bool = False
    amount: int = 0


@dataclass
class Ledgers:
    """What really happened."""

    payments: list[Payment] = field(default_factory=list)
    calls: list[Called] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    auxiliary: list[AuxiliaryPayment] = field(default_factory=list)


@dataclass
class Plan:
    """What the model will ask for in a session, and what will go wrong there.

    Attributes:
        tools: Per step of the first execution, the effect classes it calls; the step after them answers.
        trouble: (step, n-th request) → what the driver does instead of answering.
        poison: A step whose every request kills its process; 0 none.
        budget: Most steps; None no limit.
    """

    tools: tuple[tuple[str, ...], ...]
    trouble: dict[tuple[int, int], str]
    tool_trouble: dict[tuple[int, int], str]
    poison: int
    poison_by_tool: bool
    budget: ExecutionBudget | None
    slow: float
    is_async: bool


def make_plan(rng: random.Random, kind: str) -> Plan:
    steps = rng.choices((0, 1, 2, 3), (2, 5, 4, 1))[0]
    tools = tuple(tuple(rng.choices(EFFECTS, k=rng.choices((1, 2, 3), (5, 3, 1))[0])) for _ in range(steps))
    trouble: dict[tuple[int, int], str] = {}
    tool_trouble: dict[tuple[int, int], str] = {}
    if kind == "driver" or rng.random() < 0.15:
        for _ in range(rng.randint(1, 4)):
            which = rng.choices(("transient", "dropped", "unusable", "permanent", "outage"), (4, 4, 3, 1, 1))[0]
            trouble[rng.randint(1, steps + 1), rng.randint(1, 2)] = which
    if rng.random() < 0.3:
        for _ in range(rng.randint(1, 2)):
            which = rng.choices(("error", "slow", "hang", "stop"), (3, 3, 1, 1))[0]
            tool_trouble[rng.randint(1, max(1, steps)), rng.randint(0, 1)] = which
    poison = rng.randint(1, steps + 1) if kind == "poison" else 0
    by_tool = poison > 0 and poison <= steps and rng.random() < 0.4
    budget = ExecutionBudget(max_steps=rng.randint(1, 2)) if rng.random() < 0.06 else None
    slow = rng.choices((0.05, 0.4, 3.0, 9.0), (8, 4, 2, 1))[0]
    return Plan(tools, trouble, tool_trouble, poison, by_tool, budget, slow, rng.random() < 0.3)


class Stage:
    """Where the agents of one run act: the world, the plans by session, the ledgers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.plans: dict[str, Plan] = {}
        self.ledgers = Ledgers()
        self.is_smart = False
        self.requests: dict[tuple[str, int], int] = {}
        self.asks: Counter[tuple[str, str, int]] = Counter()
        # Where sessions ask: the newest request of a call with its answer, and the service that brings results.
        self.answer_of: Callable[[str, int, int], tuple[Request, AnswerRecord | None] | None] = lambda *_: None
        self.start_job: Callable[[str, str, str], None] = lambda *_: None

    def job(self) -> str:
        actor = self.world.current
        return "" if actor is None else actor.facts.get("job", "")

    def spend(self, slow: float) -> None:
        self.world.sleep(self.world.rng.random() * slow)

    def answer(self, request: InferenceRequest) -> bytes:
        """The driver: what the model says, once it was paid."""
        if request.purpose:
            return self._answer_beside(request)
        world = self.world
        if self.is_smart:
            problem = unpaired(request.messages)
            world.expect(not problem, "parts", f"{request.execution_id}.{request.step} was asked, and {problem}")
        plan = self.plans[request.session_id]
        world.seq += 1
        actor = world.current
        assert actor is not None
        asked = actor.facts.get("asked", world.seq), actor.facts.get("asked_at", world.now)
        mine = (self.job(), request.execution_id, request.step)
        self.asks[mine] += 1
        again = self.asks[mine] > 1
        world.point("driver")
        at = (request.execution_id, request.step)
        nth = self.requests[at] = self.requests.get(at, 0) + 1
        execution = request.state.execution
        first = execution is not None and execution.number == 1
        trouble = plan.trouble.get((request.step, nth)) if first else None
        if first and plan.poison == request.step and not plan.poison_by_tool:
            world.die_here("poison")
        self.spend(plan.slow)
        if trouble in ("transient", "permanent", "outage"):
            world.fired("driver error")
            if trouble == "outage":
                for later in range(nth + 1, nth + 6):
                    plan.trouble.setdefault((request.step, later), "transient")
            raise DriverError(trouble, "no answer", transient=trouble != "permanent")
        paid = self._pay(request, asked, trouble != "dropped" and trouble != "unusable")
        paid.again = again
        if trouble == "dropped":
            world.fired("paid and dropped")
            raise DriverError("connection", "the connection was cut", transient=True)
        if trouble == "unusable":
            world.fired("unusable answer")
            return b"unusable %d" % paid.number
        asked = plan.tools[request.step - 1] if first and request.step <= len(plan.tools) else ()
        calls = tuple(
            ToolCall(id=f"call{paid.number}x{index}", name=name, args=_arguments(name, paid.number))
            for index, name in enumerate(asked)
        )
        if self.is_smart and calls:
            calls += calls_beside(paid.number, request.step, len(calls))
        response = InferenceResponse(
            content=f"p{paid.number}", tool_calls=calls, usage=InferenceUsage(input=10, output=1), cost=0.001
        )
        return response.to_json()

    def _answer_beside(self, request: InferenceRequest) -> bytes:
        """What the model says beside the step, once it was paid."""
        world = self.world
        world.seq += 1
        world.point("driver")
        self.spend(min(self.plans[request.session_id].slow, 0.4))
        world.seq += 1
        paid = self.ledgers.auxiliary
        key = (request.execution_id, request.step, request.purpose)
        paid.append(AuxiliaryPayment(key, self.job(), world.seq))
        return answer_beside(request, len(paid))

    def _pay(self, request: InferenceRequest, asked: tuple[int, float], usable: bool) -> Payment:
        saw = tuple(
            message.content.removeprefix(MESSAGE)
            for section in request.state.store.sections.values()
            for message in section.messages
            if message.role is Role.USER
        )
        self.world.seq += 1
        payments = self.ledgers.payments
        paid = Payment(
            len(payments), request.execution_id, request.step, self.job(), *asked, self.world.seq, saw, usable
        )
        payments.append(paid)
        return paid

    def tool_called(self, effect: str, payment: int, ctx: ToolContext, *, amount: int = 0) -> str:
        """A tool: it begins, takes its time, has its effect, returns."""
        world = self.world
        plan = self.plans[ctx.session_id]
        world.seq += 1
        calls = self.ledgers.calls
        call = Called(
            len(calls),
            effect,
            ctx.execution_id,
            ctx.step,
            ctx.index,
            ctx.idempotency_key,
            payment,
            self.job(),
            world.seq,
            amount=amount,
        )
        calls.append(call)
        world.point("tool")
        first = ctx.execution_id == self.first_of(ctx.session_id)
        trouble = plan.tool_trouble.get((ctx.step, ctx.index)) if first else None
        if first and plan.poison == ctx.step and plan.poison_by_tool and ctx.index == 0:
            world.die_here("poison")
        if trouble == "error":
            world.fired("tool error")
            raise ValueError("the tool does not like it")
        self.spend(8.0 if trouble == "slow" else plan.slow / 2)
        if trouble == "hang":
            world.fired("tool hangs")
            world.sleep(40.0)
        if effect == "lookup" and world.now >= ctx.deadline.timestamp() * 1000:
            raise TimeoutError("too late to begin")  # a tool with a lookup keeps to its deadline
        call.happened = True
        if effect != "keyed" or call.key not in self.ledgers.keys:
            self.ledgers.keys.add(call.key)
        world.point("effect")
        if trouble == "stop":
            raise StopExecution("enough", result=f"e{call.number}")
        return f"e{call.number}"

    def first_of(self, session_id: str) -> str:
        return f"{session_id}-x1"

    def lookup(self, key: str) -> LookupResult:
        self.world.point("lookup")
        if self.world.rng.random() < 0.15:
            return LookupResult.unknown("the service is away")
        for call in self.ledgers.calls:
            if call.key == key and call.happened:
                return LookupResult.happened(f"e{call.number}")
        return LookupResult.did_not_happen()


_stage: Stage | None = None


def enter(stage: Stage) -> None:
    """Let the one agent of all simulations act on this stage."""
    global _stage
    _stage = stage


def here() -> Stage:
    """The stage of the run that is going on."""
    assert _stage is not None
    return _stage


def _arguments(name: str, payment: int) -> dict[str, int]:
    return {"payment": payment} if name in EFFECTS else {"payment": payment, "amount": 1}


class SimDriver:
    """The model."""

    name = "simulated"

    def __init__(self, *, is_async: bool) -> None:
        self.is_async = is_async

    def infer(self, request: InferenceRequest) -> bytes | Awaitable[bytes]:
        return self._later(request) if self.is_async else here().answer(request)

    async def _later(self, request: InferenceRequest) -> bytes:
        return here().answer(request)

    def parse(self, raw: bytes) -> InferenceResponse:
        if raw.startswith(b"unusable"):
            raise UnusableAnswer("not an answer")
        return InferenceResponse.from_json(raw)

    def check(self) -> None: ...

    def knows_price(self, settings: LLMConfig | None = None) -> bool:
        return True

    async def aclose(self) -> None: ...


@tool(effect="pure", timeout=5)
def pure(payment: int, ctx: ToolContext) -> str:
    """Look something up."""
    return here().tool_called("pure", payment, ctx)


@tool(effect="keyed", timeout=5)
def keyed(payment: int, ctx: ToolContext) -> str:
    """Do it once per key."""
    return here().tool_called("keyed", payment, ctx)


def _look(key: str, ctx: ToolContext) -> LookupResult:
    del ctx
    return here().lookup(key)


@tool(effect="lookup", timeout=20, lookup=_look)
async def lookup(payment: int, ctx: ToolContext) -> str:
    """Do it, and be able to tell."""
    return here().tool_called("lookup", payment, ctx)


@tool(effect="unsafe", timeout=5)
def unsafe(payment: int, ctx: ToolContext) -> str:
    """Do it, and never be able to tell."""
    return here().tool_called("unsafe", payment, ctx)


def agents() -> Sequence[Agent]:
    """The same agent with a plain and with an async model."""
    tools: list[Any] = [pure, keyed, lookup, unsafe]
    return (
        Agent("plain", driver=SimDriver(is_async=False), tools=tools),
        Agent("async", driver=SimDriver(is_async=True), tools=tools),
    )


def moment(milliseconds: float) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
