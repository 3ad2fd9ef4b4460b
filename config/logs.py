"""Logging: text, or one JSON object a line with the ids of session, execution and step.

In both forms, what somebody else wrote cannot act on a terminal or look like a line of its own, and known secrets are
replaced.
"""

from __future__ import annotations

import copy
import json
import logging
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final

from .escaping import escape_json, indent
from .settings import Settings

_LOGGER: Final = "celery_agents"
_FIELDS: Final = ("session_id", "execution_id", "step", "worker", "agent")
# Fields of the current step; threads and coroutines that work for it get a copy.
_step_fields: Final[ContextVar[Mapping[str, object]]] = ContextVar("celery_agents_log", default={})  # noqa: B039 - never changed


Redact = Callable[[str], str]
"""Replaces secrets in a text."""


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, and session, execution and step where they are known."""

    def __init__(self, redact: Redact = str) -> None:
        super().__init__()
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """Write the record as a line of JSON; fields of the record override those of the context."""
        found: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": self._redact(record.getMessage()),
            **_step_fields.get(),
        }
        found |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            found["exception"] = self._redact(self.formatException(record.exc_info))
        return escape_json(json.dumps(found, ensure_ascii=False, default=str))


class TextFormatter(logging.Formatter):
    """Formats as another formatter does, with the text of the record made safe before."""

    def __init__(self, inner: logging.Formatter | None, redact: Redact) -> None:
        super().__init__()
        self.inner = inner or logging.Formatter()
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """Write the record; further lines of its message and of its traceback are indented."""
        message = record.getMessage()
        redacted = self._redact(message)
        is_plain = message.isascii() and message.isprintable() and redacted == message
        if is_plain and not (record.exc_info or record.exc_text or record.stack_info):
            return self.inner.format(record)  # two of these are written in each step
        safe = copy.copy(record)
        safe.msg, safe.args = indent(redacted), ()
        if record.exc_info or record.exc_text:
            text = record.exc_text or self.formatException(record.exc_info)  # pyright: ignore[reportArgumentType]
            safe.exc_info, safe.exc_text = None, indent(f"\n{self._redact(text)}").strip("\n")
        if record.stack_info:
            safe.stack_info = indent(f"\n{self._redact(record.stack_info)}").strip("\n")
        return self.inner.format(safe)


def log_as(**fields: object) -> None:
    """Add these fields to all further lines of this thread or coroutine, and of those it starts."""
    _step_fields.set(fields)


class LoggedAs:
    """Adds fields to the lines that are logged in a `with` block."""

    __slots__ = ("_fields", "_token")

    def __init__(self, **fields: object) -> None:
        self._fields = fields

    def __enter__(self) -> None:
        self._token = _step_fields.set(self._fields)

    def __exit__(self, *_: object) -> None:
        _step_fields.reset(self._token)


def try_to_print(write: Callable[[], object]) -> None:
    """Print; a full disk, or a reader that has gone, ends no service: it prints nothing more."""
    try:
        write()
    except OSError:
        drop_output()


def drop_output() -> None:
    """Send further output nowhere: the interpreter would report at its exit what is left of it."""
    sys.stdout = sys.__stdout__ = open("/dev/null", "w")  # noqa: SIM115, PTH123 — it stays open until the process ends


def configure_logging(settings: Settings, *, redact: Redact = str, everybody: bool = False) -> None:
    """Set up our loggers as the settings say: level, and text or JSON on standard error.

    Args:
        redact: Replaces the secrets of the process.
        everybody: Whether the process is our own worker, all of whose loggers are set up. Otherwise only ours are, and
            text goes to the handlers of the process as they are.
    """
    logger = logging.getLogger(_LOGGER)
    logger.setLevel(settings.log_level)
    for handler in [h for h in logger.handlers if getattr(h, "celery_agents", False)]:
        logger.removeHandler(handler)
    if settings.log_format != "json":
        logger.propagate = True
        if everybody:
            _format_everywhere(lambda formatter: _as_safe_text(formatter, redact))
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(redact))
    handler.celery_agents = True  # pyright: ignore[reportAttributeAccessIssue]
    logger.addHandler(handler)
    logger.propagate = False
    if everybody:
        logging.captureWarnings(True)
        _format_everywhere(lambda _: JsonFormatter(redact))


def log_everything_as_json(settings: Settings, *, redact: Redact = str) -> None:
    """Let each line that this process logs be JSON from now on, warnings and those of all libraries too.

    Args:
        redact: Replaces the secrets of the process.
    """
    handler = logging.StreamHandler(sys.stderr)
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    configure_logging(settings, redact=redact, everybody=True)


def _as_safe_text(formatter: logging.Formatter | None, redact: Redact) -> logging.Formatter:
    return formatter if isinstance(formatter, TextFormatter) else TextFormatter(formatter, redact)


def _format_everywhere(change: Callable[[logging.Formatter | None], logging.Formatter]) -> None:
    known = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    for logger in (logging.root, *known):
        for handler in logger.handlers:
            handler.setFormatter(change(handler.formatter))
