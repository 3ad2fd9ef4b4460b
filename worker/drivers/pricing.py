"""The cost of an answer, in US dollars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from genai_prices.types import AbstractUsage

_SAME_PRICES: Final = {
    "openai-chat": "openai",
    "openai-responses": "openai",
    "azure-responses": "azure",
    "google-gla": "google",
    "google-vertex": "google",
    "google-cloud": "google",
}
"""Providers of pydantic-ai that differ in protocol or login, not in price."""

_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """The price of a model that no price list knows, such as one of your own.

    Attributes:
        input: US dollars for a million tokens sent; those read from or written to a cache count as sent.
        output: US dollars for a million tokens received, those of reasoning included.
    """

    input: float
    output: float

    def __post_init__(self) -> None:
        for name in ("input", "output"):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
                raise ConfigurationError(f"TokenPrice.{name} {value!r} must be US dollars for a million tokens, from 0")

    def cost(self, usage: AbstractUsage) -> float:
        """US dollars for this usage."""
        given: Any = usage  # the protocol names its counters only at run time
        return ((given.input_tokens or 0) * self.input + (given.output_tokens or 0) * self.output) / _MILLION


def cost_of(usage: AbstractUsage, provider: str, *names: str | None) -> float | None:
    """The cost of a usage by the public price list; None when the list knows none of the names.

    Args:
        usage: Tokens, as pydantic-ai counts them: cached ones are part of the input.
        provider: The provider's id, such as `openai` or `gateway/openai`.
        names: Names of the model, the one to try first first. The name that was asked for comes before the name in the
            answer, which is often dated and then unknown.
    """
    from genai_prices import calc_price

    provider_id = price_list_id(provider)
    for name in names:
        if not name:
            continue
        try:
            return float(calc_price(usage, name, provider_id=provider_id).total_price)
        except (LookupError, ValueError):  # unknown, or a usage that contradicts itself
            continue
    return None


def estimate(price: TokenPrice | None, provider: str, name: str, *, sent: int, received: int) -> float | None:
    """US dollars for a request of so many tokens; None where neither a price is given nor the list knows the model."""
    from genai_prices import Usage

    usage: Any = Usage(input_tokens=sent, output_tokens=received)
    return cost_of(usage, provider, name) if price is None else price.cost(usage)


def is_priced(provider: str, name: str) -> bool:
    """Tell whether the public price list knows this model."""
    from genai_prices import Usage

    return cost_of(Usage(input_tokens=1, output_tokens=1), provider, name) is not None


def price_list_id(provider: str) -> str:
    """The provider's id in the price list."""
    upstream = provider.removeprefix("gateway/")
    return _SAME_PRICES.get(upstream, upstream)
