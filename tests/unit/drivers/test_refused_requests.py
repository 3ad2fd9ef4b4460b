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


def text_of(status: int, body: object) -> str:
    return str(as_driver_error(ModelHTTPError(status, "gpt-test", body), "openai:gpt-test", asked=True))


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"message": "Invalid value 'mail of a person'.", "param": "messages[1].tool_calls"}, "messages[1].tool_calls"),
        ({"error": {"message": "messages.1.content.0: `tool_use` ids must be unique"}}, "messages.1.content.0"),
        ({"error": {"message": "tools.14.custom.input_schema.properties: Property keys"}}, "tools.14.custom"),
        ({"message": "The text field at messages.11.content.0 is blank."}, "messages.11.content.0"),
        ({"error": {"message": "* GenerateContentRequest.tools[0].function_declarations[2].name: bad"}}, "tools[0]"),
        ({"message": "too hot", "param": "temperature"}, "temperature"),
        ("input[2].call_id: too long", "input[2].call_id"),
    ],
)
def test_a_refusal_names_the_place_in_the_request(body: object, path: str) -> None:
    said = text_of(400, body)
    assert path in said
    assert "person" not in said


@pytest.mark.parametrize(
    "body",
    [
        {"message": "no", "param": "sk-proj-verysecret0123456789abcdefghij"},
        {"message": "no", "param": "messages.verysecret"},
        {"message": "messages.0.content.verysecret"},
        {"message": "text of verysecret, and thinking"},
        {"error": ["messages[0]", "verysecret"]},
        None,
    ],
)
def test_a_place_holds_nothing_of_the_request(body: object) -> None:
    assert "verysecret" not in text_of(400, body)


@pytest.mark.parametrize(
    "body", [None, {"error": {"type": "request_too_large", "message": "Request too large"}}, "<html>"]
)
def test_a_request_that_is_too_large_says_so(body: object) -> None:
    error = as_driver_error(ModelHTTPError(413, "gpt-test", body), "openai:gpt-test", asked=True)
    assert isinstance(error, DriverError)
    assert (error.kind, error.transient) == ("request_too_large", False)
    assert "the conversation is too long" in str(error)
