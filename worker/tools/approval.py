"""Approval policies: they decide before a call whether it runs, is refused, or asks a person; and rules of expiry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, Protocol

from ..errors import ConfigurationError
from ..state.agent_state import AgentState
from ..state.execution.answers import Deny
from ..state.execution.requests import ExpiryAction, OnExpiry, WhileWaiting
from ..state.values.frozen import Json, freeze

LONGEST_EXPIRY: Final = timedelta(days=3660)
"""The longest time that a request may have."""

MAX_PASSES: Final = 4
"""Addressees that a request may be passed on to, one after another."""


@dataclass(frozen=True, slots=True)
class Allow:
    """The call runs without asking anybody."""


@dataclass(frozen=True, slots=True)
class UseValue:
    """An expired request is answered with this value; for questions and for results that come later."""

    value: Json

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", freeze(self.value, "UseValue.value"))


@dataclass(frozen=True, slots=True)
class PassOn:
    """An expired request is closed, and another addressee is asked.

    Attributes:
        to: The next addressee.
        expires: The time that the next addressee has. None: no end.
        on_expiry: The rule for the end of that time.
    """

    to: str
    expires: timedelta | None = None
    on_expiry: ExpiryRule = "deny"

    def __post_init__(self) -> None:
        if not self.to:
            raise ConfigurationError("PassOn: name the next addressee, PassOn('managers')")
        check_expiry("PassOn", self.expires, self.on_expiry)


ExpiryRule = Literal["deny", "approve", "fail"] | UseValue | PassOn
"""The rule for a request that was not answered in time.

deny: it is refused, which the model reads. approve: the call runs as it was asked for. fail: the execution fails.
"""


MessageRule = Literal["hold", "withdraw"]
"""The rule for a message that comes before the answer: it waits behind it, or closes the request."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The call needs the approval of a person.

    Attributes:
        to: The addressee, such as the name of a team. None: anybody. The inbox of requests is listed by it.
        expires: The time in which it must be answered. None: no end.
        on_expiry: The rule for the end of that time.
        edits: The person may change the arguments.
        text: The question to the person; a sentence about the call when empty.
        seen: An approval has to name the newest message that the person has seen, `client.answer(…, seen=…)`: nobody
            approves what a later message took back.
        while_waiting: What a message to the session does that comes before the answer. "hold": it waits behind the
            answer. "withdraw": it closes the request; the call does not run, and the model reads both.
    """

    to: str | None = None
    expires: timedelta | None = None
    on_expiry: ExpiryRule = "deny"
    edits: bool = True
    text: str = ""
    seen: bool = False
    while_waiting: MessageRule = "hold"

    def __post_init__(self) -> None:
        object.__setattr__(self, "to", self.to or None)
        check_expiry("Ask", self.expires, self.on_expiry)
        check_while_waiting("Ask", self.while_waiting)
        if isinstance(self.on_expiry, UseValue):
            raise ConfigurationError("Ask: on_expiry=UseValue(…) is for questions and for results that come later")


Decision = Allow | Ask | Deny
"""The decisions of a policy about one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalContext:
    """The place of the call that a policy decides about.

    Attributes:
        tool: Name of the tool.
        index: Position of the call among the calls of its step, from 0.
        state: The session as the step sees it.
        annotations: What an MCP server says of the tool's effects, in its names, such as `destructiveHint`; None for a
            tool of another kind.
        remote_name: Server and tool in the names of an MCP server, as `crm.tickets/create`; None likewise.
    """

    session_id: str
    execution_id: str
    step: int
    index: int
    tool: str
    state: AgentState
    annotations: Mapping[str, Any] | None = None
    remote_name: str | None = None

    @property
    def is_destructive(self) -> bool:
        """Whether the call may destroy something: an MCP tool does, unless its server says that it does not."""
        hints = self.annotations
        return hints is not None and hints.get("readOnlyHint") is not True and hints.get("destructiveHint") is not False


class CallPolicy(Protocol):
    """Decides about the calls of an agent. A policy is asked once for each call; its decision is journaled."""

    def decide(self, context: ApprovalContext, args: Mapping[str, Any]) -> Decision | None:
        """Decide about a call, by its validated arguments; None leaves the decision to the next policy.

        Raises:
            Exception: The call does not run, and the model reads that its policy failed.
        """
        ...


Approval = Literal["never", "always"] | Decision | Callable[[ApprovalContext, Mapping[str, Any]], Any]
"""The approval that a tool declares: never, always, one decision for all calls, or a function of context and arguments.

The function returns a decision, or True to ask and False not to.
"""


def check_expiry(owner: str, expires: object, on_expiry: object) -> None:
    """Refuse an expiry that cannot work, where it is written.

    Raises:
        ConfigurationError: The text says what to write.
    """
    if expires is not None and (not isinstance(expires, timedelta) or not timedelta(0) < expires <= LONGEST_EXPIRY):
        advice = f"must be a timedelta above 0 and up to {LONGEST_EXPIRY.days} days, or None for no end"
        raise ConfigurationError(f"{owner}: expires={expires!r:.60} {advice}")
    rules = ("deny", "approve", "fail")
    if on_expiry not in rules and not isinstance(on_expiry, (UseValue, PassOn)):
        known = ", ".join(map(repr, rules))
        raise ConfigurationError(f"{owner}: on_expiry={on_expiry!r:.60} must be {known}, UseValue(…) or PassOn(…)")
    if expires is None and on_expiry != "deny":
        raise ConfigurationError(f"{owner}: on_expiry={on_expiry!r:.60} never comes without expires=timedelta(…)")
    passes, rule = 0, on_expiry
    while isinstance(rule, PassOn):
        passes, rule = passes + 1, rule.on_expiry
    if passes > MAX_PASSES:
        raise ConfigurationError(f"{owner}: a request is passed on {MAX_PASSES} times at most, not {passes} times")


def check_while_waiting(owner: str, while_waiting: object) -> None:
    """Refuse a rule for messages that there is not, where it is written.

    Raises:
        ConfigurationError: The text says what to write.
    """
    if while_waiting not in (*WhileWaiting,):
        raise ConfigurationError(f"{owner}: while_waiting={while_waiting!r:.60} must be 'hold' or 'withdraw'")


def milliseconds_of(time: timedelta | None) -> int | None:
    """A time as a request keeps it: at least a millisecond; None for no end."""
    return None if time is None else max(1, time // timedelta(milliseconds=1))


def stored_rule(rule: ExpiryRule) -> OnExpiry:
    """The rule as a request keeps it."""
    match rule:
        case UseValue(value):
            return OnExpiry(then=ExpiryAction.VALUE, value=value)
        case PassOn(to, expires, following):
            return OnExpiry(
                then=ExpiryAction.PASS_ON, to=to, after_ms=milliseconds_of(expires), following=stored_rule(following)
            )
        case _:
            return OnExpiry(then=ExpiryAction(rule))


def check_approval(name: str, approval: Any) -> Approval:
    """The approval of a tool.

    Raises:
        ConfigurationError: It cannot be used; the text says what to do.
    """
    if approval in ("never", "always") or isinstance(approval, (Allow, Ask, Deny)) or callable(approval):
        return approval
    raise ConfigurationError(
        f"tool {name}: approval={approval!r:.60} must be 'never', 'always', Ask(…), Deny(…) or a function of "
        "(context, args)"
    )


def decide_by_tool(approval: Approval, context: ApprovalContext, args: Mapping[str, Any]) -> Decision:
    """The decision that a tool's own declaration makes about a call.

    Raises:
        ConfigurationError: The function returned something else than a decision or a bool.
        Exception: Whatever the function raises.
    """
    given = approval(context, args) if callable(approval) else approval
    return as_decision(given, f"the approval function of {context.tool}")


def as_decision(given: Any, owner: str) -> Decision:
    """Read the value that a policy returned.

    Raises:
        ConfigurationError: It is neither a decision nor a bool.
    """
    if isinstance(given, (Allow, Ask, Deny)):
        return given
    if given is None or given is False or given == "never":
        return Allow()
    if given is True or given == "always":
        return Ask()
    raise ConfigurationError(f"{owner} returned {type(given).__name__}; return Ask(…), Deny(…), Allow(), True or False")


@dataclass(frozen=True, slots=True)
class LaterResult:
    """The terms of a result that a service brings.

    Attributes:
        expires: The time in which it must come. None: no end.
        on_expiry: The rule for the end of that time.
    """

    expires: timedelta | None = None
    on_expiry: ExpiryRule = "deny"


def check_later(name: str, result: str, expires: timedelta | None, on_expiry: ExpiryRule) -> LaterResult | None:
    """The terms of a tool's later result; None for a tool that returns its result.

    Raises:
        ConfigurationError: They cannot be used; the text says what to do.
    """
    if result not in ("now", "later"):
        raise ConfigurationError(f"tool {name}: result={result!r:.60} must be 'now' or 'later'")
    if result == "now":
        if expires is not None or on_expiry != "deny":
            raise ConfigurationError(
                f"tool {name}: expires= and on_expiry= belong to result='later'; for an approval, write them into "
                "approval=Ask(…)"
            )
        return None
    check_expiry(f"tool {name}", expires, on_expiry)
    if on_expiry == "approve" or isinstance(on_expiry, PassOn):
        raise ConfigurationError(
            f"tool {name}: on_expiry={on_expiry!r:.60} is for approvals; a result that comes later has 'deny', 'fail' "
            "or UseValue(…)"
        )
    return LaterResult(expires, on_expiry)
