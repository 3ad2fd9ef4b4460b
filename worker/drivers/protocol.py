"""The Protocol of drivers, and the request that a driver answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
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
        keep: Takes by what the answer is known at its provider, as soon as it is; it may block. The driver asks in the
            background then, so that another worker can attach to the same answer. None: as usual.
        attach: The handle of an answer that a worker has begun to receive. None: it is to be begun.
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
    keep: Callable[[CreatedJob], None] | None = None
    attach: str | None = None

    @property
    def own_model(self) -> str | None:
        """The model that the settings name; None: that of the driver."""
        return self.settings.model if self.settings is not None else None

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


@dataclass(frozen=True, slots=True)
class JobOrder:
    """A job at a provider: a question whose answer comes within a window, for a lower price.

    Attributes:
        key: Names it, the same for every worker: at most 64 letters, digits, "_" and "-".
        chain: Names the execution in the same way: its later jobs follow from the earlier ones.
        window: The time within which the answer has to come, as in `windows.WINDOWS`.
        intended_at: When its creation was intended.
        until: When nobody can be creating it any more.
    """

    key: str
    chain: str
    window: str
    intended_at: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class CreatedJob:
    """A job that was created at a provider.

    Attributes:
        id: The provider's.
        handle: All that the driver needs to find it again on any worker, as JSON, without a key.
    """

    id: str
    handle: str


class AnswersLater(Protocol):
    """A part that a `Driver` may have: its provider answers within a window, and no process waits for it.

    Its coroutines run on the event loop, as `infer` does, and never repeat a request by themselves.
    """

    def check_window(self, window: str, settings: LLMConfig | None = None) -> None:
        """Refuse what is not sold, without asking the provider.

        Args:
            settings: A model for this agent alone; None is the driver's.
        Raises:
            ConfigurationError: The model or its provider has no such window.
        """
        ...

    def can_find(self, window: str) -> bool:
        """Whether `find_job` can tell, after its creator died, whether a job was created."""
        ...

    async def create_job(self, request: InferenceRequest, order: JobOrder) -> CreatedJob:
        """Create a job.

        Raises:
            DriverError: It was refused, where it has a `status`; without one it may have been created.
        """
        ...

    async def find_job(self, request: InferenceRequest, order: JobOrder) -> CreatedJob | None:
        """Look for a job by its key. Asked only where `can_find` is true.

        Returns:
            None: There is none.
        Raises:
            NotYetKnown: It cannot be told yet.
            DriverError: The provider did not answer.
        """
        ...

    async def collect_job(self, request: InferenceRequest, handle: str) -> bytes | None:
        """Ask for the answer of a job.

        Args:
            request: The question as this worker would ask it; nothing of it is sent.
        Returns:
            The raw answer, as `infer` gives it; None while there is none.
        Raises:
            JobEnded: There will be none.
            DriverError: The provider did not answer, or the answer is too large.
        """
        ...

    async def clean_job(self, handle: str, *, is_open: bool) -> InferenceResponse | None:
        """Cancel a job, or delete what its provider keeps of it. Doing so again does no harm.

        Args:
            is_open: Nobody has collected its answer, and nobody will: it is cancelled.
        Returns:
            Usage and cost of what a cancelled job had answered before, which has to be deleted next; nothing of either
            where it had not answered, no cost where its answer cannot be read. None: it is not known, or was deleted.
        Raises:
            NotYetKnown: It is being cancelled; it is to be done again.
            DriverError: The provider did not answer; it is to be done again.
        """
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
