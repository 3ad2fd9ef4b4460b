"""Errors as a sentence and an exit code."""

from __future__ import annotations

import pytest

from celery_agents.config.settings import SettingsError
from celery_agents.tasks.cli.exits import ExitCode, exit_code, sentence
from celery_agents.worker import errors


def every_error(kind: type[errors.CeleryAgentsError]) -> list[type[errors.CeleryAgentsError]]:
    return [kind, *(deeper for below in kind.__subclasses__() for deeper in every_error(below))]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.StoreUnavailable(), ExitCode.NO_REDIS),
        (errors.StoreFull(), ExitCode.NO_REDIS),
        (errors.UnknownAgent("x"), ExitCode.USAGE),
        (errors.SessionNotFound("x"), ExitCode.USAGE),
        (errors.SessionExpired("x"), ExitCode.USAGE),
        (errors.InvalidInput("a", 1, "b."), ExitCode.USAGE),
        (errors.MissingExtra("llm", "a model"), ExitCode.USAGE),
        (errors.IdempotencyMismatch(), ExitCode.USAGE),
        (SettingsError("x"), ExitCode.USAGE),
        (errors.ExecutionFailed("x"), ExitCode.FAILED),
        (errors.ActionRefused(), ExitCode.FAILED),
        (TimeoutError("not done after 3 s"), ExitCode.TIMEOUT),
    ],
)
def test_each_error_has_its_exit_code(error: Exception, code: ExitCode) -> None:
    assert exit_code(error) == code


def test_every_error_of_the_tree_has_a_code_and_a_docstring_to_fall_back_on() -> None:
    for kind in every_error(errors.CeleryAgentsError):
        made = kind.__new__(kind)
        made.args = ("",)
        assert exit_code(made) in ExitCode
        assert sentence(made).strip()


def test_a_sentence_begins_large_ends_with_a_stop_and_says_what_to_do() -> None:
    assert sentence(errors.ActionRefused("it has ended")) == "It has ended."
    assert sentence(errors.StoreUnavailable()).endswith("`celery-agents doctor` tells more.")
    full = "Redis is at its memory limit and refuses writes; free memory or raise maxmemory."
    assert sentence(errors.StoreFull(full)) == full
    forbidden = "Redis refuses this user: no permissions to run 'time'."
    assert sentence(errors.StoreForbidden(forbidden)) == f"{forbidden} deploy/redis/users.acl has what each role needs."
    login = sentence(errors.LoginRefused("Redis refuses this user: invalid username-password pair"))
    assert login.endswith("pair. Are user and password in CELERY_AGENTS_REDIS_URL (or --redis-url) right?")
    assert sentence(errors.NotConfirmed("0 of 1 replicas have it")) == (
        "Written, and not confirmed by a replica; ask again (0 of 1 replicas have it). `celery-agents doctor` says which "
        "replicas are missing."
    )
