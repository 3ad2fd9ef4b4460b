"""The mark of an end that replicas are known to have, so that its readers need not confirm it."""

from __future__ import annotations

from typing import Final

from .context import SessionScope
from .database import Guard
from .records import StepRef

SAFE: Final = "safe"
"""The field of a session's hash: the version that the end has made, the execution, and its retries before that."""


def mark_safe(scope: SessionScope, version: int, ended: StepRef) -> None:
    """Say that the end which made this version is confirmed, where it is still the stored one."""
    keys, mark = scope.keys, f"{version} {ended.execution_id} {ended.retries}"
    guards: list[Guard] = [(("HMGET", keys.session, "version"), (version,))]
    scope.database.compare_and_apply("commit.safe", guards, [("HSET", keys.session, SAFE, mark)])


def is_safe(mark: bytes | None, version: bytes) -> bool:
    """Whether a mark is of this version of a session."""
    return mark is not None and mark.partition(b" ")[0] == version


def is_end_safe(mark: bytes | None, execution_id: str, retries: int) -> bool:
    """Whether a mark is of this end; the session may have changed since, but not by another end."""
    return mark is not None and mark.partition(b" ")[2] == f"{execution_id} {retries}".encode()
