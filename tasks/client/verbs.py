"""`@verb`: what does not follow from a method of `AgentClient` about its HTTP operation and its Celery task.

`tasks/http/verb_endpoints.py` makes the operations, `tasks/controls.py` the tasks. It imports no web framework.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

from pydantic import Field

from ...worker.requests.tokens import TokenPurpose

F = TypeVar("F", bound=Callable[..., Any])

MOST_TEXT: Final = 10_000_000
LONGEST_SECONDS: Final = 10 * 366 * 86_400
MESSAGE_FIELDS: Final[Mapping[str, Any]] = {
    "message": Field(max_length=MOST_TEXT),
    "budget": Field(),
    "webhook": Field(description="URL to which the result is posted, signed."),
    "request_webhook": Field(description="URL to which each request is posted, signed."),
}
BY: Final[Any] = Field(max_length=200, description="Who asks, for the events.")


class Scope(StrEnum):
    """The things that a token may allow."""

    SUBMIT = "submit"
    """Submit jobs and messages, retry, change budgets."""

    READ = "read"
    """Read everything: sessions, events, requests, agents, workers."""

    ANSWER = "answer"
    """Answer requests, and take remembered approvals back."""

    STOP = "stop"
    """Stop, suspend and resume."""

    CHAT = "chat"
    """What a chat of one session needs; in tokens of sessions only."""

    ADMIN = "admin"
    """Everything, and what only an operator may: tokens for others, prompts and models of sessions, forks."""


Needs = Mapping[tuple[str, Any], Scope]
"""Further scopes, by the parameter and the value of it that needs one."""


def needed_scopes(needs: Needs, given: Mapping[str, object]) -> list[Scope]:
    """The further scopes that values need.

    Args:
        given: The values by their parameters.
    """
    return [scope for (name, value), scope in needs.items() if given[name] == value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A method of `AgentClient` that HTTP or a Celery task offers.

    Only the parameters that are named here can be given from outside: by the path, `http`, `headers` and `task`.

    Attributes:
        call: The method.
        path: Of the HTTP operation. Empty: there is none, or it is written by hand.
        operation: The name in the OpenAPI document.
        scope: What a token must allow. None: the token in the path is all that is needed.
        http: Limits and description of each parameter that the body gives, or the query of a GET; with an alias where
            it has another name there.
        body: Name and description of the body in the OpenAPI document.
        headers: `idempotency_key` and `expected_version`, where a header gives them.
        token: What the token in the path has to be for.
        service_only: Parameters that no token of a session may give.
        needs: Scopes that a token must have as well, by the parameter and the value of it for which.
        for_chat: A token with the scope `chat` may use it, too.
        for_label: A token of a label may use it without naming a session; what it gives as `labels` has that label.
        own: The parameter that tells messages of one's own from others: `by`, under which one is sent, or `own`, whose
            the message has to be, which is given for a token that has the scope `chat` alone.
        reads_session: It reads or changes a whole session, of which only few fit into memory. Names of parameters: it
            does where one of these is given.
        task: Parameters of its Celery task, in their order. Empty: there is no such task, or it is written by hand.
        task_gives: Further arguments that every such task gives.
        part: The attribute of the client whose method it is. Empty: the client's own.
    """

    call: Callable[..., Any]
    method: str
    path: str
    operation: str
    scope: Scope | None
    http: Mapping[str, Any] = field(default_factory=dict[str, Any])
    body: tuple[str, str] = ("", "")
    headers: Sequence[str] = ()
    token: TokenPurpose | None = None
    service_only: Sequence[str] = ()
    needs: Needs = field(default_factory=dict[tuple[str, Any], Scope])
    for_chat: bool = False
    for_label: bool = False
    own: str = ""
    reads_session: bool | Sequence[str] = True
    task: Sequence[str] = ()
    task_gives: Mapping[str, Any] = field(default_factory=dict[str, Any])
    part: str = ""

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.call.__name__

    @property
    def path_names(self) -> list[str]:
        """Parameters that the path gives."""
        return re.findall(r"{(\w+)}", self.path)

    def parameter(self, name: str) -> inspect.Parameter:
        """A parameter of the method. Its annotation is text, since some name types that are imported late."""
        return inspect.signature(self.call).parameters[name]


VERBS: Final[list[Verb]] = []
"""The verbs with this decorator, in the order of their definition."""


def verb(
    method: str = "", path: str = "", operation: str = "", *, scope: Scope | None = Scope.ADMIN, **more: Any
) -> Callable[[F], F]:
    """Offer a method of `AgentClient` over HTTP, as a Celery task, or both; see `Verb` for the arguments.

    Raises:
        TypeError: It names a parameter that the method does not have.
    """

    def note(call: F) -> F:
        made = Verb(call=call, method=method, path=path, operation=operation, scope=scope, **more)
        named = {
            *made.path_names,
            *made.http,
            *made.headers,
            *made.service_only,
            *([made.own] if made.own else []),
            *(name for name, _ in made.needs),
            *made.task,
            *made.task_gives,
        }
        if unknown := named - set(inspect.signature(call).parameters):
            raise TypeError(f"@verb of {call.__qualname__} names {', '.join(sorted(unknown))}, which it does not take")
        VERBS.append(made)
        return call

    return note
