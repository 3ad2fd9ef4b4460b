"""Usage and its limits of pydantic-ai as JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from ..state.values.frozen import thaw

if TYPE_CHECKING:
    from pydantic_ai.usage import RunUsage, UsageLimits


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
