"""Values of the doctor: an installation to look at, and what a check finds there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from celery import Celery

from ....config.settings import Settings
from ....worker.store.store import Store


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check has looked at.

    Attributes:
        advice: What to do; "" when all is well.
    """

    name: str
    level: Level
    what: str
    advice: str = ""

    @classmethod
    def ok(cls, name: str, what: str) -> Finding:
        """All is well."""
        return cls(name=name, level=Level.OK, what=what)

    @classmethod
    def warn(cls, name: str, what: str, advice: str) -> Finding:
        """Agents run, and something should be changed."""
        return cls(name=name, level=Level.WARN, what=what, advice=advice)

    @classmethod
    def judge(cls, name: str, what: str, advice: str) -> Finding:
        """All is well, unless there is something to advise."""
        return cls.warn(name, what, advice) if advice else cls.ok(name, what)

    @classmethod
    def fail(cls, name: str, what: str, advice: str) -> Finding:
        """Agents cannot run, or sessions may be lost."""
        return cls(name=name, level=Level.FAIL, what=what, advice=advice)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """An installation that the doctor looks at.

    Attributes:
        app: The Celery app that publishes steps.
        existing_app: The user's own app, whose settings are looked at too; None when there is none.
        server_facts: The lines of Redis's `INFO`, and its time as `now_ms`.
        workers: Facts of the live workers by name.
    """

    settings: Settings
    app: Celery
    existing_app: Celery | None
    store: Store
    server_facts: Mapping[str, str]
    workers: Mapping[str, Mapping[str, Any]]


Check = Callable[[Installation], Iterator[Finding]]
"""Looks at one thing and gives what it finds: nothing, one finding or several."""
