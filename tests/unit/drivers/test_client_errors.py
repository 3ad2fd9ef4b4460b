"""Errors of the providers' own clients, which jobs at providers use where pydantic-ai has no verb."""

from __future__ import annotations

from typing import Any

import pytest

from celery_agents.worker.drivers.pydantic_ai.failures import as_driver_error
from celery_agents.worker.errors import DriverError

httpx = pytest.importorskip("httpx")
openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")
google = pytest.importorskip("google.genai.errors")
httpx2 = pytest.importorskip("httpx2")
REQUEST = httpx.Request("POST", "http://127.0.0.1/v1/batches")


def translated(error: Exception) -> DriverError:
    found = as_driver_error(error, "openai:gpt-5-mini", asked=True)
    assert isinstance(found, DriverError)
    return found


def status_error(library: Any, status: int, **headers: str) -> Exception:
    if library is google:
        body = {"error": {"code": status, "status": "NO", "message": "key sk-secret-abcdefghijkl"}}
        return google.APIError(status, body, httpx2.Response(status, headers=headers))
    response = httpx.Response(status, request=REQUEST, headers=headers)
    return library.APIStatusError("no", response=response, body={"error": {"message": "key sk-secret-abcdefghijkl"}})


@pytest.mark.parametrize("library", [openai, anthropic, google], ids=["openai", "anthropic", "google"])
@pytest.mark.parametrize(("status", "transient"), [(400, False), (401, False), (404, False), (429, True), (503, True)])
def test_a_refusal_has_its_status(library: Any, status: int, transient: bool) -> None:
    found = translated(status_error(library, status))
    assert (found.status, found.transient) == (status, transient)
    assert "sk-secret" not in str(found)


@pytest.mark.parametrize("library", [openai, anthropic, google], ids=["openai", "anthropic", "google"])
def test_a_redirect_is_a_wrong_address(library: Any) -> None:
    found = translated(status_error(library, 308, location="https://elsewhere/?key=sk-secret-abcdefghijkl"))
    assert (found.kind, found.transient) == ("redirected", False)
    assert "check the base_url" in str(found)
    assert "sk-secret" not in str(found)


@pytest.mark.parametrize("library", [openai, google], ids=["openai", "google"])
def test_a_refusal_says_when_to_ask_again(library: Any) -> None:
    found = translated(status_error(library, 429, **{"retry-after": "7"}))
    assert found.retry_after == 7.0


@pytest.mark.parametrize("library", [openai, anthropic], ids=["openai", "anthropic"])
def test_no_answer_is_one_that_may_have_been_taken(library: Any) -> None:
    assert_may_have_been_taken(library.APIConnectionError(request=REQUEST), library.APITimeoutError(request=REQUEST))


def test_no_answer_to_a_client_of_google_is_one_that_may_have_been_taken() -> None:
    assert_may_have_been_taken(httpx2.RemoteProtocolError("gone"), httpx2.ReadTimeout("late"))


def assert_may_have_been_taken(without: Exception, too_late: Exception) -> None:
    lost, late = translated(without), translated(too_late)
    assert (lost.kind, lost.transient, lost.status) == ("connection", True, None)
    assert (late.kind, late.transient, late.status) == ("timeout", True, None)
