"""Usage of pydantic-ai, its limits and its price: as JSON, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from ..drivers.pricing import cost_of, estimate, is_priced
from ..state.values.frozen import thaw

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RunUsage, UsageLimits

    from ..drivers.pricing import TokenPrice


def dump_usage(usage: RunUsage) -> dict[str, Any]:
    """The numbers of a usage that are not 0; the cost is a text, since it is a decimal number."""
    dumped: dict[str, Any] = to_jsonable_python(usage)
    numbers = {name: value for name, value in dumped.items() if value}
    if "details" in numbers:
        numbers["details"] = {name: value for name, value in numbers["details"].items() if value}
    return {name: value for name, value in numbers.items() if value}


def load_usage(kept: Mapping[str, Any]) -> RunUsage:
    """The usage of `dump_usage`."""
    from pydantic_ai.usage import RunUsage

    return RunUsage(**_with_decimal(kept, "cost"))


def dump_limits(limits: UsageLimits) -> dict[str, Any]:
    """Limits as JSON. None stays, since it is no limit and not the default."""
    return to_jsonable_python(limits)


def load_limits(kept: Mapping[str, Any]) -> UsageLimits:
    """The limits of `dump_limits`."""
    from pydantic_ai.usage import UsageLimits

    return UsageLimits(**_with_decimal(kept, "cost_limit"))


def _with_decimal(kept: Mapping[str, Any], name: str) -> dict[str, Any]:
    given: dict[str, Any] = {key: thaw(value) for key, value in kept.items()}
    return given if given.get(name) is None else {**given, name: Decimal(str(given[name]))}


def has_price(model: Any) -> bool:
    """Whether the price list knows the model of an agent: all of them, where one falls back on others."""
    return all(is_priced(provider, name) for provider, name in _names(model))


def estimate_of(model: Any, price: TokenPrice | None, *, sent: int, received: int) -> float | None:
    """US dollars for a request of so many tokens, by the dearest model of an agent; None where no price is known."""
    found = [estimate(price, provider, name, sent=sent, received=received) for provider, name in _names(model)]
    return max((cost for cost in found if cost is not None), default=None)


def _names(model: Any) -> Iterator[tuple[str, str]]:
    """The provider and name of a model, and of those on which it falls back; empty where they are not known."""
    if isinstance(model, str):
        provider, _, name = model.partition(":")
        yield provider, name
    elif candidates := getattr(model, "models", None):
        for each in candidates:
            yield from _names(each)
    elif (wrapped := getattr(model, "wrapped", None)) is not None:
        yield from _names(wrapped)
    else:
        provider, name = getattr(model, "system", None), getattr(model, "model_name", None)
        yield (provider, name) if isinstance(provider, str) and isinstance(name, str) else ("", "")


def price_of(response: ModelResponse, model: Any, price: TokenPrice | None) -> float | None:
    """The cost of an answer in US dollars; None where it is unknown.

    Args:
        model: The agent's.
        price: What the agent's options say of it; it comes before all lists.
    """
    usage = response.usage
    if price is not None:
        return price.cost(usage)
    if usage.cost is not None:
        return float(usage.cost)  # a gateway says what it charges, or pydantic-ai has looked it up
    asked = model.partition(":")[2] if isinstance(model, str) else getattr(model, "model_name", None)
    provider = response.provider_name or (model.partition(":")[0] if isinstance(model, str) else "")
    return cost_of(usage, provider, response.model_name, asked if isinstance(asked, str) else None)
