"""Webhooks of providers that are not what they should be: they are refused before anything is asked of Redis."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from starlette.testclient import TestClient

from celery_agents import AgentClient
from celery_agents.config.settings import Settings, SettingsError
from celery_agents.tasks.http.app import create_http_app
from celery_agents.tasks.http.provider_webhooks import read_secrets

from support.patient_webhooks import sign

OLD, SECRET = "whsec_dGhlIG9uZSBiZWZvcmUgaXQ=", "whsec_bm90IGEgc2VjcmV0LCBidXQgbG9uZw=="
PATH = "/v1/provider-webhooks/openai"
EVENT = json.dumps({"id": "evt_1", "type": "response.completed", "data": {"id": "resp_1"}})


def serving(**settings: Any) -> TestClient:
    """The interface over a Redis that nobody reaches: what asks it is answered with 503."""
    given = Settings(redis_url="redis://127.0.0.1:1/0", redis_timeout_seconds=0.2, **settings)
    return TestClient(create_http_app(AgentClient(settings=given)), raise_server_exceptions=False)


@pytest.fixture(scope="module")
def http() -> TestClient:
    return serving(provider_webhook_secrets=f"openai={OLD}, openai={SECRET}")


def signed(body: str, secret: str = SECRET, *, at: float = 0.0, **headers: str) -> dict[str, str]:
    """Headers of a body that is signed now, or so many seconds later."""
    seconds = int(time.time() + at)
    signature = sign(secret, "wh_1", seconds, body)
    mine = {"webhook-id": "wh_1", "webhook-timestamp": str(seconds), "webhook-signature": signature}
    return {"content-type": "application/json", **mine, **headers}


def post(http: TestClient, body: str | bytes, headers: dict[str, Any], path: str = PATH) -> tuple[int, str]:
    """The status of the reply and the kind of its problem; "" without one."""
    reply = http.post(path, content=body, headers=headers)
    kind = reply.json()["type"].rpartition(":")[2] if reply.content else ""
    assert SECRET[6:] not in reply.text
    return reply.status_code, kind


# Signed when they are sent: a time that is too new becomes right while other tests run.
FORGED: Mapping[str, Callable[[], dict[str, str]]] = {
    "no header": dict,
    "another secret": lambda: signed(EVENT, OLD.replace("dGhl", "dGhf")),
    "another body": lambda: signed(EVENT.replace("resp_1", "resp_2")),
    "another id": lambda: signed(EVENT, **{"webhook-id": "wh_2"}),
    "too old": lambda: signed(EVENT, at=-400),
    "too new": lambda: signed(EVENT, at=+900),
    "no number": lambda: signed(EVENT, **{"webhook-timestamp": "now"}),
    "a bearer token": lambda: {"authorization": f"Bearer {SECRET}"},
    "no signature": lambda: signed(EVENT, **{"webhook-signature": ""}),
}


@pytest.mark.parametrize("forged", FORGED)
def test_what_the_provider_has_not_signed_just_now_is_refused(http: TestClient, forged: str) -> None:
    assert post(http, EVENT, FORGED[forged]()) == (401, "wrong-signature")


def test_letters_and_bytes_that_no_signature_has_are_refused(http: TestClient) -> None:
    odd = [(name.encode(), value.encode()) for name, value in signed(EVENT).items() if name != "webhook-signature"]
    reply = http.post(PATH, content=EVENT, headers=[*odd, (b"webhook-signature", b"v1,\xe9")])
    assert reply.status_code == 401
    assert post(http, b"\xff\xfe", signed(EVENT)) == (401, "wrong-signature")


@pytest.mark.parametrize("secret", [OLD, SECRET])
def test_each_secret_of_the_setting_is_taken_and_the_job_is_looked_for(http: TestClient, secret: str) -> None:
    assert post(http, EVENT, signed(EVENT, secret)) == (503, "store-unavailable")  # a provider sends it again


@pytest.mark.parametrize(
    "event",
    [
        {"type": "fine_tuning.job.succeeded", "data": {"id": "resp_1"}},
        {"type": "response.completed", "data": {}},
        {"type": "response.completed", "data": {"id": 7}},
        {"type": "batch.completed", "data": {"id": "b" * 501}},
    ],
)
def test_what_is_of_no_job_does_nothing(http: TestClient, event: dict[str, Any]) -> None:
    body = json.dumps(event)
    assert post(http, body, signed(body)) == (204, "")


@pytest.mark.parametrize(
    ("body", "more", "expected"),
    [
        ("{", {}, (400, "malformed-json")),
        ("[]", {}, (422, "invalid-input")),
        ('{"type": "response.completed", "data": "resp_1"}', {}, (422, "invalid-input")),
        (EVENT, {"content-type": "text/plain"}, (415, "unsupported-media-type")),
        (json.dumps({"type": "x", "data": {"id": "y" * 64_000}}), {}, (413, "body-too-large")),
        (json.dumps({"type": "x", "data": {"id": "y" * 3_000_000}}), {}, (413, "body-too-large")),
    ],
    ids=["no JSON", "a list", "no data", "a text", "long", "very long"],
)
def test_a_signed_body_that_no_provider_sends(
    http: TestClient, body: str, more: dict[str, str], expected: tuple[int, str]
) -> None:
    assert post(http, body, signed(body, **more)) == expected


def test_without_the_setting_and_of_other_providers_there_is_nothing(http: TestClient) -> None:
    assert post(http, EVENT, signed(EVENT), PATH.replace("openai", "anthropic")) == (404, "not-found")
    assert post(serving(), EVENT, signed(EVENT)) == (404, "not-found")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"openai={SECRET},{SECRET}", "entry 2 is of no known provider"),
        (f"anthropic={SECRET}", r"entry 1 is of no known provider \(openai\)"),
        ("openai", "entry 1 has no secret"),
        ("openai=whsec_dGhl", "entry 1 has no secret"),
        (f"openai={SECRET[:-1]}", "entry 1 has no secret"),
        (f"openai={SECRET.removeprefix('whsec_')}", "entry 1 has no secret"),
    ],
)
def test_a_setting_that_cannot_be_read_is_refused_without_its_secrets(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as wrong:
        read_secrets(text)
    assert SECRET[6:-2] not in str(wrong.value)


def test_its_secrets_are_among_those_that_are_not_shown() -> None:
    settings = Settings(provider_webhook_secrets=f"openai={OLD}, openai={SECRET}")
    assert {OLD, SECRET} <= {*settings.secrets}
    assert SECRET not in repr(settings)
