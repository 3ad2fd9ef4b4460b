"""The context that a running tool call receives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, overload

from ..errors import ConfigurationError, ModelCallRefused
from ..requests.tokens import TokenPurpose
from ..state.agent_state import AgentState
from ..state.execution.budget import ExecutionBudget
from ..state.execution.children import ChildEnd, ChildFailure, JoinRule
from ..state.execution.inference import InferenceResponse
from ..state.execution.tool_calls import ToolCall
from .delegation import ContextRule, check_rules, delegations_of
from .replies import Replies, Reply

A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """Handed to a tool that has a parameter annotated `ToolContext`; the model does not see that parameter.

    Attributes:
        session_id: The session the call belongs to.
        execution_id: The execution the call belongs to.
        step: Number of the step, from 1.
        index: Position of the call among the calls of its step, from 0.
        idempotency_key: The same for every attempt at this call, different for every other call. Hand it to a service
            that deduplicates.
        deadline: When the call must have ended, with timezone, by Redis's clock. An async tool is cancelled then; a
            plain function looks at `remaining_seconds()`, which does not depend on the clock of its machine.
        cancelled: True once the result is no longer wanted: a stop, the deadline, or a lost lease.
        ask: Makes auxiliary model calls; None outside of a worker. Call `ask_model` or `ask_model_sync`.
        replies: The replies to what this call has asked for. Call `answer`, `approval`, `completion_token`.
        state: The session as it was when the step began; None outside of a worker.
        calls: The calls of the model's answer as the model asked for them, this one at `index`.
        emitter: Takes what the call emits; None outside of a worker. Call `emit`.
        provider: What the driver keeps with the answer; opaque. None where it keeps nothing.
        is_repeated: An earlier attempt at this call has begun, and it is unknown how far it came, such as that of a
            worker that died.
        max_result_bytes: The most bytes of the result that are stored, as JSON; a longer one is cut.
        remaining: Counts down to the deadline, in seconds; None: by the clock of this machine.
    """

    session_id: str
    execution_id: str
    step: int
    index: int
    idempotency_key: str
    deadline: datetime
    cancelled: Callable[[], bool] = lambda: False
    ask: Callable[[str, Any], InferenceResponse] | None = None
    replies: Replies = field(default_factory=Replies, repr=False)
    state: AgentState | None = field(default=None, repr=False)
    calls: tuple[ToolCall, ...] = field(default=(), repr=False)
    provider: Mapping[str, Any] | None = field(default=None, repr=False)
    emitter: Callable[[Any], None] | None = field(default=None, repr=False)
    is_repeated: bool = False
    max_result_bytes: int = field(default=256_000, repr=False)
    remaining: Callable[[], float] | None = field(default=None, repr=False)

    @overload
    def answer(self) -> Any: ...

    @overload
    def answer(self, schema: type[A]) -> A | None: ...

    def answer(self, schema: Any = None) -> Any:
        """The answer to a question that this call has asked with `NeedsAnswer`; None where it has not asked yet.

        Args:
            schema: The type that was given to `NeedsAnswer`; the newest answer of that type is returned. None: the
                newest answer of all, as JSON.
        Raises:
            AnswerRefused: The person declined, or no answer came in time.
        """
        return self.replies.answer(schema)

    @property
    def approval(self) -> Reply | None:
        """The approval that this call has: by whom, when, and with which note. None where no approval was asked for."""
        return self.replies.approval()

    @property
    def completion_token(self) -> str:
        """The token to hand to a service, which completes this call with it; the same for every attempt.

        Raises:
            ConfigurationError: The tool is not declared with result="later", or the setting `token_secret` is missing.
        """
        return self.replies.token(TokenPurpose.COMPLETE)

    def wait_until(self, when: datetime | timedelta) -> None:
        """Let the call go on at that time, by running it again from its start; no worker is kept busy until then.

        The first time in a run that a wait is not over, this raises. Waits that are over pass, in the order in which
        the tool asks for them, so a time that is computed again in each run works.

        Args:
            when: The time, with timezone; or how long from now, which the clock of this machine does not change.
        Raises:
            NeedsTime: The time has not come; let it pass through.
        """
        self.replies.wait_until(when)

    def spawn(
        self,
        agent: Any,
        prompts: str | Sequence[str],
        *,
        budget: ExecutionBudget | None = None,
        context: ContextRule = "input",
        on_failure: ChildFailure | str = ChildFailure.TELL,
        join: JoinRule | str = JoinRule.ALL,
        timeout: timedelta | None = None,
    ) -> list[ChildEnd]:
        """Let another agent work on prompts, one child each, and get how they ended, in order.

        The first time in a run that children have not ended, this raises; the tool runs again from its start when they
        have, and no worker is kept busy until then. So a tool spawns before any effect that must not happen twice.

        Args:
            agent: The name of an agent, or the agent.
            prompts: A text, or one for each child.
            budget: Limits of each child; more than the execution has left is an error. None: a share of it.
            context: What a child sees of the conversation: "input" (the prompt alone), "last" or "all".
            on_failure: "tell" gives back failed ends; "fail" and "fail_fast" fail the execution.
            join: "first" stops the others when one has completed.
            timeout: The time in which the children have to end; those that have not are stopped.
        Raises:
            NeedsChildren: They have not ended; let it pass through.
            InvalidInput: An argument cannot be used.
            ConfigurationError: A rule is not known.
        """
        check_rules("ctx.spawn", context, on_failure, join, timeout)
        if callable(context):
            raise ConfigurationError("ctx.spawn: context must be 'input', 'last' or 'all'; put more into the prompts")
        wanted = delegations_of(
            agent,
            prompts,
            budget=budget,
            context=context,
            on_failure=ChildFailure(on_failure),
            join=JoinRule(join),
            timeout=timeout,
        )
        return self.replies.spawn(wanted)

    async def ask_model(self, key: str, request: Any) -> InferenceResponse:
        """Ask the agent's model from an async tool; see `ask_model_sync`."""
        from anyio import CapacityLimiter, to_thread  # a process that runs no tools does not load it

        # Not in the loop's own threads, nor among anyio's limited ones: where all of them waited for an answer, a
        # driver could look up no name of a provider, and run no function of its agent.
        limiter = CapacityLimiter(1)
        return await to_thread.run_sync(self.ask_model_sync, key, request, limiter=limiter, abandon_on_cancel=True)

    def ask_model_sync(self, key: str, request: Any) -> InferenceResponse:
        """Ask the agent's model from a plain tool, and wait for the answer.

        The answer is journaled under the key, which belongs to this call, before it is returned: when the call runs
        again, the same answer comes back and nothing is paid. It is charged to the execution.

        Args:
            request: A text, or an `AuxiliaryRequest`.
        Raises:
            ModelCallRefused: A limit is reached, the execution is being stopped, or the claim is gone.
            DriverError: There is no answer.
        """
        if self.ask is None:
            raise ModelCallRefused("this context belongs to no worker")
        return self.ask(key, request)

    def emit(self, value: Any) -> None:
        """Show those who follow the session what the call does, while it runs; it is shown to no one else.

        It is written beside the step, about 200 ms later at most, and costs nothing without followers. It never
        fails or delays the call: what Redis does not take is dropped. It is no part of the result, and void if the
        call has to run again.

        Args:
            value: A text, which continues what this call has emitted before; or data of JSON. At most 16,000 bytes.
        Raises:
            InvalidInput: It is neither, or too large.
        """
        if self.emitter is not None:
            self.emitter(value)

    def remaining_seconds(self) -> float:
        """Seconds until the deadline, never below 0; made for the timeout of an HTTP client."""
        if self.remaining is not None:
            return max(0.0, self.remaining())
        return max(0.0, (self.deadline - datetime.now(UTC)).total_seconds())
