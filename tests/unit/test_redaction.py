"""No secret gets into a text that is stored, logged or shown."""

import ast
import configparser
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import celery_agents
from celery_agents.worker.errors import DriverError, InvalidInput
from celery_agents.worker.redaction import describe_exception, place_of, redact
from celery_agents.worker.requests.schemas import check_schema
from celery_agents.worker.tools import InvalidArguments

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
SECRETS = [
    ("Incorrect API key provided: sk-proj-abcDEF123456_-xyz.", "sk-proj-abcDEF123456_-xyz"),
    ("key sk-ant-api03-AAAAbbbbCCCC is wrong", "sk-ant-api03-AAAAbbbbCCCC"),
    ("AIzaSyA-1234567890abcdefghijklmnopqrstu", "AIzaSyA-1234567890abcdefghijklmnopqrstu"),
    ("gsk_abcdefgh12345678", "gsk_abcdefgh12345678"),
    ("ghp_abcdefghijklmnop1234", "ghp_abcdefghijklmnop1234"),
    ("xoxb-123456789-abcdefgh", "xoxb-123456789-abcdefgh"),
    ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
    (f"token was {JWT}", JWT),
    ("Authorization: Bearer abc.def-ghi", "abc.def-ghi"),
    ("{'authorization': 'Basic dXNlcjpwYXNz'}", "dXNlcjpwYXNz"),
    ("bearer 0123456789abcdef", "0123456789abcdef"),
    ("cannot connect to postgres://auditor:hunter2@db:5432/x", "hunter2"),
    ("redis://:pa@ss@localhost:6379/0", "pa@ss"),
    ("https://ghtoken@github.com/x.git", "ghtoken"),
    ("password=hunter2", "hunter2"),
    ('{"api_key": "abc def", "n": 1}', "abc def"),
    ("client_secret: zzz", "zzz"),
    ("OPENAI_API_KEY=whatever1", "whatever1"),
    ("GET https://bucket/x?X-Amz-Signature=deadbeef&n=1", "deadbeef"),
    ("GET /x?sig=deadbeef%3D&key=cafe", "cafe"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nxyz\n-----END RSA PRIVATE KEY-----", "MIIEow"),
    ("-----BEGIN PRIVATE KEY-----\nMIIEow cut off", "MIIEow"),
    ("/home/roberta/project/file.py: no such file", "roberta"),
    ("C:\\Users\\Roberta\\file.py", "Roberta"),
]


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_secrets_of_known_shapes_are_replaced(text: str, secret: str):
    assert secret not in redact(text)


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_redacting_twice_changes_nothing_more(text: str, secret: str):
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 5 and token usage 7",
        "KeyError: 'title'",
        "monkey: banana",
        "https://example.com/path?page=2",
        "value must be between 1 and 5 (got 7)",
        "File /var/lib/app/x.py, line 3",
        "connection to db.example.com:5432 refused",
        "user@example.com is not a member",
        "the task-list is empty",
    ],
)
def test_ordinary_texts_are_left_alone(text: str):
    assert redact(text) == text


def test_no_error_text_of_this_package_loses_words_to_the_shape_of_a_secret():
    root = Path(celery_agents.__file__).parent
    files = [file for folder in ("worker", "tasks", "config") for file in (root / folder).rglob("*.py")]
    raised = [node for file in files for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Raise)]
    texts = {
        node.value
        for each in raised
        for node in ast.walk(each)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert len(texts) > 500
    examples = ("<token>", "://user:password@")
    assert [text for text in texts if redact(text) != text and not any(each in text for each in examples)] == []


def test_the_rest_of_the_text_stays_readable():
    said = redact("GET https://auditor:pw@api.example.com/v1?api_key=abc&page=2 failed with 401")
    assert said == "GET https://[redacted]@api.example.com/v1?api_key=[redacted]&page=2 failed with 401"


@pytest.mark.parametrize(
    "name", ["ACME_API_KEY", "ACME_TOKEN", "ACME_SECRET", "DB_PASSWORD", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY"]
)
def test_values_of_secret_environment_variables_are_replaced_wherever_they_stand(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(name, "shapeless value")
    assert redact("it said: shapeless value!") == "it said: [redacted]!"


def test_a_password_inside_an_address_of_the_environment_is_a_secret_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CELERY_AGENTS_REDIS_URL", "redis://:corr%65ct-horse@db/0")
    assert redact("AUTH correct-horse failed") == "AUTH [redacted] failed"


def test_short_or_other_environment_values_are_not_searched_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACME_TOKEN", "on")
    monkeypatch.setenv("ACME_REGION", "europe-west")
    assert redact("based on europe-west") == "based on europe-west"


def test_a_secret_that_contains_another_is_replaced_whole(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("A_TOKEN", "abcdefgh")
    monkeypatch.setenv("B_TOKEN", "abcdefgh-and-more")
    assert redact("x abcdefgh-and-more y") == "x [redacted] y"


def test_the_own_home_directory_is_not_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/srv/people/roberta")
    assert redact(f"open {Path.home()}/notes.txt") == "open ~/notes.txt"


@given(st.text(max_size=300))
def test_any_text_can_be_redacted(text: str):
    redact(text)


@pytest.mark.parametrize(
    "piece",
    ["a", "a-", "a://", "key=", "?a", "?key", "eyJaaaaa.", "-eyJ", "sk-a.", "/home/", "bearer ", "token ", "token: '"]
    + ["authorization ", "password", "-----BEGIN PRIVATE KEY-----", "@", "://", "\\Users\\"],
)
def test_hostile_texts_take_no_time(piece: str):
    began = time.process_time()
    redact(piece * (20_000 // len(piece)))
    assert time.process_time() - began < 1.0


def test_an_exception_becomes_its_name_and_first_line():
    info = describe_exception(ValueError("first\nsecond sk-abcdefghijkl"))
    assert (info.kind, info.message, info.retryable) == ("ValueError", "ValueError: first", False)
    assert info.details == {"type": "builtins.ValueError"}


def test_an_exception_without_a_text_is_its_name():
    assert describe_exception(TimeoutError()).message == "TimeoutError"
    assert describe_exception(RuntimeError("\n\n")).message == "RuntimeError"


def test_a_long_text_is_shortened_after_its_secrets_are_gone():
    info = describe_exception(RuntimeError("x" * 490 + " sk-" + "a" * 600))
    assert len(info.message) < 550
    assert "sk-a" not in info.message


def test_an_exception_whose_text_cannot_be_read_is_still_described():
    class Broken(Exception):
        def __str__(self) -> str:
            raise KeyError("no")

    assert describe_exception(Broken()).message == "Broken: its text cannot be read, KeyError"


def test_text_that_utf8_cannot_hold_is_repaired():
    assert describe_exception(OSError("file \udcff.txt")).message == "OSError: file \ufffd.txt"


def test_errors_of_the_package_keep_all_lines_and_their_data():
    refused = describe_exception(InvalidArguments("pay", ("a: wrong", "b: missing")))
    assert "- b: missing" in refused.message
    assert describe_exception(InvalidInput("n", 5, "give a text.")).message.startswith("n: give a text.")
    driver = describe_exception(
        DriverError("rate_limit", "slow down", transient=True, status=429, code="too_many", request_id="req_1")
    )
    assert (driver.kind, driver.retryable) == ("rate_limit", True)
    assert driver.details["status"] == 429
    assert driver.details["request_id"] == "req_1"


def test_a_group_with_one_exception_is_that_exception():
    group = ExceptionGroup("unhandled errors in a TaskGroup", [ExceptionGroup("inner", [ValueError("really this")])])
    assert describe_exception(group).message == "ValueError: really this"


def test_nothing_of_the_cause_is_told():
    error = RuntimeError("outer")
    error.__cause__ = ValueError("secret-of-the-cause")
    assert "secret-of-the-cause" not in describe_exception(error).to_json().decode()


def _fails(depth: int) -> None:
    if depth:
        _fails(depth - 1)
    raise KeyError("sk-abcdefgh12345678")


def test_the_place_of_an_exception_names_the_innermost_frames_and_no_values() -> None:
    with pytest.raises(KeyError) as raised:
        _fails(depth=5)
    place = place_of(ExceptionGroup("tasks", [raised.value]))
    assert place.count("test_redaction.py:") == place.count(" in _fails") == 3
    assert "sk-abc" not in place
    assert place_of(KeyError("never raised")) == ""


def test_the_place_names_the_services_own_code_however_deep_a_library_raises() -> None:
    def refund() -> None:
        configparser.ConfigParser().read_string("[a]\n[a]\n")

    with pytest.raises(configparser.Error) as raised:
        refund()
    place = place_of(raised.value)
    assert " in refund, " in place
    assert place.count("configparser.py:") == 1, "where it was raised"


def test_the_place_is_of_the_code_that_has_called_this_package_and_not_in_it() -> None:
    with pytest.raises(InvalidInput) as raised:
        check_schema([], {"type": "object"}, "args")
    assert place_of(raised.value).startswith(" (")
    assert "schemas.py" not in place_of(raised.value)
