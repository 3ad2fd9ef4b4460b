"""`PydanticAgentDriver`: asks the model of a pydantic-ai agent once, through a run of that agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json, to_jsonable_python

from ..drivers import InferenceRequest
from ..drivers.pydantic_ai.answers import inference_usage
from ..drivers.pydantic_ai.failures import as_driver_error
from ..drivers.pydantic_ai.streaming import CANNOT_STREAM, EmittedText, emitted_text
from ..errors import ConfigurationError, DriverError, UnusableAnswer
from ..known_secrets import redact_known, redact_known_in
from ..state import DEFAULT, FinishReason, FrozenDict, InferenceResponse, LLMConfig, ToolCall, as_text, thaw
from . import internals
from .conversation import ANSWER_AGAIN, KEY, Conversation, dump_messages, dump_parts, load_messages, read_conversation

if TYPE_CHECKING:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.run import AgentRun
    from pydantic_ai.usage import UsageLimits

    from .durability import CeleryDurability

DEPS: Final = "deps"
"""The entry of the metadata that holds the dependencies."""

USAGE_LIMITS: Final = "usage_limits"
"""The entry of the metadata that holds the limits of pydantic-ai for a session."""

_FORMAT: Final = "pydantic-ai-agent/1"
_UNUSED: Final = "Output tool not used - the other calls of the answer were carried out first."


class _NoStream(Exception):
    """The model cannot stream; nobody was asked."""


class PydanticAgentDriver:
    """Asks once: one model request of the agent's own run, with its prompts, processors, hooks and output rules.

    An answer without calls, or with calls of output tools alone, is checked here, by the agent's validators; where it
    is rejected, the answer is a call of `answer_again`, and the next step asks with the agent's own words. An output
    beside other calls comes too early: the calls are carried out, and the model is asked again.
    """

    is_async = True

    def __init__(self, agent: Agent[Any, Any], options: CeleryDurability) -> None:
        self._agent = agent
        self._options = options
        model: Any = agent.model
        self.name: str = model if isinstance(model, str) else str(getattr(model, "model_name", "pydantic-ai"))

    async def infer(self, request: InferenceRequest) -> bytes:
        """Ask once; see `Driver.infer`."""
        messages = request.state.store.section(DEFAULT).messages
        conversation = read_conversation(messages, request.execution_id)
        deps = deps_of(self._agent, self._options, request.state.metadata)
        failure: Exception
        try:
            try:
                return _as_json(await self._ask(conversation, deps, request))
            except _NoStream:
                return _as_json(await self._ask(conversation, deps, replace(request, emit=None)))
        except Exception as error:  # noqa: BLE001 - the agent's own code
            failure = _as_failure(error, self.name)
        raise failure

    async def _ask(self, conversation: Conversation, deps: Any, request: InferenceRequest) -> dict[str, Any]:
        from pydantic_ai.external_events import external_event_scope

        from .deferring import RefusingWaiter

        with external_event_scope(RefusingWaiter()):
            return await self._ask_in_run(conversation, deps, request)

    async def _ask_in_run(self, conversation: Conversation, deps: Any, request: InferenceRequest) -> dict[str, Any]:
        from pydantic_ai import CallToolsNode, ModelRequestNode
        from pydantic_ai.run import AgentRun

        async with self._agent.iter(
            conversation.prompt,
            message_history=conversation.history or None,
            deps=deps,
            usage=conversation.usage,
            usage_limits=limits_of(self._options, request.state.metadata),
            conversation_id=request.session_id,
        ) as run:
            internals.seed_run(run, conversation.counters, run_step=conversation.counters.run_step)
            internals.queue_messages(run, conversation.queued)
            assert isinstance(run, AgentRun)
            node: Any = run.next_node
            text = emitted_text(request, self.name, is_shaped=self._agent.output_type is not str)
            while not isinstance(node, CallToolsNode):
                asks = isinstance(node, ModelRequestNode)
                if text is not None and asks:
                    await _emit(node, run, text)
                node = await run.next(node)
            return await self._read_answer(run, node, conversation)

    async def _read_answer(self, run: AgentRun[Any, Any], node: Any, conversation: Conversation) -> dict[str, Any]:
        """The answer as it is journaled: what the run has added, and how it goes on."""
        response: ModelResponse = node.model_response
        manager = internals.tool_manager_of(run, conversation.counters)
        outputs = internals.names_of_outputs(manager)
        early = [call for call in response.tool_calls if call.tool_name in outputs]
        kept: dict[str, Any] = {"format": _FORMAT, "output": None, "final": False, "rejected": False, "results": []}
        if len(early) < len(response.tool_calls):
            kept["results"] = dump_parts([_make_unused_result(call) for call in early])
            kept["calls"] = [call.tool_call_id for call in response.tool_calls if call.tool_name not in outputs]
        else:
            following: Any = await run.next(node)
            if run.result is not None:
                kept |= {"final": True, "output": to_jsonable_python(run.result.output)}
            else:
                kept |= {"rejected": True, "results": dump_parts(following.request.parts)}
        kept["messages"] = dump_messages(run.all_messages()[conversation.known :])
        if queued := internals.queued_messages(run):
            kept["queued"] = queued
        kept["counters"] = internals.counters_of(run, conversation.counters).to_json()
        return kept | {"usage": _dump_usage(run)}

    def parse(self, raw: bytes) -> InferenceResponse:
        """Read the answer; see `Driver.parse`."""
        try:
            kept: dict[str, Any] = from_json(raw)
            if kept["format"] != _FORMAT:
                raise ValueError(kept["format"])
            response: Any = next(each for each in reversed(load_messages(kept["messages"])) if each.kind == "response")
        except (ValueError, KeyError, TypeError, StopIteration):
            raise UnusableAnswer("The journaled answer is not one of this driver.", permanent=True) from None
        calls = _calls(response, kept)
        text = response.text or ""
        output = kept["output"]
        return InferenceResponse(
            content=as_text(output) if kept["final"] and output is not None else text,
            tool_calls=calls,
            usage=inference_usage(response.usage),
            finish_reason=FinishReason.TOOL_CALLS if calls else FinishReason.STOP,
            model=response.model_name,
            request_id=response.provider_response_id,
            output=None if isinstance(output, str) else output,
            provider=FrozenDict(
                {KEY: {name: value for name, value in kept.items() if name not in ("format", "output")}}
            ),
        )

    def check(self) -> None:
        """Check that the installed pydantic-ai has what the steps touch of it.

        Raises:
            ConfigurationError: It has not, or the agent has no model.
        """
        if self._agent.model is None:
            raise ConfigurationError(f"agent {self._agent.name!r}: it has no model; give one, as Agent('openai:…', …)")

    def knows_price(self, settings: LLMConfig | None = None) -> bool:
        """No: pydantic-ai gives tokens, and a cost limit could not be kept."""
        return False

    async def aclose(self) -> None:
        """Nothing is open: pydantic-ai keeps the connections of its models."""


def _as_json(kept: dict[str, Any]) -> bytes:
    """An answer as JSON, without secrets of this process: the agent's own code words rejections and outputs."""
    raw = to_json(kept)
    text = raw.decode()
    return raw if redact_known(text) == text else to_json(redact_known_in(kept))


async def _emit(node: Any, run: AgentRun[Any, Any], text: EmittedText) -> None:
    """Let a node ask as a stream; the run goes on from it as from one that asked without."""
    try:
        async with node.stream(run.ctx) as events:
            await text.emit_all(events)
    except CANNOT_STREAM:
        if text.has_begun:
            raise
        raise _NoStream from None


def limits_of(options: CeleryDurability, metadata: Mapping[str, Any]) -> UsageLimits | None:
    """The limits that pydantic-ai keeps: those of the run that `durable` has submitted, else those of the agent."""
    from pydantic_ai.usage import UsageLimits

    given: Any = metadata.get(USAGE_LIMITS)
    return options.usage_limits if given is None else UsageLimits(**thaw(given))


def deps_of(agent: Agent[Any, Any], options: CeleryDurability, metadata: Mapping[str, Any]) -> Any:
    """The dependencies of a step.

    Raises:
        DriverError: The factory failed, or the metadata `deps` do not fit the agent's `deps_type`.
    """
    given: Any = {name: thaw(value) for name, value in metadata.items()}
    wanted: Any = agent.deps_type
    try:
        if options.deps is not None:
            return options.deps(given)
        if DEPS not in given and not hasattr(wanted, "model_validate"):
            return None
        return TypeAdapter(wanted).validate_python(given.get(DEPS))
    except Exception as error:
        said = f"agent {agent.name!r}: its dependencies cannot be made of the metadata: {type(error).__name__}: {error}"
        raise DriverError("dependencies", said[:500], transient=False) from error


def _as_failure(error: Exception, model: str) -> Exception:
    """Translate what the agent's run has raised; what ends a run of pydantic-ai ends the execution too."""
    from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded

    if isinstance(error, (UnexpectedModelBehavior, UsageLimitExceeded)):
        return DriverError(type(error).__name__, str(error), transient=False)
    return as_driver_error(error, model, asked=False)


def _make_unused_result(call: Any) -> Any:
    from pydantic_ai.messages import ToolReturnPart

    return ToolReturnPart(tool_name=call.tool_name, content=_UNUSED, tool_call_id=call.tool_call_id)


def _calls(response: ModelResponse, kept: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    if kept["rejected"]:
        return (ToolCall(id="output", name=ANSWER_AGAIN),)
    wanted = kept.get("calls", ())
    return tuple(
        ToolCall.from_text(
            call.tool_call_id, call.tool_name, call.args if isinstance(call.args, str) else call.args_as_json_str()
        )
        for call in response.tool_calls
        if call.tool_call_id in wanted
    )


def _dump_usage(run: AgentRun[Any, Any]) -> dict[str, Any]:
    """The numbers of a run's usage that are not 0."""
    return {name: value for name, value in to_jsonable_python(run.usage).items() if value}
