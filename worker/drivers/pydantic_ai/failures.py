"""Failures of model calls and what follows from each: one table.

Nothing of the provider's answer gets into an error except its status, its own short code and its request id: the body
can repeat the key that was sent. A path such as `messages[1].tool_calls` may get in: its names are known, and repeat
nothing. The provider's exception is not even kept as the cause, since that holds the body.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

from ....config.routes import describe_route
from ...errors import CeleryAgentsError, ConfigurationError, DriverError, JobEnded, UnusableAnswer
from ...redaction import redact
from .provider_facts import facts_of_text, seconds_to_wait

if TYPE_CHECKING:
    from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError


@dataclass(frozen=True, slots=True)
class _Kind:
    """One row: what it is called, whether asking again may help, and what to tell."""

    name: str
    transient: bool
    text: str


_BY_CATEGORY: Final[tuple[tuple[str, _Kind], ...]] = (
    ("ModelTimeoutError", _Kind("timeout", True, "did not answer in time")),
    ("ModelRequestTimeout", _Kind("timeout", True, "did not answer in time")),
    ("ModelConnectionError", _Kind("connection", True, "could not be reached, or the connection broke")),
    ("ModelQuotaExceededError", _Kind("quota", False, "says that the account's quota or credit is used up")),
    ("ModelRateLimitError", _Kind("rate_limit", True, "asks to slow down")),
    ("ModelOverloadedError", _Kind("overloaded", True, "is overloaded")),
    ("ModelUnavailableError", _Kind("unavailable", True, "is not available")),
    ("ModelServerError", _Kind("server_error", True, "failed")),
    ("ModelContextWindowExceededError", _Kind("context_window", False, "says that the conversation is too long")),
    ("ModelAuthenticationError", _Kind("authentication", False, "refused the key; check the provider's key variable")),
    ("ModelNotFoundError", _Kind("not_found", False, "knows no such model or address; check the model and base_url")),
    ("ModelRequestRejectedError", _Kind("rejected", False, "refused the request itself; check settings and tools")),
)
"""Categories of pydantic-ai, the narrower before the wider."""

_TOO_LARGE: Final = _Kind(
    "request_too_large",
    False,
    "says that the request is too large: the conversation is too long, or holds too much media",
)
"""HTTP 413, whatever its body says."""

GONE: Final = (404, 410)
"""HTTP statuses of what a provider does not keep any more."""
_STATUS_TOO_LARGE: Final = 413
_STATUS_RATE_LIMIT: Final = 429
_STATUSES: Final = range(400, 600)
_REDIRECTS: Final = range(300, 400)
_NAMES_PLACES: Final = frozenset({400, 404, 413, 422})
"""Statuses of answers about something in the request."""

_TRANSIENT_STATUS: Final = frozenset({408, 409, 425, 429})
_OTHER_STATUS: Final = _Kind("http_error", False, "refused the request")
_OTHER_TRANSIENT: Final = _Kind("http_error", True, "did not carry the request out")
_REDIRECTED: Final = _Kind("redirected", False, "answers with a redirect; check the base_url")
_OTHER_API: Final = _Kind("api_error", True, "reported an error")
_TIMEOUT: Final = _Kind("timeout", True, "did not answer in time")
_CONNECTION: Final = _Kind("connection", True, "could not be reached, or the connection broke")
_TIMEOUTS: Final = frozenset({"APITimeoutError", "TimeoutException"})
"""Errors of time by their names: of OpenAI's and Anthropic's clients, and of httpx, which Google's lets through."""
_BREAKS: Final = frozenset({"APIConnectionError", "TransportError"})
STUMBLES: Final = (ValueError, TypeError, LookupError, AttributeError)
"""How clients say that an answer has not the shape they expect."""

_UNANSWERED: Final = ("connection", "timeout", "redirected")
_MOST_CAUSES: Final = 10
_UNEXPECTED: Final = _Kind("unexpected", False, "could not be asked")
OF_ANY_CODE: Final = frozenset({_TIMEOUT.name, _CONNECTION.name, _UNEXPECTED.name})
"""Kinds of exceptions that the agent's own code may raise as well as the client of its provider."""

_SHORT_CODE: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,80}")
_REQUEST_ID_HEADERS: Final = ("x-request-id", "request-id", "x-amzn-requestid", "x-goog-request-id", "cf-ray")


def as_driver_error(error: Exception, model: str, *, asked: bool) -> CeleryAgentsError:
    """Translate whatever asking `model` raised; to be raised outside of the `except`, so that it has no context.

    Args:
        error: What was raised.
        model: What was asked, for the text.
        asked: The request was on its way, so that an error about a value is one about the answer.
    """
    from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UnexpectedModelBehavior, UserError

    if (known := _of_ours(error, model) or _of_several(error, model, asked=asked)) is not None:
        return known
    error = _of_client(error, model)
    if isinstance(error, ModelHTTPError):
        return _of_status(error, model)
    if isinstance(error, ModelAPIError):
        return _of_api(error, model)
    if isinstance(error, UnexpectedModelBehavior) or (asked and isinstance(error, STUMBLES)):
        return UnusableAnswer(f"{model} gave an answer that cannot be read ({_name(error)}).")
    if isinstance(error, UserError):
        said = redact(error.message)  # pydantic-ai's own words
        return DriverError("configuration", f"{model} cannot be asked like this: {said}", transient=False)
    kind = _of_other(error)
    return _driver_error(kind, model, detail=", ".join(filter(None, (_name(error), _route(kind, error)))))


def may_pass(error: BaseException | None) -> bool:
    """Whether code that is no model's has failed at a connection or a time: itself, or what it was raised from."""
    if error is None:
        return False
    if isinstance(error, OSError):  # a missing file is no broken connection, and does not pass
        return isinstance(error, (TimeoutError, ConnectionError))
    return _of_other(error).transient or may_pass(error.__cause__)


def status_of(error: BaseException | None, among: range = _STATUSES) -> int | None:
    """The HTTP status in an error of a provider's own client; None for an error without one."""
    found = (getattr(error, name, None) for name in ("status_code", "code"))  # Google's has the second name
    return next((each for each in found if isinstance(each, int) and each in among), None)


@contextmanager
def while_known(job: str) -> Generator[None]:
    """Raise `JobEnded` where a provider does not know a job or its files any more: another may have collected it."""
    try:
        yield
    except Exception as error:
        if status_of(error) not in GONE:
            raise
        raise JobEnded("forgotten", f"the provider does not know {job} any more") from None


def _of_ours(error: Exception, model: str) -> CeleryAgentsError | None:
    """An error that is translated already, or of a job that its provider has forgotten, begun just now or before."""
    from pydantic_ai.exceptions import SuspendedResponseExpired

    if isinstance(error, ConfigurationError):
        return DriverError("configuration", str(error), transient=False)
    if isinstance(error, SuspendedResponseExpired):
        return JobEnded("forgotten", f"{model} does not know the job any more")
    return error if isinstance(error, CeleryAgentsError) else None


def _of_several(error: Exception, model: str, *, asked: bool) -> CeleryAgentsError | None:
    """The errors of all models of a `FallbackModel` as one: the first that may pass, else the first."""
    from pydantic_ai.exceptions import FallbackExceptionGroup

    if not isinstance(error, FallbackExceptionGroup):
        return None
    found = [as_driver_error(each, model, asked=asked) for each in error.exceptions]
    return next((each for each in found if isinstance(each, DriverError) and each.transient), found[0])


def _of_client(error: Exception, model: str) -> Exception:
    """An error of a provider's own client as pydantic-ai has it; any other as it is."""
    from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, ModelRateLimitError

    status = status_of(error)
    if isinstance(error, ModelAPIError) or status is None:
        return error
    headers = dict(getattr(getattr(error, "response", None), "headers", None) or {})
    codes = (getattr(error, name, None) for name in ("code", "status"))
    code = next((each for each in codes if isinstance(each, str)), None)
    facts: Any = {
        "status_code": status,
        "model_name": model,
        "body": getattr(error, "body", None) or getattr(error, "details", None),
        "headers": headers,
        "provider_error_code": code,
    }
    if status == _STATUS_RATE_LIMIT:
        return ModelHTTPError.for_category(ModelRateLimitError, **facts)
    return ModelHTTPError(**facts)


def _of_status(error: ModelHTTPError, model: str) -> DriverError:
    transient = error.status_code in _TRANSIENT_STATUS or error.status_code >= 500
    kind = _category(error) or (_OTHER_TRANSIENT if transient else _OTHER_STATUS)
    if error.status_code == _STATUS_TOO_LARGE and kind.name != "context_window":
        kind = _TOO_LARGE
    said = facts_of_text(error.body) if error.status_code == _STATUS_RATE_LIMIT else None
    if said is not None and said.is_too_large:
        kind = _TOO_LARGE
    waits = (seconds_to_wait(error.headers or {}), error.retry_after, said and said.retry_after)
    code, request_id = _code(error), _request_id(error.headers)
    place = request_path(error.body) if error.status_code in _NAMES_PLACES else None
    places = [f"at {place}"] if place else []
    return _driver_error(
        kind,
        model,
        detail=", ".join([f"HTTP {error.status_code}", *places, *_references(code, request_id)]),
        status=error.status_code,
        code=code,
        request_id=request_id,
        retry_after=next((seconds for seconds in waits if seconds is not None), None),
        limits=said and said.limits,
    )


def _of_api(error: ModelAPIError, model: str) -> DriverError:
    """Classify an error that is no refusal: no connection, a redirect, or an answer that is no JSON."""
    kind = _category(error)
    if kind is None and (error.__cause__ is None or isinstance(error.__cause__, ValueError)):
        return UnusableAnswer(f"{model} gave an answer that is no JSON.")
    code, redirected = _code(error), status_of(error.__cause__, _REDIRECTS)
    kind = kind or (_REDIRECTED if redirected else _OTHER_API)
    status = f"HTTP {redirected}" if redirected else ""
    detail = ", ".join(filter(None, (status, _route(kind, error), *_references(code, None))))
    return _driver_error(kind, model, detail=detail, status=redirected, retry_after=error.retry_after, code=code)


def _route(kind: _Kind, error: Exception) -> str:
    """Name the address and the proxy of a request that was not answered; "" for other failures."""
    causes, each = 0, cast("BaseException | None", error)
    while kind.name in _UNANSWERED and each is not None and causes < _MOST_CAUSES:
        try:
            return describe_route(str(cast("Any", each).request.url))
        except (AttributeError, RuntimeError):  # httpx raises the second where it knows no request
            causes, each = causes + 1, each.__cause__ or each.__context__
    return ""


def _references(code: str | None, request_id: str | None) -> list[str]:
    """Name the code and the request id, for which the provider's support asks."""
    return [f"{name} {value}" for name, value in (("code", code), ("request", request_id)) if value]


def _of_other(error: BaseException) -> _Kind:
    if status_of(error, _REDIRECTS):
        return _REDIRECTED
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, TimeoutError) or names & _TIMEOUTS:
        return _TIMEOUT
    return _CONNECTION if isinstance(error, OSError) or names & _BREAKS else _UNEXPECTED


def _driver_error(kind: _Kind, model: str, *, detail: str = "", **facts: Any) -> DriverError:
    said = f"{model} {kind.text} ({detail})." if detail else f"{model} {kind.text}."
    return DriverError(kind.name, said, transient=kind.transient, **facts)


@cache
def _categories() -> tuple[tuple[type[Exception], _Kind], ...]:
    from pydantic_ai import exceptions

    return tuple((getattr(exceptions, name), kind) for name, kind in _BY_CATEGORY)


def _category(error: Exception) -> _Kind | None:
    return next((kind for category, kind in _categories() if isinstance(error, category)), None)


def _code(error: ModelAPIError) -> str | None:
    return _short(error.provider_error_code) or _short(error.provider_error_type)


def _request_id(headers: dict[str, str] | None) -> str | None:
    return next((found for name in _REQUEST_ID_HEADERS if (found := _short((headers or {}).get(name)))), None)


def _short(text: object) -> str | None:
    """A code or an id as it is; None for anything that could be a text or a key."""
    if not isinstance(text, str) or not _SHORT_CODE.fullmatch(text) or redact(text) != text:
        return None
    return text


def _name(error: Exception) -> str:
    return type(error).__name__


_ROOTS: Final = (
    *("messages", "input", "contents", "tools", "tool_choice", "tool_config", "toolConfig", "system", "instructions"),
    *("system_instruction", "response_format", "text", "reasoning", "thinking", "model", "metadata", "stream_options"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "temperature", "top_p", "stop", "body"),
    *("generationConfig", "generation_config", "GenerateContentRequest"),
)
_MEMBERS: Final = (
    *("arguments", "call_id", "content", "custom", "data", "description", "effort", "enum", "file", "file_data"),
    *("file_url", "format", "function", "function_call", "function_declarations", "function_response", "functionCall"),
    *("functionDeclarations", "functionResponse", "id", "image", "image_url", "input_schema", "inputSchema", "items"),
    *("json_schema", "media_type", "name", "output", "parameters", "parts", "properties", "refusal", "required"),
    *("response", "role", "schema", "signature", "source", "strict", "summary", "tool_call_id", "tool_calls", "type"),
    *("tool_result", "tool_use", "tool_use_id", "toolResult", "toolSpec", "toolUse", "toolUseId", "url", "verbosity"),
)
_NAMES: Final = frozenset([*_ROOTS, *_MEMBERS])
"""The names that a path may have: those of the interfaces, none that a user has chosen."""

_PATH: Final = re.compile(rf"(?<![\w.$])(?:{'|'.join(_ROOTS)})(?:\.?\[\d{{1,6}}\]|\.\d{{1,6}}|\.[A-Za-z_]{{2,24}})*")
_PIECE: Final = re.compile(r"\.?\[\d+\]|\.\d+|\.?[A-Za-z_]+")
_MOST_CHARS: Final = 4000


def request_path(body: object) -> str | None:
    """The first path in a provider's error; None where it names none.

    Args:
        body: The body of its answer, as read from JSON, or as text.
    """
    for text in _texts(body):
        for found in _PATH.finditer(text[:_MOST_CHARS]):
            path = _known_part(found.group())
            if text == path or "." in path or "[" in path:  # a word alone is one of the sentence
                return path
    return None


def _texts(body: object) -> Iterator[str]:
    """The texts of an error that may hold a path: what is made for it first, then the sentence."""
    if isinstance(body, str):
        yield body
        return
    if not isinstance(body, Mapping):
        return
    given = cast("Mapping[str, Any]", body)
    inner = given.get("error")
    if isinstance(inner, (Mapping, str)):
        yield from _texts(cast("object", inner))
    for name in ("param", "message", "Message", "detail"):
        if isinstance(given.get(name), str):
            yield given[name]


def _known_part(path: str) -> str:
    """The beginning of a path up to the first name that is none of an interface."""
    kept: list[str] = []
    for piece in _PIECE.findall(path):
        name = piece.lstrip(".")
        if name[0].isalpha() and name not in _NAMES:
            break
        kept.append(piece)
    return "".join(kept)
