"""The Protocol of drivers, and the request that a driver answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from ..flow.values import ModelEndpoint, ProviderFacts
from ..state.agent_state import AgentState
from ..state.conversation.compilers import ConversationWithCurrentToolTrace, MessageCompiler
from ..state.conversation.context import LLMConfig, ResponseFormat
from ..state.conversation.messages import Message
from ..state.conversation.pairing import repair_pairs
from ..state.execution.inference import InferenceResponse
from ..tools.toolset import ToolSpec

_DEFAULT_COMPILER = ConversationWithCurrentToolTrace()


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer that is arriving.

    Attributes:
        text: What the model has said since the last piece.
        part: "text", the answer; or "thinking".
    """

    text: str
    part: str = "text"


@dataclass(frozen=True, slots=True)
class SentRequest:
    """The request that a driver sends to its model, as it is before the provider's own client writes it.

    Attributes:
        model: The name of the model.
        prompt: Instructions in front of the messages; "" for none.
        tools: Of each `name`, `description` and `parameters`, a JSON Schema. Tools that only take the answer are among
            them.
        settings: Temperature and the like, as JSON, without headers, which can hold keys.
        response_format: The shape that the answer must have, as JSON; None for text.
        messages: None: those of the question.
    """

    model: str
    prompt: str
    tools: tuple[Mapping[str, Any], ...]
    settings: Mapping[str, Any]
    response_format: Mapping[str, Any] | None = None
    messages: tuple[Message, ...] | None = None


@dataclass(frozen=True, slots=True)
class AuxiliaryRequest:
    """A question that a hook or a tool asks besides the step's own.

    Attributes:
        messages: What the model reads.
        system_prompt: Instructions in front of them; none of the agent's.
        response_format: The shape of the answer; None for text.
        settings: Another model for this question; None is the session's, or else the agent's.
    """

    messages: tuple[Message, ...]
    system_prompt: str = ""
    response_format: ResponseFormat | None = None
    settings: LLMConfig | None = None


@dataclass(frozen=True)
class InferenceRequest:
    """One question to a model.

    Attributes:
        state: The agent as it is before the step.
        session_id: The session, for traces.
        execution_id: The execution.
        step: Number of the step, from 1; one more than the steps that are committed.
        tools: What the model may call.
        timeout: Seconds the request may take. The engine enforces it too, for what is async.
        compiler: Chooses the messages that the model sees.
        settings: A model for this agent alone, instead of the driver's; None keeps the driver's.
        replaced_messages: Messages to send in place of the compiled ones; None sends the compiled ones.
        purpose: The key of an auxiliary call; "" for the step's own question.
        emit: Takes pieces of the answer while it arrives; None when no client watches. Never needed for the answer.
        max_answer_bytes: Most bytes of the raw answer; the engine refuses a longer one.
        observe: Takes what the provider tells about its limits, from any thread; None when it is not asked for.
        tell: Takes what is sent to the model, before it is sent; a driver that never calls it sends this question as it
            is. None as the argument: the driver answers without its model. None when it is not asked for.
    """

    state: AgentState
    session_id: str
    execution_id: str
    step: int
    tools: tuple[ToolSpec, ...] = ()
    timeout: float = 900.0
    compiler: MessageCompiler = _DEFAULT_COMPILER
    settings: LLMConfig | None = None
    replaced_messages: tuple[Message, ...] | None = None
    purpose: str = ""
    emit: Callable[[Delta], None] | None = None
    max_answer_bytes: int = 4_000_000
    observe: Callable[[ProviderFacts], None] | None = None
    tell: Callable[[SentRequest | None], None] | None = None

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """The messages for the model, without the system prompt; calls and results in pairs, never one alone.

        Compiled when they are first read, so that a driver that reads none does not wait for them.
        """
        chosen = self.compiler.compile(self.state) if self.replaced_messages is None else self.replaced_messages
        return repair_pairs(chosen)

    def with_messages(self, messages: tuple[Message, ...]) -> InferenceRequest:
        """The same question with other messages; they are paired too."""
        return replace(self, replaced_messages=messages)

    def with_tools(self, tools: tuple[ToolSpec, ...]) -> InferenceRequest:
        """The same question with other tools."""
        return replace(self, tools=tools)


class Driver(Protocol):
    """Gets one answer. Getting it and reading it are two verbs, because the raw answer is journaled in between."""

    @property
    def name(self) -> str:
        """A name for people: that of the model that it asks, or the kind of driver."""
        ...

    @property
    def is_async(self) -> bool:
        """Whether `infer` gives an awaitable, which runs on the event loop; if not, it runs in a thread."""
        ...

    def infer(self, request: InferenceRequest) -> bytes | Awaitable[bytes]:
        """Ask once. Never repeats by itself: the caller decides about that and records it.

        Returns:
            The raw answer, all that `parse` needs on any worker.

        Raises:
            DriverError: There is no answer; `transient` says whether asking again may help.
        """
        ...

    def parse(self, raw: bytes) -> InferenceResponse:
        """Read an answer. The same bytes give the same response, anywhere, without I/O.

        Raises:
            UnusableAnswer: They are no answer of this driver, or the answer does not fit what was asked for.
        """
        ...

    def check(self) -> None:
        """Say early what would fail later, without asking the model.

        Raises:
            ConfigurationError: An extra, a key or a setting is missing; the text says what to install or set.
        """
        ...

    def knows_price(self, settings: LLMConfig | None = None) -> bool:
        """Whether answers will have a cost. Without one a cost limit cannot be kept, so it is refused at the start.

        Args:
            settings: A model for this agent alone; None is the driver's.
        """
        ...

    async def aclose(self) -> None:
        """Close connections. The driver can be used again; it opens new ones."""
        ...


class EstimatesCost(Protocol):
    """A part that a `Driver` may have: spend caps reserve what a request may cost."""

    def estimate_cost(self, settings: LLMConfig | None, sent: int, received: int) -> float | None:
        """US dollars for a request of so many tokens; None where the price is not known.

        Args:
            settings: A model for this agent alone; None is the driver's.
        """
        ...


class AsksProvider(Protocol):
    """A part that a `Driver` may have: its requests are counted, and keep the limits of their provider."""

    def endpoint(self, settings: LLMConfig | None = None) -> ModelEndpoint | None:
        """Name the model, the address and the key whose requests are counted together. May take a second.

        Args:
            settings: A model for this agent alone; None is the driver's.
        Returns:
            None: Nothing is counted, and no limit holds.
        """
        ...
