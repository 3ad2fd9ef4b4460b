"""`Guardrails`: judges what the model is about to read, and what it has answered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, cast

from ...capability import Capability
from ...errors import ConfigurationError, ModelCallRefused
from ...hooks import AnswerUndecided, Hook, HookContext, HookPoint
from ...known_secrets import redact_known
from ...state.agent_state import AgentState
from ...state.conversation.messages import DEFAULT, Message, Role
from ...state.execution.inference import FinishReason, InferenceResponse
from ...state.execution.signals import StopReason, StopSignal
from ...state.values.frozen import thaw
from ..smart.step_events import describe_record
from .findings import (
    Disposition,
    GuardrailEvent,
    GuardrailIncident,
    GuardrailIncidents,
    GuardrailPhase,
    JudgedMessages,
    without_blocked,
)
from .guardrail import Guardrail, GuardrailContext, NotJudged

_SOURCE: Final = "Guardrails"
_FIRST: Final = 1000  # nothing is paid for before a request is judged
_LAST: Final = -1000  # the answer as the other hooks leave it is judged


@dataclass(frozen=True)
class Guardrails(Capability):
    """Asks guardrails about each message that the model is about to read, and about each of its answers.

    A request that is blocked is not sent: the step has a notice as its answer, and the execution ends as stopped. The
    model never reads the message, nor in later executions. An answer that is blocked is replaced by a notice, with
    its calls, and the execution ends as well; `state.smart.guardrail_result` keeps its text. Where answers are judged,
    they are not shown while they are written.

    Attributes:
        guardrails: Asked in order, all of them.
    """

    guardrails: Sequence[Guardrail]

    def __post_init__(self) -> None:
        given: Any = self.guardrails
        is_list = isinstance(given, list | tuple) and bool(cast("Any", given))
        if not is_list or not all(isinstance(each, Guardrail) for each in cast("list[Any]", given)):
            raise ConfigurationError(f"Guardrails: give a list of Guardrail(…), not {given!r:.60}")
        names = [each.name for each in self.guardrails]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigurationError(f"Guardrails: {', '.join(twice)} stands twice; give each guardrail its own name")
        object.__setattr__(self, "guardrails", tuple(self.guardrails))

    def parts(self) -> Sequence[Any]:
        """The incidents, how far the conversation is judged, and the messages that the model must not read."""
        return (GuardrailIncidents, JudgedMessages)

    def hooks(self) -> Sequence[Hook]:
        """Judges before the step and behind the answer, as far as a guardrail has the phase."""
        hooks: list[Hook] = []
        if self._has(GuardrailPhase.REQUEST):
            hooks.append(Hook(HookPoint.BEFORE_STEP, self._judge_request, priority=_FIRST, name=_SOURCE))
        if self._has(GuardrailPhase.RESPONSE):
            hooks.append(Hook(HookPoint.AFTER_INFERENCE, self._judge_response, priority=_LAST, name=_SOURCE))
        return hooks

    def for_subagent(self) -> Capability:
        """The same guardrails: a subagent reads and answers for its parent."""
        return self

    def holds_live_text(self) -> bool:
        """True with a guardrail for responses: no answer is shown before it is judged."""
        return self._has(GuardrailPhase.RESPONSE)

    def compile(self, state: AgentState, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Put a notice in place of each blocked message."""
        return without_blocked(state, messages)

    def events(self, before: AgentState, after: AgentState) -> Sequence[Mapping[str, Any]]:
        """An event for each new incident."""
        new = after.part(GuardrailIncidents)[len(before.part(GuardrailIncidents)) :]
        return [describe_record(GuardrailEvent, each) for each in new]

    def _has(self, phase: GuardrailPhase) -> bool:
        return any(phase in each.phases for each in self.guardrails)

    # --- requests ---------------------------------------------------------------------------------------------

    def _judge_request(self, context: HookContext) -> HookContext | None:
        """Judge each message that no step before has judged."""
        state = context.state
        messages = state.store.section(DEFAULT).messages
        judged = JudgedMessages.of(state)
        incidents: list[GuardrailIncident] = []
        for index in _find_unjudged(messages, judged.upto):
            try:
                found = self._judge(context, messages[index].content, message=messages[index], index=index)
            except NotJudged as undecided:
                if context.is_repeated and isinstance(undecided.error, ModelCallRefused):
                    break
                raise undecided.error from undecided
            if context.is_repeated and _find_blocking(found) is not None:
                break  # saved while the step ran, whose answer has not read it: the next step judges it
            incidents += found
            if _find_blocking(found) is not None:
                judged = judged.with_blocked(index, messages[index])
            judged = judged.replace(upto=index + 1)
        if judged == JudgedMessages.of(state):
            return None
        state = _with_incidents(state, incidents).with_part(judged, now=state.updated_at)
        blocking = _find_blocking(incidents)
        if blocking is None:
            return context.changed(state=state)
        return context.changed(state=_stop(state, blocking), response=self._notice(InferenceResponse(), blocking))

    # --- answers ----------------------------------------------------------------------------------------------

    def _judge_response(self, context: HookContext) -> HookContext | None:
        response = context.response
        text = "" if response is None else _text_of(response)
        if response is None or not text.strip():
            return None
        try:
            incidents = self._judge(context, text)
        except NotJudged as undecided:
            raise AnswerUndecided(
                undecided.error, self._add_incidents(context, text, [undecided.incident])
            ) from undecided
        return self._add_incidents(context, text, incidents) if incidents else None

    def _add_incidents(self, context: HookContext, text: str, incidents: Sequence[GuardrailIncident]) -> HookContext:
        """The context with what was found about the answer."""
        response = context.response
        assert response is not None
        blocking = _find_blocking(incidents)
        if blocking is None:
            return context.changed(state=_with_incidents(context.state, incidents))
        kept = [each.replace(original=text) if each is blocking else each for each in incidents]
        state = _stop(_with_incidents(context.state, kept), blocking)
        return context.changed(state=state, response=self._notice(response, blocking))

    # --- both -------------------------------------------------------------------------------------------------

    def _judge(
        self, context: HookContext, text: str, *, message: Message | None = None, index: int | None = None
    ) -> list[GuardrailIncident]:
        phase = GuardrailPhase.RESPONSE if message is None else GuardrailPhase.REQUEST
        judged = GuardrailContext(
            phase=phase,
            text=text,
            state=context.state,
            step=context.step,
            ask=context.ask_model,
            message=message,
            index=index,
        )
        asked = [each for each in self.guardrails if phase in each.phases]
        return list(chain.from_iterable(each.judge(judged) for each in asked))

    def _notice(self, response: InferenceResponse, blocking: GuardrailIncident) -> InferenceResponse:
        """The answer in place of one that is blocked; what was paid for stays."""
        message = next(each.message for each in self.guardrails if each.name == blocking.guardrail)
        return InferenceResponse(
            content=message or _describe(blocking),
            usage=response.usage,
            finish_reason=FinishReason.CONTENT_FILTER,
            model=response.model,
            request_id=response.request_id,
            cost=response.cost,
        )


def _find_unjudged(messages: Sequence[Message], upto: int) -> list[int]:
    """The places of messages of users and tools from an index on, in order; from 0: those behind the last answer."""
    unjudged: list[int] = []
    for index in range(len(messages) - 1, upto - 1, -1):
        if messages[index].role is Role.ASSISTANT and not upto:
            break
        if messages[index].role in (Role.USER, Role.TOOL):
            unjudged.append(index)
    return unjudged[::-1]


def _find_blocking(incidents: Sequence[GuardrailIncident]) -> GuardrailIncident | None:
    return next((each for each in incidents if each.disposition is Disposition.BLOCK), None)


def _with_incidents(state: AgentState, incidents: Sequence[GuardrailIncident]) -> AgentState:
    return state.with_part(state.part(GuardrailIncidents).append(*incidents), now=state.updated_at)


def _stop(state: AgentState, blocking: GuardrailIncident) -> AgentState:
    context: Any = {"guardrail": blocking.guardrail, "rule": blocking.rule, "phase": blocking.phase.value}
    signal = StopSignal(reason=StopReason.STOP_REQUESTED, message=_describe(blocking), context=context, source=_SOURCE)
    return state.with_stop_signal(signal, now=state.updated_at)


def _describe(blocking: GuardrailIncident) -> str:
    reason = f": {redact_known(blocking.reason)}" if blocking.reason else ""
    return f"The guardrail {blocking.guardrail} has blocked the {blocking.phase}{reason}"


def _text_of(response: InferenceResponse) -> str:
    if response.content.strip() or response.output is None:
        return response.content
    return json.dumps(thaw(response.output), ensure_ascii=False)
