"""What an error of a provider says to people: the address and the proxy of a request that nobody answered."""

from __future__ import annotations

import httpx
import pytest
from pydantic_ai.exceptions import (
    FallbackExceptionGroup,
    ModelConnectionError,
    ModelHTTPError,
    ModelRateLimitError,
    ModelTimeoutError,
)

from celery_agents.worker.drivers.pydantic_ai.failures import as_driver_error
from celery_agents.worker.errors import DriverError

REQUEST = httpx.Request("POST", "https://user:s3cret@llm.example.com/v1/chat?key=s3cret")


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        caused(ModelConnectionError("m", "Connection error."), httpx.ConnectError("refused", request=REQUEST)),
        caused(ModelTimeoutError("m", "Timed out."), caused(OSError("x"), httpx.ReadTimeout("late", request=REQUEST))),
        caused(TimeoutError(), httpx.ReadTimeout("late", request=REQUEST)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_request_without_an_answer_names_its_address_and_proxy(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://someone:s3cret@proxy:3128")
    said = str(as_driver_error(error, "openai:m", asked=True))
    assert "llm.example.com:443 by HTTPS_PROXY (proxy:3128)" in said
    assert "s3cret" not in said


def test_an_error_without_a_request_says_what_it_said_before() -> None:
    broken = caused(ModelConnectionError("m", "Connection error."), httpx.ConnectError("refused"))
    assert str(as_driver_error(broken, "m", asked=True)) == "m could not be reached, or the connection broke."
    limited = caused(ModelRateLimitError("m", "slow down"), httpx.ConnectError("x", request=REQUEST))
    assert "llm.example.com" not in str(as_driver_error(limited, "m", asked=True))


def test_of_several_models_the_failure_that_may_pass_counts() -> None:
    def refusal(status: int) -> ModelHTTPError:
        return ModelHTTPError(status, "m", headers={"retry-after": "7"})

    def said(*errors: Exception) -> tuple[str, bool, float | None]:
        failure = as_driver_error(FallbackExceptionGroup("all have failed", errors), "fallback:a,b", asked=True)
        assert isinstance(failure, DriverError)
        return failure.kind, failure.transient, failure.retry_after

    assert said(refusal(401), refusal(503)) == ("http_error", True, 7.0)
    assert said(ModelRateLimitError("m", "slow down"), ModelConnectionError("m", "Connection error."))[:2] == (
        "rate_limit",
        True,
    )
    assert said(FallbackExceptionGroup("inner", [refusal(400)]), refusal(401))[:2] == ("http_error", False)
