"""Calls that pydantic-ai defers: an approval, a question or a result from outside becomes a request that waits.

A call that waits runs again from its start when it is approved or answered, in any worker. A result from outside ends
the call as it is. `RequestInput` and `wait_for_external_event` wait through `RequestWaiter`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed, UserError
from pydantic_ai.external_events import ExternalEventError, ExternalEventWaiter
from pydantic_core import to_jsonable_python

from ..requests.tokens import TokenPurpose
from ..state.execution.requests import RequestKind
from ..state.values.frozen import thaw
from ..tools.needs import NeedsAnswer, NeedsApproval, NeedsReply, NeedsResult
from ..tools.replies import Replies, Reply

if TYPE_CHECKING:
    from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults

_METADATA: Final = "metadata"
_WAIT: Final = "wait"
_MOST_TEXT: Final = 500
_QUESTION: Final = RequestKind.QUESTION


class Suspended(BaseException):
    """Unwinds a run of pydantic-ai whose call has to wait; no code of the run may take it for an error of its own.

    Attributes:
        needs: The request that the call makes.
    """

    def __init__(self, needs: NeedsReply) -> None:
        self.needs = needs
        super().__init__(str(needs))


def needs_of(tool: str, deferral: ApprovalRequired | CallDeferred, *, expires: timedelta | None = None) -> NeedsReply:
    """Make the request of a call that pydantic-ai defers; people who answer see the metadata that the tool gave.

    Args:
        expires: The time in which an answer must arrive. None: no end.
    """
    metadata: Any = to_jsonable_python(deferral.metadata or {}, fallback=str)
    needs: NeedsReply
    if isinstance(deferral, ApprovalRequired):
        needs = NeedsApproval(_text_of(metadata) or f"May {tool} be called?", expires=expires)
    elif deferral.kind == "question":
        schema: Any = metadata.get("schema")
        needs = NeedsAnswer(_text_of(metadata) or f"{tool} asks.", schema, expires=expires)
    else:
        needs = NeedsResult(_text_of(metadata), expires=expires)
    return needs.with_memo({_METADATA: metadata})


def _text_of(metadata: Mapping[str, Any]) -> str:
    """The words to the person among the metadata of a deferral; "" without."""
    words = [metadata.get(name) for name in ("text", "question", "prompt", "reason")]
    return next((each[:_MOST_TEXT] for each in words if isinstance(each, str)), "")


class RefusingWaiter(ExternalEventWaiter):
    """Refuses to wait while the model is asked: only a call of a tool can wait without a worker."""

    async def wait(
        self,
        name: str,
        *,
        ask: Callable[[str], Awaitable[Any]],
        timeout: timedelta | None,  # noqa: ASYNC109  (pydantic-ai's)
    ) -> Any:
        """Refuse.

        Raises:
            UserError: Always.
        """
        raise UserError(f"the wait for {name!r} is outside of a tool call; a durable agent waits inside of one only")


class RequestWaiter(ExternalEventWaiter):
    """Waits for events from outside by requests: the run unwinds, and the call runs again with the reply.

    It serves one run of one call.

    Attributes:
        has_begun: The run has come to the call; until then none of its effects can have happened.
    """

    def __init__(self, tool: str, call_id: str, replies: Replies) -> None:
        self._tool, self._call_id, self._replies = tool, call_id, replies
        self._waits: Counter[str] = Counter()
        self._asked = 0
        self.has_begun = False

    async def wait(
        self,
        name: str,
        *,
        ask: Callable[[str], Awaitable[Any]],
        timeout: timedelta | None,  # noqa: ASYNC109  (pydantic-ai's)
    ) -> Any:
        """The reply to this wait, or what `ask` answers at once; see `ExternalEventWaiter.wait`.

        Its token is one for `client.complete` where a result from outside is missing, else for
        `client.answer_by_token`.

        Raises:
            Suspended: The call has to wait.
            ExternalEventError: The person declined, or no answer came in time.
            ConfigurationError: The setting `token_secret` is missing.
        """
        deferral = sys.exception()  # the one about which a handler of deferred calls is asked
        if isinstance(deferral, (ApprovalRequired, CallDeferred)):
            needs, reply = needs_of(self._tool, deferral, expires=timeout), self._reply_to(deferral)
        else:
            any_json: dict[str, Any] = {}
            needs = NeedsAnswer(f"{self._tool} waits for {name}.", any_json, expires=timeout).with_memo({_WAIT: name})
            reply = self._reply_to_wait(name)
        if reply is not None:
            if reply.refusal is not None:
                raise ExternalEventError(reply.refusal)
            return thaw(reply.value) if deferral is None else {"calls": {self._call_id: thaw(reply.value)}}
        is_external = isinstance(needs, NeedsResult)
        answer = await ask(self._replies.token(TokenPurpose.COMPLETE if is_external else TokenPurpose.ANSWER))
        if answer is not None:
            return answer
        raise Suspended(needs)

    def answer_to(self, requests: DeferredToolRequests) -> DeferredToolResults | None:
        """The result of a call that has asked a question, and that has been answered; None without.

        It is this call, or one that its tool makes. The questions of a run have the replies in their order.
        """
        ids = (call.tool_call_id for call in requests.calls)
        asking = next((each for each in ids if requests.kind(each) == _QUESTION), None)
        if asking is None:
            return None
        number, self._asked = self._asked, self._asked + 1
        replies = self._replies_to_questions()
        if number >= len(replies):
            return None
        reply = replies[number]
        result = thaw(reply.value) if reply.refusal is None else ToolFailed(reply.refusal)
        return requests.build_results(calls={asking: result})

    def _reply_to(self, deferral: ApprovalRequired | CallDeferred) -> Reply | None:
        """The newest reply to the question of this call; approvals and results from outside need none."""
        is_question = isinstance(deferral, CallDeferred) and deferral.kind == _QUESTION
        return next(reversed(self._replies_to_questions()), None) if is_question else None

    def _replies_to_questions(self) -> list[Reply]:
        return [reply for reply in self._replies_with(_METADATA) if reply.kind is _QUESTION]

    def _reply_to_wait(self, name: str) -> Reply | None:
        """The reply to the next wait of that name in this run."""
        number, self._waits[name] = self._waits[name], self._waits[name] + 1
        replies = self._replies_with(_WAIT, name)
        return replies[number] if number < len(replies) else None

    def _replies_with(self, key: str, value: Any = None) -> list[Reply]:
        """The replies to what this call has asked with such a memo."""
        found = (each for each in self._replies.memos if key in each.value and value in (None, each.value[key]))
        return [each.reply for each in found if each.reply is not None]
