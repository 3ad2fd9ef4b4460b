"""A refused request tells a person the provider's code and request id, and nothing of its body."""

from __future__ import annotations

import pytest
from pydantic_ai.exceptions import ModelHTTPError

from celery_agents.worker.drivers.pydantic_ai.failures import as_driver_error
from celery_agents.worker.errors import DriverError
from celery_agents.worker.redaction import describe_exception

BODY = {"error": {"message": "the key sk-proj-verysecret0123456789abcdefghij is not for this", "code": "bad_schema"}}


@pytest.mark.parametrize(("status", "transient"), [(400, False), (429, True), (500, True)])
def test_code_and_request_id_are_in_the_text_that_users_see(status: int, transient: bool) -> None:
    refused = ModelHTTPError(
        status, "gpt-test", BODY, headers={"X-Request-Id": "req_42"}, provider_error_code="bad_schema"
    )
    error = as_driver_error(refused, "openai:gpt-test", asked=True)
    assert isinstance(error, DriverError)
    assert (error.transient, error.code, error.request_id) == (transient, "bad_schema", "req_42")
    shown = describe_exception(error).message
    assert f"(HTTP {status}, code bad_schema, request req_42)" in shown
    assert "verysecret" not in shown


def test_a_code_that_could_be_a_secret_or_a_text_is_left_out() -> None:
    code = "sk-proj-verysecret0123456789abcdefghij"
    refused = ModelHTTPError(
        400, "gpt-test", None, headers={"x-request-id": "a text\nwith lines"}, provider_error_code=code
    )
    error = as_driver_error(refused, "openai:gpt-test", asked=True)
    assert str(error).endswith("(HTTP 400).")
