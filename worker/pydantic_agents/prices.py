"""The price of an answer of a pydantic-ai agent, and whether its model has one before it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..drivers.pricing import cost_of, is_priced

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

    from ..drivers.pricing import TokenPrice


def has_price(model: Any) -> bool:
    """Whether the price list knows the model of an agent: all of them, where one falls back on others."""
    if isinstance(model, str):
        provider, _, name = model.partition(":")
        return is_priced(provider, name)
    candidates: Any = getattr(model, "models", None)
    if candidates:
        return all(map(has_price, candidates))
    wrapped = getattr(model, "wrapped", None)
    if wrapped is not None:
        return has_price(wrapped)
    provider, name = getattr(model, "system", None), getattr(model, "model_name", None)
    return isinstance(provider, str) and isinstance(name, str) and is_priced(provider, name)


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
