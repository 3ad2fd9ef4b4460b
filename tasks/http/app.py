"""`create_http_app`: the HTTP interface and its page as an ASGI application, served alone or mounted in another one."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from ..client.async_client import AsyncAgentClient
from ..client.client import AgentClient
from . import agui_endpoints, job_endpoints, provider_webhooks, request_endpoints, session_endpoints, verb_endpoints
from .access import NOTHING, Access, AccessRules
from .endpoints import Call, Endpoint, endpoints_of, read_query, send
from .event_hub import EventHub
from .memory import SessionReading
from .openapi import describe
from .page_files import PageFiles
from .problems import EXPECTED, HttpProblem, problem_of, respond
from .request_bodies import RequestBodies, RequestLimits
from .responses import JsonResponse

_log = logging.getLogger(__name__)

# Verbs that run at the same time. Callers with tokens of sessions have threads of their own, so that others never wait.
_SERVICE_THREADS: Final = 64
_VISITOR_THREADS: Final = 16

ENDPOINTS: Final = (
    *endpoints_of(job_endpoints, session_endpoints, request_endpoints, agui_endpoints, provider_webhooks),
    *verb_endpoints.ENDPOINTS,
)
"""All operations."""


def create_http_app(client: AgentClient | AsyncAgentClient | None = None) -> Starlette:
    """Make the HTTP interface of a client, with the client's settings.

    Args:
        client: None: one with the settings of the environment.
    Returns:
        An ASGI application. Mounted in another one, its routes are below the path of the mount.
    Raises:
        SettingsError: A setting is wrong, such as `http_token_secrets`.
        MissingExtra: Webhooks of a provider are to be taken, and its library is not installed.
    """
    wrapped = client if isinstance(client, AsyncAgentClient) else AsyncAgentClient.of(client or AgentClient())
    interface = _Interface(wrapped)
    settings = wrapped.settings
    middleware = [Middleware(RequestLimits, most_bytes=settings.http_max_body_bytes)]
    if origins := settings.allowed_origins:
        middleware.insert(
            0,
            Middleware(
                CORSMiddleware,
                allow_origins=origins,
                allow_methods=["GET", "POST", "PUT", "DELETE"],
                allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "If-Match", "Last-Event-ID"],
                expose_headers=["ETag", "Location", "Retry-After"],
            ),
        )
    routes = [Route(each.path, interface.handler_of(each), methods=[each.method]) for each in ENDPOINTS]
    app = Starlette(
        routes=[*routes, Route("/openapi.json", interface.show_document), *PageFiles().routes()],
        middleware=middleware,
        exception_handlers={HTTPException: _refuse_route, HttpProblem: _refuse, Exception: _fail},
        lifespan=interface.lifespan,
    )
    app.router.redirect_slashes = False  # it names the host that the caller has written
    return app


class _Interface:
    """The parts that all requests of one application share."""

    def __init__(self, client: AsyncAgentClient) -> None:
        self._client = client.with_threads(_SERVICE_THREADS)
        self._visitors = client.with_threads(_VISITOR_THREADS)
        self._rules = AccessRules(client.settings)
        self._hub = EventHub(client, client.settings.http_max_streams)
        self._reading = SessionReading()
        self._bodies = RequestBodies(client.settings.http_max_body_bytes, client.settings.http_max_bodies_bytes)
        self._signatures = provider_webhooks.Signatures(client.settings)
        self._signed = provider_webhooks.signed_bodies()
        self._document = describe(ENDPOINTS)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncGenerator[None]:
        """End the reading of events with the application."""
        del app
        yield
        await self._hub.close()

    def handler_of(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        """The function that serves an endpoint's requests."""

        async def serve(request: Request) -> Response:
            began = time.perf_counter()
            try:
                response = await self._serve(endpoint, request)
            except (HttpProblem, *EXPECTED) as error:
                response = respond(problem_of(error))
            # The path as it is declared: the one of the request may hold a token.
            took = (time.perf_counter() - began) * 1000
            _log.info("%s %s %d %.0f ms", endpoint.method, endpoint.path, response.status_code, took)
            return response

        return serve

    async def _serve(self, endpoint: Endpoint, request: Request) -> Response:
        access = await self._let_in(endpoint, request)
        query = read_query(request, endpoint.query)
        check = self._signatures.check_of(request) if endpoint.is_signed else None
        bodies = self._bodies if check is None else self._signed
        async with bodies.read(request, endpoint.body, access, check) as body:
            if endpoint.scope is not None and endpoint.session_field is not None:
                session_id = getattr(body, endpoint.session_field)
                access.check(endpoint.scope, session_id)
                await access.check_place(session_id, self._visitors)
            call = Call(
                client=self._visitors if access.is_visitor else self._client,
                rules=self._rules,
                hub=self._hub,
                reading=self._reading,
                request=request,
                access=access,
                path=dict(request.path_params),
                query=query,
                body=body,
            )
            return await self._answer(endpoint, call)

    async def _let_in(self, endpoint: Endpoint, request: Request) -> Access:
        """Find out who asks, and refuse who may not, before anything of the body is read."""
        path = request.path_params
        if endpoint.scope is None:
            purpose = endpoint.token
            if purpose is not None:
                await self._visitors.run(lambda client: client.read_token(path["token"], purpose))
            return NOTHING
        access = await self._rules.access_of(request, self._client)
        session_id = path.get("session_id") if endpoint.session_field is None else access.session_id
        access.check(endpoint.scope, session_id, for_chat=endpoint.for_chat, for_label=endpoint.for_label)
        await access.check_place(session_id, self._visitors)
        return access

    async def _answer(self, endpoint: Endpoint, call: Call) -> Response:
        async with call.line() if endpoint.reads_session else contextlib.nullcontext():
            response = await endpoint.handler(call)
            if isinstance(response, JsonResponse):
                await response.write(call.client, self._reading.responses, call.access)
            return response

    async def show_document(self, request: Request) -> Response:
        """Show the OpenAPI document to each caller with a token."""
        try:
            access = await self._rules.access_of(request, self._client)
        except HttpProblem as problem:
            return respond(problem)
        response = send(self._document)
        await response.write(self._client, self._reading.responses, access)
        return response


async def _refuse(request: Request, error: Exception) -> Response:
    del request
    return respond(problem_of(error))


async def _refuse_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind, detail = _ROUTING.get(error.status_code, ("refused", str(error.detail)))
    headers = {"Allow": _methods_at(request)} if error.status_code == 405 else dict(error.headers or {})
    return respond(HttpProblem(error.status_code, kind, detail, headers=headers))


def _methods_at(request: Request) -> str:
    """The methods of all routes of a path: that of an exception is one route's."""
    routes = [each for each in request.app.routes if each.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for each in routes for method in each.methods or ()}))


async def _fail(request: Request, error: Exception) -> Response:
    del request
    _log.error("a request failed", exc_info=error)
    detail = "Something went wrong that this program did not expect. Its log says what."
    return respond(HttpProblem(500, "internal-error", detail))


_ROUTING: Final = {
    404: ("not-found", "There is nothing at this path. See /openapi.json."),
    405: ("method-not-allowed", "This path has no such method. See /openapi.json."),
}
