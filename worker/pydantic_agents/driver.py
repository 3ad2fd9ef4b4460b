"""`PydanticAgentDriver`: asks the model of a pydantic-ai agent once, through a run of that agent."""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json, to_jsonable_python

from ..drivers.answers import answer_too_large
from ..drivers.pricing import estimate, is_priced
from ..drivers.protocol import InferenceRequest
from ..drivers.pydantic_ai.answers import finish_reason_of, inference_usage
from ..drivers.pydantic_ai.background import translate
from ..drivers.pydantic_ai.failures import OF_ANY_CODE, as_driver_error, may_pass
from ..drivers.pydantic_ai.models import ModelClients, Target, endpoint_of, unwrapped
from ..drivers.pydantic_ai.received import INTERRUPTED, interrupted_stream
from ..drivers.pydantic_ai.response_limit import response_limit
from ..drivers.pydantic_ai.streaming import CANNOT_STREAM, STREAM_OVERHEAD, EmittedText, StreamEnds, emitted_text
from ..errors import ConfigurationError, DriverError, UnusableAnswer
from ..flow.values import ModelEndpoint
from ..redaction import describe_exception, place_of, redact
from ..state.conversation.context import LLMConfig
from ..state.conversation.messages import DEFAULT, Message, Role
from ..state.execution.inference import FinishReason, InferenceResponse
from ..state.execution.tool_calls import ToolCall
from ..state.execution.usage import NO_USAGE, InferenceUsage
from ..state.values.frozen import FrozenDict, thaw
from ..tools.effect import Effect
from ..tools.stop import StopExecution
from . import internals
from .begun import begun_call
from .conversation import (
    ANSWER_AGAIN,
    KEY,
    REPEATED,
    SETTLED,
    Conversation,
    KeptMessages,
    called_parts,
    kept_of,
    read_conversation,
    repeated_calls,
)
from .later import COST, LaterAnswers, as_json
from .outputs import OUTPUT, dump_output, is_blank, text_of_output
from .repeating import calls_to_repeat
from .stored_messages import dump_messages, dump_parts, load_messages
from .tool_options import TOOLS, ToolOptions
from .usages import dump_usage, estimate_of, has_price, load_limits, price_of

if TYPE_CHECKING:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.run import AgentRun
    from pydantic_ai.tool_manager import ToolManager
    from pydantic_ai.usage import UsageLimits

    from .durability import CeleryDurability

DEPS: Final = "deps"
"""The entry of the metadata that holds the dependencies."""

USAGE_LIMITS: Final = "usage_limits"
"""The entry of the metadata that holds the limits of pydantic-ai for a session."""

METADATA: Final = "metadata"
"""The entry of a final answer that holds the metadata of the run: those of the session, and the agent's own."""

_FAILED: Final = "failed"
"""The entry of an answer by which pydantic-ai ends a run: the kind and the text of the exception."""

_FORMAT: Final = "pydantic-ai-agent/1"

log = logging.getLogger(__name__)


class _NoStream(Exception):
    """The model cannot stream; no model was asked."""


class PydanticAgentDriver(LaterAnswers):
    """Asks once: one model request of the agent's own run, with its prompts, processors, hooks and output rules.

    An answer without calls, or with calls of output tools alone, is checked here, by the agent's validators; where it
    is rejected, the answer is a call of `answer_again`, and the next step asks with the agent's own words.

    Where an answer has outputs besides other calls, the agent's `end_strategy` says what comes first. After the calls,
    the next step takes the outputs; it asks the model only where none is the final one.
    """

    is_async = True

    def __init__(
        self, agent: Agent[Any, Any], options: CeleryDurability, known: Mapping[str, ToolOptions] | None = None
    ) -> None:
        """Take an agent.

        Args:
            known: Options of the tools that the agent has without a run; the answers keep those of the others.
        """
        self._agent = agent
        self._options = options
        self._known = known or {}
        self._streams = StreamEnds()
        self._clients = ModelClients()
        model: Any = agent.model
        self.name: str = model if isinstance(model, str) else str(getattr(model, "model_name", "pydantic-ai"))

    async def infer(self, request: InferenceRequest) -> bytes:
        """Ask once; see `Driver.infer`."""
        if request.tell is not None:
            request.tell(None)  # the hook of `CeleryDurability` tells what is sent, where something is
        messages = request.state.store.section(DEFAULT).messages
        tag_id = request.state.tag_id_of(request.execution_id)
        if repeated := calls_to_repeat(request.state, messages, request.execution_id):
            return as_json(_repeat(messages, tag_id, repeated))
        failure: Exception
        limit = None
        if not self._streams.may_stream(self.name):
            request = replace(request, emit=None)
        try:
            most_bytes = request.max_answer_bytes * (1 if request.emit is None else STREAM_OVERHEAD)
            with response_limit(most_bytes, request.observe, request.tell) as limit, self._in_background(request):
                try:
                    answer = as_json(await self._ask_once(request))
                except _NoStream:
                    return as_json(await self._ask_once(replace(request, emit=None)))
            if request.emit is not None:
                self._streams.count(self.name)
            return answer
        except Exception as error:  # noqa: BLE001 - the agent's own code
            attaches = request.attach is not None
            failure = translate(error, Target(self.name)) if attaches else _as_failure(error, self.name)
            self._streams.count(self.name, failure)
            if limit is not None and limit.exceeded:  # clients take it for a lost connection
                failure = answer_too_large(self.name, request.max_answer_bytes)
        raise failure

    async def _ask_once(self, request: InferenceRequest) -> dict[str, Any]:
        from pydantic_ai.external_events import external_event_scope

        from .deferring import RefusingWaiter

        messages = request.state.store.section(DEFAULT).messages
        conversation = read_conversation(messages, request.state.tag_id_of(request.execution_id))
        deps = deps_of(self._agent, self._options, request.state.metadata)
        with external_event_scope(RefusingWaiter()), self._prompt_of_session(request.state.system_prompt):
            return await self._ask_in_run(conversation, deps, request)

    async def _ask_in_run(self, conversation: Conversation, deps: Any, request: InferenceRequest) -> dict[str, Any]:
        options = await self._options_of_session(request.settings)
        opened = self._agent.iter(
            conversation.prompt,
            **options,
            message_history=conversation.history or None,
            deps=deps,
            usage=conversation.usage,
            usage_limits=limits_of(self._options, request.state.metadata),
            conversation_id=request.session_id,
            metadata=metadata_of_run(request.state.metadata) or None,
        )
        run: AgentRun[Any, Any] | None = None
        follows: dict[str, Any] = {}
        try:
            async with closing_quietly(opened, may_recover=True) as run:
                node = await self._answer(run, conversation, request)
                if run.result is None:
                    follows = await self._go_on(run, node, conversation)
            # By now hooks of the agent have put a result in the place of an error, or of the one that there was.
            return self._read_answer(run, follows, conversation, options.get("model"))
        except _NoStream:
            raise
        except Exception as error:
            if run is None:
                raise
            return self._read_failure(run, error, options.get("model"), reads_again=request.keep is not None)

    async def _answer(self, run: AgentRun[Any, Any], conversation: Conversation, request: InferenceRequest) -> Any:
        """Let a run get its answer; give the node with which it would go on."""
        from pydantic_ai import CallToolsNode, ModelRequestNode

        counters, takes_outputs = conversation.counters, conversation.results is not None
        run_step = counters.run_step - takes_outputs
        internals.seed_run(run, counters, run_step=run_step, prompt=conversation.asked)
        internals.settle(run, conversation.settled)
        internals.queue_messages(run, conversation.queued)
        node: Any = await self._begin(run, conversation)
        if takes_outputs and run.result is None:  # the results of all calls, and of the outputs that it gave
            conversation.counters = conversation.counters.after(node.request.parts)
        text = emitted_text(request, self.name, is_shaped=self._agent.output_type is not str)
        while run.result is None and not isinstance(node, CallToolsNode):
            asks = isinstance(node, ModelRequestNode)
            if text is not None and asks:
                await _emit(node, run, text)
            node = await run.next(node)
        return cast("Any", node)

    async def _options_of_session(self, config: LLMConfig | None) -> dict[str, Any]:
        """The model and the settings of a session that has its own, as options of a run; none otherwise.

        Raises:
            ConfigurationError: There is no such model.
        """
        if config is None:
            return {}
        options: dict[str, Any] = {"model_settings": thaw(config.settings)} if config.settings else {}
        if config.model is not None or config.base_url is not None:
            options["model"] = await self._clients.get(self._target_of_session(config))
        return options

    def _target_of_session(self, config: LLMConfig) -> Target:
        """The model of a session that has one; the agent's own at another address, where it names an address alone."""
        if config.model is not None:
            return Target(config.model, config.base_url)
        own: Any = self._agent.model
        return Target(own if isinstance(own, str) else f"{own.system}:{own.model_name}", config.base_url)

    def _prompt_of_session(self, prompt: str) -> AbstractContextManager[None]:
        """Let the prompt of a session that has one take the place of the agent's instructions."""
        return self._agent.override(instructions=prompt) if prompt else nullcontext()

    async def _begin(self, run: AgentRun[Any, Any], conversation: Conversation) -> Any:
        """The node with which a run begins, or goes on from the answer of an earlier step."""
        node: Any = run.next_node
        if conversation.prompt is not None:
            return node
        node = await run.next(node)
        if conversation.results is None:
            *before, request = conversation.history
            internals.restore_history(run, before, prompt=conversation.asked)
            if before and before[-1].kind == "request":  # the run has joined the two into one
                node.request.parts = list(request.parts)
            return node
        history, counters = [*conversation.history[:-1], node.model_response], conversation.counters
        internals.restore_history(run, history, prompt=conversation.asked)
        # The run has found its tools for the request behind it, and has not counted it.
        internals.seed_run(run, counters, run_step=counters.run_step, prompt=conversation.asked)
        internals.tool_manager_of(run, counters)
        return await internals.take_outputs_after(run, node, conversation.results)

    def _read_answer(
        self, run: AgentRun[Any, Any], follows: Mapping[str, Any], conversation: Conversation, asked: Any
    ) -> dict[str, Any]:
        """The answer as it is journaled: what the run has added, and how it goes on.

        Args:
            follows: What follows the answer, where that is not the end.
            asked: The model of the session that was asked; None for the agent's.
        """
        kept: dict[str, Any] = {"format": _FORMAT, "output": None, "final": False, "rejected": False, "results": []}
        kept |= follows
        if run.result is not None:
            kept |= {"final": True, **dump_output(self._agent.name, run.result.output, internals.output_tool(run))}
            kept[METADATA] = to_jsonable_python(run.metadata, fallback=str)
        given = conversation.history[: conversation.known]
        messages = KeptMessages.of_run(given, run.all_messages(), run.run_id)
        kept |= messages.to_json() | {COST: self._cost_of(messages.added, asked)}
        if queued := internals.queued_messages(run):
            kept["queued"] = queued
        if (settled := internals.settled_by(run)) != conversation.settled:
            kept[SETTLED] = settled
        kept["counters"] = internals.counters_of(run, conversation.counters).to_json()
        return kept | {"usage": dump_usage(run.usage)}

    def _read_failure(
        self, run: AgentRun[Any, Any], error: Exception, asked: Any, *, reads_again: bool
    ) -> dict[str, Any]:
        """The journaled form of an answer behind which the run ends with an error, so that what it cost is counted.

        Args:
            reads_again: The same answer can be read from its provider again, where the error may pass.

        Raises:
            Exception: The error; the model has not answered, or the same answer is read again.
        """
        from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded

        answers = [each for each in run.all_messages() if each.kind == "response" and each.run_id == run.run_id]
        failure = _as_failure(error, self.name)
        ends_run = isinstance(error, (UnexpectedModelBehavior, UsageLimitExceeded))
        # A run asks its model once: behind a whole answer it is another one that a hook or a validator has asked.
        is_behind = ends_run or not _is_of_model(error) or all(each.state == "complete" for each in answers)
        is_told = is_behind and getattr(failure, "kind", "") != INTERRUPTED
        if not (answers and is_told and isinstance(failure, DriverError)) or (reads_again and failure.transient):
            raise error
        text = redact(error.message) if ends_run else str(failure)  # its own text can hold the whole answer
        said = {"kind": type(error).__name__, "message": text, "transient": failure.transient}
        if failure.__cause__ is error:
            log.info("agent %s raised %s%s", self.name, text, place_of(error))
        return {
            "format": _FORMAT, _FAILED: said, "output": None, "final": False, "messages": dump_messages(answers),
            COST: self._cost_of(answers, asked),
        }  # fmt: skip

    def _cost_of(self, messages: Sequence[ModelMessage], asked: Any) -> float | None:
        """The cost of the answers among these messages; None where one is unknown, and where there is none."""
        answers = list(_paid_answers(messages))
        model, price = (self._agent.model, self._options.price) if asked is None else (asked, None)
        costs = [price_of(answer, model, price) for answer in answers]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if answers and len(known) == len(costs) else None

    async def _go_on(self, run: AgentRun[Any, Any], node: Any, conversation: Conversation) -> dict[str, Any]:
        """Take the output of an answer, unless calls come first; say what follows where that is not the end."""
        response = internals.response_with_unique_call_ids(run, node)
        manager = internals.tool_manager_of(run, conversation.counters)
        names = internals.names_of_outputs(manager)
        outputs = [call for call in response.tool_calls if call.tool_name in names]
        calls = [call for call in response.tool_calls if call.tool_name not in names]
        if not calls:
            return _after_outputs(run, await run.next(node))
        kept: dict[str, Any] = {"calls": [call.tool_call_id for call in calls]}
        if options := self._options_of({call.tool_name for call in calls}, manager):
            kept[TOOLS] = options
        if self._agent.end_strategy != "early":
            taken_later = [[call.tool_call_id, call.tool_name] for call in outputs]
            return kept | {"outputs": taken_later} if outputs else kept
        if not outputs and not response.text and not response.files:
            return kept
        following, rejected = await internals.take_outputs_first(run, node)
        return kept | {"results": dump_parts(rejected)} if rejected is not None else _after_outputs(run, following)

    def _options_of(self, names: Collection[str], manager: ToolManager[Any]) -> dict[str, Any]:
        """The options of these tools as the run has them, where they are not those with which the agent was found."""
        definitions = {name: manager.get_tool_def(name) for name in names}
        default = Effect(self._options.effect)
        found = {
            name: ToolOptions.of(self._agent.name, each, default)
            for name, each in definitions.items()
            if each is not None
        }
        return {name: options.to_json() for name, options in found.items() if options != self._known.get(name)}

    def parse(self, raw: bytes) -> InferenceResponse:
        """Read the answer; see `Driver.parse`."""
        try:
            kept: dict[str, Any] = from_json(raw)
            if kept["format"] != _FORMAT:
                raise ValueError(kept["format"])
            messages = load_messages(kept["messages"])
            response: Any = next((each for each in reversed(messages) if each.kind == "response"), None)
            if response is None and not kept["final"] and not kept.get(REPEATED):
                raise ValueError(kept["messages"])
        except (ValueError, KeyError, TypeError):
            raise UnusableAnswer("The journaled answer is not one of this driver.", permanent=True) from None
        if failed := kept.get(_FAILED):
            raise _failure_of_answer(failed, messages, kept[COST])
        output = kept["output"]
        facts: dict[str, Any] = {
            "output": None if isinstance(output, str) else output,
            "provider": FrozenDict({KEY: _kept_with_message(kept)}),
        }
        if kept.get(REPEATED):
            calls = tuple(
                ToolCall.from_text(call_id, each["name"], each["args"]) for call_id, each in kept[REPEATED].items()
            )
            return InferenceResponse(tool_calls=calls, finish_reason=FinishReason.TOOL_CALLS, **facts)
        if response is None:  # the output is one of an earlier answer, which has been charged
            return InferenceResponse(content=text_of_output(output), **facts)
        calls = _calls(response, kept)
        return InferenceResponse(
            content=text_of_output(output) if kept["final"] else response.text or "",
            tool_calls=calls,
            usage=_usage_of(messages),
            finish_reason=_finish_reason(response, has_calls=bool(calls)),
            model=response.model_name,
            request_id=response.provider_response_id,
            cost=kept.get(COST),
            **facts,
        )

    def check(self) -> None:
        """Check that the installed pydantic-ai has what the steps touch of it.

        Raises:
            ConfigurationError: It has not, or the agent has no model.
        """
        if self._agent.model is None and self._agent.root_capability.get_model() is None:
            raise ConfigurationError(f"agent {self._agent.name!r}: it has no model; give one, as Agent('openai:…', …)")

    price_option = "CeleryDurability(price=TokenPrice(…))"
    """Where an agent of this driver gets its price, for the error about a cost limit."""

    def knows_price(self, settings: LLMConfig | None = None) -> bool:
        """Whether answers will have a cost; see `Driver.knows_price`."""
        if settings is not None and settings.model is not None:
            target = self._target_of_session(settings)
            return is_priced(target.provider, target.name)
        return self._options.price is not None or has_price(self._agent.model)

    def estimate_cost(self, settings: LLMConfig | None, sent: int, received: int) -> float | None:
        """US dollars for a request of so many tokens; see `EstimatesCost.estimate_cost`."""
        if settings is not None and settings.model is not None:
            target = self._target_of_session(settings)
            return estimate(None, target.provider, target.name, sent=sent, received=received)
        return estimate_of(self._agent.model, self._options.price, sent=sent, received=received)

    def endpoint(self, settings: LLMConfig | None = None) -> ModelEndpoint | None:
        """Name what its requests are counted by; see `AsksProvider.endpoint`. None for several models in one."""
        if settings is not None and (settings.model is not None or settings.base_url is not None):
            return self._clients.endpoint(self._target_of_session(settings))
        model: Any = self._agent.model
        if isinstance(model, str):
            return self._clients.endpoint(Target(model))
        model = unwrapped(model)
        asks = getattr(model, "provider", None) is not None
        return endpoint_of(model, f"{model.system}:{model.model_name}") if asks else None

    async def aclose(self) -> None:
        """Close the connections to models of sessions; pydantic-ai keeps those of the agent's own."""
        await self._clients.aclose()


def _repeat(messages: Sequence[Message], tag_id: str, repeated: Mapping[str, Any]) -> dict[str, Any]:
    """An answer that makes calls of the model's last answer again, without asking the model."""
    answer = next(each for each in reversed(messages) if each.role is Role.ASSISTANT and not repeated_calls(each))
    kept: Mapping[str, Any] = thaw(kept_of(answer))
    usage = dump_usage(read_conversation(messages, tag_id).usage)
    again = {"messages": [], "results": [], "calls": list(repeated), REPEATED: dict(repeated), "usage": usage}
    same = {name: kept[name] for name in ("counters", TOOLS) if name in kept}
    return {"format": _FORMAT, "output": None, "final": False, "rejected": False, **same, **again}


async def _emit(node: Any, run: AgentRun[Any, Any], text: EmittedText) -> None:
    """Let a node ask as a stream; the run goes on from it as from one that asked without."""
    from pydantic_ai.exceptions import UnexpectedModelBehavior

    try:
        async with node.stream(run.ctx) as stream:
            begun = begun_call.get()
            await text.emit_all(stream if begun is None else begun.keeping(stream))
    except CANNOT_STREAM:
        if text.has_begun:
            raise
        raise _NoStream from None
    except UnexpectedModelBehavior:
        if text.has_begun:
            raise
        raise interrupted_stream(run.ctx.deps.model.model_id) from None  # it ended before it began


@asynccontextmanager
async def closing_quietly(
    opened: AbstractAsyncContextManager[AgentRun[Any, Any]], *, may_recover: bool = False
) -> AsyncGenerator[AgentRun[Any, Any]]:
    """A run whose work counts once it is done: where a toolset cannot be closed behind it, the log tells so.

    What a hook raises behind the end of the run is its error, as is a cancellation.

    Args:
        may_recover: A hook of the agent may give the run a result in the place of an error; else the error is raised.
    """
    from pydantic_ai.exceptions import RunCancelled

    is_done, run = False, None
    raised: Exception | None = None
    try:
        async with opened as run:
            try:
                yield run
            except Exception as error:
                raised = error
                raise
            is_done = True
    except Exception as error:
        if not is_done or run is None or not internals.hooks_have_passed(run) or isinstance(error, RunCancelled):
            raise
        log.warning("a toolset could not be closed: %s%s", describe_exception(error).message, place_of(error))
    if raised is not None and not may_recover:
        raise raised


def limits_of(options: CeleryDurability, metadata: Mapping[str, Any]) -> UsageLimits | None:
    """The limits that pydantic-ai keeps: those of the run that `durable` has submitted, else those of the agent."""
    given: Any = metadata.get(USAGE_LIMITS)
    return options.usage_limits if given is None else load_limits(given)


def metadata_of_run(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata that functions of the agent find in their context: those of the session without what is ours."""
    return {name: thaw(value) for name, value in metadata.items() if name not in (DEPS, USAGE_LIMITS)}


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
        return TypeAdapter(wanted).validate_json(to_json(given.get(DEPS)))
    except Exception as error:
        said = f"agent {agent.name!r}: its dependencies cannot be made of the metadata: {type(error).__name__}: {error}"
        raise DriverError("dependencies", said[:500], transient=False) from error


def _as_failure(error: Exception, model: str) -> Exception:
    """Translate what the agent's run has raised; what ends a run of pydantic-ai ends the execution too."""
    from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded

    if isinstance(error, (UnexpectedModelBehavior, UsageLimitExceeded)):
        return DriverError(type(error).__name__, str(error), transient=False)
    if isinstance(error, StopExecution):
        return error
    failure = as_driver_error(error, model, asked=False)
    if not isinstance(failure, DriverError) or failure.kind not in OF_ANY_CODE or _is_of_model(error):
        return failure
    described = describe_exception(error)
    found = DriverError(described.kind, described.message, transient=may_pass(error))
    found.__cause__ = error
    return found


def _is_of_model(error: Exception) -> bool:
    """Whether an exception came through a model: its text may repeat what a provider has said, and is not shown."""
    from pydantic_ai.models import Model, StreamedResponse

    if isinstance(error, ExceptionGroup):
        return any(_is_of_model(each) for each in cast("ExceptionGroup[Exception]", error).exceptions)
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(isinstance(frame.f_locals.get("self"), (Model, StreamedResponse)) for frame in frames)


def _after_outputs(run: AgentRun[Any, Any], following: Any) -> dict[str, Any]:
    """The entries of an answer whose outputs were taken: none at the end, else the model is asked again."""
    return {} if run.result is not None else {"rejected": True, "results": dump_parts(following.request.parts)}


def _failure_of_answer(
    failed: Mapping[str, Any], messages: Sequence[ModelMessage], cost: float | None
) -> UnusableAnswer:
    """The error by which pydantic-ai ends a run with an answer, which was paid for all the same."""
    answer: Any = messages[-1]
    is_permanent = not failed.get("transient", False)  # earlier builds have kept no other ones
    error = UnusableAnswer(failed["message"], permanent=is_permanent, request_id=answer.provider_response_id)
    error.kind = failed["kind"]
    return error.paid(_usage_of(messages), cost, answer.text or "", answer.model_name)


def _usage_of(messages: Sequence[ModelMessage]) -> InferenceUsage:
    """The usage of the answers among these messages."""
    return sum((inference_usage(each.usage) for each in _paid_answers(messages)), NO_USAGE)


def _paid_answers(messages: Iterable[ModelMessage]) -> Iterator[ModelResponse]:
    """The answers among these messages, and those in whose place a fallback has asked its next model."""
    for each in messages:
        if each.kind == "response":
            yield each
            for tried in each.failed_attempts or ():
                if tried.usage is not None:
                    names = {"provider_name": tried.provider_name, "model_name": tried.model_name}
                    yield replace(each, usage=tried.usage, **names)


def _finish_reason(response: ModelResponse, *, has_calls: bool) -> FinishReason:
    """Why the model ended its answer; a call of an output tool is no tool call of ours, and a rejection is one."""
    reason = finish_reason_of(response)
    if has_calls:
        return reason if reason.is_cut_short() else FinishReason.TOOL_CALLS
    return FinishReason.STOP if reason is FinishReason.TOOL_CALLS else reason


def _calls(response: ModelResponse, kept: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    if kept["rejected"]:
        return (ToolCall(id="output", name=ANSWER_AGAIN),)
    return tuple(
        ToolCall.from_text(
            call.tool_call_id, call.tool_name, call.args if isinstance(call.args, str) else call.args_as_json_str()
        )
        for call in called_parts(response, kept)
    )


def _kept_with_message(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an answer that its message keeps; the output is there already, unless it is blank."""
    left_out = {"format", COST} if kept["final"] and is_blank(kept[OUTPUT]) else {"format", COST, OUTPUT}
    return {name: value for name, value in kept.items() if name not in left_out}
