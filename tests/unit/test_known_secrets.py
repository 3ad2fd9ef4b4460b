"""Secrets that this process knows are found in every form that texts write them in."""

from __future__ import annotations

import base64
import html
import itertools
import json
import re
import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_agents import MCPServer
from celery_agents.config.settings import Settings
from celery_agents.tasks.http.problems import HttpProblem, respond
from celery_agents.tasks.http.responses import write_json
from celery_agents.worker import known_secrets
from celery_agents.worker.capabilities.tracing.trace import Trace, TraceStatus
from celery_agents.worker.known_secrets import (
    SecretMatcher,
    SecretStream,
    current_matcher,
    redact_known,
    redact_known_json,
    remember_secrets,
)
from celery_agents.worker.state.values.frozen import FrozenDict

SECRET = 'p@ss/w"rd+é 1\n'
NAMES = [
    "ACME_API_KEY", "OPENAI_API_KEY", "ACME_TOKEN", "ACME_SECRET", "DB_PASSWORD", "PGPASSWORD", "DB_PASS", "GH_PAT",
    "SECRET_KEY_BASE", "FLOWER_BASIC_AUTH", "SENTRY_DSN", "db_pwd", "AWS_SECRET_ACCESS_KEY", "APIKEY", "SESSION_COOKIE",
    "GITHUB_TOKENS", "SIGNING_PASSPHRASE", "GCP_CREDENTIALS",
    "OPENAI_API_KEY_2", "API_KEY_PROD", "MYSECRET", "PRIVATE_KEY_PEM", "STRIPE_SK", "GITLAB_PAT_CI", "JWT", "SECRETKEY",
    "ENCRYPTION_KEY_BASE64", "PASS2", "APIKEY2", "HTTP_AUTHORIZATION", "AUTHORIZATION", "ACME_BEARER", "AWS_CREDS",
    "AZURE_STORAGE_CONNECTION_STRING", "KEY_V2_STAGING", "app-password", "apiKey", "clientSecret", "VAULT_SECRET_ID",
    "GOOGLE_CREDENTIALS_JSON", "ACCOUNT_TOKEN_VALUE", "SESSION_KEYS_OLD",
]  # fmt: skip
NO_SECRETS = [
    "PWD",
    "OLDPWD",
    "HOME",
    "ACME_REGION",
    "SSH_AUTH_SOCK",
    "KEYBOARD",
    "TLS_KEY_FILE",
    "TOKEN_URL",
    "PATTERN",
    "TOKENIZERS_PARALLELISM", "TOKEN_TTL", "AUTH_TYPE", "AUTH_DOMAIN", "SECRET_NAME", "KEY_VAULT_NAME", "JWT_ALGORITHM",
    "DATABASE", "RISK", "MONKEY", "COMPASS", "OAUTH_SCOPES", "PACKAGE_JSON", "MAX_TOKENS", "CURRENT_TEST", "BYPASS",
]  # fmt: skip


def forms(secret: str) -> list[str]:
    raw = secret.encode()
    return [
        secret,
        quote(secret, safe=""),
        quote_plus(secret),
        re.sub("%..", lambda found: found[0].lower(), quote(secret, safe="")),
        html.escape(secret),
        html.escape(secret, quote=False),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
        repr(raw)[2:-1],
        quote(quote(secret)),
        json.dumps(json.dumps({"a": secret})),
        raw.hex(),
        raw.hex().upper(),
        *(base64.b64encode(before + json.dumps(secret).encode() + b"after").decode() for before in (b"", b"x", b"xy")),
        *(base64.b64encode(before + raw + b"after").decode() for before in (b"", b"x", b"xy")),
        base64.urlsafe_b64encode(b"user:" + raw).decode(),
    ]


@pytest.mark.parametrize("form", forms(SECRET.strip()))
def test_every_usual_form_of_a_secret_is_found(form: str) -> None:
    assert SecretMatcher([SECRET.strip()]).redact(f"it said {form}!") != f"it said {form}!"


@given(st.text(st.characters(codec="utf-8"), min_size=8, max_size=40), st.binary(max_size=5), st.binary(max_size=5))
def test_no_base64_of_a_text_around_a_secret_gives_it_away(secret: str, before: bytes, after: bytes) -> None:
    text = base64.b64encode(before + secret.encode() + after).decode()
    assert "[redacted]" in SecretMatcher([secret]).redact(text)


@pytest.mark.parametrize("name", NAMES)
def test_a_variable_whose_name_says_so_is_a_secret(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "shapeless-value")
    assert current_matcher(fresh=True).redact("a shapeless-value b") == "a [redacted] b"


@pytest.mark.parametrize("name", NO_SECRETS)
def test_other_variables_are_no_secrets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "/an/ordinary/value")
    assert current_matcher(fresh=True).redact("a /an/ordinary/value b") == "a /an/ordinary/value b"


def test_the_password_of_every_url_is_a_secret_whatever_its_variable_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_BACKENDS", "redis://:corr%65ct-horse@db/0;amqp://auditor:battery-staple@mq//")
    monkeypatch.setenv("ACME_TABLES", "postgresql://auditor:several-hosts@h1:5432,[::1]:5433/x")
    monkeypatch.setenv("ACME_NOTES", "https://auditor:brack[e]ts@h/")
    texts = "corr%65ct-horse correct-horse battery-staple several-hosts brack[e]ts auditor"
    redacted = current_matcher(fresh=True).redact(texts)
    assert redacted == "[redacted] [redacted] [redacted] [redacted] [redacted] auditor"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BROKER_URL", "redis://h:6379/0?password={}&x=1"), ("BROKER_URL", "redis://h:6379/0?x=1&access_token={}"),
        ("ACME_STORAGE", "AccountName=a;AccountKey={};Suffix=x"), ("PGSERVICE", "host=h password={} dbname=x"),
        ("PGSERVICE", "host=h password='{}' dbname=x"), ("SERVICE_ACCOUNT", '{{"private_key": "{}", "type": "x"}}'),
        ("ACME_CONFIG", '{{"db": [{{"url": "postgres://u:{}@db/x"}}, {{"apiKey": "{}"}}]}}'),
        ("SENTRY_DSN", "https://{}@o1.ingest.invalid/2"), ("GIT_REMOTE", "https://{}0123456789@git.invalid/x.git"),
        ("AZURE_CONN_STR", "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey={}"),
    ],
)  # fmt: skip
def test_the_part_of_a_value_that_is_secret_is_found_alone(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "not-a-real-value"
    monkeypatch.setenv(name, value.format(secret, secret))
    redacted = current_matcher(fresh=True).redact(f"it said {secret}0123456789, and {secret}!")
    assert redacted.count(secret) < 2
    if name != "GIT_REMOTE":  # there the whole user name is the token
        assert secret not in redacted


def test_the_address_of_an_incoming_webhook_is_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "https://hooks.invalid/services/T000/B000/not-a-real-path"
    monkeypatch.setenv("SLACK_WEBHOOK_URL", address)
    monkeypatch.setenv("TEAMS_WEBHOOK_URL", "https://[hooks.invalid/not-a-real-path-0123456789")
    assert current_matcher(fresh=True).redact(f"posted to {address}.") == "posted to [redacted]."


def test_a_short_password_is_found_in_its_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_DB", "postgres://auditor:pw@db:5432/x")
    assert current_matcher(fresh=True).redact("to postgres://auditor:pw@db:5432/x") == "to postgres://[redacted]/x"


def test_the_lines_of_a_private_key_are_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "MIIEowIBAAKCAQEA0123456789abcdef"
    monkeypatch.setenv("TLS_KEY", f"-----BEGIN PRIVATE KEY-----\n{line}\nxyz\n-----END PRIVATE KEY-----\n")
    assert current_matcher(fresh=True).redact(f"> {line} <") == "> [redacted] <"


def test_settings_are_secrets_of_the_process() -> None:
    settings = Settings.build(webhook_secret="of-the-settings", redis_url="redis://:of-the-redis@host/0")
    remember_secrets(settings.secrets)
    assert redact_known("of-the-settings of-the-redis redis://host/0") == "[redacted] [redacted] redis://host/0"


def test_a_variable_that_names_a_file_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", __file__)
    assert current_matcher(fresh=True).redact(__file__) == __file__


def test_a_result_of_usual_size_is_searched_in_no_time() -> None:
    matcher, text = SecretMatcher(f"secret-number-{n}" for n in range(20)), "an ordinary result " * 1000
    began = time.process_time()
    for _ in range(10):
        assert matcher.redact(text) == text
    assert (time.process_time() - began) / 10 < 0.02


@pytest.mark.parametrize(
    "options",
    [
        {"url": "https://mcp.invalid/x?api_key=of-the-mcp-server"}, {"url": "https://u:of-the-mcp-server@mcp.invalid/x"},
        {"url": "https://mcp.invalid/x", "headers": {"Authorization": "Bearer of-the-mcp-server"}},
        {"url": "https://mcp.invalid/x", "headers": {"X-Api-Key": "of-the-mcp-server"}},
        {"command": "server", "env": {"GH_TOKEN": "of-the-mcp-server"}},
    ],
)  # fmt: skip
def test_what_an_mcp_server_is_given_is_a_secret(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_secrets, "_state", known_secrets._State())  # pyright: ignore[reportPrivateUsage]
    assert redact_known("of-the-mcp-server") == "of-the-mcp-server"
    MCPServer(name="s", **options)
    assert redact_known("it said of-the-mcp-server!") == "it said [redacted]!"


# --- texts in pieces, and long ones -----------------------------------------------------------------------------------

MANY = SecretMatcher(
    [SECRET, "abcdefgh-1234", "abcdefgh-12345678", "aaaaaaaaab", "-----BEGIN KEY-----\n" + "x1y2" * 400]
)
ALL_FORMS = sorted({form for secret in (SECRET, "abcdefgh-1234", "aaaaaaaaab") for form in forms(secret)})
AROUND = st.text(st.sampled_from("ab -p@%3aaaaaaah\n"), max_size=30)


def stream(matcher: SecretMatcher, pieces: list[str]) -> list[str]:
    shown = SecretStream(matcher)
    return [*(shown.feed(piece) for piece in pieces), shown.flush()]


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


@given(AROUND, st.sampled_from(ALL_FORMS), AROUND, st.lists(st.integers(0, 10_000), max_size=20))
def test_a_secret_that_is_cut_over_pieces_is_redacted(before: str, form: str, after: str, places: list[int]) -> None:
    shown = "".join(stream(MANY, cut(before + form + after, places)))
    assert form not in shown
    assert "[redacted]" in shown


@given(st.sampled_from(ALL_FORMS))
def test_a_secret_that_comes_by_single_characters_shows_none_of_them(form: str) -> None:
    assert "".join(stream(MANY, list(form))) == MANY.redact(form)


@given(st.text(max_size=200), st.lists(st.integers(0, 10_000), max_size=10))
def test_a_text_without_secrets_stays_as_it_is(text: str, places: list[int]) -> None:
    assert "".join(stream(MANY, cut(text, places))) == MANY.redact(text)


def test_ordinary_text_is_shown_at_once() -> None:
    pieces = ["The ", "customer ", "has ", "paid.\n", "100 % ", "done\n"]
    assert stream(MANY, pieces) == [*pieces, ""]


def test_only_what_a_secret_begins_with_is_held_back_until_it_is_known() -> None:
    shown = SecretStream(MANY)
    assert shown.feed("the word abcdef") == "the word "
    assert shown.feed("g and ") == "abcdefg and "
    assert shown.feed("abcdefgh-1234") == "", "a longer secret begins with it"
    assert shown.feed("!") == "[redacted]!"
    assert shown.feed("abcdefgh-123456") == ""
    assert shown.flush() == "[redacted]56"


@pytest.mark.parametrize("number", [1, 5, 200])
def test_a_long_text_is_redacted_as_a_short_one_is(number: int) -> None:
    secrets = [f"not-a-real-{n}-key-{n * 7919 % 1000:03d}/x" for n in range(number)]
    matcher = SecretMatcher(secrets)
    for form in sorted({form for secret in secrets[:5] for form in forms(secret)}):
        short = f"before {form} and {form}{form}, after"
        padding = "ordinary text, " * 5_000
        assert matcher.redact(padding + short + padding) == padding + matcher.redact(short) + padding
        assert form not in matcher.redact(short)


def test_a_long_text_takes_no_longer_where_many_secrets_are_known() -> None:
    text = "The customer wrote 12345 and waits for the refund. " * 80_000
    took = {}
    for number in (10, 400):
        matcher = SecretMatcher([f"not-a-real-key-{n:04d}-of-{n * 7919}" for n in range(number)])
        matcher.redact(text)  # the pattern is made once
        began = time.process_time()
        matcher.redact(text)
        took[number] = time.process_time() - began
    assert took[400] < 5 * took[10] + 0.5, took


def test_json_without_secrets_is_json_also_where_a_number_has_the_digits_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACME_TOKEN", "1234567890")
    current_matcher(fresh=True)
    value = {"1234567890": [1234567890, -5.1234567890, "it is 1234567890"], "other": True}
    found = {"[redacted]": [1234567890, -5.1234567890, "it is [redacted]"], "other": True}
    assert json.loads(redact_known_json(json.dumps(value))) == found
    assert json.loads(b"".join(write_json(value))) == found
    problem = HttpProblem(409, "refused", "1234567890 is taken", **value)
    assert json.loads(bytes(respond(problem).body))["detail"] == "[redacted] is taken"


def test_a_trace_with_a_number_that_has_the_digits_of_a_secret_is_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_TOKEN", "1234567890")
    current_matcher(fresh=True)
    made = Trace(
        trace_id="0", thread_id="t", session_id="s", execution_id="e", agent="a", status=TraceStatus.SUCCESS,
        started_at=datetime.now(UTC), payload=FrozenDict({"order": 1234567890, "said": "1234567890"}),
    )  # fmt: skip
    assert made.redacted().payload == {"order": 1234567890, "said": "[redacted]"}
