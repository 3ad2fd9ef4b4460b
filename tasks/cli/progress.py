"""Show the progress of a job: a moving line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.text import Text

from ...config.escaping import escape, indent
from ..client.json_values import tree_event_value
from .event_lines import EventLines
from .views import as_json, one_line

if TYPE_CHECKING:
    from ...worker.store.event_records import Event
    from ...worker.store.live.streams import LiveDelta
    from ...worker.store.session_records import Result
    from ..client.client import AgentClient
    from ..client.job import Job

_INDENT: Final = "    "
_TAIL_CHARS: Final = 60
_THINKING: Final = "thinking"


class PlainScreen:
    """Prints a line for each event that says something to people, and text as it comes; for files, pipes and logs."""

    def __init__(self, console: Console, lines: EventLines) -> None:
        self._console = console
        self._lines = lines
        self._writing: tuple[object, ...] | None = None

    def show(self, event: Event) -> None:
        """Print the event's line, if it has one; behind text it begins a new one."""
        line = self._lines.line(event)
        if line is not None:
            self._end_text()
            self._console.out(line, highlight=False)

    def write(self, delta: LiveDelta) -> None:
        """Print a piece behind those of the same part; another part begins a new line."""
        part = _part_of(delta)
        if self._writing != part:
            self._end_text()
            self._console.out(_INDENT, end="", highlight=False)
        self._writing = part
        self._console.out(indent(delta.text, _INDENT), end="", highlight=False)
        self._console.file.flush()

    def _end_text(self) -> None:
        if self._writing is not None:
            self._console.out("")
        self._writing = None


class LiveScreen:
    """Prints the same lines, text by whole lines, and below them what runs and is written right now."""

    def __init__(self, console: Console, lines: EventLines) -> None:
        self._console = console
        self._plain = PlainScreen(console, lines)
        self._lines = lines
        self._status = console.status("waiting for a worker", spinner="dots")
        self._writing: tuple[object, ...] | None = None
        self._line = ""

    def show(self, event: Event) -> None:
        """Print the event's line and update the moving one; a line that is being written ends before it."""
        self._end_line()
        self._plain.show(event)
        status = self._lines.status(event)
        if status is not None:
            self._status.update(status)

    def write(self, delta: LiveDelta) -> None:
        """Print the lines that are whole, and show the end of the one that is not."""
        if self._writing != _part_of(delta):
            self._end_line()
        self._writing = _part_of(delta)
        *whole, self._line = (self._line + escape(delta.text)).split("\n")
        for line in whole:
            self._console.out(_INDENT + line, highlight=False)
        self._status.update(Text(self._line[-_TAIL_CHARS:]))

    def start(self) -> None:
        """Start the moving line."""
        self._status.start()

    def stop(self) -> None:
        """Remove the moving line."""
        self._end_line()
        self._status.stop()

    def _end_line(self) -> None:
        if self._line:
            self._console.out(_INDENT + self._line, highlight=False)
        self._line, self._writing = "", None


def _part_of(delta: LiveDelta) -> tuple[object, ...]:
    return delta.execution_id, delta.step, delta.attempt, delta.call, delta.part


@contextmanager
def screen(*, to_stderr: bool = False) -> Generator[PlainScreen | LiveScreen]:
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
    """Show a job's events and the text of its steps until it ends, and return its result.

    Raises:
        TimeoutError: The job has not ended in time, and is not stopped.
        KeyboardInterrupt: Ctrl-C was pressed; the job is not stopped, and the terminal says how to look again.
    """
    with _say_how_to_look_again(job.session_id):
        with screen(to_stderr=to_stderr) as opened:
            for item in job.stream(from_id, timeout=timeout_seconds):
                if item.event is not None:
                    opened.show(item.event)
                elif item.delta is not None and item.delta.text and item.delta.part != _THINKING:
                    opened.write(item.delta)
        return job.result(timeout=timeout_seconds)


def follow_tree(client: AgentClient, job: Job, timeout_seconds: float | None, *, json: bool) -> Result:
    """Print the events of a tree until its root ends; give the root's result, and raise as `follow` does."""
    lines = EventLines()
    with _say_how_to_look_again(f"{job.session_id} --tree"):
        for found in client.tree_events(job.session_id, timeout=timeout_seconds):
            label = f"{'  ' * (len(found.path) - 1)}{one_line(found.agent)}: "  # indented by its depth
            line = as_json(tree_event_value(found)) if json else lines.line(found.event, label)
            if line is not None:
                print(line, flush=True)
        return job.result(timeout=timeout_seconds)


@contextmanager
def _say_how_to_look_again(session: str) -> Generator[None]:
    try:
        yield
    except (KeyboardInterrupt, TimeoutError):
        print(f"the job goes on; look again with: celery-agents watch {session}", file=sys.stderr)
        raise
