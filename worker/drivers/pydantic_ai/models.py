"""From a model's name to a client of its provider."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import os
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from ....config.urls import is_web_address
from ...errors import ConfigurationError, MissingExtra
from ...flow.values import ModelEndpoint
from ...redaction import redact
from ...state.conversation.context import LLMConfig
from ..windows import windows_of
from .response_limit import limit_responses

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider

_OPENAI_HOST: Final = "api.openai.com"
_COMPATIBLE: Final = "openai-chat"
_VARIABLE: Final = re.compile(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)`")
_PIP: Final = re.compile(r"pip install \"?(pydantic-ai-slim\[[\w,-]+\])")

_API_KEYS: Final = ("api_key", "_api_client.api_key")
"""Where clients of providers keep a static key."""

_LONGEST_SECONDS: Final = 3600
"""Seconds for one answer, where only the client has a limit; the driver's own is shorter."""

MAX_CLIENTS: Final = 32
"""Models of one event loop whose connections are kept; only agents with a model of their own need more than one."""


@dataclass(frozen=True, slots=True)
class Target:
    """A model and the server to ask.

    Attributes:
        model: As `provider:name`; a bare name together with a `base_url`.
        base_url: Where the provider's API is; None is the provider's own.
    """

    model: str
    base_url: str | None = None

    def __post_init__(self) -> None:
        if not self.model.strip() or self.model.endswith(":"):
            raise ConfigurationError(f"model {self.model!r}: write provider:name, such as openai:gpt-5-mini")
        if self.base_url is not None and not is_web_address(self.base_url):
            shown = redact(self.base_url)
            raise ConfigurationError(f"base_url {shown!r}: write an address such as http://localhost:8000/v1")

    def overridden_by(self, config: LLMConfig | None) -> Target:
        """The target of an agent with a model of its own. The address stays only with the same provider."""
        if config is None or (config.model is None and config.base_url is None):
            return self
        model = config.model or self.model
        kept = self.base_url if self._provider_prefix(model) == self._provider_prefix(self.model) else None
        return Target(model, config.base_url or kept)

    @property
    def provider(self) -> str:
        """The provider's id."""
        return _resolve(self)[0]

    @property
    def name(self) -> str:
        """The model's name, as the provider calls it."""
        return _resolve(self)[1]

    @property
    def windows(self) -> Sequence[str]:
        """The windows with which it is sold."""
        return () if self.is_compatible else windows_of(self.model)

    @property
    def is_compatible(self) -> bool:
        """Whether `openai:` is another server than OpenAI's, which is asked by chat completions; see `build`."""
        address = self.base_url or os.environ.get("OPENAI_BASE_URL")  # read by OpenAI's client, which is not made here
        return self._provider_prefix(self.model) == "openai" and address is not None and not _is_openai(address)

    @staticmethod
    def _provider_prefix(model: str) -> str:
        return model.partition(":")[0] if ":" in model else ""


class ModelClients:
    """Models with open connections, one set for each event loop: connections belong to the loop that opened them."""

    def __init__(self) -> None:
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, OrderedDict[Target, Model]] = WeakKeyDictionary()

    async def get(self, target: Target) -> Model:
        """The model of the running loop; made at first use.

        Raises:
            ConfigurationError: It cannot be made; see `build`.
        """
        models = self._by_loop.setdefault(asyncio.get_running_loop(), OrderedDict())
        if target not in models:
            models[target] = build(target)
        models.move_to_end(target)
        while len(models) > MAX_CLIENTS:
            await _close(models.popitem(last=False)[1])
        return models[target]

    def endpoint(self, target: Target) -> ModelEndpoint | None:
        """Name what requests of a target are counted by; None where it cannot be made, which asking it tells."""
        try:
            return endpoint_of(build(target), ":".join(_resolve(target)))
        except (ConfigurationError, MissingExtra):
            return None

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        for model in self._by_loop.pop(asyncio.get_running_loop(), OrderedDict[Target, Any]()).values():
            await _close(model)


def endpoint_of(model: Model, name: str) -> ModelEndpoint:
    """Name what requests of a model are counted by: its address without credentials, and a digest of its static key.

    Args:
        name: Its id, as provider:name.
    """
    address = urlsplit(str(getattr(model, "base_url", None) or ""))
    place = (
        f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}".rstrip("/") if address.netloc else ""
    )
    for path in _API_KEYS:
        key: Any = client_of(model)
        for part in path.split("."):
            key = getattr(key, part, None)
        if isinstance(key, str) and key:
            return ModelEndpoint(name, place, "~" + hashlib.sha256(key.encode()).hexdigest()[:8])
    return ModelEndpoint(name, place)


def require_pydantic_ai() -> None:
    """Raise `MissingExtra` unless pydantic-ai is installed."""
    try:
        import pydantic_ai  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        raise MissingExtra("llm", "asking a model by its name") from None


def build(target: Target) -> Model:
    """Make the client of a target, without connecting.

    Raises:
        ConfigurationError: No such provider, its package or key is missing, or it takes no address; the text says what
            to do.
    """
    require_pydantic_ai()
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model

    kind, name = _resolve(target)
    try:
        provider = _provider(kind, target)
        model = infer_model(f"{_kind_of_model(kind, provider)}:{name}", provider_factory=lambda _: provider)
    except ImportError as problem:
        raise _missing_package(target, problem) from None
    except UserError as problem:
        raise _unusable(target, problem.message) from None
    except ConfigurationError:
        raise
    except Exception as problem:  # noqa: BLE001 - providers' clients complain with exceptions of their own
        raise _unusable(target, str(problem)) from None
    _forbid_retries(model)
    # Without such a client, as Amazon's, the size of an answer is checked after it was read.
    limit_responses(getattr(model.provider, "_own_http_client", None))
    return model


def request_settings(model: Model, settings: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
    """The settings of one request: the user's, one attempt, and the time it may take."""
    forced = {"timeout": timeout_seconds, "max_retries": 0}
    if getattr(client_of(model), "max_retries", None) == 0:
        del forced["max_retries"]  # the client knows; as a setting it costs a copy of the client for each request
    known = {name: value for name, value in forced.items() if name not in model.unsupported_settings}
    return {**settings, **known}


def _resolve(target: Target) -> tuple[str, str]:
    """Provider and name. With an address, a name without a known provider is one of an OpenAI-compatible server."""
    from pydantic_ai.providers import infer_provider_class

    kind, colon, name = target.model.partition(":")
    if not colon and target.base_url is None:
        raise ConfigurationError(
            f"model {target.model!r}: write provider:name, such as openai:gpt-5-mini or anthropic:claude-haiku-4-5; "
            "a name alone needs base_url"
        )
    try:
        if colon and name:
            infer_provider_class(kind)
            return kind, name
    except ValueError:
        if target.base_url is None:
            raise ConfigurationError(f"model {target.model!r}: {_unknown_provider(target.model)}") from None
    except ImportError:
        return kind, name
    return _COMPATIBLE, target.model


def _unknown_provider(model: str) -> str:
    from typing import get_args

    from pydantic_ai.models import KnownModelName

    kind = model.partition(":")[0]
    known = {name.partition(":")[0] for name in get_args(KnownModelName.__value__)}
    close = get_close_matches(kind, known, 1)
    meant = f"did you mean {close[0]!r}" if close else "write provider:name, such as openai:gpt-5-mini"
    return f"there is no provider {kind!r}; {meant}"


def _provider(kind: str, target: Target) -> Provider[Any]:
    from pydantic_ai.providers import infer_provider, infer_provider_class

    if kind == "bedrock":
        return _bedrock(target)
    if target.base_url is None:
        return infer_provider(kind)
    provider_class = infer_provider_class(kind)
    if kind.startswith("gateway/") or "base_url" not in inspect.signature(provider_class.__init__).parameters:
        raise ConfigurationError(
            f"model {target.model!r}: provider {kind!r} takes no base_url; for an OpenAI-compatible server write "
            f"openai-chat:{target.model.partition(':')[2]}"
        )
    make: Any = provider_class
    return make(base_url=target.base_url)


def _bedrock(target: Target) -> Provider[Any]:
    """Amazon's client repeats a request up to four times, and takes no other number once it is made."""
    from importlib import import_module

    from pydantic_ai.providers.bedrock import BedrockProvider

    config = import_module("botocore.config").Config(retries={"total_max_attempts": 1}, read_timeout=_LONGEST_SECONDS)
    client = import_module("boto3").client("bedrock-runtime", endpoint_url=target.base_url, config=config)
    return BedrockProvider(bedrock_client=client)


def _kind_of_model(kind: str, provider: Provider[Any]) -> str:
    """`openai` speaks OpenAI's responses API, which other servers seldom do: there it means chat completions."""
    return _COMPATIBLE if kind == "openai" and not _is_openai(provider.base_url) else kind


def _is_openai(address: str) -> bool:
    return urlsplit(address).hostname == _OPENAI_HOST


def unwrapped(model: Any) -> Any:
    """The model that asks, of one that wraps it."""
    while (wrapped := getattr(model, "wrapped", None)) is not None:
        model = wrapped
    return model


def has_responses(model: Model) -> bool:
    """Whether a model speaks OpenAI's responses, to which another worker can attach."""
    return type(unwrapped(model)).__name__ == "OpenAIResponsesModel"


def client_of(model: Model) -> Any:
    """The provider's own client, with which a model asks; None for a model without one."""
    return getattr(getattr(model, "provider", None), "client", None)


def _forbid_retries(model: Model) -> None:
    """Most clients repeat a failed request twice by themselves: unrecorded, and paid."""
    client = client_of(model)
    if isinstance(getattr(client, "max_retries", None), int):
        client.max_retries = 0


def repeats_by_itself(model: Model) -> bool:
    """Tell whether this provider's client repeats requests and cannot be told not to."""
    return getattr(client_of(model), "max_retries", None) != 0 and "max_retries" in model.unsupported_settings


async def _close(model: Model) -> None:
    async with model:
        """Leaving it closes its connections."""


def _missing_package(target: Target, problem: ImportError) -> ConfigurationError:
    found = _PIP.search(str(problem))
    advice = f"pip install '{found.group(1)}'" if found else "install the provider's package"
    return ConfigurationError(f"model {target.model!r} needs a package that is not installed: {advice}")


def _unusable(target: Target, said: str) -> ConfigurationError:
    variables = list(dict.fromkeys(_VARIABLE.findall(said)))
    if variables:
        needed = " or ".join(variables)
        return ConfigurationError(f"model {target.model!r} needs {needed}; set it in the environment of the workers")
    sentence = redact(said).partition("\n")[0].partition(" To try Pydantic AI")[0]
    return ConfigurationError(f"model {target.model!r} cannot be used: {sentence}")
