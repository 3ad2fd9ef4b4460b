"""`@tool`: what it takes, what it refuses, and calling."""

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.tools import Effect, FunctionTool, LookupResult, ToolContext, tool

CONTEXT = ToolContext(
    session_id="s",
    execution_id="e",
    step=1,
    index=0,
    idempotency_key="k",
    deadline=datetime.now(UTC) + timedelta(seconds=60),
)


def lookup(key: str, ctx: ToolContext) -> LookupResult:
    return LookupResult.did_not_happen()


def test_the_default_is_the_safe_class_without_a_timeout_of_its_own():
    @tool
    def act() -> None:
        """Act."""

    assert act.effect is Effect.UNSAFE
    assert act.timeout is None
    assert act.lookup is None
    assert act.max_result_chars == 32_000


def test_options():
    @tool(effect="lookup", name="pay-bill", description="Pay.", timeout=1.5, lookup=lookup, max_result_chars=10)
    def pay(amount: int) -> None:
        """Not told."""

    assert (pay.name, pay.description, pay.effect) == ("pay-bill", "Pay.", Effect.LOOKUP)
    assert (pay.timeout, pay.lookup, pay.max_result_chars) == (1.5, lookup, 10)


def test_a_timeout_may_be_a_timedelta():
    @tool(timeout=timedelta(minutes=2))
    def act() -> None:
        """Act."""

    assert act.timeout == 120.0


def test_a_tool_is_still_the_function():
    @tool(effect="pure")
    def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    assert add(1) == 2
    assert add(1, b=5) == 6
    assert isinstance(add, FunctionTool)


def test_call_takes_what_bind_returned_and_hands_over_the_context():
    @tool
    def greet(name: str, ctx: ToolContext, *, loud: bool = False) -> str:
        """Greet."""
        return f"{name} {ctx.idempotency_key} {loud}"

    assert greet.call(CONTEXT, greet.bind({"name": "Ada"})) == "Ada k False"


def test_an_async_tool_gives_an_awaitable():
    @tool
    async def wait(n: int) -> int:
        """Wait."""
        return n

    assert wait.is_async
    pending = wait.call(CONTEXT, wait.bind({"n": 3}))
    assert inspect.isawaitable(pending)
    assert asyncio.run(pending) == 3


def test_a_callable_object_with_an_async_call_is_async():
    class Waiter:
        async def __call__(self, n: int) -> int:
            return n

    assert tool(name="waiter")(Waiter()).is_async


def test_the_context_counts_down_and_never_below_zero():
    early = replace(CONTEXT, deadline=datetime.now(UTC) + timedelta(hours=1))
    assert 3000 < early.remaining_seconds() <= 3600
    late = ToolContext(
        session_id="s",
        execution_id="e",
        step=1,
        index=0,
        idempotency_key="k",
        deadline=datetime(2020, 1, 1, tzinfo=UTC),
    )
    assert late.remaining_seconds() == 0.0
    assert late.cancelled() is False


def no_annotation(x) -> None:
    """It."""


def star(*values: int) -> None:
    """It."""


def star_star(**values: int) -> None:
    """It."""


def positional(x: int, /) -> None:
    """It."""


def unknown_name(x: "Nowhere") -> None:  # noqa: F821
    """It."""


def no_schema(x: Callable[[], int]) -> None:
    """It."""


class Plain:
    def method(self, x: int) -> None:
        """It."""


def no_validation(x: Plain) -> None:
    """It."""


def test_a_context_may_be_optional_where_a_test_calls_the_tool() -> None:
    @tool
    def greet(name: str, ctx: ToolContext | None = None) -> str:
        """Greet."""
        return f"{name} in {ctx.session_id}" if ctx is not None else name

    assert greet("Ann") == "Ann"
    assert set(greet.parameters["properties"]) == {"name"}
    assert greet.call(CONTEXT, greet.bind({"name": "Ann"})) == f"Ann in {CONTEXT.session_id}"


def two_contexts(a: ToolContext, b: ToolContext) -> None:
    """It."""


def generator(x: int) -> Any:
    """It."""
    yield x


async def async_generator(x: int) -> Any:
    """It."""
    yield x


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (no_annotation, "parameter 'x' has no annotation"),
        (star, "takes any number of arguments; use a list parameter"),
        (star_star, "takes any keyword; name the parameters"),
        (positional, "is positional only"),
        (unknown_name, "names 'Nowhere'"),
        (no_schema, "has no JSON Schema"),
        (no_validation, "cannot be validated"),
        (Plain.method, "make the tool of a bound method"),
        (two_contexts, "two ToolContext parameters"),
        (generator, "a generator cannot be a tool"),
        (async_generator, "a generator cannot be a tool"),
        (Plain, "is not a function"),
        ("search", "is not a function"),
        (lambda x: x, "tool name '<lambda>'"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_when_it_is_defined(function: Any, said: str):
    with pytest.raises(ConfigurationError) as caught:
        tool(function)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"effect": "harmless"}, "effect 'harmless' is unknown; use one of pure, keyed, lookup, unsafe"),
        ({"effect": "lookup"}, "needs lookup="),
        ({"effect": "keyed", "lookup": lookup}, "lookup= is given, but effect is keyed"),
        ({"name": "two words"}, "tool name 'two words'"),
        ({"name": "1st"}, "tool name '1st'"),
        ({"name": "x" * 65}, "1 to 64"),
        ({"name": "přítel"}, "tool name"),
        ({"timeout": 0}, "timeout 0 must be seconds above 0"),
        ({"timeout": -1.0}, "timeout -1.0"),
        ({"timeout": float("nan")}, "timeout nan"),
        ({"timeout": True}, "timeout True"),
        ({"timeout": "5"}, "timeout '5'"),
        ({"max_result_chars": 0}, "max_result_chars 0"),
        ({"max_result_chars": True}, "max_result_chars True"),
    ],
)
def test_wrong_options_are_refused_with_the_value_and_what_to_do(options: dict[str, Any], said: str):
    def act() -> None:
        """Act."""

    with pytest.raises(ConfigurationError) as caught:
        tool(**options)(act)
    assert said in str(caught.value)


def test_a_tool_is_not_decorated_twice():
    @tool
    def act() -> None:
        """Act."""

    with pytest.raises(ConfigurationError, match="it is a tool already"):
        tool(act)


def test_a_tool_cannot_be_changed():
    @tool
    def act() -> None:
        """Act."""

    with pytest.raises(AttributeError):
        act.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        act.parameters["type"] = "array"  # type: ignore[index]


_ACT = '''
from celery_agents import tool

@tool{options}
def act() -> None:
    """Act."""

print(repr(act.description))
'''


@pytest.mark.parametrize(
    ("python", "options", "description", "warns"),
    [("-O", "", "Act.", False), ("-OO", "", "", True), ("-OO", "(description='Do it.')", "Do it.", False)],
)
def test_a_python_without_docstrings_is_told(python: str, options: str, description: str, warns: bool):
    command = [sys.executable, python, "-c", _ACT.format(options=options)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == repr(description)
    assert ("tool act: Python runs without docstrings (-OO, PYTHONOPTIMIZE=2)" in ran.stderr) is warns
