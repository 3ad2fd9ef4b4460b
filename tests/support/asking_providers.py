"""A driver that would ask a provider: each model answers as the test says, and everything that is asked is noted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import InferenceRequest
from celery_agents.worker.errors import DriverError
from celery_agents.worker.flow.values import ModelEndpoint, ProviderFacts
from celery_agents.worker.state import InferenceResponse, InferenceUsage, LLMConfig

USAGE = InferenceUsage(input=100, output=20, requests=1)
Answer = str | Exception | InferenceResponse | Callable[[], object]


@dataclass
class ProviderDriver:
    """Asks nothing; see the module.

    Attributes:
        answers: What each model says, one after another; the last again and again.
        facts: What each model's headers tell.
        counted: Whether its requests are counted.
        unpriced: Models without a price.
    """

    first: str = "openai:a"
    answers: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    facts: dict[str, ProviderFacts] = field(default_factory=dict[str, ProviderFacts])
    unpriced: frozenset[str] = frozenset()
    asked: list[InferenceRequest] = field(default_factory=list[InferenceRequest])
    name = "provider"
    is_async = False

    def model_of(self, config: LLMConfig | None) -> str:
        return (config.model if config is not None else None) or self.first

    @property
    def models(self) -> list[str]:
        """The models that were asked, in order."""
        return [self.model_of(request.settings) for request in self.asked]

    def infer(self, request: InferenceRequest) -> bytes:
        self.asked.append(request)
        model = self.model_of(request.settings)
        if request.observe is not None and model in self.facts:
            request.observe(self.facts[model])
        said = self.answers.get(model, ["done"])
        answer = said[0] if len(said) == 1 else said.pop(0)
        if callable(answer):
            answer = answer()
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, InferenceResponse):
            return answer.to_json()
        return InferenceResponse(content=f"{model}: {answer}", usage=USAGE, cost=0.1, model=model).to_json()

    def parse(self, raw: bytes) -> InferenceResponse:
        return InferenceResponse.from_json(raw)

    def check(self) -> None: ...

    def knows_price(self, settings: LLMConfig | None = None) -> bool:
        return self.model_of(settings) not in self.unpriced

    async def aclose(self) -> None: ...


class CountedDriver(ProviderDriver):
    """One whose requests are counted at its provider."""

    def endpoint(self, settings: LLMConfig | None = None) -> ModelEndpoint | None:
        return ModelEndpoint(self.model_of(settings), "http://provider", "~key")


def agent_of(driver: ProviderDriver, *models: str, **options: Any) -> Agent:
    """An agent of these models, whose driver is this one."""
    agent = Agent(options.pop("name", "asking"), model=list(models) or driver.first, **options)
    agent.__dict__["answering"] = driver
    return agent


def refused(kind: str = "rate_limit", *, retry_after: float | None = None, **more: Any) -> DriverError:
    """A refusal of the provider."""
    transient = kind not in ("quota", "rejected", "authentication")
    return DriverError(kind, f"{kind} of the provider", transient=transient, retry_after=retry_after, **more)
