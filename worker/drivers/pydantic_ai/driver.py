"""`PydanticAIDriver`: asks a model of any provider, once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from ...errors import ConfigurationError, InvalidInput, MissingExtra, UnusableAnswer
from ...flow.values import ModelEndpoint
from ...redaction import describe_exception
from ...state.conversation.context import LLMConfig
from ...state.execution.inference import InferenceResponse
from ...state.values.frozen import thaw
from ...tools.stop import StopExecution
from ..answers import answer_too_large
from ..pricing import TokenPrice, cost_of, estimate, is_priced
from ..protocol import InferenceRequest
from .acceptable import AcceptableRequest, make_acceptable
from .answers import Answer
from .background import ask_in_background, translate
from .failures import as_driver_error
from .history import model_messages
from .later import AnswersWithinWindow, begun, place_of
from .models import (
    ModelClients,
    Target,
    build,
    has_responses,
    repeats_by_itself,
    request_settings,
    require_pydantic_ai,
)
from .output import OutputShape, OutputType, shape_of_format
from .provider_rules import rules_of
from .received import check_is_whole, receive
from .response_limit import response_limit, tell_used
from .sent_requests import describe_sent
from .setting_names import check_setting_names, refuse_background
from .streaming import STREAM_OVERHEAD, EmittedText, StreamEnds, ask_streaming, emitted_text

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    from ...tools.toolset import ToolSpec

_logger = logging.getLogger(__name__)

_MARKS_ERRORS: Final = frozenset({"anthropic", "bedrock"})
"""Providers with a mark of their own for failed tool calls."""

_OURS: Final = frozenset({"timeout", "request_timeout", "first_event_timeout", "max_retries"})
"""Settings that the engine decides."""


@dataclass(frozen=True, slots=True)
class Question:
    """All that goes to the provider."""

    model: Model
    sent: AcceptableRequest
    shape: OutputShape | None

    async def ask(self, request: InferenceRequest, target: Target, text: EmittedText | None) -> ModelResponse:
        """Send the question once; as a stream, where its text is taken."""
        sent, keep, place = self.sent, request.keep, place_of(target)
        async with asyncio.timeout(request.timeout):
            if keep is not None and has_responses(self.model):  # not the model that a session has chosen itself
                response = await ask_in_background(self, request, text, lambda response: keep(begun(response, place)))
            elif text is not None:
                response = await ask_streaming(self.model, (sent.messages, sent.settings, sent.parameters), text)
            else:
                response = await self.model.request(sent.messages, sent.settings, sent.parameters)
                check_is_whole(response, rules_of(self.model), self.model.model_id, streamed=False)
        return receive(response, sent.parameters)


class PydanticAIDriver(AnswersWithinWindow):
    """Asks a model by its pydantic-ai id.

    Provider keys stay in the provider's own environment variables. One request is made for each `infer`; the client's
    own retries are off.
    """

    is_async = True

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        settings: Mapping[str, Any] | None = None,
        output_type: Any = None,
        price: TokenPrice | None = None,
    ) -> None:
        """Take a model; nothing is imported, connected or checked yet except for what can be seen at once.

        Args:
            model: As `provider:name`, such as `openai:gpt-5-mini`; with `base_url`, also the bare name of a model of an
                OpenAI-compatible server.
            base_url: Where the provider's API is; None is the provider's own.
            settings: Temperature and the like, as pydantic-ai's `ModelSettings`.
            output_type: A type that the final answer must fit; None for text. A session's response format comes first.
            price: For a model that no price list knows; the model of a session or of a fallback has the list's.

        Raises:
            ConfigurationError: The name is empty, a setting is unknown, or the type has no JSON Schema.
        """
        if not isinstance(model, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"model {model!r}: write provider:name, such as openai:gpt-5-mini")
        self.name = model
        self._target = Target(model, base_url)
        self._settings = dict(settings or {})
        refuse_background("model_settings", self._settings)
        self._output_type = None if output_type is None or output_type is str else OutputType(output_type)
        self._price = price
        self._clients = ModelClients()
        self._streams = StreamEnds()

    async def infer(self, request: InferenceRequest) -> bytes:
        """Ask once; see `Driver.infer`."""
        target = self._target.overridden_by(request.settings)
        asked, limit, text = False, None, None
        try:
            question = await self._question(target, request)
            if request.tell is not None:
                request.tell(describe_sent(question.model, question.sent, with_messages=False))
            asked = True
            if self._streams.may_stream(target.model):
                text = emitted_text(request, target.model, is_shaped=question.shape is not None)
            most_bytes = request.max_answer_bytes * (1 if text is None else STREAM_OVERHEAD)
            with response_limit(most_bytes, request.observe) as limit:
                response = await question.ask(request, target, text)
                tell_used(response.usage)
            if text is not None:
                self._streams.count(target.model)
            return self._raw(response, question, target)
        except StopExecution:  # of the message compiler, which is the user's
            raise
        except Exception as error:  # noqa: BLE001 - clients raise anything; all of it is translated
            attaches = request.attach is not None
            failure = translate(error, target) if attaches else as_driver_error(error, target.model, asked=asked)
            self._streams.count(target.model, failure)
            if limit is not None and limit.exceeded:  # clients take it for a lost connection, and would be asked again
                failure = answer_too_large(target.model, request.max_answer_bytes)
        # Raised here and not above: the provider's exception, which holds its body, must not become the context.
        raise failure

    def parse(self, raw: bytes) -> InferenceResponse:
        """Read the answer; see `Driver.parse`."""
        answer = Answer.from_raw(raw)
        own = self._output_type
        is_own = own is not None and answer.shape is not None and answer.shape.schema == own.shape.schema
        try:
            return answer.read(own.check if own is not None and is_own else None)
        except UnusableAnswer as problem:
            error = problem
        except (InvalidInput, ValidationError):
            # Negative counts, numbers of a thousand digits, objects a thousand deep.
            error = UnusableAnswer(f"{self.name} gave an answer with values that cannot be stored.")
        except Exception as problem:  # noqa: BLE001 - of a validator of the user's type
            error = UnusableAnswer(f"{self.name}: its output type raised {describe_exception(problem).kind}.")
        with contextlib.suppress(InvalidInput, ValidationError):
            error = answer.charge(error)
        raise error from None

    def check(self) -> None:
        """Make a client and throw it away; see `Driver.check`."""
        require_pydantic_ai()
        _check_settings(self._settings, self._target.provider)
        model = build(self._target)
        if repeats_by_itself(model):
            _logger.warning("%s: its client repeats failed requests and cannot be told not to", self.name)

    def knows_price(self, settings: LLMConfig | None = None) -> bool:
        """Whether answers will have a cost; without one a cost limit cannot be kept."""
        target = self._target.overridden_by(settings)
        if self._price is not None and target.model == self._target.model:
            return True
        try:
            return is_priced(target.provider, target.name)
        except ImportError:
            raise MissingExtra("llm", "knowing what a model costs") from None

    def estimate_cost(self, settings: LLMConfig | None, sent: int, received: int) -> float | None:
        """US dollars for a request of so many tokens; see `EstimatesCost.estimate_cost`."""
        target = self._target.overridden_by(settings)
        price = self._price if target.model == self._target.model else None
        return estimate(price, target.provider, target.name, sent=sent, received=received)

    def endpoint(self, settings: LLMConfig | None = None) -> ModelEndpoint | None:
        """Name what its requests are counted by; see `AsksProvider.endpoint`."""
        return self._clients.endpoint(self._target.overridden_by(settings))

    async def aclose(self) -> None:
        """Close the connections of the running event loop; see `Driver.aclose`."""
        await self._clients.aclose()

    async def _question(self, target: Target, request: InferenceRequest) -> Question:
        model = await self._clients.get(target)
        shape = self._shape(request)
        parameters = _parameters(request)
        settings: Any = request_settings(model, self._merged_settings(request.settings), request.timeout)
        if shape is not None:
            parameters = shape.add_to(parameters, model, settings)
        messages = model_messages(request.messages, marks_errors=model.system in _MARKS_ERRORS)
        sent = make_acceptable(AcceptableRequest(messages, settings, parameters), rules_of(model))
        prepared = replace(sent, messages=model.prepare_messages(sent.messages, sent.parameters))
        return Question(model, prepared, shape)

    def _raw(self, response: ModelResponse, question: Question, target: Target, factor: float = 1.0) -> bytes:
        cost = self._cost(response, target, factor)
        return Answer(response=response, model=target.model, cost=cost, shape=question.shape).to_raw()

    def _shape(self, request: InferenceRequest) -> OutputShape | None:
        wanted = request.state.context.response_format
        if wanted is not None:
            return shape_of_format(wanted)
        return self._output_type.shape if self._output_type and not request.purpose else None

    def _merged_settings(self, config: LLMConfig | None) -> dict[str, Any]:
        own: dict[str, Any] = thaw(config.settings) if config else {}
        refuse_background("the settings of the session's model", own)
        merged: dict[str, Any] = {**self._settings, **own}
        return {name: value for name, value in merged.items() if name not in _OURS}

    def _cost(self, response: ModelResponse, target: Target, factor: float = 1.0) -> float | None:
        """US dollars of a response.

        Args:
            factor: Share of the price that is paid.
        """
        if self._price is not None and target.model == self._target.model:
            return self._price.cost(response.usage) * factor
        if response.usage.cost is not None:
            return float(response.usage.cost)  # a gateway says what it charges
        cost = cost_of(response.usage, target.provider, target.name, response.model_name)
        return None if cost is None else cost * factor


def _parameters(request: InferenceRequest) -> ModelRequestParameters:
    from pydantic_ai.messages import InstructionPart
    from pydantic_ai.models import ModelRequestParameters

    prompt = request.state.system_prompt
    return ModelRequestParameters(
        function_tools=[_tool(spec) for spec in request.tools],
        instruction_parts=[InstructionPart(content=prompt)] if prompt.strip() else None,
    )


def _tool(spec: ToolSpec) -> ToolDefinition:
    from pydantic_ai.tools import ToolDefinition

    return ToolDefinition(
        name=spec.name, parameters_json_schema=thaw(spec.parameters), description=spec.description or None
    )


def _check_settings(settings: Mapping[str, Any], provider: str) -> None:
    for name in settings:
        if name in _OURS:
            raise ConfigurationError(f"model_settings.{name}: set step_timeout on the agent; retries are the engine's")
    own = provider.removeprefix("gateway/").partition("-")[0]
    check_setting_names("model_settings", settings, ("openai", own))
