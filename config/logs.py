"""Logging: text, or one JSON object a line with the ids of the session, execution and step it belongs to."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final

from .settings import Settings

_LOGGER: Final = "celery_agents"
_FIELDS: Final = ("session_id", "execution_id", "step", "worker", "agent")
# What the current step is; copied into the threads and coroutines that work for it.
_work: Final[ContextVar[Mapping[str, object]]] = ContextVar("celery_agents_log", default={})  # noqa: B039 - never changed


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, and session, execution and step where they are known."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line of JSON; what stands on the record itself goes before what the context says."""
        found: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_work.get(),
        }
        found |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False, default=str)


def log_as(**fields: object) -> None:
    """From now on lines of this thread or coroutine, and of what it starts, bear these fields."""
    _work.set(fields)


@contextlib.contextmanager
def logged_as(**fields: object) -> Generator[None]:
    """Lines logged meanwhile bear these fields."""
    token = _work.set(fields)
    try:
        yield
    finally:
        _work.reset(token)


def configure_logging(settings: Settings, *, everybody: bool = False) -> None:
    """Let our loggers write to standard error as the settings say.

    Args:
        everybody: The process is ours: in JSON all its loggers write JSON. Else those of others stay as they are.
    """
    logger = logging.getLogger(_LOGGER)
    logger.setLevel(settings.log_level)
    for handler in [h for h in logger.handlers if getattr(h, "celery_agents", False)]:
        logger.removeHandler(handler)
    if settings.log_format != "json":
        logger.propagate = True
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.celery_agents = True  # pyright: ignore[reportAttributeAccessIssue]
    logger.addHandler(handler)
    logger.propagate = False
    if everybody:
        _write_json_everywhere()


def _write_json_everywhere() -> None:
    logging.captureWarnings(True)
    known = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    for logger in (logging.root, *known):
        for handler in logger.handlers:
            handler.setFormatter(JsonFormatter())
