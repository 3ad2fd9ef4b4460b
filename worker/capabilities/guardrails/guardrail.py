"""A guardrail: rules with a name, and what follows when one of them finds something."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from ...concurrency.fibers import bounded
from ...drivers.protocol import AuxiliaryRequest
from ...errors import ConfigurationError, DriverError, ModelCallRefused
from ...redaction import describe_exception, whole_unicode
from ...state.agent_state import AgentState
from ...state.conversation.messages import Message
from ...state.execution.inference import InferenceResponse
from ...state.values.frozen import FrozenDict, freeze
from .findings import Disposition, GuardrailIncident, GuardrailPhase

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_REASON_CHARS: Final = 400

Ask = Callable[[str, AuxiliaryRequest | str], InferenceResponse]


@dataclass(frozen=True, slots=True)
class GuardrailContext:
    """The text that a rule judges, and its place.

    Attributes:
        text: The text that is judged: of the message, or of the response.
        message: The message; None for a response.
        index: Its place in the conversation; None for a response.
        step: The number of the step that is run.
    """

    phase: GuardrailPhase
    text: str
    state: AgentState
    step: int
    ask: Ask = field(repr=False)
    message: Message | None = None
    index: int | None = None
    key: str = "Guardrails"

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole conversation; a response is not in it yet."""
        return self.state.messages

    def ask_model(self, request: AuxiliaryRequest | str) -> InferenceResponse:
        """Ask the agent's model, once for each rule and text; the answer is journaled and billed to the execution.

        Raises:
            ModelCallRefused: A limit is reached, or the execution is being stopped.
            DriverError: There is no answer.
        """
        return self.ask(self.key, request)


@dataclass(frozen=True, slots=True)
class GuardrailVerdict:
    """The finding of a rule.

    Attributes:
        reason: Why, in a sentence; longer ones are cut at 400 characters.
        details: JSON for the readers of the incident.
    """

    disposition: Disposition
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def block(cls, reason: str, **details: Any) -> GuardrailVerdict:
        """The text must not pass."""
        return cls(Disposition.BLOCK, reason, details)

    @classmethod
    def warn(cls, reason: str, **details: Any) -> GuardrailVerdict:
        """The text may pass, and is recorded."""
        return cls(Disposition.WARN, reason, details)

    @classmethod
    def allow(cls) -> GuardrailVerdict:
        """The text may pass."""
        return cls(Disposition.ALLOW)


class NotJudged(Exception):
    """A rule could not ask its model now.

    Attributes:
        error: Why not: a `ModelCallRefused`, or a transient `DriverError`.
        incident: The one that is recorded where no model can be asked later.
    """

    def __init__(self, error: Exception, incident: GuardrailIncident) -> None:
        super().__init__(str(error))
        self.error = error
        self.incident = incident


GuardrailRule = Callable[[GuardrailContext], "GuardrailVerdict | bool"]
"""A function: True lets a text pass, False blocks it, and a verdict says more. Its name is that of the incidents."""

OnViolation = Callable[[GuardrailIncident, GuardrailContext], "Disposition | str | None"]


@dataclass(frozen=True)
class Guardrail:
    """Rules that judge what the model reads and what it answers.

    A rule that raises blocks, and so does an `on_violation` that raises. An outage of the provider is no verdict: the
    step is tried again later, as when the model itself is away, and an answer waits in the journal meanwhile.

    Attributes:
        name: 1 to 40 letters, digits, `_` or `-`; each guardrail of an agent has its own.
        rules: Asked in order.
        phases: `request`, `response`, or both.
        halt_on_violation: The rules behind one that blocks are not asked.
        on_violation: Called with each incident; what it returns counts in place of the disposition. None: as the rule
            says.
        on_error: The disposition of a rule that raises: `block` or `warn`.
        message: The text in place of an answer that is blocked. Empty: the guardrail and the reason.
    """

    name: str
    rules: Sequence[GuardrailRule]
    phases: Collection[GuardrailPhase | str] = tuple(GuardrailPhase)
    halt_on_violation: bool = True
    on_violation: OnViolation | None = None
    on_error: Disposition | str = Disposition.BLOCK
    message: str = ""

    def __post_init__(self) -> None:
        where = f"Guardrail({self.name!r:.60})"
        if not isinstance(self.name, str) or _NAME.fullmatch(self.name) is None:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"{where}: name it with 1 to 40 letters, digits, '_' or '-', beginning with a letter or digit"
            )
        rules: Any = self.rules
        if not isinstance(rules, list | tuple) or not rules:
            raise ConfigurationError(f"{where}: rules={rules!r:.60}; give a list with one rule at least")
        for each in cast("list[Any]", rules):
            if not callable(each):
                raise ConfigurationError(f"{where}: rule {each!r:.60} is no function; give RegexRule(…) or a function")
        phases: Any = self.phases
        if isinstance(phases, str) or not phases or any(each not in tuple(GuardrailPhase) for each in phases):
            raise ConfigurationError(f"{where}: phases={phases!r:.60}; give a list of {', '.join(GuardrailPhase)}")
        if self.on_error not in (Disposition.BLOCK, Disposition.WARN):
            raise ConfigurationError(f"{where}: on_error={self.on_error!r:.60}; give 'block' or 'warn'")
        object.__setattr__(self, "rules", tuple(self.rules))
        object.__setattr__(self, "phases", frozenset(GuardrailPhase(each) for each in phases))

    def judge(self, context: GuardrailContext) -> Iterator[GuardrailIncident]:
        """Ask the rules, in order, up to one that blocks unless all are to be asked.

        Raises:
            NotJudged: A rule could not ask its model now.
        """
        for place, rule in enumerate(self.rules):
            name = _name_of(rule, place)
            own = replace(context, key=f"Guardrails.{self.name}.{place}.{context.phase}.{context.index or 0}")
            try:
                verdict = self._ask(rule, own)
            except (DriverError, ModelCallRefused) as error:
                raise NotJudged(error, _incident(self.name, name, own, self._judge_failure(error))) from error
            if verdict.disposition is Disposition.ALLOW:
                continue
            incident = self._decide(_incident(self.name, name, own, verdict), own)
            yield incident
            if incident.disposition is Disposition.BLOCK and self.halt_on_violation:
                return

    def _ask(self, rule: GuardrailRule, context: GuardrailContext) -> GuardrailVerdict:
        try:
            return _as_verdict(bounded(rule, context))
        except (DriverError, ModelCallRefused) as error:
            can_wait = isinstance(error, ModelCallRefused) or error.transient
            if can_wait and self.on_error == Disposition.BLOCK:
                raise
            return self._judge_failure(error)
        except Exception as error:  # noqa: BLE001 - a rule of the user's
            return self._judge_failure(error)

    def _judge_failure(self, error: Exception) -> GuardrailVerdict:
        reason = f"the rule failed: {describe_exception(error).message}"
        return GuardrailVerdict(Disposition(self.on_error), reason, {"failed": True})

    def _decide(self, incident: GuardrailIncident, context: GuardrailContext) -> GuardrailIncident:
        """The incident as `on_violation` leaves it."""
        if self.on_violation is None:
            return incident
        try:
            decided = bounded(self.on_violation, incident, context)
            return incident if decided is None else incident.replace(disposition=Disposition(decided))
        except Exception as error:  # noqa: BLE001 - a function of the user's
            details = FrozenDict.of({**incident.details, "on_violation_failed": describe_exception(error).message})
            return incident.replace(disposition=Disposition.BLOCK, details=details)


def _incident(guardrail: str, rule: str, context: GuardrailContext, verdict: GuardrailVerdict) -> GuardrailIncident:
    return GuardrailIncident(
        guardrail=guardrail,
        rule=rule,
        phase=context.phase,
        disposition=verdict.disposition,
        reason=whole_unicode(verdict.reason)[:_REASON_CHARS],
        details=_freeze_details(verdict.details),
        step=context.step,
        message_index=context.index,
    )


def _freeze_details(details: Mapping[str, Any]) -> FrozenDict:
    frozen = freeze(dict(details), "details")
    return cast("FrozenDict", frozen)


def _as_verdict(given: Any) -> GuardrailVerdict:
    """The verdict that a rule means.

    Raises:
        TypeError: It is neither a verdict nor a bool.
    """
    if isinstance(given, bool):
        return GuardrailVerdict.allow() if given else GuardrailVerdict.block("the rule does not let it pass")
    if isinstance(given, GuardrailVerdict):
        _freeze_details(given.details)
        return GuardrailVerdict(Disposition(given.disposition), str(given.reason), given.details)
    raise TypeError(f"a rule answers True, False or a GuardrailVerdict, not a {type(given).__name__}")


def _name_of(rule: GuardrailRule, place: int) -> str:
    return str(getattr(rule, "name", "") or getattr(rule, "__name__", "") or f"rule{place + 1}")
