"""Logging of our own loggers: text, or one JSON object a line with the ids that stand on the record."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from .settings import Settings

_LOGGER: Final = "celery_agents"
_FIELDS: Final = ("session_id", "execution_id", "step", "worker", "agent")


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, and session, execution and step where they are known."""

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        found |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False, default=str)


def configure_logging(settings: Settings) -> None:
    """Let our loggers write to standard error as the settings say; loggers of others stay as they are."""
    logger = logging.getLogger(_LOGGER)
    logger.setLevel(settings.log_level)
    for handler in [h for h in logger.handlers if getattr(h, "celery_agents", False)]:
        logger.removeHandler(handler)
    if settings.log_format == "json":
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter())
        handler.celery_agents = True  # pyright: ignore[reportAttributeAccessIssue]
        logger.addHandler(handler)
        logger.propagate = False
    else:
        logger.propagate = True
