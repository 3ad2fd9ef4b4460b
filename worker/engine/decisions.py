"""Decisions about calls: policies are asked once for each call, and their decision is journaled with the call."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, assert_never

from pydantic import ValidationError

from ..concurrency import fibers
from ..errors import StateUnreadable
from ..redaction import describe_exception, redact
from ..requests.grants import find_grant
from ..state.execution.answers import Deny
from ..state.execution.requests import DENY_ON_EXPIRY, OnExpiry, WhileWaiting
from ..state.execution.tool_calls import ToolCall
from ..state.values.field_types import Count, Flag, Text
from ..state.values.frozen import FrozenDict
from ..state.values.value import Value
from ..tools.approval import Allow, ApprovalContext, Ask, Decision, decide_by_tool, milliseconds_of, stored_rule
from ..tools.stop import StopExecution
from .call_records import PlannedCall
from .run import Run

log = logging.getLogger(__name__)


class PolicyVerdict(StrEnum):
    """The decisions that keep a call from running at once."""

    ASK = "ask"
    DENY = "deny"
    ERROR = "error"


class CallDecision(Value):
    """A decision as the journal keeps it, with the call that it is about.

    Attributes:
        args: The arguments as the hooks before the call made them.
        reason: With DENY and ERROR: the text for the model.
        to: With ASK: the addressee.
        after_ms: With ASK: the time to answer; None: no end.
        edits: With ASK: the person may change the arguments.
        text: With ASK: the question to the person.
        seen: With ASK: an approval has to name the newest message that was seen.
        while_waiting: With ASK: what a message does that comes before the answer.
    """

    verdict: PolicyVerdict
    call_id: Text
    tool: Text
    args: FrozenDict = FrozenDict()
    reason: Text = ""
    to: Text | None = None
    after_ms: Count | None = None
    on_expiry: OnExpiry = DENY_ON_EXPIRY
    edits: Flag = True
    text: Text = ""
    seen: Flag = False
    while_waiting: WhileWaiting = WhileWaiting.HOLD

    @classmethod
    def from_journal(cls, index: int, raw: bytes) -> CallDecision:
        """Read the decision about the call with this index.

        Raises:
            StateUnreadable: It is damaged.
        """
        try:
            return cls.from_json(raw)
        except ValidationError:
            raise StateUnreadable(f"journal t{index}:p", "it is no decision about a call") from None

    @property
    def call(self) -> ToolCall:
        """The call that the decision is about."""
        return ToolCall(id=self.call_id, name=self.tool, args=self.args)


def may_ask(run: Run, planned: PlannedCall) -> bool:
    """Whether any policy could keep this call from running; false for most, which so cost nothing."""
    return bool(run.agent.policies) or planned.approval != "never"


def decide_about(run: Run, planned: PlannedCall) -> CallDecision | None:
    """Ask the policies about a call.

    Returns:
        None when the call may run: it is allowed, or a person approved it for the execution or the session.
    Raises:
        StopExecution: A policy ends the execution.
    """
    about: dict[str, Any] = {"call_id": planned.call.id, "tool": planned.call.name}
    if planned.arguments is not None:
        about["args"] = planned.arguments
    try:
        return _keep(run, fibers.run_users_code(_ask_policies, run, planned), about)
    except StopExecution:
        raise
    except Exception as error:  # noqa: BLE001 - a policy of the user's, or a value in its decision
        described = describe_exception(error).message
        log.warning("the policy about %s of session %s failed: %s", planned.call.name, run.ref.session_id, described)
        reason = f"the call did not run, because the policy about it failed: {described}"
        return CallDecision(verdict=PolicyVerdict.ERROR, reason=reason, **about)


def _keep(run: Run, decision: Decision, about: Mapping[str, Any]) -> CallDecision | None:
    """The decision as it is journaled; None for a call that may run."""
    match decision:
        case Allow():
            return None
        case Deny(reason):
            return CallDecision(verdict=PolicyVerdict.DENY, reason=redact(reason or "it is not allowed"), **about)
        case Ask():
            granted = find_grant(run.state, str(about["tool"]), decision.to) is not None
            return None if granted else _make_ask_decision(decision, about)
        case _ as never:
            assert_never(never)


def _ask_policies(run: Run, planned: PlannedCall) -> Decision:
    context = ApprovalContext(
        session_id=run.ref.session_id,
        execution_id=run.ref.execution_id,
        step=run.ref.step,
        index=planned.index,
        tool=planned.call.name,
        state=run.state,
        annotations=getattr(planned.tool, "annotations", None),  # no member that a tool of one's own must have
        remote_name=getattr(planned.tool, "remote_name", None),
    )
    for policy in run.agent.policies:
        decision = policy.decide(context, planned.bound)
        if decision is not None:
            return decision
    return decide_by_tool(planned.approval, context, planned.bound)


def _make_ask_decision(ask: Ask, about: Mapping[str, Any]) -> CallDecision:
    if "args" not in about:
        reason = "a call that needs an approval takes its arguments as one JSON object"
        return CallDecision(verdict=PolicyVerdict.ERROR, reason=reason, **about)
    return CallDecision(
        verdict=PolicyVerdict.ASK,
        to=ask.to,
        after_ms=milliseconds_of(ask.expires),
        on_expiry=stored_rule(ask.on_expiry),
        edits=ask.edits,
        text=ask.text,
        seen=ask.seen,
        while_waiting=WhileWaiting(ask.while_waiting),
        **about,
    )
