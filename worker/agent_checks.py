"""Checks of an agent's definition: wrong kinds of values are told where the agent is written."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from ..config.settings import DEFAULT_QUEUE, QUEUE_NAME
from .drivers.pricing import TokenPrice
from .drivers.windows import WINDOW_FAILED, read_window
from .errors import ConfigurationError
from .state.execution.budget import ExecutionBudget
from .tools.delegation import check_child_limits

if TYPE_CHECKING:
    from .agent import Agent

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_LISTS: Final = ("tools", "guards", "hooks", "capabilities", "handoffs", "mcp", "schedules")
_DRIVER_MEMBERS: Final = ("name", "is_async", "parse", "check", "knows_price", "aclose")


def check_kinds(agent: Any) -> None:
    """Wrong kinds of values, said where the agent is written and not in its first step."""
    for name in _LISTS:
        value = getattr(agent, name)
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise ConfigurationError(f"agent {agent.name!r}: {name}={value!r:.80} must be a list")
    for name in ("step_timeout", "tool_timeout", "max_parallel_tools", "archive_days"):
        value = getattr(agent, name)
        kinds = int if name == "max_parallel_tools" else (int, float)
        is_endless = name == "archive_days" and value == math.inf
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, kinds) or not value > 0 or is_endless
        ):
            raise ConfigurationError(f"agent {agent.name!r}: {name}={value!r:.80} must be a positive number")
    if agent.model_settings:
        from .drivers.pydantic_ai.setting_names import refuse_background  # most agents write no settings

        refuse_background(f"agent {agent.name!r}: model_settings", agent.model_settings)
    check_child_limits(f"agent {agent.name!r}", agent.max_children, agent.max_depth)
    if not isinstance(agent.model, str) and agent.model is not None:
        check_models(agent)
    driver = agent.driver
    is_driver = hasattr(driver, "infer")
    missing = ", ".join(name for name in _DRIVER_MEMBERS if is_driver and not hasattr(driver, name))
    expected: tuple[tuple[str, object, bool], ...] = (
        ("provider_group", "a name", agent.provider_group is None or is_name(agent.provider_group)),
        ("system_prompt", "a text", isinstance(agent.system_prompt, str)),
        ("description", "a text", isinstance(agent.description, str)),
        ("budget", "an ExecutionBudget", agent.budget is None or isinstance(agent.budget, ExecutionBudget)),
        ("driver", "a Driver or a function", driver is None or is_driver or callable(driver)),
        ("driver", "an object, not its class", not (is_driver and isinstance(driver, type))),
        ("driver", f"a Driver, and has no {missing}", not missing),
        ("compiler", "a MessageCompiler", agent.compiler is None or hasattr(agent.compiler, "compile")),
        ("price", "a TokenPrice", agent.price is None or isinstance(agent.price, TokenPrice)),
        ("guards", "a list of objects with check(view)", all(hasattr(guard, "check") for guard in agent.guards)),
    )
    for name, kind, fits in expected:
        if not fits:
            raise ConfigurationError(f"agent {agent.name!r}: {name}={getattr(agent, name)!r:.80} must be {kind}")


def check_answers(agent: Agent) -> None:
    """Refuse what the answers of the agent's model could not keep: a cost limit, or an output by a tool of its own."""
    _check_price(agent)
    if agent.output_type is not None:
        _check_output_tool(agent)


def _check_price(agent: Agent) -> None:
    """Refuse a cost limit of a capability that cannot be kept, where the driver can be asked already."""
    wanted = [each.name for each in agent.capabilities if (limits := each.budget()) and limits.max_cost is not None]
    knows_price = getattr(agent.driver, "knows_price", None)
    if wanted and knows_price is not None and not knows_price(None):
        raise ConfigurationError(
            f"agent {agent.name!r}: {wanted[0]} limits the cost, and the driver knows no price; give cost_estimator=, "
            "or a driver with a price"
        )


def _check_output_tool(agent: Agent) -> None:
    """Refuse a tool with the name by which a model gives a structured output: its calls would be taken for that."""
    from .drivers.pydantic_ai.output import OUTPUT_TOOL

    if OUTPUT_TOOL in agent.toolset:
        advice = "its model gives the output_type by a tool of this name; rename it with @tool(name=…)"
        raise ConfigurationError(f"agent {agent.name!r}: tool {OUTPUT_TOOL}: {advice}")


def check_models(agent: Agent) -> None:
    """Refuse a list of models that cannot be asked one after another."""
    given: Any = agent.model
    ids: list[Any] = list(given) if isinstance(given, (list, tuple)) else []  # pyright: ignore[reportUnknownArgumentType]
    wrong = [each for each in ids if not isinstance(each, str) or not all(each.partition(":")[::2])]
    twice = [each for each in ids if ids.count(each) > 1]
    if not ids or wrong or twice:
        found = f"{twice[0]!r:.80} is there twice" if twice and not wrong else f"found {(wrong or [given])[0]!r:.80}"
        advice = "give a text such as openai:gpt-5-mini, or a list of different ones, each as provider:name"
        raise ConfigurationError(f"agent {agent.name!r}: model={given!r:.120}: {found}; {advice}")


def is_name(name: object) -> bool:
    """Whether a name can be one of an agent."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(name: object) -> None:
    """Refuse what is no name of an agent."""
    if not is_name(name):
        raise ConfigurationError(
            f"agent name {name!r}: write 1 to 64 letters, digits, '_' or '-', beginning with a letter or digit"
        )


def check_queue(agent: str, queue: object) -> None:
    """Refuse what is no name of a queue of its own."""
    if queue is None:
        return
    if queue == DEFAULT_QUEUE:
        raise ConfigurationError(f"agent {agent!r}: queue={queue!r} is the common queue; leave queue out")
    if not isinstance(queue, str) or not QUEUE_NAME.fullmatch(queue):
        raise ConfigurationError(
            f"agent {agent!r}: queue={queue!r:.80} must be 1 to 64 letters, digits, '_' or '-', beginning with a "
            "letter or digit"
        )


def check_window(agent: Agent) -> None:
    """Refuse a completion window that the agent's model is not sold with."""
    place = f"agent {agent.name!r}: completion_window"
    window = read_window(place, agent.completion_window)
    if agent.window_failed not in WINDOW_FAILED:
        advice = " or ".join(map(repr, WINDOW_FAILED))
        raise ConfigurationError(f"agent {agent.name!r}: window_failed={agent.window_failed!r:.80} must be {advice}")
    if not isinstance(agent.background, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"agent {agent.name!r}: background={agent.background!r:.80} must be True or False")
    if agent.background:
        _check_background(agent)
    if window is None:
        return
    if len(agent.models) > 1:
        raise ConfigurationError(
            f"{place} {window!r} is for one model, and model= lists {len(agent.models)}: give one, and window_failed="
        )
    check: Any = getattr(agent.answering, "check_window", None)
    if check is None:
        raise ConfigurationError(f"{place} {window!r}: its driver sells none; give model='provider:name'")
    try:
        check(window)
    except ConfigurationError as error:
        raise ConfigurationError(f"agent {agent.name!r}: {error}") from error


def _check_background(agent: Agent) -> None:
    """Refuse answers in the background from who has none."""
    place = f"agent {agent.name!r}: background=True"
    if agent.completion_window is not None:
        raise ConfigurationError(f"{place} answers at once, and completion_window= later: give one of them")
    attaches = getattr(agent.answering, "check_background", None)
    if attaches is None or len(agent.models) > 1:
        raise ConfigurationError(f"{place} is for one model of OpenAI's responses, such as openai:gpt-5-mini")
    attaches()
