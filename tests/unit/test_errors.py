"""One tree of errors, each with its data, a sentence, and a way through a process boundary."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest

from celery_agents.worker import errors
from celery_agents.worker.errors import (
    ActionRefused,
    ArchiveUnavailable,
    CeleryAgentsError,
    ClaimLost,
    ConfigurationError,
    DriverError,
    ExecutionFailed,
    IdempotencyMismatch,
    InvalidInput,
    InvalidSessionFile,
    InvalidTransition,
    JobEnded,
    LoginRefused,
    MessageNotOwn,
    MessageNotWaiting,
    MessagesUnseen,
    MessageUndelivered,
    MissingExtra,
    ModelCallRefused,
    NotConfirmed,
    NotKept,
    NotYetKnown,
    PutOff,
    RequestNotFound,
    RequestNotOpen,
    SessionArchived,
    SessionBusy,
    SessionConflict,
    SessionDeleted,
    SessionExpired,
    SessionNotFound,
    StateTooNew,
    StateUnreadable,
    StepDelayed,
    StoreForbidden,
    StoreFull,
    StoreUnavailable,
    UnknownAgent,
    UnknownTool,
    UnusableAnswer,
    VersionConflict,
)

EXAMPLES: tuple[CeleryAgentsError, ...] = (
    ConfigurationError("REDIS_URL is not a URL."),
    MissingExtra("openai", "The model openai:gpt-5"),
    InvalidInput("max_steps", -1, "give a whole number from 0."),
    InvalidTransition("e1", "completed", "in_progress", "Send another message."),
    ActionRefused("The session is suspended."),
    MessagesUnseen("s1", newest=2, seen=1),
    SessionBusy("s1", "run", 3),
    MessageNotWaiting("s1", "m1", execution_id="e1"),
    MessageNotOwn("s1", "m1", "jo"),
    MessageUndelivered("s1", "m1", "withdrawn"),
    RequestNotOpen("r1", "answered", by="ann", at_ms=1_700_000_000_000, what="approved"),
    RequestNotFound("s1", "r2"),
    IdempotencyMismatch(),
    UnknownAgent("shop", ("support", "sales")),
    UnknownTool("weather"),
    SessionNotFound("s1"),
    SessionArchived("s1"),
    SessionDeleted("s1"),
    SessionExpired("s1"),
    SessionConflict(),
    ClaimLost(),
    VersionConflict(),
    StoreUnavailable(),
    StoreForbidden(),
    LoginRefused(),
    NotConfirmed("0 of 1 replicas have it"),
    StoreFull(),
    ArchiveUnavailable(),
    StateUnreadable("steps[3]", "Field required"),
    InvalidSessionFile("sessions/s1.json", "its first line is no header of a session"),
    NotKept("metadata/plan", 3),
    StateTooNew(7, 1),
    ModelCallRefused("maxTokens of 100 reached"),
    DriverError("rate_limit", transient=True, status=429, code="slow", request_id="r1", retry_after=2.5),
    UnusableAnswer(request_id="r2"),
    JobEnded("expired", "the provider ended the batch"),
    NotYetKnown("the list is long"),
    PutOff("openai:gpt-5-mini is paused: an audit", 2.5, "pause:model:openai:gpt-5-mini"),
    StepDelayed("the model failed (HTTP 500)", 15.0),
    ExecutionFailed("e1", ("first", "the model did not answer")),
)


def test_every_error_is_here_and_in_the_drawing() -> None:
    kinds = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, CeleryAgentsError)}
    assert kinds == {CeleryAgentsError, *map(type, EXAMPLES)}
    assert errors.__doc__ is not None
    for kind in kinds:
        assert kind.__name__ in errors.__doc__


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_is_a_sentence_and_crosses_a_process(error: CeleryAgentsError) -> None:
    assert str(error)
    again: Any = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


def test_the_docstring_is_the_default_message() -> None:
    assert str(ClaimLost()) == "Another worker took this step over; nothing was written."
    assert str(ClaimLost("of e1.3")) == "of e1.3"


def test_bad_input_names_field_value_and_what_to_do_and_is_a_value_error() -> None:
    error = InvalidInput("max_steps", -1, "give a whole number from 0.")
    assert str(error) == "max_steps: give a whole number from 0. Got -1."
    assert isinstance(error, ValueError)
    assert (error.field, error.value) == ("max_steps", -1)


def test_a_long_value_is_cut_and_a_type_is_named() -> None:
    assert len(str(InvalidInput("name", "x" * 10_000, "shorter."))) < 200
    assert "a int" in str(InvalidInput("name", 10**5000, "smaller."))
    assert "a dict" in str(InvalidInput("name", {"key": "secret"}, "give text."))
    assert str(InvalidInput("name", list, "give text.")) == "name: give text. Got a list."


def test_a_driver_error_carries_what_a_retry_needs() -> None:
    error = DriverError("rate_limit", transient=True, status=429, retry_after=2.5)
    assert (error.kind, error.transient, error.status, error.retry_after) == ("rate_limit", True, 429, 2.5)
    assert UnusableAnswer().transient
    assert not UnusableAnswer(permanent=True).transient


def test_what_is_offered_is_named() -> None:
    assert "sales, support" in str(UnknownAgent("shop", ("support", "sales")))
    assert "No worker offers any agent" in str(UnknownAgent("shop"))
    assert "pip install 'celery-agents[openai]'" in str(MissingExtra("openai", "It"))
    assert "the model did not answer" in str(ExecutionFailed("e1", ("first", "the model did not answer")))


def test_an_expired_session_is_one_that_is_not_found() -> None:
    with pytest.raises(SessionNotFound, match="retention"):
        raise SessionExpired("s1")
