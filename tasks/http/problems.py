"""Errors as problem documents (RFC 9457): status, type, title, and our sentence with advice."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError
from starlette.responses import Response

from ...config.settings import SettingsError
from ...worker import errors
from ...worker.known_secrets import redact_known_json
from ...worker.requests.tokens import InvalidToken

MEDIA_TYPE: Final = "application/problem+json"
_RETRY_AFTER_SECONDS: Final = 2

# The first line that fits decides.
_STATUS: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (InvalidToken, 401),
    (errors.StoreFull, 507),
    (errors.StoreUnavailable, 503),
    (errors.IdempotencyMismatch, 422),
    (errors.InvalidInput, 422),
    (errors.SessionExpired, 410),
    (errors.SessionDeleted, 410),
    (errors.NotKept, 410),
    (errors.SessionNotFound, 404),
    (errors.RequestNotFound, 404),
    (errors.UnknownAgent, 404),
    (errors.ConfigurationError, 501),
    (errors.MessageNotOwn, 403),
    (errors.SessionConflict, 409),
    (errors.ActionRefused, 409),
    (errors.InvalidTransition, 409),
    (SettingsError, 500),
    (errors.CeleryAgentsError, 500),
)

EXPECTED: Final = (errors.CeleryAgentsError, SettingsError)
"""Errors whose text the caller gets. Any other is a bug, and its text stays in the log."""


class HttpProblem(Exception):
    """A request that the HTTP interface itself refuses."""

    def __init__(self, status: int, kind: str, detail: str, **extra: Any) -> None:
        """
        Args:
            kind: The last part of the problem's type, such as `missing-token`.
            detail: What is wrong, and what to do.
            extra: Further members of the document; `headers` become headers of the response.
        """
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.headers: Mapping[str, str] = extra.pop("headers", {})
        self.extra = extra


def problem_of(error: BaseException) -> HttpProblem:
    """Make the problem of an error that our own code raised."""
    if isinstance(error, HttpProblem):
        return error
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    extra: dict[str, Any] = {}
    if isinstance(error, errors.InvalidInput) and not isinstance(error, InvalidToken):
        extra["errors"] = [{"field": error.field, "message": error.advice}]
    if isinstance(error, errors.SessionBusy):
        extra |= {"phase": error.phase, "step": error.step}
    if isinstance(error, errors.MessagesUnseen):
        extra |= {"newest_message": error.newest, "seen": error.seen}
    if status == 503:
        extra["headers"] = {"Retry-After": str(_RETRY_AFTER_SECONDS)}
    if status == 401:
        extra["headers"] = {"WWW-Authenticate": "Bearer"}
    return HttpProblem(status, _kind_of(error), str(error) or type(error).__name__, **extra)


def problem_of_validation(error: ValidationError, where: str) -> HttpProblem:
    """Make the problem of a body or a query that does not fit its model; it names each field.

    Args:
        where: `body` or `query`.
    """
    found = [
        {"field": _path(item["loc"]) or where, "message": _message(item)}
        for item in error.errors(include_url=False, include_input=False)
    ]
    named = "; ".join(f"{each['field']}: {each['message']}" for each in found[:5])
    return HttpProblem(422, "invalid-input", f"The {where} cannot be used. {named}.", errors=found)


def respond(problem: HttpProblem) -> Response:
    """Write a problem as a response. Known secrets are redacted."""
    document = {
        "type": f"urn:celery-agents:problem:{problem.kind}",
        "title": problem.kind.replace("-", " ").capitalize(),
        "status": problem.status,
        "detail": problem.detail,
        **problem.extra,
    }
    text = redact_known_json(json.dumps(document, ensure_ascii=False, default=str))
    headers = {**problem.headers, "Cache-Control": "no-store"}
    return Response(text, status_code=problem.status, media_type=MEDIA_TYPE, headers=headers)


def _kind_of(error: BaseException) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(error).__name__).lower()


def _path(loc: Sequence[int | str]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")


def _message(item: Mapping[str, Any]) -> str:
    if item["type"] == "extra_forbidden":
        return "there is no such field; correct its name or leave it out"
    return str(item["msg"]).removeprefix("Value error, ")
