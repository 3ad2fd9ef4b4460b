"""`CeleryDurability`: the capability that makes a pydantic-ai agent durable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import UsageLimits

from ..drivers.pricing import TokenPrice
from ..drivers.pydantic_ai.acceptable import AcceptableRequest, make_acceptable
from ..drivers.pydantic_ai.driver import Question
from ..drivers.pydantic_ai.provider_rules import rules_of
from ..drivers.pydantic_ai.received import check_is_whole, receive
from ..drivers.pydantic_ai.response_limit import is_limited, limit_model, tell_used, teller
from ..drivers.pydantic_ai.sent_requests import describe_sent
from ..drivers.pydantic_ai.setting_names import refuse_background
from ..guards import Guard
from ..state.execution.budget import ExecutionBudget
from ..tools.effect import Effect
from .begun import begun_call
from .later import later_call


@dataclass
class CeleryDurability(AbstractCapability[Any]):
    """Lets workers run the agent as steps. `agent.run` in the own process works as before.

    Attributes:
        deps: Makes the dependencies of each step from the session's metadata. None: the metadata `deps`, read as the
            agent's `deps_type`; without them there are none, unless that is a pydantic model.
        budget: Limits of each execution; None is unlimited.
        guards: Further checks of ours before the model is asked and before the next step, such as `FinishReasonGuard`.
        usage_limits: Limits that pydantic-ai itself keeps over all steps of an execution. None: its defaults.
        effect: The effect class of the tools whose metadata name none: pure, keyed or unsafe.
        queue: Name of a queue of its own. None: the common queue.
        price: The price of the model's tokens, for one that no price list knows. None: that of the list.
        recreated: Capabilities of the agent that keep state for a run and may lose it between steps: each step is a
            run of its own.
        provider_group: As `Agent.provider_group`.
        completion_window: As `Agent.completion_window`. A step makes two runs of the agent, with its hooks and
            processors: one that asks, and one that takes the answer.
        window_failed: As `Agent.window_failed`.
        background: As `Agent.background`.
    """

    deps: Callable[[Mapping[str, Any]], Any] | None = None
    budget: ExecutionBudget | None = None
    guards: Sequence[Guard] = ()
    usage_limits: UsageLimits | None = None
    effect: Effect | str = Effect.UNSAFE
    queue: str | None = None
    price: TokenPrice | None = None
    recreated: Sequence[type[AbstractCapability[Any]]] = ()
    provider_group: str | None = None
    completion_window: str | None = None
    window_failed: str = "fail"
    background: bool = False

    def get_ordering(self) -> CapabilityOrdering:
        """Inside of all others, which may choose the model."""
        return CapabilityOrdering(position="innermost")

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Make the request acceptable to its provider, and bound the bytes of its answer.

        In a worker; `agent.run` in the own process is left alone.

        Raises:
            ConfigurationError: Its settings ask for a background job.
        """
        if not is_limited():
            return request_context
        model = request_context.model
        limit_model(model)
        refuse_background("settings of the request", request_context.model_settings)
        given = AcceptableRequest(
            request_context.messages, request_context.model_settings, request_context.model_request_parameters
        )
        sent = make_acceptable(given, rules_of(model))
        request_context.messages, request_context.model_settings = sent.messages, sent.settings
        request_context.model_request_parameters = sent.parameters
        if (tell := teller()) is not None:
            tell(describe_sent(model, sent, with_messages=True))
        if (begun := begun_call.get()) is not None and begun.agent is ctx.agent:
            request_context.model = begun.model_of(model)
        if (later := later_call.get()) is not None and later.agent is ctx.agent:
            request_context.model = await later.take(Question(model, sent, None))
        return request_context

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Read the answer as storage can hold it.

        Raises:
            DriverError: It is not whole.
        """
        if not is_limited():
            return response
        tell_used(response.usage)
        model = request_context.model
        rules = rules_of(model, response)
        check_is_whole(response, rules, model.model_id, streamed=request_context.streaming)
        return receive(response, request_context.model_request_parameters)
