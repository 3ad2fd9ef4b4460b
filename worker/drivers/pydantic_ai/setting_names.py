"""Checks settings of models: names that pydantic-ai would ignore, and what a step cannot keep."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import cast

from ...errors import ConfigurationError


def check_setting_names(field: str, names: Iterable[str], prefixes: Collection[str] | None = None) -> None:
    """Refuse a setting that no model reads. Nothing is checked where pydantic-ai is not installed.

    A setting of a provider whose library is not installed is taken as it is.

    Args:
        prefixes: What the settings of a provider may begin with, such as "openai". None: those of any provider.
    Raises:
        ConfigurationError: There is no such setting; the message names the nearest one.
    """
    try:
        common = _common_names()
    except ImportError:
        return
    for name in names:
        if name in common or name.startswith("gateway_"):
            continue
        prefix = name.partition("_")[0]
        known = _provider_names(prefix) if prefixes is None or prefix in prefixes else frozenset[str]()
        if known is None or name in known:
            continue
        close = get_close_matches(name, [*known, *common], 1)
        advice = f"did you mean {close[0]}" if close else f"known are {', '.join(sorted(common))}"
        raise ConfigurationError(f"{field}.{name}: there is no such setting; {advice}")


def refuse_background(field: str, settings: object) -> None:
    """Refuse the setting that starts a job at the provider: a step would start one with each request and read none.

    Args:
        field: Where the settings were written, for the error.
        settings: Settings of a model; anything else holds none.
    Raises:
        ConfigurationError: They ask for a background job.
    """
    given: Mapping[str, object] = cast("Mapping[str, object]", settings) if isinstance(settings, Mapping) else {}
    body = given.get("extra_body")
    if given.get("openai_background"):
        name = "openai_background"
    elif isinstance(body, Mapping) and cast("Mapping[str, object]", body).get("background"):
        name = "extra_body.background"
    else:
        return
    raise ConfigurationError(f"{field}.{name}: leave it out, and give the agent background=True or a completion_window")


@cache
def _common_names() -> frozenset[str]:
    from pydantic_ai.settings import ModelSettings

    return frozenset(ModelSettings.__annotations__)


@cache
def _provider_names(prefix: str) -> frozenset[str] | None:
    """Names of the settings of a provider; None: its library is not installed, so they are unknown."""
    module = f"pydantic_ai.models.{prefix}"
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        return frozenset() if error.name == module else None
    except ImportError:
        return None
    kinds = [kind for name, kind in vars(found).items() if name.endswith("ModelSettings")]
    return frozenset(name for kind in kinds for name in getattr(kind, "__annotations__", ()))
