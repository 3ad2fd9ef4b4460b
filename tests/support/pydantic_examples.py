"""Examples of pydantic-ai's documentation, with test models, and with `CeleryDurability` as the one line of ours.

`EXAMPLES` has a prompt and the metadata of a session for each agent. The models answer by the messages alone, so that
any process gives the same answers.
"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field
from pydantic_ai import Agent, ApprovalRequired, ModelRetry, RunContext, Tool, ToolReturn
from pydantic_ai.capabilities import Capability, ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.output import NativeOutput, ToolOutput
from pydantic_ai.tools import ToolDefinition

from celery_agents.worker.pydantic_agents.durability import CeleryDurability

from .ledger import LEDGER_URL, post_effect


def answers(*turns: Any) -> FunctionModel:
    """A model that gives these answers in turn: a text, or a list of (tool, arguments); `output` is the output tool."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        number = sum(message.kind == "response" for message in messages)
        turn = turns[number]
        if isinstance(turn, str):
            return ModelResponse(parts=[TextPart(turn)])
        names = [info.output_tools[0].name if name == "output" else name for name, _ in turn]
        return ModelResponse(
            parts=[
                ToolCallPart(name, args, tool_call_id=f"call-{len(messages)}-{i}")
                for i, (name, (_, args)) in enumerate(zip(names, turn, strict=True))
            ]
        )

    return FunctionModel(answer)


def celery() -> list[Any]:
    return [CeleryDurability(effect="pure")]


# --- tools: the dice game -----------------------------------------------------------------------------------------

dice = Agent(
    answers([("get_player_name", {}), ("roll_dice", {})], "Congratulations Anne, you guessed correctly!"),
    deps_type=str,
    system_prompt="You're a dice game, you should roll the die and see if the number matches the user's guess.",
    name="dice",
    capabilities=[CeleryDurability(deps=lambda metadata: metadata["player"], effect="pure")],
)


@dice.tool_plain
def roll_dice() -> str:
    """Roll a six-sided die and return the result."""
    return "4"


@dice.tool
def get_player_name(ctx: RunContext[str]) -> str:
    """Get the player's name."""
    return ctx.deps


# --- agents: the roulette wheel -----------------------------------------------------------------------------------

roulette = Agent(
    answers([("roulette_wheel", {"square": 18})], [("output", {"response": True})]),
    deps_type=int,
    output_type=ToolOutput(bool),
    system_prompt="Use the `roulette_wheel` function to see if the customer has won based on the number they provide.",
    name="roulette",
    capabilities=[CeleryDurability(deps=lambda _: 18, effect="pure")],
)


@roulette.tool
async def roulette_wheel(ctx: RunContext[int], square: int) -> str:
    """check if the square is a winner"""
    return "winner" if square == ctx.deps else "loser"


# --- the bank support agent: dependencies, dynamic prompts, structured output -------------------------------------


class Customer(BaseModel):
    """What the bank knows of a customer; a `deps_type` that is read from the metadata."""

    customer_id: int
    name: str
    balance: float


class SupportOutput(BaseModel):
    support_advice: str = Field(description="Advice returned to the customer")
    block_card: bool = Field(description="Whether to block the customer's card")
    risk: int = Field(description="Risk level of query", ge=0, le=10)


support = Agent(
    answers(
        [("customer_balance", {"include_pending": True})],
        [("output", {"support_advice": "Your balance is $123.45.", "block_card": False, "risk": 11})],
        [("output", {"support_advice": "Your balance is $123.45.", "block_card": False, "risk": 1})],
    ),
    deps_type=Customer,
    output_type=SupportOutput,
    instructions="You are a support agent in our bank, give the customer support and judge the risk level.",
    name="support",
    capabilities=celery(),
)


@support.instructions
async def add_customer_name(ctx: RunContext[Customer]) -> str:
    return f"The customer's name is {ctx.deps.name!r}"


@support.tool
async def customer_balance(ctx: RunContext[Customer], include_pending: bool) -> float:
    """Returns the customer's current account balance."""
    return ctx.deps.balance


# --- structured output ---------------------------------------------------------------------------------------------


class CityLocation(BaseModel):
    city: str
    country: str


city = Agent(
    TestModel(custom_output_args={"city": "London", "country": "United Kingdom"}, call_tools=[]),
    output_type=CityLocation,
    name="city",
    capabilities=celery(),
)


class Box(BaseModel):
    width: int
    height: int
    depth: int
    units: str


box = Agent(
    answers("Please provide the units.", [("output", {"width": 10, "height": 20, "depth": 30, "units": "cm"})]),
    output_type=[Box, str],
    system_prompt="Extract me the dimensions of a box, if you can't extract all data, ask the user to try again.",
    name="box",
    capabilities=celery(),
)

native = Agent(
    answers('{"city": "Paris"}', '{"city": "Paris", "country": "France"}'),
    output_type=NativeOutput(CityLocation),
    name="native",
    capabilities=celery(),
)


# --- output validators and output functions ------------------------------------------------------------------------

sql = Agent(answers("drop it all", "SELECT 1"), name="sql", retries=2, capabilities=celery())


@sql.output_validator
async def validate_sql(ctx: RunContext[None], output: str) -> str:
    if not output.startswith("SELECT"):
        raise ModelRetry(f"Invalid query (try {ctx.retry}): only SELECT is allowed")
    return output


def run_query(query: str) -> list[str]:
    """Run a query."""
    if "FROM" not in query:
        raise ModelRetry("the query has no FROM")
    return ["row 1", "row 2"]


functions = Agent(
    answers([("output", {"query": "SELECT 1"})], [("output", {"query": "SELECT 1 FROM t"})]),
    output_type=run_query,
    name="functions",
    capabilities=celery(),
)


# --- retries of tools ----------------------------------------------------------------------------------------------

users = Agent(
    answers(
        [("get_user_by_name", {"name": "John"})],
        [("get_user_by_name", {"nme": "John Doe"})],
        [("get_user_by_name", {"name": "John Doe"})],
        "123",
    ),
    name="users",
    capabilities=celery(),
)


@users.tool(retries=2)
def get_user_by_name(ctx: RunContext[None], name: str) -> int:
    """Get a user's ID from their full name."""
    if name != "John Doe":
        raise ModelRetry(f"No user found with name {name!r} (retry {ctx.retry}), give the full name")
    return 123 + ctx.retry


unknown = Agent(answers([("no_such_tool", {})], "sorry"), name="unknown", capabilities=celery())
hopeless = Agent(answers(*[[("never", {})]] * 9), name="hopeless", tools=[], retries=1, capabilities=celery())


@hopeless.tool_plain
def never() -> str:
    raise ModelRetry("not like this")


# --- advanced tools: ToolReturn, prepare ---------------------------------------------------------------------------

clicks = Agent(answers([("click", {"x": 3, "y": 4})], "clicked"), name="clicks", capabilities=celery())


@clicks.tool_plain
def click(x: int, y: int) -> ToolReturn:
    """Click, and look before and after."""
    return ToolReturn(
        return_value=f"Successfully clicked at ({x}, {y})",
        content=["Before:", "a picture", "After:", "another picture"],
        metadata={"coordinates": {"x": x, "y": y}, "action_type": "click"},
    )


clicks_twice = Agent(
    answers([("click", {"x": 1, "y": 2}), ("click", {"x": 3, "y": 4})], "clicked twice"),
    name="clicks_twice",
    tools=[click],
    capabilities=celery(),
)

prepared = Agent(
    answers([("hitchhiker", {"answer": "42"})], "12"), deps_type=int, name="prepared",
    capabilities=[CeleryDurability(deps=lambda _: 42, effect="pure")],
)  # fmt: skip


async def only_if_42(ctx: RunContext[int], tool_def: ToolDefinition) -> ToolDefinition | None:
    return tool_def if ctx.deps == 42 else None


@prepared.tool(prepare=only_if_42)
def hitchhiker(ctx: RunContext[int], answer: str) -> str:
    return (
        f"{ctx.deps} {answer} step {ctx.run_step} after {len(ctx.messages)} messages and {ctx.usage.requests} requests"
    )


# --- delegation ----------------------------------------------------------------------------------------------------

joke_generation = Agent(TestModel(custom_output_text="joke, joke, joke"), name="joke_generation")
jokes = Agent(
    answers([("joke_factory", {"count": 3})], "Did you hear about the toothpaste scandal?"),
    system_prompt="Use the `joke_factory` to generate some jokes, then choose the best.",
    name="jokes",
    capabilities=celery(),
)


@jokes.tool
async def joke_factory(ctx: RunContext[None], count: int) -> list[str]:
    made = await joke_generation.run(f"Please generate {count} jokes.", usage=ctx.usage)
    return re.split(", ", made.output)


# --- tools that are revealed, and capabilities that are loaded ------------------------------------------------------


def hidden(x: int) -> str:
    """A tool that the model does not see at first."""
    return f"found {x}"


def reveal() -> ToolReturn:
    """Reveal the hidden tool."""
    return ToolReturn(return_value="use it", tools=["hidden"])


reveals = Agent(
    answers([("reveal", {}), ("reveal", {})], [("hidden", {"x": 1}), ("reveal", {})], "done"),
    name="reveals",
    tools=[reveal, Tool(hidden, defer_loading=True)],
    capabilities=celery(),
)
loads = Agent(
    answers([("load_capability", {"id": "extra"})], [("hidden", {"x": 1})], "done"),
    name="loads",
    capabilities=[
        *celery(),
        Capability(
            id="extra", description="More.", tools=[Tool(hidden)], instructions="Use hidden.", defer_loading=True
        ),
    ],
)


# --- queued messages -----------------------------------------------------------------------------------------------

queues = Agent(
    answers([("start", {}), ("note", {})], "all is done", "and so is the rest"), name="queues", capabilities=celery()
)


@queues.tool
def start(ctx: RunContext[None]) -> str:
    """Start, and say more before the next request and when nothing else is to do."""
    ctx.enqueue("hurry", priority="asap")
    ctx.enqueue("tidy up", priority="when_idle")
    return "started"


@queues.tool_plain
def note() -> str:
    return "noted"


# --- an output beside calls ----------------------------------------------------------------------------------------

together = Agent(
    answers([("visit", {"city": "Bern"}), ("output", {"city": "Bern", "country": "Switzerland"})]),
    output_type=CityLocation,
    name="together",
    capabilities=celery(),
)


@together.tool_plain
def visit(city: str) -> str:
    return f"{city} visited"


# --- history processors ----------------------------------------------------------------------------------------------


async def keep_recent_messages(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Keep only the last 3 messages to manage token usage."""
    return messages[-3:] if len(messages) > 3 else messages


def until_four(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Calls `look` with the next number until that is four; a processor leaves it no other way to count."""
    last = [part.content for message in messages for part in message.parts if part.part_kind == "tool-return"][-1:]
    number = int(str(last[0])) + 1 if last else 1
    if number > 4:
        return ModelResponse(parts=[TextPart(f"seen, after {len(messages)} messages")])
    return ModelResponse(parts=[ToolCallPart("look", {"number": number}, tool_call_id=f"look-{number}")])


recent = Agent(FunctionModel(until_four), name="recent", capabilities=[*celery(), ProcessHistory(keep_recent_messages)])


@recent.tool_plain
def look(number: int) -> int:
    return number


# --- approval ------------------------------------------------------------------------------------------------------

files = Agent(answers([("update_file", {"path": ".env", "content": ""})], "done"), name="files", capabilities=celery())


@files.tool
def update_file(ctx: RunContext[None], path: str, content: str) -> str:
    if path == ".env" and not ctx.tool_call_approved:
        raise ApprovalRequired(metadata={"reason": "protected"})
    return f"File {path!r} updated: {content!r}"


# --- effects, for kills --------------------------------------------------------------------------------------------


@dataclass
class Shop:
    """The dependencies of `orders`."""

    url: str


orders = Agent(
    answers([("charge", {"cents": 5}), ("ship", {"to": "Bern"})], [("charge", {"cents": 7})], "ordered"),
    deps_type=Shop,
    name="orders",
    capabilities=[CeleryDurability(deps=lambda _: Shop(os.environ.get(LEDGER_URL, "")))],
)


@orders.tool(metadata={"celery": {"effect": "keyed"}})
async def charge(ctx: RunContext[Shop], cents: int) -> str:
    """Charge the card; the service deduplicates by the key."""
    assert ctx.metadata is not None
    key = ctx.metadata["celery"]["idempotency_key"]
    await asyncio.to_thread(post_effect, ctx.deps.url, key, work=f"{cents}", dedupe=True)
    return f"charged {cents}"


@orders.tool
def ship(ctx: RunContext[Shop], to: str) -> str:
    """Ship it; nobody can tell whether it was done."""
    post_effect(ctx.deps.url, f"ship-{to}-{ctx.metadata['celery']['idempotency_key']}")  # type: ignore[index]
    return f"shipped to {to}"


cut_off = Agent(
    FunctionModel(lambda messages, info: ModelResponse(parts=[], finish_reason="length")),
    name="cut_off",
    capabilities=celery(),
)

EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "dice": ("My guess is 4", {"player": "Anne"}),
    "roulette": ("Put my money on square eighteen", {}),
    "support": ("What is my balance?", {"deps": {"customer_id": 123, "name": "John", "balance": 123.45}}),
    "city": ("Where were the olympics held in 2012?", {}),
    "box": ("The box is 10x20x30", {}),
    "native": ("What is the capital of France?", {}),
    "sql": ("get me users who were last active yesterday.", {}),
    "functions": ("run something", {}),
    "users": ("Send a message to John Doe asking for coffee next week", {}),
    "unknown": ("do what you cannot", {}),
    "clicks": ("click there", {}),
    "clicks_twice": ("click there, and there", {}),
    "prepared": ("testing…", {}),
    "jokes": ("Tell me a joke.", {}),
    "queues": ("do it all", {}),
    "together": ("visit a city, and tell me where it is", {}),
    "reveals": ("find it", {}),
    "loads": ("find it", {}),
    "recent": ("look around", {}),
}


def comparable(messages: Any) -> Any:
    """Messages as JSON without what differs from run to run: times and ids of runs."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: strip(v) for k, v in value.items() if k not in ("timestamp", "run_id", "conversation_id")}
        return [strip(each) for each in value] if isinstance(value, list) else value

    return strip(ModelMessagesTypeAdapter.dump_python(messages, mode="json"))
