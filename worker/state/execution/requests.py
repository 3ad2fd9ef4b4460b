"""Requests: what a step waits for from outside, such as an approval or an answer of a person.

A request is immutable and belongs to one call of one step. How it was answered is in `answers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, cast

from pydantic_core import to_json

from ..values.canonical import canonical_digest
from ..values.field_types import Count, Flag, JsonField, Text
from ..values.frozen import FrozenDict, freeze
from ..values.value import Value
from .children import ChildOrder

MAX_REQUEST_BYTES: Final = 65_536
"""Most bytes of one request as JSON."""

MAX_REQUESTS_PER_STEP: Final = 64
"""Most requests that one step may make."""

_ID_DIGITS: Final = 32
_SHOWN_ARGS: Final = 120
_SHOWN_TEXT: Final = 200


CLOCK: Final = "clock"
"""The addressee of a request that only waits for a time: its expiry approves it."""


BEGUN: Final = "begun"
"""The option of a request whose call has begun elsewhere: stopped, its outcome is unknown."""


class RequestKind(StrEnum):
    """The kinds of requests, by who answers.

    Attributes:
        APPROVAL: A person approves or denies a call, perhaps with other arguments.
        QUESTION: A person gives values that fit a schema.
        EXTERNAL: A service gives the call's result later.
        CHILD: The end of a child session is the result.
    """

    APPROVAL = "approval"
    QUESTION = "question"
    EXTERNAL = "external"
    CHILD = "child"


class RequestStatus(StrEnum):
    """The statuses of a request.

    Attributes:
        OPEN: It has no answer.
        ANSWERED: It was approved, or got its values or result.
        DENIED: It was refused.
        EXPIRED: No answer came in time; its `on_expiry` says what counts as its answer.
        PASSED_ON: It expired and was asked again of another addressee, as a request of its own.
        CANCELLED: The execution was stopped, or a message came, before an answer did.
        USED: The step that asked is committed with the answer.
    """

    OPEN = "open"
    ANSWERED = "answered"
    DENIED = "denied"
    EXPIRED = "expired"
    PASSED_ON = "passed_on"
    CANCELLED = "cancelled"
    USED = "used"


class ExpiryAction(StrEnum):
    """The answers that an expiry may give.

    Attributes:
        DENY: The call is refused; the model reads it.
        APPROVE: The call runs with the arguments as asked.
        VALUE: A given value is the answer: the values of a question, or the result of an external call.
        FAIL: The execution fails.
        PASS_ON: Another addressee is asked.
    """

    DENY = "deny"
    APPROVE = "approve"
    VALUE = "value"
    FAIL = "fail"
    PASS_ON = "pass_on"  # noqa: S105  (no password)


class WhileWaiting(StrEnum):
    """The rules for a message that comes while a session waits for the answer to a request.

    Attributes:
        HOLD: It waits behind the answer, which may come all the same.
        WITHDRAW: It closes the request, and the model reads it in the place of an answer.
    """

    HOLD = "hold"
    WITHDRAW = "withdraw"


class OnExpiry(Value):
    """The answer to a request that was not answered in time.

    Attributes:
        value: With VALUE: the answer.
        to: With PASS_ON: the next addressee.
        after_ms: With PASS_ON: how long the next addressee has; None: for ever.
        following: With PASS_ON: the `on_expiry` of the next request; None: deny.
    """

    then: ExpiryAction = ExpiryAction.DENY
    value: JsonField = None
    to: Text | None = None
    after_ms: Count | None = None
    following: OnExpiry | None = None

    def with_texts(self, change: Callable[[Any], Any]) -> OnExpiry:
        """The same with its texts changed, those of what follows as well."""
        following = self.following
        return self._with(
            value=freeze(change(self.value), "value"),
            to=change(self.to),
            following=None if following is None else following.with_texts(change),
        )


DENY_ON_EXPIRY: Final = OnExpiry()


class RequestSummary(Value):
    """The facts of a request that the inbox shows without reading its session. A few hundred bytes.

    Attributes:
        session_id: The session that asks.
        call: The call in short, such as `refund(cents=400)`.
        text: What the addressee is asked, cut.
        asked_at_ms: Redis time.
        expires_at_ms: Redis time; None: never.
    """

    id: Text
    kind: RequestKind
    session_id: Text
    agent: Text
    execution_id: Text
    step: Count
    tool: Text
    call: Text = ""
    to: Text | None = None
    text: Text = ""
    asked_at_ms: Count
    expires_at_ms: Count | None = None
    on_expiry: ExpiryAction = ExpiryAction.DENY


class Request(Value):
    """One request, as the journal of its step keeps it. The approved call is the one that runs: `tool` with `args`.

    Attributes:
        id: Follows from the call; see `request_id`.
        index: Place of the call in the model's answer, from 0.
        round: 0 for the first request of the call, then counted on.
        call_id: The model's id of the call.
        args: The arguments as hooks made them.
        digest: Of tool and arguments; an answer may name it, and then serves no other arguments.
        to: The addressee, such as a group; None: anybody.
        text: What the addressee is asked.
        options: What a form shows besides the schema, such as questions with their options.
        answer_schema: JSON Schema of what may be answered: of edited arguments, of a question's values, or of an
            external result; None: anything.
        edits_allowed: The approver may give other arguments.
        needs_seen: An approval has to name the newest message that its giver has seen.
        while_waiting: What a message does that comes before the answer.
        child: The child session whose end is the answer; None for the other kinds.
        asked_at_ms: Redis time.
        expires_at_ms: Redis time; None: never.
    """

    id: Text
    kind: RequestKind
    session_id: Text
    agent: Text
    execution_id: Text
    step: Count
    index: Count
    round: Count = 0
    tool: Text
    call_id: Text
    args: FrozenDict = FrozenDict()
    digest: Text
    to: Text | None = None
    text: Text = ""
    options: JsonField = None
    answer_schema: FrozenDict | None = None
    edits_allowed: Flag = False
    needs_seen: Flag = False
    while_waiting: WhileWaiting = WhileWaiting.HOLD
    asked_at_ms: Count
    expires_at_ms: Count | None = None
    on_expiry: OnExpiry = DENY_ON_EXPIRY
    child: ChildOrder | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Call index and round, which name the request within its step."""
        return self.index, self.round

    @property
    def has_begun(self) -> bool:
        """Whether the call has begun elsewhere when it asked: it only waits for the end."""
        options: object = self.options
        return isinstance(options, Mapping) and cast("Mapping[str, Any]", options).get(BEGUN) is not None

    def is_expired(self, now_ms: int) -> bool:
        """Whether its time to be answered is over at this Redis time."""
        return self.expires_at_ms is not None and self.expires_at_ms <= now_ms

    def with_texts(self, change: Callable[[Any], Any]) -> Request:
        """The same with everything changed that the call's own code has worded; ids and arguments stay.

        Args:
            change: Takes a JSON value, and returns one.
        """
        schema, child = self.answer_schema, self.child
        return self._with(
            to=change(self.to),
            text=change(self.text),
            options=freeze(change(self.options), "options"),
            answer_schema=None if schema is None else FrozenDict(change(schema)),
            on_expiry=self.on_expiry.with_texts(change),
            child=None if child is None else child.with_prompt(change(child.prompt)),
        )

    def passed_on(self, now_ms: int) -> Request:
        """The request to the next addressee, in the next round of the same call."""
        then, round_ = self.on_expiry, self.round + 1
        return self._with(
            id=request_id(self.execution_id, self.step, (self.index, round_), self.tool, self.args),
            round=round_,
            to=then.to,
            asked_at_ms=now_ms,
            expires_at_ms=None if then.after_ms is None else now_ms + then.after_ms,
            on_expiry=then.following or DENY_ON_EXPIRY,
        )

    def renewed(self, now_ms: int) -> Request:
        """The same request in the next round, with as much time again: a retry asks what an end had cancelled."""
        round_ = self.round + 1
        length = None if self.expires_at_ms is None else max(0, self.expires_at_ms - self.asked_at_ms)
        return self._with(
            id=request_id(self.execution_id, self.step, (self.index, round_), self.tool, self.args),
            round=round_,
            asked_at_ms=now_ms,
            expires_at_ms=None if length is None else now_ms + length,
        )

    def summarize(self) -> RequestSummary:
        """Make the summary. Its JSON is the same each time, because the index of requests finds an entry by it."""
        return RequestSummary(
            id=self.id,
            kind=self.kind,
            session_id=self.session_id,
            agent=self.agent,
            execution_id=self.execution_id,
            step=self.step,
            tool=self.tool,
            call=_describe_call(self.tool, self.args),
            to=self.to,
            text=self.text[:_SHOWN_TEXT],
            asked_at_ms=self.asked_at_ms,
            expires_at_ms=self.expires_at_ms,
            on_expiry=self.on_expiry.then,
        )


def request_id(execution_id: str, step: int, place: tuple[int, int], tool: str, args: Mapping[str, Any]) -> str:
    """Derive the id of a request: 32 hexadecimal digits, the same for every worker that makes it.

    Args:
        place: Call index and round.
        args: The arguments as asked.
    """
    return canonical_digest([str(execution_id), step, *place, tool, args])[:_ID_DIGITS]


def arguments_digest(tool: str, args: Mapping[str, Any]) -> str:
    """Derive the digest of a tool and its arguments, 64 hexadecimal digits."""
    return canonical_digest([tool, args])


def _describe_call(tool: str, args: Mapping[str, Any]) -> str:
    words = ", ".join(f"{name}={to_json(value).decode()}" for name, value in args.items())
    return f"{tool}({words if len(words) <= _SHOWN_ARGS else words[: _SHOWN_ARGS - 1] + '…'})"
