"""`Endpoint`: one operation of the interface, with everything that routing and the OpenAPI document need to know."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from ...worker.requests.tokens import TokenPurpose
from ..client.async_client import AsyncAgentClient
from ..client.verbs import Scope
from .access import Access, AccessRules
from .event_hub import EventHub
from .memory import SessionReading
from .problems import HttpProblem, problem_of_validation
from .responses import JsonResponse

_VERSION: Final = re.compile(r'"[0-9]{1,15}"')
KEY: Final = {"Idempotency-Key": "The same request with the same key is made once, however often it comes."}
IF_MATCH: Final = {"If-Match": 'The version that the session must have: its ETag, such as `"12"`.'}
Model = TypeVar("Model", bound=BaseModel)


class Body(BaseModel):
    """A body or a query of a request: fields that are not known are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class NoQuery(Body):
    """A query without parameters."""


class Reply(BaseModel):
    """The body of a response. Later versions may add fields."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that was let in, with its checked body and query.

    Attributes:
        path: Values of the path's parameters.
    """

    client: AsyncAgentClient
    rules: AccessRules
    hub: EventHub
    reading: SessionReading
    request: Request
    access: Access
    path: Mapping[str, str]
    body: Any
    query: Any

    @property
    def session_id(self) -> str:
        """The session of the path."""
        return self.path["session_id"]

    @property
    def idempotency_key(self) -> str | None:
        """The header `Idempotency-Key`."""
        return self.request.headers.get("idempotency-key") or None

    @property
    def expected_version(self) -> int | None:
        """The version of the header `If-Match`; None without it, and for `*`.

        Raises:
            HttpProblem: It is no version.
        """
        tag = self.request.headers.get("if-match", "*").strip()
        if tag == "*":
            return None
        if not _VERSION.fullmatch(tag):
            raise HttpProblem(422, "invalid-input", 'If-Match: give the ETag of the session, such as "12", or *.')
        return int(tag.strip('"'))

    async def check_again(self, session_id: str) -> None:
        """Refuse a stream that is open once its token is over, or does not reach the session any more.

        Raises:
            HttpProblem, SessionNotFound: It is so.
        """
        access = await self.rules.access_of(self.request, self.client)
        await access.check_place(session_id, self.client)

    def line(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Wait until the whole session may be read or changed."""
        return self.reading.wait_in_line(self.access)

    def url(self, path: str) -> str:
        """The path of a resource, below the path at which the interface is mounted."""
        return f"{self.request.scope.get('root_path', '')}{path}"


Handler = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An operation.

    Attributes:
        scope: What a token must allow. None: the token in the path, or a signature, is all that is needed.
        replies: Models of the bodies of responses by status; None: without a body.
        body: None: a body is not read.
        session_field: The field of the body that names the session. None: the path does, or nothing.
        token: What the token in the path has to be for, of an operation without a scope.
        is_signed: The signature of the body by the provider of the path lets in.
        for_chat: A token with the scope `chat` may use it, too; what it may read and write of it, the handler decides.
        for_label: A token of a label may use it without naming a session; the handler keeps it to that label.
        reads_session: It reads or changes a whole session, of which only few fit into memory, and waits for nothing.
        is_stream: The response is a stream of events.
    """

    method: str
    path: str
    scope: Scope | None
    handler: Handler
    replies: Mapping[int, type[BaseModel] | None]
    body: type[BaseModel] | None = None
    session_field: str | None = None
    query: type[Body] = NoQuery
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    token: TokenPurpose | None = None
    is_signed: bool = False
    for_chat: bool = False
    for_label: bool = False
    reads_session: bool = False
    is_stream: bool = False

    @property
    def name(self) -> str:
        """The name of the operation."""
        return self.handler.__name__

    @property
    def summary(self) -> str:
        """One sentence: the first line of the handler's docstring; "" where Python leaves docstrings out."""
        return (self.handler.__doc__ or "").partition("\n")[0]


def endpoint(
    method: str,
    path: str,
    scope: Scope | None,
    reply: type[BaseModel] | None = None,
    *,
    statuses: Sequence[int] = (),
    **more: Any,
) -> Callable[[Handler], Endpoint]:
    """Make an operation of the function that handles it.

    Args:
        reply: The body of its responses. None: they have none.
        statuses: Of its responses. Empty: 200, and 204 without a body.
        more: Further attributes of `Endpoint`.
    """
    codes = statuses or ((204,) if reply is None else (200,))
    replies = dict.fromkeys(codes, reply)
    return lambda handler: Endpoint(method=method, path=path, scope=scope, handler=handler, replies=replies, **more)


def endpoints_of(*modules: ModuleType) -> tuple[Endpoint, ...]:
    """All operations that are defined in these modules, in the order of their definition."""
    return tuple(each for module in modules for each in vars(module).values() if isinstance(each, Endpoint))


def send(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> JsonResponse:
    """Respond with a value as JSON. Known secrets are redacted."""
    return JsonResponse(value, status, headers)


def read_query(request: Request, model: type[Model]) -> Model:
    """Read and check the query of a request. A parameter whose type is a list may be given several times.

    Raises:
        HttpProblem: A parameter is not known, is given twice, or does not fit.
    """
    given = request.query_params
    lists = {name for name, field in model.model_fields.items() if "list[" in str(field.annotation)}
    values: dict[str, Any] = {name: given.getlist(name) if name in lists else value for name, value in given.items()}
    if any(len(given.getlist(name)) > 1 for name in values if name not in lists):
        raise HttpProblem(422, "invalid-input", "A parameter of the query is given twice.")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise problem_of_validation(error, "query") from None
