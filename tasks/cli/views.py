"""Texts and JSON that the command line prints. Pure: values in, text out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ...config.escaping import escape, escape_json

if TYPE_CHECKING:
    from ..client.job import Job
    from ..observability.doctor.findings import Finding

_MAX_LINE: Final = 160


def clean(text: str) -> str:
    """Escape control characters: a text of a model or a tool must not move the cursor of a terminal."""
    return escape(text)


def one_line(text: str, limit: int = _MAX_LINE) -> str:
    """Put a text on one line, cut at `limit` characters."""
    flat = clean(" ".join(text.split()))
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def as_json(value: Any) -> str:
    """Write a value as one line of JSON, times in ISO 8601."""
    return escape_json(json.dumps(value, ensure_ascii=False, default=_write_other))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write rows as lines of aligned columns, two spaces between them."""
    cells = [list(head), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def plural(number: int, noun: str) -> str:
    """`1 step`, `3 steps`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def age(then: datetime, now: datetime | None = None) -> str:
    """How long ago, in one unit: 12s, 5m, 3h, 2d."""
    seconds = max(0.0, ((now or datetime.now(UTC)) - then).total_seconds())
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def seconds(value: float) -> str:
    """A duration for people."""
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def job_line(job: Job) -> str:
    """The ids of a job."""
    return f"session {job.session_id}  execution {job.execution_id}"


def finding_value(finding: Finding) -> dict[str, str]:
    """A finding of `doctor` as JSON."""
    return {"name": finding.name, "level": finding.level.value, "what": finding.what, "advice": finding.advice}


def _write_other(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)
