"""The replies that a call has received before it runs, as its tool sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_json

from ..errors import ConfigurationError
from ..requests.schemas import schema_of
from ..requests.tokens import TokenPurpose
from ..state.execution.children import ChildEnd
from ..state.execution.requests import RequestKind
from ..state.values.frozen import Json, freeze, thaw
from .delegation import Delegation, NeedsChildren
from .needs import AnswerRefused, NeedsTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The reply to one request of a call.

    Attributes:
        kind: The kind of the request.
        value: The answer, as JSON; None for an approval.
        refusal: The reason for which the person declined; None when it was answered.
        by: The person or service that replied; "" for an expiry.
        note: A remark on the reply.
        at: The time of the reply.
        schema: JSON Schema that the answer was checked against; empty without one.
    """

    kind: RequestKind
    value: Json = None
    refusal: str | None = None
    by: str = ""
    note: str = ""
    at: datetime
    schema: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def fits(self, wanted: Mapping[str, Any]) -> bool:
        """Whether this is the answer to a question of that schema; a changed model of the same title counts."""
        title = wanted.get("title")
        return freeze(self.schema) == freeze(wanted) or (title is not None and self.schema.get("title") == title)


@dataclass(frozen=True, slots=True)
class Memo:
    """JSON that a call has left for itself when it asked, or when it let time pass.

    Attributes:
        value: A JSON object, as the call left it.
        reply: The reply to what it asked; None after a wait for a time.
    """

    value: Mapping[str, Any]
    reply: Reply | None = None


@dataclass(slots=True)
class Replies:
    """The replies to a call, oldest first, and how many of its waits for a time are over.

    Attributes:
        make_token: Makes the token of the call's request: to complete it, or to answer it. None for a call whose tool
            hands none out.
        past_timers: Waits for a time that are over.
        times_asked: Waits for a time that the tool has asked for in this run.
        children: How the children of each `ctx.spawn` have ended, in the order of the calls of `ctx.spawn`.
        spawned: Calls of `ctx.spawn` in this run.
        memos: What the call has left for itself in its earlier runs, oldest first.
    """

    received: tuple[Reply, ...] = ()
    make_token: Callable[[TokenPurpose], str] | None = None
    past_timers: int = 0
    times_asked: int = 0
    children: tuple[tuple[ChildEnd, ...], ...] = ()
    spawned: int = 0
    memos: tuple[Memo, ...] = ()

    def approval(self) -> Reply | None:
        """The newest approval; None where no approval was asked for."""
        return self._find_newest(RequestKind.APPROVAL, None)

    def answer(self, schema: Any) -> Any:
        """The newest answer of that schema, read into its type; None where it was not asked for.

        Raises:
            AnswerRefused: The person declined, or no answer came in time.
            pydantic.ValidationError: The type changed since, and the answer does not fit it.
        """
        wanted = None if schema is None else schema_of(schema)
        reply = self._find_newest(RequestKind.QUESTION, wanted)
        if reply is None:
            return None
        if reply.refusal is not None:
            raise AnswerRefused(reply.refusal)
        if schema is None or isinstance(schema, Mapping):
            return thaw(reply.value)
        return TypeAdapter(schema).validate_json(to_json(thaw(reply.value)))

    def token(self, purpose: TokenPurpose) -> str:
        """The token with which the call's next request is completed or answered.

        Raises:
            ConfigurationError: The tool hands out none, or the setting `token_secret` is missing.
        """
        if self.make_token is None:
            raise ConfigurationError("this tool has no completion token; declare it with @tool(result='later')")
        return self.make_token(purpose)

    def offered_token(self, purpose: TokenPurpose) -> str | None:
        """The same; None where the setting `token_secret` is missing."""
        try:
            return self.token(purpose)
        except ConfigurationError:
            return None

    def wait_until(self, when: datetime | timedelta) -> None:
        """Pass when this wait is over.

        Raises:
            NeedsTime: It is not.
        """
        self.times_asked += 1
        if self.times_asked > self.past_timers:
            raise NeedsTime(when)

    def spawn(self, delegations: Sequence[Delegation]) -> list[ChildEnd]:
        """How the children of this `ctx.spawn` have ended.

        Raises:
            NeedsChildren: They have not been started yet.
        """
        group, self.spawned = self.spawned, self.spawned + 1
        if group >= len(self.children):
            raise NeedsChildren(delegations, group)
        return list(self.children[group])

    def _find_newest(self, kind: RequestKind, wanted: Mapping[str, Any] | None) -> Reply | None:
        fitting = (
            each for each in reversed(self.received) if each.kind is kind and (wanted is None or each.fits(wanted))
        )
        return next(fitting, None)
