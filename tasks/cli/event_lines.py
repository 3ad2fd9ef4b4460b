"""Events of a job as lines for people. Pure: the time of the first event counts as the beginning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from .views import one_line, plural

if TYPE_CHECKING:
    from ...worker.store import Event

Data = Mapping[str, Any]

_STEP_BEGINS: Final = ("execution_started", "step_recovered", "step_retried")


class EventLines:
    """Writes the events of one job as lines, with the seconds since its first event."""

    def __init__(self) -> None:
        self._beginning_ms: int | None = None

    def line(self, event: Event) -> str | None:
        """Describe an event in a line; None when it says nothing to people."""
        self._beginning_ms = self._beginning_ms or event.at_ms
        text = _DESCRIPTIONS.get(event.type, _describe_by_name)(event)
        if text is None:
            return None
        passed = max(0, event.at_ms - self._beginning_ms) / 1000
        return f"{passed:7.2f} s  {one_line(text)}"

    def status(self, event: Event) -> str | None:
        """Say what runs after the event; None when that has not changed."""
        if event.type == "step_committed":
            return f"step {event.step + 1}" if event.data.get("tools") else None
        return f"step {event.step}" if event.type in _STEP_BEGINS else None


def describe_tools(tools: Iterable[Data]) -> str:
    """List tool calls like `read_file ×3, file_note (error)`, in the order of the first call of each."""
    names = [
        f"{tool['name']}{'' if tool.get('outcome', 'ok') == 'ok' else ' (' + tool['outcome'] + ')'}" for tool in tools
    ]
    return ", ".join(name if number == 1 else f"{name} ×{number}" for name, number in Counter(names).items())


def _describe_commit(event: Event) -> str:
    parts = [describe_tools(event.data.get("tools", ())) or "answers"]
    if event.data.get("tokens"):
        parts.append(plural(event.data["tokens"], "token"))
    return f"step {event.step}: {' · '.join(parts)}"


def _describe_recovery(event: Event) -> str:
    data = event.data
    return f"step {event.step}: carried on by {data.get('worker', 'another worker')}, attempt {data.get('attempt')}"


def _describe_end(event: Event) -> str:
    data = event.data
    numbers = [plural(data["steps"], "step")] if data.get("steps") else []
    numbers += [plural(data["tokens"], "token")] if data.get("tokens") else []
    numbers += [f"${data['cost']:.4f}"] if data.get("cost") else []
    why = data.get("error") or (data.get("reason") if data.get("status") == "stopped" else None)
    return f"{data.get('status', 'ended')}{': ' if numbers else ''}{', '.join(numbers)}{f' ({why})' if why else ''}"


def _describe_by_name(event: Event) -> str:
    return event.type.replace("_", " ")


_DESCRIPTIONS: Final[Mapping[str, Callable[[Event], str | None]]] = {
    "execution_submitted": lambda event: None,
    "execution_started": lambda event: "started",
    "step_committed": _describe_commit,
    "step_recovered": _describe_recovery,
    "step_retried": lambda event: f"step {event.step} is tried again",
    "message_received": lambda event: "a message arrived; the running step goes first",
    "message_joined": lambda event: "a message joined",
    "execution_waiting": lambda event: "waiting for a person",
    "execution_completed": _describe_end,
    "execution_stopped": _describe_end,
    "execution_failed": _describe_end,
    "parked": lambda event: f"parked: {event.data.get('reason', '')}",
}
