"""`durable`: a run of a pydantic-ai agent in the workers, asked for as `Agent.run` asks.

The agent itself is used for its name, its types and its options: what is submitted is text and JSON, and a worker runs
the agent of that name.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypedDict, TypeVar, Unpack, cast

from pydantic import TypeAdapter
from pydantic_ai import Agent
from pydantic_ai.exceptions import (
    AgentRunError,
    ContentFilterError,
    IncompleteToolCall,
    OutputTokenLimitExceeded,
    RunCancelled,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
)
from pydantic_ai.run import AgentRunResult
from pydantic_core import to_json, to_jsonable_python

from ...worker.errors import ConfigurationError, InvalidInput
from ...worker.pydantic_agents.conversation import (
    Conversation,
    history_message,
    kept_messages_of,
    kept_of,
    read_conversation,
)
from ...worker.pydantic_agents.definition import definition_of
from ...worker.pydantic_agents.driver import DEPS, METADATA, USAGE_LIMITS
from ...worker.pydantic_agents.outputs import UnreadableOutput, output_tool_of, read_output
from ...worker.pydantic_agents.usages import dump_limits
from ...worker.state.conversation.messages import DEFAULT, Message, Role
from ...worker.state.execution.budget import ExecutionBudget
from ...worker.state.execution.signals import StopReason
from ...worker.state.values.frozen import thaw
from .async_client import AsyncAgentClient
from .client import AgentClient

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.usage import UsageLimits

    from ...worker.state.values.error_info import ErrorInfo
    from ...worker.store.session_records import Result

OutputT = TypeVar("OutputT")

_RAISES: Final[tuple[type[AgentRunError], ...]] = (
    UsageLimitExceeded,
    ContentFilterError,
    IncompleteToolCall,
    OutputTokenLimitExceeded,
    UnexpectedModelBehavior,
    RunCancelled,
)
_MODULE: Final = "in the module that the workers import"
_INSTEAD: Final = {
    "cancellation_token": "stop the job instead: client.stop(conversation_id)",
    "event_stream_handler": "follow the job instead: client.stream(conversation_id)",
    "deferred_tool_results": "answer its requests instead: client.answer(conversation_id, …)",
    "usage": "a run counts its own; limit it with usage_limits= or budget=, and add result.usage to yours",
    "conversation": "give message_history=, or the conversation_id= of an earlier result",
    "output_type": f"give it to an agent with a name of its own, {_MODULE}",
    "model": f"give it to the agent, {_MODULE}, or let a function choose it there by the dependencies",
    "model_settings": f"give them to the agent, {_MODULE}; a function there may choose them by the dependencies",
    "instructions": f"write a function for @agent.instructions, {_MODULE}, that reads metadata= or deps= of the run",
    "toolsets": f"give them to the agent, {_MODULE}; a function for @agent.toolset may choose by the dependencies",
    "retries": f"give them to the agent, {_MODULE}",
}
"""What to do instead of an option that stays in this process.

What an agent is told and which model it asks is up to the workers: metadata, by which options travel, is open to each
client that may submit.
"""


class DurableRunOptions(TypedDict, total=False):
    """The options of a run that travel to the workers; those of `Agent.run` of the same name mean the same.

    Attributes:
        message_history: What was said before; a new session begins with it.
        deps: The dependencies, which must have a form as JSON: they become the metadata `deps`. Refused where
            `CeleryDurability(deps=…)` makes them.
        conversation_id: The session to go on with, from an earlier result. None: a new one.
        run_id: The same run with the same id is made once, however often it is asked for.
        usage_limits: Limits that pydantic-ai keeps, of a new session.
        metadata: JSON kept with a new session; `CeleryDurability(deps=…)` gets it.
        timeout: Seconds the run may take, without those spent waiting for a person; `TimeoutError` afterwards.
        budget: Further limits of the run.
        infer_name: Has no meaning here: a durable agent has a name.
    """

    message_history: Sequence[ModelMessage] | None
    deps: Any
    conversation_id: str | None
    run_id: str | None
    usage_limits: UsageLimits | None
    metadata: Mapping[str, Any] | None
    timeout: float | None
    budget: ExecutionBudget | None
    infer_name: bool


def durable(agent: Agent[Any, OutputT], client: AsyncAgentClient | AgentClient | None = None) -> DurableAgent[OutputT]:
    """Make the workers run this agent: `await durable(agent).run("…", deps=…)` submits and waits.

    Args:
        client: Submits the runs. None: one with the settings of the environment.
    Raises:
        ConfigurationError: The agent cannot be durable; the text says why.
    """
    return DurableAgent(agent, client)


class DurableAgent(Generic[OutputT]):
    """Runs a pydantic-ai agent in the workers, with the call of its own `run`. Made by `durable`."""

    def __init__(self, agent: Agent[Any, OutputT], client: AsyncAgentClient | AgentClient | None = None) -> None:
        """
        Raises:
            ConfigurationError: The agent cannot be durable; the text says why.
        """
        definition = definition_of(agent, "given to durable(…)")
        if definition is None:
            raise ConfigurationError(
                f"agent {agent.name!r} is not durable: give it the capability, as "
                "Agent(…, name='helpdesk', capabilities=[CeleryDurability()])"
            )
        self._agent = agent
        self._makes_deps = definition.makes_deps
        self._given = client

    async def run(
        self, user_prompt: str | Sequence[str] | None = None, **options: Unpack[DurableRunOptions]
    ) -> AgentRunResult[OutputT]:
        """Submit a run to the workers and wait for its result; nothing is lost when the caller ends meanwhile.

        Args:
            user_prompt: A text, or several.
        Returns:
            The result as `Agent.run` gives it; its `conversation_id` is the id of the session.
        Raises:
            InvalidInput: An option cannot travel to a worker; nothing was submitted.
            UsageLimitExceeded: A limit of `usage_limits` was reached.
            UnexpectedModelBehavior: The run ended as it ends in pydantic-ai, for example after too many retries.
            TimeoutError: `timeout` is over; the run was stopped.
            AgentRunError: The run was stopped or has failed otherwise; the text says why.
            StoreUnavailable: No answer from Redis.
        """
        deps = options.get("deps")
        if self._makes_deps and deps is not None:
            advice = "CeleryDurability(deps=…) of this agent makes the dependencies of the metadata; give metadata=."
            raise InvalidInput("deps", cast("type[Any]", type(deps)), advice)
        submission = _RunSubmission.of(self._agent, user_prompt, cast("dict[str, Any]", options))
        client = self._client()
        job = await client.submit(self._agent.name or "", submission.prompt, **submission.arguments)
        result = await job.result()
        return await client.run(lambda plain: self._read(plain, job.session_id, result))

    def run_sync(
        self, user_prompt: str | Sequence[str] | None = None, **options: Unpack[DurableRunOptions]
    ) -> AgentRunResult[OutputT]:
        """Do the same as `run` where no event loop runs."""
        return asyncio.run(self.run(user_prompt, **options))

    def _client(self) -> AsyncAgentClient:
        if self._given is None:
            self._given = AsyncAgentClient()
        return AsyncAgentClient.of(self._given) if isinstance(self._given, AgentClient) else self._given

    def _read(self, client: AgentClient, session_id: str, result: Result) -> AgentRunResult[OutputT]:
        state = client.show(session_id).state
        if result.status != "completed":
            execution = state.execution
            raise failure_of_run(self._agent.name or "", result, execution.errors if execution is not None else ())
        messages = state.store.section(DEFAULT).messages
        tag_id = state.tag_id_of(result.execution_id)
        mine = [number for number, each in enumerate(messages) if _is_of(each, tag_id)]
        messages = messages[: mine[-1] + 1]  # the session may have gone on
        conversation = read_conversation(messages, tag_id)
        answers = [messages[number] for number in mine]
        return self._result(session_id, result, conversation, answers)

    def _result(
        self, session_id: str, result: Result, conversation: Conversation, answers: Sequence[Message]
    ) -> AgentRunResult[OutputT]:
        """The result in the form that pydantic-ai reads back."""
        kept: Mapping[str, Any] = kept_of(answers[-1]) or {}
        given = result.final_response if result.output is None else result.output
        try:
            output = read_output(self._agent.output_type, kept, given)
        except UnreadableOutput as error:
            raise AgentRunError(f"agent {self._agent.name!r}: {error}") from None
        stored = {
            "output": output,
            "messages": to_jsonable_python(conversation.history),
            "usage": asdict(conversation.usage),
            "new_message_index": _older(conversation.history, answers),
            "output_tool_name": output_tool_of(kept),
            "metadata": thaw(kept.get(METADATA)),
            "run_id": result.execution_id,
            "conversation_id": session_id,
        }
        adapter: TypeAdapter[AgentRunResult[Any]] = TypeAdapter(AgentRunResult[Any])
        return adapter.validate_python(stored)


@dataclass(frozen=True, slots=True)
class _RunSubmission:
    """The submission of a run."""

    prompt: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, agent: Agent[Any, Any], prompt: object, options: Mapping[str, Any]) -> _RunSubmission:
        """Check what was given to a run.

        Raises:
            InvalidInput: Something of it cannot travel to a worker.
            TypeError: `Agent.run` has no such option.
        """
        given = {name: value for name, value in options.items() if value is not None}
        _check_names(given)
        texts = _texts(prompt)
        known = given.get("conversation_id")
        for name in ("message_history", "usage_limits", "metadata", "deps") if known is not None else ():
            if name in given:
                kind = cast("type[Any]", type(given[name]))
                raise InvalidInput(name, kind, "a new session takes it; leave it out, or conversation_id.")
        history = given.get("message_history")
        earlier = [history_message(history)] if history else []
        if known is not None and len(texts) > 1:
            raise InvalidInput("user_prompt", len(texts), "a session goes on with one text; join them.")
        seconds, budget = given.get("timeout"), given.get("budget")
        if seconds is not None:
            budget = (budget or ExecutionBudget.unlimited()).capped_by(ExecutionBudget(max_seconds=seconds))
        arguments = {
            "session_id": known,
            "idempotency_key": given.get("run_id"),
            "budget": budget,
            "messages": [*earlier, *map(Message.user, texts[:-1])] or None,
            "metadata": None if known is not None else _metadata(agent, given),
        }
        return cls(texts[-1], {name: value for name, value in arguments.items() if value is not None})


def _check_names(given: Mapping[str, Any]) -> None:
    theirs = inspect.signature(Agent[Any, Any].run).parameters
    for name, value in given.items():
        if name in DurableRunOptions.__annotations__:
            _check_kind(name, value)
            continue
        if name not in theirs:
            raise TypeError(f"durable(agent).run has no option {name!r}; Agent.run has none, too")
        instead = _INSTEAD.get(name, f"give it to the agent, {_MODULE}")
        raise InvalidInput(name, cast("type[Any]", type(value)), f"it cannot travel to a worker; {instead}.")


def _check_kind(name: str, value: object) -> None:
    """Refuse an option that is not what its name promises.

    Raises:
        InvalidInput: It is not.
    """
    from pydantic_ai.messages import ModelRequest, ModelResponse
    from pydantic_ai.usage import UsageLimits

    kinds: dict[str, tuple[tuple[type[Any], ...], str]] = {
        "message_history": ((Sequence,), "give messages of pydantic-ai, such as result.all_messages()."),
        "usage_limits": ((UsageLimits,), "give UsageLimits(…)."),
        "metadata": ((Mapping,), "give a mapping with values that JSON has; a function cannot travel to a worker."),
        "budget": ((ExecutionBudget,), "give ExecutionBudget(…)."),
        "timeout": ((int, float), "give seconds."),
        "conversation_id": ((str,), "give the conversation_id of an earlier result."),
        "run_id": ((str,), "give a text."),
    }
    wanted, advice = kinds.get(name, ((object,), ""))
    fits = isinstance(value, wanted) and not isinstance(value, bool if name == "timeout" else ())
    if name == "message_history" and fits:
        fits = all(isinstance(each, (ModelRequest, ModelResponse)) for each in cast("Sequence[object]", value))
    if not fits:
        raise InvalidInput(name, cast("type[Any]", type(value)), advice)


def _texts(prompt: object) -> list[str]:
    texts = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(texts, Sequence) or not texts or not all(isinstance(each, str) for each in cast("Any", texts)):
        raise InvalidInput(
            "user_prompt",
            cast("type[Any]", type(prompt)),
            "give a text, or a list of texts; media go into message_history.",
        )
    return list(cast("Sequence[str]", texts))


def _metadata(agent: Agent[Any, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    metadata = dict(given.get("metadata", {}))
    if "usage_limits" in given:
        metadata[USAGE_LIMITS] = dump_limits(given["usage_limits"])
    if "deps" in given:
        metadata[DEPS] = _dumped_deps(agent, given["deps"])
    return metadata


def _dumped_deps(agent: Agent[Any, Any], deps: Any) -> Any:
    """The dependencies as JSON, from which a worker can make them again."""
    wanted: Any = agent.deps_type
    try:
        dumped = TypeAdapter(wanted).dump_python(deps, mode="json")
        TypeAdapter(wanted).validate_json(to_json(dumped))
    except Exception as error:  # noqa: BLE001 - of the type, which may be anything
        advice = (
            f"a worker cannot make {getattr(wanted, '__name__', wanted)} of its JSON ({type(error).__name__}); give "
            "metadata= and make the dependencies of it with CeleryDurability(deps=…)."
        )
        raise InvalidInput("deps", cast("type[Any]", type(deps)), advice) from None
    return dumped


# --- what comes back ------------------------------------------------------------------------------------------------


def _is_of(message: Message, tag_id: str) -> bool:
    return message.role is Role.ASSISTANT and message.metadata.get("execution_id") == tag_id


def _older(history: Sequence[ModelMessage], answers: Iterable[Message]) -> int:
    """How many messages of the history are older than a run with these answers."""
    made = {message.run_id for answer in answers for message in kept_messages_of(answer).added} - {None}
    return next((number for number, message in enumerate(history) if message.run_id in made), len(history))


def failure_of_run(agent: str, result: Result, errors: Sequence[ErrorInfo]) -> Exception:
    """The exception for a run that has not completed, as `Agent.run` would have raised it where it can."""
    said = result.stop_message or "; ".join(result.errors) or str(result.stop_reason)
    if result.stop_reason == StopReason.TIME_LIMIT_REACHED:
        return TimeoutError(f"agent {agent!r}: {said}")
    kinds = {result.stop_message.partition(":")[0], *(each.kind for each in errors)}
    for kind in _RAISES:
        if kind.__name__ in kinds:
            return kind(said.removeprefix(f"{kind.__name__}: "))
    return AgentRunError(f"agent {agent!r} {result.status}: {said}")
