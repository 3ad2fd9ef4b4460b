"""Exit codes, and the sentence that an error is printed as."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from ...config.settings import SettingsError
from ...worker import errors
from ..local.child_processes import ChildEnded


class ExitCode(IntEnum):
    """Exit codes of the command line."""

    DONE = 0
    FAILED = 1
    """The execution failed or was stopped, or the action was refused."""
    USAGE = 2
    """A wrong option, name, id or setting."""
    NO_REDIS = 3
    """Redis was not reachable, or refused to write."""
    TIMEOUT = 4
    """The execution has not ended within `--timeout`."""


# The first line that fits decides.
_CODES: Final[tuple[tuple[type[BaseException], ExitCode], ...]] = (
    (errors.ArchiveUnavailable, ExitCode.FAILED),
    (errors.StoreUnavailable, ExitCode.NO_REDIS),
    (errors.StoreFull, ExitCode.NO_REDIS),
    (SettingsError, ExitCode.USAGE),
    (errors.ConfigurationError, ExitCode.USAGE),
    (errors.InvalidInput, ExitCode.USAGE),
    (errors.IdempotencyMismatch, ExitCode.USAGE),
    (errors.UnknownAgent, ExitCode.USAGE),
    (errors.SessionNotFound, ExitCode.USAGE),
    (errors.RequestNotFound, ExitCode.USAGE),
    (errors.SessionConflict, ExitCode.USAGE),
    (errors.CeleryAgentsError, ExitCode.FAILED),
    (ChildEnded, ExitCode.FAILED),
    (TimeoutError, ExitCode.TIMEOUT),
)

EXPECTED: Final = (errors.CeleryAgentsError, SettingsError, ChildEnded, TimeoutError)
"""Errors that are printed as a sentence. Any other is a bug."""


def exit_code(error: BaseException) -> ExitCode:
    """Find the exit code of an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)


def sentence(error: BaseException) -> str:
    """Write an error as a sentence: what happened and what to do."""
    text = str(error).strip() or (type(error).__doc__ or type(error).__name__).strip()
    advice = next((advice for kind, advice in _ADVICE if isinstance(error, kind)), "")
    named = text.split(maxsplit=1)[0].endswith(":")  # a field, an option: names stay as they are written
    first = text[0] if named else text[0].upper()
    return f"{first}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}{advice}"


# The first line that fits decides.
_ADVICE: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (errors.ArchiveUnavailable, ""),
    (errors.NotConfirmed, " `celery-agents doctor` says which replicas are missing."),
    (errors.LoginRefused, " Are user and password in CELERY_AGENTS_REDIS_URL (or --redis-url) right?"),
    (errors.StoreForbidden, " deploy/redis/users.acl has what each role needs."),
    (
        errors.StoreUnavailable,
        " Is Redis running, and is CELERY_AGENTS_REDIS_URL (or --redis-url) right? `celery-agents doctor` tells more.",
    ),
)
