"""Show the progress of a job: a moving line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Console

from .event_lines import EventLines

if TYPE_CHECKING:
    from ...worker.store import Event, Result
    from ..client.job import Job


class Screen(Protocol):
    """Shows the progress of a job."""

    def show(self, event: Event) -> None:
        """Show one event."""
        ...


class PlainScreen:
    """Prints one line for each event that says something to people; for files, pipes and logs."""

    def __init__(self, console: Console, lines: EventLines) -> None:
        self._console = console
        self._lines = lines

    def show(self, event: Event) -> None:
        """Print the event's line, if it has one."""
        line = self._lines.line(event)
        if line is not None:
            self._console.out(line, highlight=False)


class LiveScreen:
    """Prints the same lines, and below them what runs right now."""

    def __init__(self, console: Console, lines: EventLines) -> None:
        self._plain = PlainScreen(console, lines)
        self._lines = lines
        self._status = console.status("waiting for a worker", spinner="dots")

    def show(self, event: Event) -> None:
        """Print the event's line and update the moving one."""
        self._plain.show(event)
        status = self._lines.status(event)
        if status is not None:
            self._status.update(status)

    def start(self) -> None:
        """Start the moving line."""
        self._status.start()

    def stop(self) -> None:
        """Remove the moving line."""
        self._status.stop()


@contextmanager
def screen(*, to_stderr: bool = False) -> Generator[Screen]:
    """Open a live screen in a terminal, a plain one elsewhere."""
    console = Console(stderr=to_stderr, soft_wrap=True)
    if not console.is_terminal:
        yield PlainScreen(console, EventLines())
        return
    live = LiveScreen(console, EventLines())
    live.start()
    try:
        yield live
    finally:
        live.stop()


def follow(
    job: Job, timeout_seconds: float | None = None, *, from_id: str | None = None, to_stderr: bool = False
) -> Result:
    """Show a job's events until it ends and return its result.

    Raises:
        TimeoutError: The job has not ended in time; it goes on.
        KeyboardInterrupt: Ctrl-C was pressed; the job goes on, and the terminal says how to look again.
    """
    try:
        with screen(to_stderr=to_stderr) as opened:
            for event in job.events(from_id, timeout=timeout_seconds):
                opened.show(event)
        return job.result(timeout=timeout_seconds)
    except (KeyboardInterrupt, TimeoutError):
        print(f"the job goes on; look again with: celery-agents watch {job.session_id}", file=sys.stderr)
        raise
