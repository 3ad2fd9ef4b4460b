"""Logging: text, or one JSON object a line with the ids of session, execution and step."""

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
# Fields of the current step; threads and coroutines that work for it get a copy.
_step_fields: Final[ContextVar[Mapping[str, object]]] = ContextVar("celery_agents_log", default={})  # noqa: B039 - never changed


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, and session, execution and step where they are known."""

    def format(self, record: logging.LogRecord) -> str:
        """Write the record as a line of JSON; fields of the record override those of the context."""
        found: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_step_fields.get(),
        }
        found |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False, default=str)


def log_as(**fields: object) -> None:
    """Add these fields to all further lines of this thread or coroutine, and of those it starts."""
    _step_fields.set(fields)


@contextlib.contextmanager
def logged_as(**fields: object) -> Generator[None]:
    """Add these fields to the lines that are logged in the block."""
    token = _step_fields.set(fields)
    try:
        yield
    finally:
        _step_fields.reset(token)


def configure_logging(settings: Settings, *, everybody: bool = False) -> None:
    """Set up our loggers as the settings say: level, and text or JSON on standard error.

    Args:
        everybody: Whether all loggers of the process write JSON, as in our own worker. Otherwise only ours do.
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
