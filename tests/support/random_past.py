"""A session that is driven through random states: what steps, hooks and clients change."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from celery_agents.worker.engine.applied_step import start_execution
from celery_agents.worker.moments import moment
from celery_agents.worker.state import (
    AgentState,
    AgentStep,
    ExecutionBudget,
    InferenceResponse,
    ListPart,
    Message,
    PartItem,
    PartScope,
    StatePart,
    ToolCall,
)
from celery_agents.worker.state.conversation.context import LLMConfig
from celery_agents.worker.state.execution.usage import InferenceUsage
from celery_agents.worker.store import NextState, Snapshot
from celery_agents.worker.store.sessions.past_reads import StepAddress

from .store import Bench, an_operation

Change = Callable[[AgentState], AgentState]


class Plan(StatePart):
    part_name = "plan"
    scope = PartScope.SESSION
    text: str | None = None
    steps: tuple[int, ...] = ()


class Mood(StatePart):
    part_name = "mood"
    value: float = 0.0


class Line(PartItem):
    text: str
    weight: float = 1.0


class Facts(ListPart[Line]):
    part_name = "facts"
    scope = PartScope.SESSION


class Notes(ListPart[Line]):
    part_name = "notes"


VALUES: tuple[Any, ...] = (
    None,
    0,
    1,
    True,
    1.0,
    "",
    "text",
    [],
    [1, None, [True]],
    {"a": None, "b": {"c": []}},
    "ü:~/1.2",
)


def random_change(dice: random.Random) -> Change:
    """One change to a state, of the kinds that steps, hooks and clients make."""
    text = f"text {dice.randrange(1000)}"
    key = dice.choice(("a", "b", "a/b", "x:1.1", "ü"))
    value = dice.choice(VALUES)
    return dice.choice(
        (
            lambda s: s.with_metadata(key, value),
            lambda s: s.without_metadata(key) if key in s.context.metadata else s,
            lambda s: s.with_system_prompt(text),
            lambda s: s.with_llm_config(LLMConfig(model=text, settings={"temperature": 0.5})),
            lambda s: s.with_part(Plan(text=dice.choice((None, text)), steps=(1, 2))),
            lambda s: s.without_part(Plan),
            lambda s: s.with_part(Mood(value=dice.random())) if s.execution else s,
            lambda s: s.with_part(s.part(Facts).append(Line(text=text))),
            lambda s: s.with_part(Facts([Line(text=text)])),
            lambda s: s.with_part(s.part(Notes).append(Line(text=text, weight=1e22))) if s.execution else s,
            lambda s: s.with_messages_added([Message.user(text)], "buffer"),
            lambda s: s.with_messages([Message.user(text)], "summary"),
            lambda s: s.with_messages([*s.store.section().messages[-3:]]),
            lambda s: s.with_context_and_execution(s.context, s.execution.with_handoff(text)) if s.execution else s,
            lambda s: s.with_usage(InferenceUsage(input=3, output=1), 0.1) if s.execution else s,
            lambda s: s,
        )
    )  # fmt: skip


class Past:
    """A session that is driven step by step, with what each step has stored."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench, self.dice = bench, random.Random(seed)
        self.saved: dict[str, AgentState] = {}
        self.price = 0.1  # sums of it are rounded

    def step(self, number: int, *changes: Change, final: bool = False, text: str = "") -> AgentState:
        bench = self.bench
        claimed = bench.claim(number)

        def transition(fresh: Snapshot) -> NextState:
            now = moment(fresh.now_ms)
            state = start_execution(fresh.state, ExecutionBudget.unlimited(), now)
            inputs = state.store.extents
            for change in changes[::2]:
                state = change(state)
            calls = () if final else (ToolCall(id=f"c{number}", name="tool", args={"n": number}),)
            usage = InferenceUsage(input=10 + number, output=number, requests=1)
            answer = InferenceResponse(
                content=f"answer {number}{text}", tool_calls=calls, usage=usage, cost=self.price * number
            )
            step = AgentStep.from_inference(answer, number=number, inputs=inputs)
            state = state.with_current_step(step, now=now)
            for change in changes[1::2]:
                state = change(state)
            if final:
                return NextState(state.with_execution_completed(claim=claimed.claim.id, now=now))
            return NextState(state.with_current_step_completed(claim=claimed.claim.id, now=now))

        committed = bench.store.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=False)
        self.saved[f"{bench.execution}:{number}"] = committed.state
        return committed.state

    def random_step(self, number: int, *, final: bool = False) -> None:
        self.step(number, *(random_change(self.dice) for _ in range(self.dice.randrange(6))), final=final)

    def act(self) -> None:
        """A client changes the session between two steps."""
        change = random_change(self.dice)

        def transition(snapshot: Snapshot) -> NextState:
            return NextState(change(snapshot.state), operations=(snapshot.inbox[0].id,))

        self.bench.store.sessions.act(self.bench.session, an_operation("unused"), transition)

    def check(self, *addresses: str) -> None:
        for address in addresses or self.saved:
            execution, number = address.split(":")
            found = self.bench.store.sessions.state_at(self.bench.session, StepAddress(int(number), execution))
            assert found == self.saved[address], f"step {address}"
            assert found.to_dict() == self.saved[address].to_dict()
