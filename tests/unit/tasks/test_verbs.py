"""`@verb`: what reaches a method of the client from outside, by HTTP and by a Celery task."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError

from celery_agents.tasks.client.job import Job
from celery_agents.tasks.client.verbs import VERBS, Scope, Verb, verb
from celery_agents.tasks.controls import make_task
from celery_agents.tasks.http.access import Access
from celery_agents.tasks.http.app import ENDPOINTS
from celery_agents.tasks.http.problems import HttpProblem
from celery_agents.tasks.http.verb_endpoints import make_endpoint
from celery_agents.tasks.names import CONTROL, PREFIX
from celery_agents.worker.errors import InvalidInput
from celery_agents.worker.state import ExecutionBudget, Message

NEVER = {"on_complete", "on_request", "idempotency_key", "expected_version", "tree", "self"}


class Client:
    """A client with one verb, which keeps what it was given."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def hold(
        self,
        session_id: str,
        *,
        reason: str,
        until: datetime | None = None,
        by: str | None = None,
        on_complete: object = None,
    ) -> bool:
        """Hold it."""
        self.given = {
            "session_id": session_id, "reason": reason, "until": until, "by": by, "on_complete": on_complete
        }  # fmt: skip
        return True


def made(call: Callable[..., Any] = Client.hold, path: str = "/v1/sessions/{session_id}/hold", **more: Any) -> Verb:
    fields: dict[str, Any] = {"http": {"reason": Field(max_length=9), "by": Field()}, "body": ("Hold", "Why."), **more}
    return Verb(call=call, method="POST", path=path, operation="hold_session", scope=Scope.STOP, **fields)


def body_of(of: Verb) -> type[BaseModel]:
    body = make_endpoint(of).body
    assert body is not None
    return body


async def _call(function: Callable[[Any], Any]) -> Any:
    return function(None)


def handle(of: Verb, access: Access, hold: Callable[..., Any] = Client.hold, **body: Any) -> dict[str, Any]:
    client, endpoint = Client(), make_endpoint(of)
    assert endpoint.body is not None

    async def run_hold(**given: Any) -> Any:
        return hold(client, **given)

    call: Any = SimpleNamespace(
        client=SimpleNamespace(hold=run_hold, run=_call),
        access=access,
        path={"session_id": "s"},
        body=endpoint.body(**body),
    )
    asyncio.run(endpoint.handler(call))  # pyright: ignore[reportArgumentType]
    return client.given


def test_a_body_has_the_named_parameters_alone() -> None:
    body = body_of(made())
    assert list(body.model_fields) == ["reason", "by"]
    for name in ("on_complete", "until", "session_id"):
        with pytest.raises(ValidationError):
            body(reason="x", **{name: "mine"})
    with pytest.raises(ValidationError):
        body(reason="longer than nine")
    with pytest.raises(ValidationError):
        body()  # the method has no default for it


def test_a_handler_gives_path_and_body_and_the_caller_of_the_token() -> None:
    service = handle(made(), Access(scopes=frozenset({Scope.STOP})), reason="x", by="boss")
    assert service == {"session_id": "s", "reason": "x", "until": None, "by": "boss", "on_complete": None}
    visitor = Access(scopes=frozenset({Scope.STOP}), session_id="s", subject="ada")
    assert handle(made(), visitor, reason="x")["by"] == "ada"


def test_fields_have_their_names_and_become_what_the_method_takes() -> None:
    def hold(
        self: Client, session_id: str, *, delay: timedelta | None = None, budget: ExecutionBudget | None = None
    ) -> bool:
        self.given = {"delay": delay, "budget": budget}
        return True

    of = made(hold, http={"delay": Field(alias="delay_seconds", ge=0), "budget": Field()}, service_only=("budget",))
    service = Access(scopes=frozenset({Scope.STOP}))
    visitor = Access(scopes=frozenset({Scope.STOP}), session_id="s", subject="ada")
    assert handle(of, service, delay_seconds=0, budget={"max_steps": 2}, hold=hold) == {
        "delay": timedelta(), "budget": ExecutionBudget(max_steps=2)
    }  # fmt: skip
    assert handle(of, visitor, hold=hold) == {"delay": None, "budget": None}
    with pytest.raises(ValidationError):
        body_of(of)(delay=1)
    with pytest.raises(HttpProblem, match="budget"):
        handle(of, visitor, budget={"max_steps": 2}, hold=hold)


def test_a_job_waits_in_the_line_of_whole_sessions_only_where_one_is_read() -> None:
    def start(self: Any, session_id: str | None = None, *, messages: Sequence[Message] = ()) -> Job: ...

    entered: list[str] = []

    @contextlib.asynccontextmanager
    async def line() -> AsyncGenerator[None]:
        entered.append("line")
        yield

    async def begin(**_: Any) -> Any:
        raise InvalidInput("session_id", "x", "stop here")

    of = made(
        start, "/v1/start", http={"session_id": Field(), "messages": Field()}, reads_session=("session_id", "messages")
    )
    endpoint = make_endpoint(of)
    assert endpoint.body is not None
    assert not endpoint.reads_session, "it would keep its place in the line while it waits for the end of the job"
    for body, expected in (
        ({}, []),
        ({"session_id": "s"}, ["line"]),
        ({"messages": [{"role": "user", "content": "x"}]}, ["line"]),
    ):
        entered.clear()
        client = SimpleNamespace(start=begin, run=_call)
        call: Any = SimpleNamespace(client=client, access=Access(), path={}, body=endpoint.body(**body), line=line)
        with pytest.raises(InvalidInput):
            asyncio.run(endpoint.handler(call))  # pyright: ignore[reportArgumentType]
        assert entered == expected


def test_a_task_takes_the_named_parameters_in_their_order() -> None:
    client = Client()
    task = make_task(made(task=("session_id", "reason", "by", "until")), lambda: client)
    assert list(inspect.signature(task).parameters) == ["self", "session_id", "reason", "by", "until"]
    assert task(None, "s", "x", "boss", until="2030-01-31T18:00:00+00:00") == "session s"
    assert client.given["until"] == datetime(2030, 1, 31, 18, tzinfo=UTC)
    client.given = {}
    for args, kwargs in ((("s",), {}), (("s", "x"), {"on_complete": "mine"}), (("s", "x", "b", None, "more"), {})):
        with pytest.raises(TypeError):
            task(None, *args, **kwargs)
    with pytest.raises(InvalidInput, match="until"):
        task(None, "s", "x", until="soon")
    assert client.given == {}


def test_a_task_that_comes_twice_has_one_key_and_gives_what_every_such_task_gives() -> None:
    given: list[dict[str, Any]] = []

    class Keyed:
        def copy(self, session_id: str, *, timeout: float = 30.0, idempotency_key: str | None = None) -> bool:
            given.append({"session_id": session_id, "timeout": timeout, "idempotency_key": idempotency_key})
            return True

    sender: Any = SimpleNamespace(request=SimpleNamespace(id="t1"))
    of = made(Keyed.copy, http={}, task=("session_id", "idempotency_key"), task_gives={"timeout": 0})
    task = make_task(of, Keyed)
    assert task(sender, "s") == task(sender, "s", "mine") == "session s"
    assert [each["idempotency_key"] for each in given] == ["task:t1", "mine"]
    assert {each["timeout"] for each in given} == {0}
    with pytest.raises(TypeError):
        task(sender, "s", timeout=3600)


def test_what_cannot_be_carried_is_refused_when_it_is_declared() -> None:
    def unknown_result(self: Any, session_id: str) -> set[str]: ...

    with pytest.raises(TypeError, match=r"on_complete.*'object'"):
        make_endpoint(made(http={"on_complete": Field()}))
    with pytest.raises(TypeError, match=r"on_complete.*'object'"):
        make_task(made(task=("on_complete",)), Client)
    with pytest.raises(TypeError, match=r"return.*'set\[str\]'"):
        make_endpoint(made(unknown_result, http={}))
    before = list(VERBS)
    for named in ({"http": {"absent": Field()}}, {"task": ("absent",)}, {"headers": ("absent",)}):
        with pytest.raises(TypeError, match="absent"):
            verb("POST", "/v1/x", "x", **named)(Client.hold)
    with pytest.raises(TypeError, match="absent"):
        verb("POST", "/v1/{absent}", "x")(Client.hold)
    assert before == VERBS


def test_every_operation_of_a_verb_is_served_and_every_task_can_be_refused() -> None:
    served = {each.name: each for each in ENDPOINTS}
    assert len(served) == len(ENDPOINTS)
    for each in VERBS:
        assert not NEVER & {*each.http}
        assert not each.path or served[each.operation].scope is each.scope
        assert (each.scope is None) == (each.token is not None)
        assert not each.task or f"{PREFIX}{each.name}" in CONTROL
