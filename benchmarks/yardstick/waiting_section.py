"""The section of docs/benchmarks.md about sessions that wait, which can be measured by itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime

from .environments import BENCHMARKS

DOCUMENT = BENCHMARKS.parent / "docs" / "benchmarks.md"
TITLE = "## Sessions that wait\n"

# The figure, its key, and the most that it may be; None: it is told without a target.
_ROWS = (
    ("answer to the woken step's first event, ms (median)", "answer_to_event_ms", None),
    ("submit to an ordinary step's first event, ms (median)", "submit_to_event_ms", None),
    ("the first over the second", "answer_to_submit_ratio", 3),
    ("CPU of the worker before, percent of a core", "worker_cpu_percent_nobody_waits", None),
    ("CPU of the worker while all wait", "worker_cpu_percent_all_wait", None),
    ("CPU of Redis before", "redis_cpu_percent_nobody_waits", None),
    ("CPU of Redis while all wait", "redis_cpu_percent_all_wait", None),
    ("messages in the queue while all wait", "waiting_messages", 0),
    ("leases while all wait", "waiting_leases", 0),
    ("memory of a waiting session, bytes", "waiting_memory", None),
    ("… beyond what it has written", "waiting_memory_overhead", 2048),
    ("a page of 50 of the inbox, ms (median)", "inbox_page_ms", None),
    ("… commands to Redis", "inbox_page_commands", 1),
    ("sessions answered and completed in a second", "answered_and_complete_per_second", None),
)


def waiting_section(figures: Mapping[str, object]) -> str:
    """Write the section; it ends with a line break."""
    load = ", ".join(f"{part:.1f}" for part in os.getloadavg())
    count = f"{figures['waiting_sessions']:,}".replace(",", " ")
    lines = [
        TITLE,
        f"{count} sessions of one worker wait for an approval at the same time. Then one client approves",
        "all of them, and they complete. `make bench-waiting` measures this and writes this section.\n",
        f"Measured {datetime.now(UTC):%Y-%m-%d}; load average at the end {load}.\n",
        "| figure | target | measured |",
        "|---|---|---|",
    ]
    for title, key, most in _ROWS:
        value = figures[key]
        met = most is None or (isinstance(value, int | float) and value <= most)
        target = "" if most is None else f"≤ {most}"
        lines.append(f"| {title} | {target} | {value}{'' if met else ' (missed)'} |")
    return "\n".join(lines) + "\n"


def replace_waiting_section(figures: Mapping[str, object]) -> None:
    """Put the section into the document in place of the old one, or before its last section."""
    text = DOCUMENT.read_text(encoding="utf-8")
    sections = [part for part in re.split(r"(?m)^(?=## )", text) if not part.startswith(TITLE)]
    sections.insert(len(sections) - 1, waiting_section(figures) + "\n")
    DOCUMENT.write_text("".join(sections), encoding="utf-8")
